//! Reads the topics and applies their records, batch by batch.
//!
//! Invariant: a batch is one transaction: its rows, the offsets that were read, the cursors that
//! were reached, and when everything was read. It is committed as soon as there is nothing more to
//! read at the moment.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::decode::{DecodedRecord, Decoder};
use super::pool::ConnectionPool;
use super::progress::ProgressPublisher;
use super::progress_poller::{PartitionEnds, ProgressPoller};
use super::projector::{Projector, ProjectorCache, encode_position};
use super::retention::Retention;
use super::source::{SOURCE_COUNT, ViewSource};
use super::{ViewError, schema};
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::model::{Offset, PartitionId, Timestamp};
use crate::telemetry;

/// The part of the gateway's health that this is.
pub(super) const HEALTH_PART: &str = "view";
/// Records of a batch at most.
const BATCH_MAX: usize = 4_000;
/// Records of one topic before the other topics are read.
const TOPIC_TURN_MAX: usize = 500;
/// How long a batch takes at most: a caller that waits for one of its records waits this long.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// How long the reader waits for a record of one topic when there is nothing to do.
const IDLE_WAIT: Duration = Duration::from_millis(2);
/// How long a partition must have no records before the rest up to its end is taken for markers.
const CONFIRM_AFTER_IDLE: Duration = Duration::from_millis(15);
/// How long a partition is paused while the schema registry is unavailable.
const REGISTRY_PAUSE: Duration = Duration::from_secs(1);
/// How long the broker may take to return the start offsets of the partitions.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause while the brokers are unavailable.
const UNAVAILABLE_PAUSE: Duration = Duration::from_millis(100);
/// With less lag than this, in ms, the view counts as caught up.
const LAG_READY_MAX_MS: u64 = 10_000;

/// A partition of a topic, as far as it is read.
#[derive(Clone, Copy, Debug)]
struct PartitionProgress {
    /// Everything below is applied.
    next_offset: Offset,
    dirty: bool,
    read_at: Instant,
    /// The reader was started again: if it reaches the end, everything below this offset is read.
    confirming: Option<Offset>,
    /// Until then it is not read, because the schema registry is unavailable. It counts as unread:
    /// lists lack its records. So the view lags, and its gateway stays ready.
    paused_until: Option<Instant>,
}

struct TopicInput {
    topic: String,
    reader: LogReader,
    partitions: Vec<PartitionProgress>,
}

/// The state of the thread while it reads.
pub(super) struct ViewConsumer<'a> {
    db: &'a Connection,
    report: &'a ProgressPublisher,
    health: &'a Health,
    cache: ProjectorCache,
    decoder: Decoder,
    inputs: Vec<TopicInput>,
    admin: KafkaAdminClient,
    polled: Receiver<PartitionEnds>,
    /// The polled ends of each partition that are not reached yet.
    pending: Vec<Option<PartitionEnds>>,
    /// When the ends of each partition were polled that were reached last; 0 before the first.
    as_of: Vec<Timestamp>,
    /// After a longer time without an end that was reached, tombstones may be missed.
    age_max: Duration,
    retention: Retention,
    in_transaction: bool,
    _poller: DropGuard,
}

/// The result of one poll.
enum PollResult {
    Empty,
    Handled,
    Unavailable,
}

impl<'a> ViewConsumer<'a> {
    pub(super) fn new(
        settings: &Settings,
        db: &'a Connection,
        report: &'a ProgressPublisher,
        health: &'a Health,
    ) -> Result<Self, ViewError> {
        let names = Names::new(&settings.topics.prefix);
        let topics = [names.triggers(), names.ledger(), names.outcomes(), names.dead_letters()];
        let partitions = usize::from(settings.topics.partitions.get());
        let admin = KafkaAdminClient::open(settings, TIMEOUT)?;
        let mut inputs = Vec::with_capacity(SOURCE_COUNT);
        for (source, topic) in ViewSource::ALL.into_iter().zip(topics.clone()) {
            let reader = LogReader::open(settings, &format!("{}.views", settings.topics.prefix))?;
            let parts = load_positions(db, source, partitions)?;
            inputs.push(TopicInput { topic, reader, partitions: parts });
        }
        let (sender, polled) = channel();
        let stop = CancellationToken::new();
        ProgressPoller::start(settings, topics, sender, stop.clone())?;
        let payload_max = usize::try_from(settings.gateway.view_payload_max.bytes());
        let mut consumer = Self {
            db,
            report,
            health,
            cache: ProjectorCache::load(db, payload_max.unwrap_or(usize::MAX))?,
            decoder: Decoder::new(settings)?,
            inputs,
            admin,
            polled,
            pending: (0..partitions).map(|_| None).collect(),
            as_of: report.as_of(),
            age_max: settings.store.state_age_max,
            retention: Retention::new(settings.gateway.view_retention),
            in_transaction: false,
            _poller: stop.drop_guard(),
        };
        consumer.start_readers()?;
        Ok(consumer)
    }

