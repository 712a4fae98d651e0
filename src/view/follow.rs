//! Reading the topics and folding them, batch by batch.
//!
//! Law: a batch is one transaction: its facts, the positions of its logs, the cursors that were
//! reached. It is committed as soon as there is nothing more to read just now.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ViewError;
use super::decode::{Decoder, Folded};
use super::ends::{Lookout, Seen};
use super::fold::{Fold, Memo};
use super::pool::Pool;
use super::progress::Report;
use super::retain::Retain;
use super::writer::PART;
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::probe::Probe;
use crate::kafka::reader::{Read, Reader};
use crate::model::{Offset, PartitionId};
use crate::telemetry;

/// The topics that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Triggers = 0,
    Ledger = 1,
    Outcomes = 2,
    DeadLetters = 3,
}

/// How many those are.
pub(super) const SOURCES: usize = 4;
const ALL: [Source; SOURCES] =
    [Source::Triggers, Source::Ledger, Source::Outcomes, Source::DeadLetters];
const LABELS: [&str; SOURCES] = ["triggers", "ledger", "outcomes", "dead_letters"];

/// Records of a batch at most.
const BATCH_MAX: usize = 4_000;
/// Records of one topic before the others have their turn.
const TURN_MAX: usize = 500;
/// How long a batch takes at most: so late is whoever waits for what it has.
const BATCH_TIME: Duration = Duration::from_millis(50);
/// How long the reader waits for a record of one topic when there is nothing to do.
const WAIT: Duration = Duration::from_millis(2);
/// How long a log must be quiet before its end is believed to be markers.
const QUIET: Duration = Duration::from_millis(15);
/// How long a partition waits whose schema registry is away.
const HOLD: Duration = Duration::from_secs(1);
/// How long the broker may take to say where logs begin.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause while the brokers are away.
const AWAY: Duration = Duration::from_millis(100);
/// Behind by less than this, in ms, the view is as good as caught up.
const LAG_SHOWN: u64 = 10_000;

/// A partition of a topic, as far as it is read.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Everything below is folded.
    next: Offset,
    dirty: bool,
    read_at: Instant,
    /// The reader was started again: if it meets the end, everything below this is read.
    confirming: Option<Offset>,
    held_until: Option<Instant>,
}

struct Input {
    topic: String,
    reader: Reader,
    parts: Vec<Part>,
}

/// The thread's state while it follows.
pub(super) struct Follow<'a> {
    db: &'a Connection,
    report: &'a Report,
    health: &'a Health,
    memo: Memo,
    decoder: Decoder,
    inputs: Vec<Input>,
    probe: Probe,
    seen: Receiver<Seen>,
    /// What was seen of each partition and is not reached yet.
    ahead: Vec<Option<Seen>>,
    as_of: Vec<u64>,
    retain: Retain,
    begun: bool,
    _lookout: DropGuard,
}

/// What came of one look for a record.
enum Came {
    Nothing,
    Something,
    Away,
}

impl<'a> Follow<'a> {
    pub(super) fn new(
        settings: &Settings,
        db: &'a Connection,
        report: &'a Report,
        health: &'a Health,
    ) -> Result<Self, ViewError> {
        let names = Names::new(&settings.topics.prefix);
        let topics = [names.triggers(), names.ledger(), names.outcomes(), names.dead_letters()];
        let partitions = usize::from(settings.topics.partitions.get());
        let probe = Probe::open(settings, TIMEOUT)?;
        let mut inputs = Vec::with_capacity(SOURCES);
        for (source, topic) in ALL.into_iter().zip(topics.clone()) {
            let reader = Reader::open(settings, &format!("{}.views", settings.topics.prefix))?;
            let parts = positions(db, source, partitions)?;
            inputs.push(Input { topic, reader, parts });
        }
        let (to, seen) = channel();
        let stop = CancellationToken::new();
        Lookout::start(settings, topics, to, stop.clone())?;
        let payload_max = usize::try_from(settings.gateway.view_payload_max.bytes());
        let mut follow = Self {
            db,
            report,
            health,
            memo: Memo::load(db, payload_max.unwrap_or(usize::MAX))?,
            decoder: Decoder::new(settings)?,
            inputs,
            probe,
            seen,
            ahead: (0..partitions).map(|_| None).collect(),
            as_of: vec![0; partitions],
            retain: Retain::new(settings.gateway.view_audit),
            begun: false,
            _lookout: stop.drop_guard(),
        };
        follow.start()?;
        Ok(follow)
    }

    /// Whether every partition was reached once.
    pub(super) fn has_caught_up(&self) -> bool {
        self.as_of.iter().all(|at| *at > 0)
    }

    /// Reads and folds until `shutdown`, unless those who ask find the file to be of no use.
    pub(super) fn run(
        &mut self,
        shutdown: &CancellationToken,
        pool: &Pool,
    ) -> Result<(), ViewError> {
        while !shutdown.is_cancelled() {
            self.batch(shutdown)?;
            self.tell();
            pool.check()?;
        }
        Ok(())
    }

