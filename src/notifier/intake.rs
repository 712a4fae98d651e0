//! From the logs to the recipients: where reading starts, what is read, and which offsets are
//! committed.
//!
//! Invariant: reading never waits for a recipient. What is not delivered holds the committed
//! offsets back, and nothing else. What was reported is committed with them, in one request, and
//! written to the log with them, in one transaction. Each topic has a reader: what a reader returns
//! at the end of a partition does not name the topic.

use std::collections::BTreeMap;
use std::time::Duration;

use super::digest::{NotificationSource, SourcePartition, SourcePosition};
use super::leader_term::LeaderTerm;
use super::reported_log::TermStartError;
use super::reported_state::{self, ClockReading};
use super::subscribers::Subscribers;
use super::{CALL_TIMEOUT, Notifier, NotifierError, RECORD_INTERVAL, RECORD_RETRY_INTERVAL};
use crate::clock;
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::Settings;
use crate::kafka::error::ClientResult;
use crate::kafka::member::CommitMode;
use crate::kafka::reader::{LogReader, ReadEvent};
use crate::kafka::record::ConsumerRecord;
use crate::kafka::transaction::OffsetCommit;
use crate::model::dead_letter::Content;
use crate::model::outcome::{CIRCUIT_KEY_PREFIX, Outcome, OutcomeKind};
use crate::model::{Offset, PartitionId};

/// Records of a topic that are read in one iteration of the loop: the group and the results must be
/// served too.
const READ_MAX: usize = 1_000;
const SOURCES: [NotificationSource; 2] =
    [NotificationSource::DeadLetters, NotificationSource::Outcomes];

/// The topics that are read.
#[derive(Debug)]
pub(super) struct SourceTopics {
    pub(super) dead_letters: String,
    pub(super) outcomes: String,
    /// Partitions of each.
    pub(super) partitions: PartitionId,
}

impl SourceTopics {
    fn name(&self, source: NotificationSource) -> &str {
        match source {
            NotificationSource::DeadLetters => &self.dead_letters,
            NotificationSource::Outcomes => &self.outcomes,
        }
    }

    fn source_partitions(&self) -> impl Iterator<Item = SourcePartition> {
        let partitions = self.partitions;
        SOURCES.into_iter().flat_map(move |source| {
            (0..partitions).map(move |partition| SourcePartition { source, partition })
        })
    }

    /// What to commit, all at once: each offset with its metadata.
    fn offset_commits(
        &self,
        offsets: &BTreeMap<SourcePartition, Offset>,
        metadata: Vec<String>,
    ) -> Vec<OffsetCommit> {
        let commit = |((log, offset), metadata): ((&SourcePartition, &Offset), String)| {
            let topic = self.name(log.source).to_owned();
            OffsetCommit { topic, partition: log.partition, offset: *offset, metadata }
        };
        offsets.iter().zip(metadata).map(commit).collect()
    }

    fn position_of(&self, record: &ConsumerRecord<'_>) -> SourcePosition {
        let (topic, partition, offset) = record.position();
        let is_outcome = topic == self.outcomes;
        let source =
            if is_outcome { NotificationSource::Outcomes } else { NotificationSource::DeadLetters };
        SourcePosition { source_partition: SourcePartition { source, partition }, offset }
    }
}

/// The readers of the topics.
#[derive(Debug)]
pub(super) struct SourceReaders {
    dead_letters: LogReader,
    outcomes: LogReader,
}

impl SourceReaders {
    /// Opens them. They have the group's name only so that the group's ACLs also cover them.
    pub(super) fn open(settings: &Settings, group: &str) -> ClientResult<Self> {
        let open = || LogReader::open(settings, group);
        Ok(Self { dead_letters: open()?, outcomes: open()? })
    }

    fn of(&self, source: NotificationSource) -> &LogReader {
        match source {
            NotificationSource::DeadLetters => &self.dead_letters,
            NotificationSource::Outcomes => &self.outcomes,
        }
    }
}

/// What is needed to decode a record and to find its recipients.
#[derive(Debug)]
pub(super) struct RecordRouter {
    pub(super) topics: SourceTopics,
    pub(super) schemas: Schemas,
    pub(super) subscribers: Subscribers,
}