    /// Whether every partition was reached once.
    pub(super) fn has_caught_up(&self) -> bool {
        self.all_read_at() > 0
    }

    /// When everything in the topics was read, in ms since the epoch; 0 if it never was.
    fn all_read_at(&self) -> Timestamp {
        self.as_of.iter().copied().min().unwrap_or(0)
    }

    /// Reads and applies records until `shutdown`, or until a query finds the file corrupt.
    pub(super) fn run(
        &mut self,
        shutdown: &CancellationToken,
        pool: &ConnectionPool,
    ) -> Result<(), ViewError> {
        while !shutdown.is_cancelled() {
            self.run_batch(shutdown)?;
            self.publish_progress();
            pool.check_corruption()?;
        }
        Ok(())
    }

    /// Starts to read every partition where reading has ended.
    fn start_readers(&mut self) -> Result<(), ViewError> {
        for input in &mut self.inputs {
            for (partition, part) in (0..).zip(&mut input.partitions) {
                let (low, end) = self.admin.bounds(&input.topic, partition)?;
                if part.next_offset > end {
                    let (topic, next) = (&input.topic, part.next_offset);
                    let what = format!("{topic}[{partition}] ends at {end}, below {next}");
                    return Err(ViewError::Incompatible(what));
                }
                part.next_offset = part.next_offset.max(low);
            }
            // Request all ends before the first fetch: a broker answers the requests of a
            // connection in order.
            for (partition, part) in (0..).zip(&input.partitions) {
                input.reader.start(&input.topic, partition, part.next_offset)?;
            }
        }
        Ok(())
    }

    fn run_batch(&mut self, shutdown: &CancellationToken) -> Result<(), ViewError> {
        let started = clock::monotonic();
        let (mut folded, mut wait) = (0, IDLE_WAIT);
        loop {
            let mut received = 0;
            for source in ViewSource::ALL {
                received += self.read_source(source, wait)?;
                if received > 0 {
                    wait = Duration::ZERO;
                }
            }
            self.apply_reached_cursors()?;
            folded += received;
            let now = clock::monotonic();
            if received == 0 || folded >= BATCH_MAX || now - started >= BATCH_TIME {
                break;
            }
        }
        self.confirm_ends()?;
        if !self.in_transaction && !shutdown.is_cancelled() {
            let now = clock::now_ms();
            if self.retention.is_due(now) {
                self.begin_transaction()?;
                let mut projector = Projector { db: self.db, cache: &mut self.cache };
                self.retention.run_step(&mut projector, now)?;
            }
        }
        self.commit()
    }

    /// Reads the available records of a topic, at most [`TOPIC_TURN_MAX`].
    fn read_source(&mut self, source: ViewSource, wait: Duration) -> Result<usize, ViewError> {
        let mut wait = wait;
        for taken in 0..TOPIC_TURN_MAX {
            match self.poll_record(source, wait)? {
                PollResult::Empty => return Ok(taken),
                PollResult::Handled => wait = Duration::ZERO,
                PollResult::Unavailable => {
                    std::thread::sleep(UNAVAILABLE_PAUSE);
                    return Ok(taken);
                }
            }
        }
        Ok(TOPIC_TURN_MAX)
    }