    /// Begins to read every log where it was left.
    fn start(&mut self) -> Result<(), ViewError> {
        for input in &mut self.inputs {
            for (partition, part) in (0..).zip(&mut input.parts) {
                let (low, end) = self.probe.bounds(&input.topic, partition)?;
                if part.next > end {
                    let (topic, next) = (&input.topic, part.next);
                    let what = format!("{topic}[{partition}] ends at {end}, below {next}");
                    return Err(ViewError::Foreign(what));
                }
                part.next = part.next.max(low);
            }
            // All ends before the first fetch: a broker answers a connection in order.
            for (partition, part) in (0..).zip(&input.parts) {
                input.reader.start(&input.topic, partition, part.next)?;
            }
        }
        Ok(())
    }

    fn batch(&mut self, shutdown: &CancellationToken) -> Result<(), ViewError> {
        let begun = clock::monotonic();
        let (mut folded, mut wait) = (0, WAIT);
        loop {
            let mut came = 0;
            for source in ALL {
                came += self.read(source, wait)?;
                if came > 0 {
                    wait = Duration::ZERO;
                }
            }
            self.settle()?;
            folded += came;
            let now = clock::monotonic();
            if came == 0 || folded >= BATCH_MAX || now - begun >= BATCH_TIME {
                break;
            }
        }
        self.confirm_ends()?;
        if !self.begun && !shutdown.is_cancelled() {
            let now = clock::now_ms();
            if self.retain.is_due(now) {
                self.begin()?;
                let mut fold = Fold { db: self.db, memo: &mut self.memo };
                self.retain.step(&mut fold, now)?;
            }
        }
        self.commit()
    }

    /// Takes what there is of a topic, at most [`TURN_MAX`] records.
    fn read(&mut self, source: Source, wait: Duration) -> Result<usize, ViewError> {
        let mut wait = wait;
        for taken in 0..TURN_MAX {
            match self.take(source, wait)? {
                Came::Nothing => return Ok(taken),
                Came::Something => wait = Duration::ZERO,
                Came::Away => {
                    std::thread::park_timeout(AWAY);
                    return Ok(taken);
                }
            }
        }
        Ok(TURN_MAX)
    }

    fn take(&mut self, source: Source, wait: Duration) -> Result<Came, ViewError> {
        let input = &mut self.inputs[source as usize];
        let read = match input.reader.poll(wait) {
            Ok(None) => return Ok(Came::Nothing),
            Ok(Some(read)) => read,
            Err(error) => {
                tracing::debug!(topic = input.topic, %error, "the view reads");
                return Ok(Came::Away);
            }
        };
        let message = match read {
            Read::Record(message) => message,
            Read::End(partition) => {
                let part = part(&mut input.parts, partition);
                if let Some(end) = part.confirming.take() {
                    part.dirty |= end > part.next;
                    part.next = part.next.max(end);
                }
                return Ok(Came::Something);
            }
            Read::OutOfRange(reason) => {
                tracing::warn!(topic = input.topic, reason, "the view has missed records");
                self.start()?;
                return Ok(Came::Something);
            }
        };
        let (_, partition, offset) = Reader::place(&message);
        let part = part(&mut input.parts, partition);
        if part.held_until.is_some() || offset < part.next {
            return Ok(Came::Something);
        }
        let record = match self.decoder.read(source, &message, clock::now_ms()) {
            Ok(record) => record,
            Err(ViewError::Away(reason)) => {
                tracing::warn!(topic = input.topic, partition, reason, "the view waits");
                part.held_until = Some(clock::monotonic() + HOLD);
                part.confirming = None;
                input.reader.stop(&input.topic, partition)?;
                return Ok(Came::Something);
            }
            Err(error) => return Err(error),
        };
        part.next = offset + 1;
        (part.dirty, part.confirming, part.read_at) = (true, None, clock::monotonic());
        self.fold(record, partition, offset)?;
        metrics::counter!(telemetry::VIEW_FOLDED, "topic" => LABELS[source as usize]).increment(1);
        Ok(Came::Something)
    }