/// Where to start a log.
struct StartPosition {
    offset: Offset,
    /// What was committed with it.
    metadata: String,
    /// Records below were deleted before they were read.
    has_gap: bool,
}

impl Notifier {
    /// Starts to lead at the offsets up to which the last leader had delivered everything, after
    /// the group has accepted a commit of ours: it proves that we lead, and after the first start
    /// no record is missed.
    pub(super) fn start_leading(&mut self) -> Result<(), TermStartError> {
        // Before that commit. If it fails, and the log need not be read, it is opened later.
        let opened = self.log.open();
        let mut known = self.known_positions()?;
        let (mut positions, mut metadata) = (BTreeMap::new(), Vec::new());
        let mut has_missed_outcomes = false;
        for log in self.router.topics.source_partitions() {
            let start = self.start_position(log, known.remove(&log))?;
            positions.insert(log, start.offset);
            metadata.push(start.metadata);
            has_missed_outcomes |= start.has_gap && log.source == NotificationSource::Outcomes;
        }
        let encoded = metadata.iter().map(String::as_str);
        let mut reported = reported_state::decode(encoded, clock_reading());
        let present = self.router.subscribers.ids();
        reported_state::keep_valid(&mut reported, &present, has_missed_outcomes);
        let commits = self.router.topics.offset_commits(&positions, metadata);
        self.member.commit(&commits, CommitMode::Sync)?;
        for (log, offset) in &positions {
            let topic = self.router.topics.name(log.source);
            self.readers.of(log.source).start(topic, log.partition, *offset)?;
        }
        self.terms_started += 1;
        self.leader_term = Some(LeaderTerm::new(self.terms_started, positions, reported));
        self.after_recording(opened);
        Ok(())
    }

    /// Stops reading. The next leader sends what is not delivered.
    pub(super) fn stop_leading(&mut self) -> ClientResult<()> {
        self.leader_term = None;
        self.log.close();
        self.health.ready("log");
        let topics = &self.router.topics;
        for log in topics.source_partitions() {
            self.recovery.on_read(log);
            self.readers.of(log.source).stop(topics.name(log.source), log.partition)?;
        }
        Ok(())
    }

    /// The committed offsets with their metadata, and those of the log where none is committed.
    fn known_positions(
        &mut self,
    ) -> Result<BTreeMap<SourcePartition, (Offset, String)>, TermStartError> {
        let topics = &self.router.topics;
        let (mut known, mut unknown) = (BTreeMap::new(), Vec::new());
        for log in topics.source_partitions() {
            let topic = topics.name(log.source);
            match self.member.committed(topic, log.partition, CALL_TIMEOUT)? {
                Some(committed) => drop(known.insert(log, committed)),
                None => unknown.push(log),
            }
        }
        if unknown.is_empty() {
            return Ok(known);
        }
        let recorded = self.log.read(&self.probe)?;
        for log in unknown {
            let topic = topics.name(log.source);
            let Some((offset, metadata)) = recorded.of(topic, log.partition) else { continue };
            let partition = log.partition;
            tracing::info!(topic, partition, offset, "no committed offset: using the recorded one");
            known.insert(log, (offset, metadata));
        }
        Ok(known)
    }

    /// Where to start a log: at its end, if no offset of it is `known`.
    fn start_position(
        &self,
        log: SourcePartition,
        known: Option<(Offset, String)>,
    ) -> ClientResult<StartPosition> {
        let (topic, partition) = (self.router.topics.name(log.source), log.partition);
        let (low, end) = self.probe.bounds(topic, partition)?;
        let Some((committed, metadata)) = known else {
            let reader = self.readers.of(log.source);
            let offset = reader.last_stable_offset(topic, partition, CALL_TIMEOUT)?;
            let records = offset.saturating_sub(low);
            if records > 0 && log.source == NotificationSource::DeadLetters {
                tracing::warn!(
                    topic,
                    partition,
                    records,
                    "no committed offset, and no recorded one: it is unknown which of the earlier \
                     dead letters were reported, and none of them is; `orloj dead-letters list` \
                     shows them"
                );
            } else {
                tracing::info!(topic, partition, "no committed offset: reading from the end");
            }
            return Ok(StartPosition { offset, metadata: String::new(), has_gap: false });
        };
        if committed < low {
            tracing::error!(
                topic,
                partition,
                committed,
                first = low,
                "records were deleted before a notification was sent: the topic's retention is \
                 shorter than the time that no notifier ran"
            );
        }
        if committed > end {
            tracing::error!(
                topic,
                partition,
                committed,
                end,
                "the log ends before the committed offset: it was created again, or brokers have \
                 lost records; all that it has is reported, some of it perhaps again"
            );
        }
        let has_gap = committed < low || committed > end;
        let offset = if has_gap { low } else { committed };
        Ok(StartPosition { offset, metadata, has_gap })
    }