    fn poll_record(&mut self, source: ViewSource, wait: Duration) -> Result<PollResult, ViewError> {
        let input = &mut self.inputs[source as usize];
        let read = match input.reader.poll(wait) {
            Ok(None) => return Ok(PollResult::Empty),
            Ok(Some(read)) => read,
            Err(error) => {
                tracing::debug!(topic = input.topic, %error, "reading failed; retrying");
                return Ok(PollResult::Unavailable);
            }
        };
        let message = match read {
            ReadEvent::Record(message) => message,
            ReadEvent::PartitionEof(partition) => {
                let part = partition_mut(&mut input.partitions, partition);
                if let Some(end) = part.confirming.take() {
                    part.dirty |= end > part.next_offset;
                    part.next_offset = part.next_offset.max(end);
                }
                return Ok(PollResult::Handled);
            }
            ReadEvent::OutOfRange(reason) => {
                tracing::warn!(
                    topic = input.topic,
                    reason,
                    "the view has missed records: the offset to read is out of range"
                );
                self.start_readers()?;
                return Ok(PollResult::Handled);
            }
        };
        let (_, partition, offset) = message.position();
        let part = partition_mut(&mut input.partitions, partition);
        if part.paused_until.is_some() || offset < part.next_offset {
            return Ok(PollResult::Handled);
        }
        let record = match self.decoder.decode(source, &message) {
            Ok(record) => record,
            Err(ViewError::Unavailable(reason)) => {
                tracing::warn!(
                    topic = input.topic,
                    partition,
                    reason,
                    "the view pauses a partition: the schema registry is unavailable"
                );
                part.paused_until = Some(clock::monotonic() + REGISTRY_PAUSE);
                part.confirming = None;
                input.reader.stop(&input.topic, partition)?;
                return Ok(PollResult::Handled);
            }
            Err(error) => return Err(error),
        };
        part.next_offset = offset + 1;
        (part.dirty, part.confirming, part.read_at) = (true, None, clock::monotonic());
        self.apply(record, partition, offset)?;
        metrics::counter!(telemetry::VIEW_FOLDED, "topic" => source.label()).increment(1);
        Ok(PollResult::Handled)
    }

    fn apply(
        &mut self,
        record: Option<DecodedRecord>,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), ViewError> {
        self.begin_transaction()?;
        let mut projector = Projector { db: self.db, cache: &mut self.cache };
        match record {
            None => Ok(()),
            Some(DecodedRecord::Trigger(record, named)) => {
                if let Some(named) = named {
                    projector.apply_schema_use(encode_position(partition, offset), &named)?;
                }
                projector.apply_trigger(partition, *record)
            }
            Some(DecodedRecord::Ledger(at, record)) => projector.apply_ledger(at, *record),
            Some(DecodedRecord::Outcome(outcome)) => {
                projector.apply_outcome(partition, offset, &outcome)
            }
            Some(DecodedRecord::DeadLetter(letter)) => {
                projector.apply_dead_letter(partition, offset, &letter)
            }
        }
    }

    /// Applies the cursors of the partitions that are read up to their polled ends.
    fn apply_reached_cursors(&mut self) -> Result<(), ViewError> {
        for ends in self.polled.try_iter() {
            let at = usize::try_from(ends.partition).unwrap_or(0);
            let _waits = self.pending[at].get_or_insert(ends);
        }
        for at in 0..self.pending.len() {
            let reached = |ends: &mut PartitionEnds| {
                let inputs = self.inputs.iter().zip(ends.ends);
                inputs.into_iter().all(|(input, end)| input.partitions[at].next_offset >= end)
            };
            let Some(ends) = self.pending[at].take_if(reached) else { continue };
            if self.as_of[at] > 0 {
                schema::check_gap(self.as_of[at], ends.at, self.age_max)?;
            }
            let committed = ends.cursor.as_ref().and_then(|(offset, metadata)| {
                Cursor::from_metadata(*offset, metadata).ok().map(|(cursor, _)| cursor)
            });
            let ledger_cursor = self.cache.ledger_cursors.get(&ends.partition).copied();
            let cursor = if committed.is_some() { committed } else { ledger_cursor };
            if let Some(cursor) = cursor
                && self.cache.cursors.get(&ends.partition) != Some(&cursor)
            {
                self.begin_transaction()?;
                let mut projector = Projector { db: self.db, cache: &mut self.cache };
                projector.apply_cursor(
                    ends.partition,
                    &cursor,
                    ends.ends[ViewSource::Ledger as usize],
                )?;
            }
            self.retention
                .set_dead_letter_start(ends.partition, ends.low[ViewSource::DeadLetters as usize]);
            self.as_of[at] = ends.at;
        }
        Ok(())
    }

