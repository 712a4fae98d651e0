//! From the logs to the recipients: where reading starts, what is read, and which offsets are
//! committed.
//!
//! Invariant: reading never waits for a recipient. What is not delivered holds the committed
//! offsets back, and nothing else. What was reported is committed with them, in one request.

use std::collections::BTreeMap;
use std::time::Duration;

use super::digest::{NotificationSource, SourcePartition, SourcePosition};
use super::leader_term::LeaderTerm;
use super::reported_state::{self, ClockReading};
use super::subscribers::Subscribers;
use super::{CALL_TIMEOUT, Notifier, NotifierError};
use crate::clock;
use crate::codec::schemas::{CodecError, Schemas};
use crate::kafka::error::ClientResult;
use crate::kafka::member::CommitMode;
use crate::kafka::reader::ReadEvent;
use crate::kafka::record::ConsumerRecord;
use crate::kafka::transaction::OffsetCommit;
use crate::model::dead_letter::Content;
use crate::model::outcome::{CIRCUIT_KEY_PREFIX, Outcome, OutcomeKind};
use crate::model::{Offset, PartitionId};

/// Records read in one iteration of the loop: the group and the results must be served too.
const READ_MAX: usize = 1_000;

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
        let sources = [NotificationSource::DeadLetters, NotificationSource::Outcomes].into_iter();
        let partitions = self.partitions;
        sources.flat_map(move |source| {
            (0..partitions).map(move |partition| SourcePartition { source, partition })
        })
    }

    fn position_of(&self, record: &ConsumerRecord<'_>) -> SourcePosition {
        let (topic, partition, offset) = record.position();
        let is_outcome = topic == self.outcomes;
        let source =
            if is_outcome { NotificationSource::Outcomes } else { NotificationSource::DeadLetters };
        SourcePosition { source_partition: SourcePartition { source, partition }, offset }
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
    pub(super) fn start_leading(&mut self) -> ClientResult<()> {
        let (mut positions, mut metadata) = (BTreeMap::new(), Vec::new());
        let mut has_missed_outcomes = false;
        for log in self.router.topics.source_partitions() {
            let start = self.start_position(log)?;
            positions.insert(log, start.offset);
            metadata.push(start.metadata);
            has_missed_outcomes |= start.has_gap && log.source == NotificationSource::Outcomes;
        }
        let encoded = metadata.iter().map(String::as_str);
        let mut reported = reported_state::decode(encoded, clock_reading());
        let present = self.router.subscribers.ids();
        reported_state::keep_valid(&mut reported, &present, has_missed_outcomes);
        self.commit_offsets(&positions, metadata, CommitMode::Sync)?;
        for (log, offset) in &positions {
            self.reader.start(self.router.topics.name(log.source), log.partition, *offset)?;
        }
        self.terms_started += 1;
        self.leader_term = Some(LeaderTerm::new(self.terms_started, positions, reported));
        Ok(())
    }

    /// Stops reading. The next leader sends what is not delivered.
    pub(super) fn stop_leading(&mut self) -> ClientResult<()> {
        self.leader_term = None;
        let topics = &self.router.topics;
        topics
            .source_partitions()
            .try_for_each(|log| self.reader.stop(topics.name(log.source), log.partition))
    }

    /// Where to start a log: at its end, if the group has no committed offset.
    fn start_position(&self, log: SourcePartition) -> ClientResult<StartPosition> {
        let (topic, partition) = (self.router.topics.name(log.source), log.partition);
        let committed = self.member.committed(topic, partition, CALL_TIMEOUT)?;
        let (low, end) = self.probe.bounds(topic, partition)?;
        let Some((committed, metadata)) = committed else {
            let offset = self.reader.last_stable_offset(topic, partition, CALL_TIMEOUT)?;
            let records = offset.saturating_sub(low);
            if records > 0 && log.source == NotificationSource::DeadLetters {
                tracing::warn!(
                    topic,
                    partition,
                    records,
                    "no committed offset: it is unknown which of the earlier dead letters were \
                     reported, and none of them is; `orloj dead-letters list` shows them"
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
        let (offset, has_gap) = (committed.clamp(low, end.max(low)), committed < low);
        Ok(StartPosition { offset, metadata, has_gap })
    }

    /// Reads the available records; waits at most `wait` for the first.
    pub(super) fn read(&mut self, wait: Duration) -> Result<(), NotifierError> {
        let mut wait = wait;
        for _ in 0..READ_MAX {
            match self.reader.poll(wait) {
                Ok(None) => return Ok(()),
                Ok(Some(ReadEvent::PartitionEof(_))) => {}
                Ok(Some(ReadEvent::Record(record))) => {
                    if let Some(leader) = &mut self.leader_term {
                        self.router.process_record(leader, &record)?;
                    }
                }
                Ok(Some(ReadEvent::OutOfRange(reason))) => {
                    tracing::error!(%reason, "the offset to read is out of range");
                    return Ok(self.stop_leading()?);
                }
                Err(error) => {
                    self.is_broker_down = true;
                    self.health.not_ready("broker", format!("the broker is unavailable: {error}"));
                    return Ok(());
                }
            }
            wait = Duration::ZERO;
        }
        Ok(())
    }

    /// Checks whether an unavailable broker has returned: librdkafka never reports that.
    pub(super) fn check_broker(&mut self) {
        match self.probe.partitions(&self.router.topics.dead_letters) {
            Ok(_) => {
                self.is_broker_down = false;
                self.health.ready("broker");
            }
            Err(error) => {
                self.health.not_ready("broker", format!("the broker is unavailable: {error}"))
            }
        }
    }

    /// Commits the offsets up to which everything is delivered, and what was reported. Returns
    /// `false` if that failed; [`CommitMode::Async`] does not find out.
    pub(super) fn commit(&self, mode: CommitMode) -> bool {
        let Some(leader) = &self.leader_term else { return true };
        let offsets = leader.delivered_offsets();
        let metadata = reported_state::encode(&leader.reported(), offsets.len(), clock_reading());
        let committed = self.commit_offsets(&offsets, metadata, mode);
        if let Err(error) = &committed {
            tracing::warn!(%error, "the commit failed: notifications may be repeated");
        }
        committed.is_ok()
    }

    /// Commits all offsets at once, each with its metadata.
    fn commit_offsets(
        &self,
        offsets: &BTreeMap<SourcePartition, Offset>,
        metadata: Vec<String>,
        mode: CommitMode,
    ) -> ClientResult<()> {
        let commits = offsets.iter().zip(metadata).map(|((log, offset), metadata)| OffsetCommit {
            topic: self.router.topics.name(log.source).to_owned(),
            partition: log.partition,
            offset: *offset,
            metadata,
        });
        self.member.commit(&commits.collect::<Vec<_>>(), mode)
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