    /// Reads the available records; waits at most `wait` for the first.
    pub(super) fn read(&mut self, wait: Duration) -> Result<(), NotifierError> {
        SOURCES.into_iter().try_for_each(|source| self.read_source(source, wait / 2))
    }

    fn read_source(
        &mut self,
        source: NotificationSource,
        wait: Duration,
    ) -> Result<(), NotifierError> {
        let (mut wait, mut failed, mut is_out_of_range) = (wait, None, false);
        for _ in 0..READ_MAX {
            match self.readers.of(source).poll(wait) {
                Ok(None) => break,
                Ok(Some(ReadEvent::PartitionEof(partition))) => {
                    self.recovery.on_read(SourcePartition { source, partition });
                }
                Ok(Some(ReadEvent::Record(record))) => {
                    let partition = record.partition();
                    self.recovery.on_read(SourcePartition { source, partition });
                    if let Some(leader) = &mut self.leader_term {
                        self.router.process_record(leader, &record)?;
                    }
                }
                Ok(Some(ReadEvent::OutOfRange(reason))) => {
                    tracing::error!(%reason, "the offset to read is out of range");
                    is_out_of_range = true;
                    break;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            wait = Duration::ZERO;
        }
        if let Some(error) = failed {
            let topic = self.router.topics.name(source);
            tracing::warn!(topic, %error, "the topic cannot be read");
            let (is_leading, now) = (self.leader_term.is_some(), self.uptime());
            let logs = self.router.topics.source_partitions();
            let read = logs.filter(|log| is_leading && log.source == source);
            self.recovery.on_error(&error, read, now);
        }
        if is_out_of_range {
            self.stop_leading()?;
        }
        Ok(())
    }

    /// Reads again what has returned nothing since an error, and asks the brokers, if it is time:
    /// librdkafka does not report that they are back. Reports whether what is needed can be read.
    pub(super) fn check_reading(&mut self) -> ClientResult<()> {
        let now = self.uptime();
        for log in self.recovery.next_reads(now) {
            let leader = self.leader_term.as_ref();
            match leader.and_then(|leader| leader.position(log)) {
                Some(offset) => {
                    let topic = self.router.topics.name(log.source);
                    self.readers.of(log.source).start(topic, log.partition, offset)?;
                }
                None => self.recovery.on_read(log),
            }
        }
        if self.recovery.next_question(now) {
            let (answer, now) = (self.ask_brokers(), self.uptime());
            self.recovery.on_answer(answer, now);
        }
        let unreadable = self.recovery.reason(self.uptime());
        let unreadable = unreadable.map(|error| format!("topics cannot be read: {error}"));
        self.broker_health.report(unreadable);
        Ok(())
    }

    /// Whether brokers answer, and have the topics.
    fn ask_brokers(&self) -> Result<(), String> {
        SOURCES.into_iter().try_for_each(|source| {
            let topic = self.router.topics.name(source);
            match self.probe.partitions(topic) {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err(format!("the brokers do not know the topic {topic}")),
                Err(error) => Err(format!("the broker is unavailable: {error}")),
            }
        })
    }

    /// Commits the offsets up to which everything is delivered, and what was reported. Returns
    /// `false` if that failed; [`CommitMode::Async`] does not find out.
    pub(super) fn commit(&self, mode: CommitMode) -> bool {
        let Some(delivered) = self.delivered() else { return true };
        let committed = self.member.commit(&delivered, mode);
        if let Err(error) = &committed {
            tracing::warn!(%error, "the commit failed: notifications may be repeated");
        }
        committed.is_ok()
    }

    /// Writes to the log what [`commit`](Self::commit) commits. If that fails, it is tried again
    /// later: the messages do not wait for it.
    pub(super) fn record(&mut self) {
        let Some(delivered) = self.delivered() else { return };
        let recorded = self.write_to_log(&delivered);
        self.after_recording(recorded);
    }

    fn after_recording(&mut self, recorded: ClientResult<()>) {
        let interval = if recorded.is_ok() { RECORD_INTERVAL } else { RECORD_RETRY_INTERVAL };
        self.record_at = clock::monotonic() + interval;
        match recorded {
            Ok(()) => self.health.ready("log"),
            Err(error) => self.health.ready_with_remark(
                "log",
                format!("what was reported cannot be written to {}: {error}", self.log.topic()),
            ),
        }
    }

    /// The last time in this term. No process waits for a log that it could not write before.
    pub(super) fn record_finally(&mut self) {
        if self.log.is_open() {
            self.record();
        }
    }

    fn write_to_log(&mut self, delivered: &[OffsetCommit]) -> ClientResult<()> {
        if !self.log.is_open() {
            self.log.open()?;
            // It proves that we lead, as when a term starts.
            if let Err(error) = self.member.commit(delivered, CommitMode::Sync) {
                self.log.close();
                return Err(error);
            }
        }
        self.log.write(delivered, clock::monotonic())
    }

    /// The offsets up to which everything is delivered, with what was reported; `None` if we do not
    /// lead.
    fn delivered(&self) -> Option<Vec<OffsetCommit>> {
        let leader = self.leader_term.as_ref()?;
        let offsets = leader.delivered_offsets();
        let metadata = reported_state::encode(&leader.reported(), offsets.len(), clock_reading());
        Some(self.router.topics.offset_commits(&offsets, metadata))
    }
}

fn clock_reading() -> ClockReading {
    ClockReading { monotonic: clock::monotonic(), ms: clock::now_ms() }
}

impl RecordRouter {
    /// Adds a record for its recipients.
    fn process_record(
        &self,
        leader: &mut LeaderTerm,
        record: &ConsumerRecord<'_>,
    ) -> Result<(), NotifierError> {
        let position = self.topics.position_of(record);
        leader.advance(position);
        let (value, now) = (record.value().unwrap_or_default(), clock::monotonic());
        match position.source_partition.source {
            NotificationSource::DeadLetters => {
                let letter = skip_corrupt(self.schemas.decode_dead_letter(value), position)?;
                if let Some(letter) = letter.filter(|l| !matches!(l.content, Content::Mark(_))) {
                    leader.add_dead_letter(
                        self.subscribers.subscribers_of(letter.caller()),
                        &letter,
                        position,
                        now,
                    );
                }
            }
            NotificationSource::Outcomes => {
                // Nearly all outcomes are of other kinds: they are skipped by their keys.
                if !record.key().is_some_and(|key| key.starts_with(CIRCUIT_KEY_PREFIX.as_bytes())) {
                    return Ok(());
                }
                let outcome = skip_corrupt(self.schemas.decode_outcome(value), position)?;
                let Some(Outcome { at, kind: OutcomeKind::Circuit(circuit), .. }) = outcome else {
                    return Ok(());
                };
                let caller = circuit.caller.as_ref().map(|caller| caller.as_str());
                leader.add_circuit_change(
                    self.subscribers.subscribers_of(caller),
                    &circuit,
                    at,
                    position,
                    now,
                );
            }
        }
        Ok(())
    }
}

/// The decoded record; one that Orloj did not write is skipped.
fn skip_corrupt<T>(
    decoded: Result<T, CodecError>,
    position: SourcePosition,
) -> Result<Option<T>, NotifierError> {
    match decoded {
        Ok(value) => Ok(Some(value)),
        Err(error @ CodecError::Newer { .. }) => Err(error.into()),
        Err(error @ CodecError::Corrupt { .. }) => {
            tracing::warn!(?position, %error, "unreadable record skipped");
            Ok(None)
        }
    }
}