    /// A log may end in transaction markers, which no record reaches. If no record arrives, reading
    /// is started once more at the current offset: reaching the end confirms it.
    fn confirm_ends(&mut self) -> Result<(), ViewError> {
        let now = clock::monotonic();
        for (source, input) in self.inputs.iter_mut().enumerate() {
            for (at, part) in input.partitions.iter_mut().enumerate() {
                let partition = PartitionId::try_from(at).unwrap_or_default();
                if part.paused_until.is_some_and(|until| now >= until) {
                    (part.paused_until, part.confirming) = (None, None);
                    input.reader.start(&input.topic, partition, part.next_offset)?;
                    continue;
                }
                let Some(ends) = &self.pending[at] else { continue };
                let quiet = part.paused_until.is_none() && now - part.read_at >= CONFIRM_AFTER_IDLE;
                if part.next_offset < ends.ends[source] && part.confirming.is_none() && quiet {
                    part.confirming = Some(ends.ends[source]);
                    input.reader.start(&input.topic, partition, part.next_offset)?;
                }
            }
        }
        Ok(())
    }

    fn begin_transaction(&mut self) -> Result<(), ViewError> {
        if !self.in_transaction {
            self.db.execute_batch("BEGIN IMMEDIATE")?;
            self.in_transaction = true;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), ViewError> {
        let dirty = self.inputs.iter().any(|input| input.partitions.iter().any(|part| part.dirty));
        if dirty {
            self.begin_transaction()?;
            let sql = "INSERT OR REPLACE INTO position VALUES (?1, ?2, ?3)";
            let mut save = self.db.prepare_cached(sql)?;
            for (source, input) in self.inputs.iter_mut().enumerate() {
                for (partition, part) in input.partitions.iter_mut().enumerate() {
                    if std::mem::take(&mut part.dirty) {
                        let _row = save.execute(params![
                            source,
                            partition,
                            part.next_offset.cast_signed()
                        ])?;
                    }
                }
            }
        }
        if std::mem::take(&mut self.in_transaction) {
            if self.has_caught_up() {
                schema::save_as_of(self.db, self.all_read_at())?;
            }
            self.db.execute_batch("COMMIT")?;
        }
        Ok(())
    }

    /// Publishes the progress to waiting requests, metrics and health.
    fn publish_progress(&self) {
        // In the order of `ViewTopic`.
        let next =
            [ViewSource::Triggers, ViewSource::Outcomes, ViewSource::DeadLetters].map(|source| {
                self.inputs[source as usize]
                    .partitions
                    .iter()
                    .map(|part| part.next_offset)
                    .collect()
            });
        self.report.publish(next, &self.as_of);
        let as_of = self.all_read_at();
        let lag = clock::now_ms().saturating_sub(as_of);
        if as_of == 0 {
            self.health.ready_with_remark(HEALTH_PART, "it reads the topics; lists are incomplete");
            return;
        }
        metrics::gauge!(telemetry::VIEW_LAG).set(lag as f64 / 1_000.0);
        if lag < LAG_READY_MAX_MS {
            self.health.ready(HEALTH_PART);
        } else {
            self.health.ready_with_remark(HEALTH_PART, "it lags behind the topics");
        }
    }
}

/// The offsets up to which a topic is in the database.
fn load_positions(
    db: &Connection,
    source: ViewSource,
    partitions: usize,
) -> Result<Vec<PartitionProgress>, ViewError> {
    let read_at = clock::monotonic();
    let (confirming, held_until) = (None, None);
    let part = PartitionProgress {
        next_offset: 0,
        dirty: false,
        read_at,
        confirming,
        paused_until: held_until,
    };
    let mut parts = vec![part; partitions];
    let mut rows = db.prepare("SELECT partition, next FROM position WHERE source = ?1")?;
    let mut rows = rows.query([source as i64])?;
    while let Some(row) = rows.next()? {
        let (partition, next): (usize, i64) = (row.get(0)?, row.get(1)?);
        if let Some(part) = parts.get_mut(partition) {
            part.next_offset = next.cast_unsigned();
        }
    }
    Ok(parts)
}

fn partition_mut(
    parts: &mut [PartitionProgress],
    partition: PartitionId,
) -> &mut PartitionProgress {
    let at = usize::try_from(partition).expect("a partition's number is not negative");
    &mut parts[at]
}