    fn fold(
        &mut self,
        record: Option<Folded>,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<(), ViewError> {
        self.begin()?;
        let mut fold = Fold { db: self.db, memo: &mut self.memo };
        match record {
            None => Ok(()),
            Some(Folded::Trigger(record)) => fold.trigger(partition, *record),
            Some(Folded::Ledger(at, record)) => fold.ledger(at, *record),
            Some(Folded::Outcome(outcome)) => fold.outcome(partition, offset, &outcome),
            Some(Folded::Letter(letter)) => fold.letter(partition, offset, &letter),
        }
    }

    /// Applies the cursors of partitions whose logs are read as far as they were seen.
    fn settle(&mut self) -> Result<(), ViewError> {
        for seen in self.seen.try_iter() {
            let at = usize::try_from(seen.partition).unwrap_or(0);
            let _waits = self.ahead[at].get_or_insert(seen);
        }
        for at in 0..self.ahead.len() {
            let reached = |seen: &mut Seen| {
                let inputs = self.inputs.iter().zip(seen.ends);
                inputs.into_iter().all(|(input, end)| input.parts[at].next >= end)
            };
            let Some(seen) = self.ahead[at].take_if(reached) else { continue };
            let committed = seen.cursor.as_ref().and_then(|(offset, metadata)| {
                Cursor::from_metadata(*offset, metadata).ok().map(|(cursor, _)| cursor)
            });
            let mirror = self.memo.mirrors.get(&seen.partition).copied();
            let cursor = if committed.is_some() { committed } else { mirror };
            if let Some(cursor) = cursor
                && self.memo.cursors.get(&seen.partition) != Some(&cursor)
            {
                self.begin()?;
                let mut fold = Fold { db: self.db, memo: &mut self.memo };
                fold.settle(seen.partition, &cursor, seen.ends[Source::Ledger as usize])?;
            }
            self.retain.log_begins(seen.partition, seen.low[Source::DeadLetters as usize]);
            self.as_of[at] = seen.at;
        }
        Ok(())
    }

    /// A log may end in markers, which no record reaches. Where it is quiet, it is read once more
    /// from where we stand: meeting the end settles it.
    fn confirm_ends(&mut self) -> Result<(), ViewError> {
        let now = clock::monotonic();
        for (source, input) in self.inputs.iter_mut().enumerate() {
            for (at, part) in input.parts.iter_mut().enumerate() {
                let partition = PartitionId::try_from(at).unwrap_or_default();
                if part.held_until.is_some_and(|until| now >= until) {
                    (part.held_until, part.confirming) = (None, None);
                    input.reader.start(&input.topic, partition, part.next)?;
                    continue;
                }
                let Some(seen) = &self.ahead[at] else { continue };
                let quiet = part.held_until.is_none() && now - part.read_at >= QUIET;
                if part.next < seen.ends[source] && part.confirming.is_none() && quiet {
                    part.confirming = Some(seen.ends[source]);
                    input.reader.start(&input.topic, partition, part.next)?;
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), ViewError> {
        if !self.begun {
            self.db.execute_batch("BEGIN IMMEDIATE")?;
            self.begun = true;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), ViewError> {
        let dirty = self.inputs.iter().any(|input| input.parts.iter().any(|part| part.dirty));
        if dirty {
            self.begin()?;
            let sql = "INSERT OR REPLACE INTO position VALUES (?1, ?2, ?3)";
            let mut save = self.db.prepare_cached(sql)?;
            for (source, input) in self.inputs.iter_mut().enumerate() {
                for (partition, part) in input.parts.iter_mut().enumerate() {
                    if std::mem::take(&mut part.dirty) {
                        let _row =
                            save.execute(params![source, partition, part.next.cast_signed()])?;
                    }
                }
            }
        }
        if std::mem::take(&mut self.begun) {
            self.db.execute_batch("COMMIT")?;
        }
        Ok(())
    }

    /// Tells those who wait, and those who watch.
    fn tell(&self) {
        // In the order of `Log`.
        let next = [Source::Triggers, Source::Outcomes, Source::DeadLetters].map(|source| {
            self.inputs[source as usize].parts.iter().map(|part| part.next).collect()
        });
        self.report.tell(next, &self.as_of);
        let as_of = self.as_of.iter().copied().min().unwrap_or(0);
        let lag = clock::now_ms().saturating_sub(as_of);
        if as_of == 0 {
            self.health.ready_but(PART, "it reads the topics; lists are incomplete");
            return;
        }
        metrics::gauge!(telemetry::VIEW_LAG).set(lag as f64 / 1_000.0);
        if lag < LAG_SHOWN {
            self.health.ready(PART);
        } else {
            self.health.ready_but(PART, "it is behind the topics");
        }
    }
}

/// Where the database has got to with a topic.
fn positions(db: &Connection, source: Source, partitions: usize) -> Result<Vec<Part>, ViewError> {
    let read_at = clock::monotonic();
    let (confirming, held_until) = (None, None);
    let part = Part { next: 0, dirty: false, read_at, confirming, held_until };
    let mut parts = vec![part; partitions];
    let mut rows = db.prepare("SELECT partition, next FROM position WHERE source = ?1")?;
    let mut rows = rows.query([source as i64])?;
    while let Some(row) = rows.next()? {
        let (partition, next): (usize, i64) = (row.get(0)?, row.get(1)?);
        if let Some(part) = parts.get_mut(partition) {
            part.next = next.cast_unsigned();
        }
    }
    Ok(parts)
}

fn part(parts: &mut [Part], partition: PartitionId) -> &mut Part {
    let at = usize::try_from(partition).expect("a partition's number is not negative");
    &mut parts[at]
}
