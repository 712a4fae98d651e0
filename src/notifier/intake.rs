//! From the logs to what there is to tell: where reading begins, what is read, and how far is
//! committed.
//!
//! Law: reading never waits for anyone who is told. What is not told holds the committed offsets
//! back, and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::CommitMode;
use rdkafka::error::KafkaResult;
use rdkafka::message::{BorrowedMessage, Message as _};

use super::audience::Audience;
use super::digest::{Log, Place, Source};
use super::lead::Lead;
use super::{CALL_TIMEOUT, Notifier, NotifierError};
use crate::clock;
use crate::codec::schemas::{CodecError, Schemas};
use crate::kafka::reader::{Read, Reader};
use crate::model::dead_letter::Content;
use crate::model::outcome::{CIRCUIT_KEY, Outcome, Verdict};
use crate::model::{Offset, PartitionId};

/// Records taken in one turn of the loop: the group and the results want their turn too.
const READ_MAX: usize = 1_000;

/// The topics that are read.
#[derive(Debug)]
pub(super) struct Topics {
    pub(super) dead_letters: String,
    pub(super) outcomes: String,
    /// Partitions of each.
    pub(super) partitions: PartitionId,
}

impl Topics {
    fn name(&self, source: Source) -> &str {
        match source {
            Source::DeadLetters => &self.dead_letters,
            Source::Outcomes => &self.outcomes,
        }
    }

    fn logs(&self) -> impl Iterator<Item = Log> {
        let sources = [Source::DeadLetters, Source::Outcomes].into_iter();
        let partitions = self.partitions;
        sources
            .flat_map(move |source| (0..partitions).map(move |partition| Log { source, partition }))
    }

    fn place(&self, record: &BorrowedMessage<'_>) -> Place {
        let (topic, partition, offset) = Reader::place(record);
        let is_outcome = topic == self.outcomes;
        let source = if is_outcome { Source::Outcomes } else { Source::DeadLetters };
        Place { log: Log { source, partition }, offset }
    }
}

/// What it takes to understand a record.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) topics: Topics,
    pub(super) schemas: Schemas,
    pub(super) audience: Audience,
}

impl Notifier {
    /// Begins to lead where the last one had told everything, once the group has taken a commit of
    /// ours: it proves that we lead, and nothing is missed from the first start on.
    pub(super) fn take_lead(&mut self) -> KafkaResult<()> {
        let mut positions = BTreeMap::new();
        for log in self.desk.topics.logs() {
            positions.insert(log, self.position(log)?);
        }
        self.commit_all(&positions, CommitMode::Sync)?;
        for (log, offset) in &positions {
            self.reader.start(self.desk.topics.name(log.source), log.partition, *offset)?;
        }
        self.terms += 1;
        self.lead = Some(Lead::new(self.terms, positions));
        Ok(())
    }

    /// Reads no longer. What is not told is the next leader's.
    pub(super) fn step_down(&mut self) -> KafkaResult<()> {
        self.lead = None;
        let topics = &self.desk.topics;
        topics.logs().try_for_each(|log| self.reader.stop(topics.name(log.source), log.partition))
    }

    /// Where to read a log from: from now on, if nobody ever did.
    fn position(&self, log: Log) -> KafkaResult<Offset> {
        let (topic, partition) = (self.desk.topics.name(log.source), log.partition);
        let Some(told) = self.member.committed(topic, partition, CALL_TIMEOUT)? else {
            tracing::info!(topic, partition, "nobody has told of it before: from now on");
            return self.reader.stable_end(topic, partition, CALL_TIMEOUT);
        };
        let (low, end) = self.probe.bounds(topic, partition)?;
        if told < low {
            tracing::error!(
                topic,
                partition,
                told,
                first = low,
                "records were deleted before anyone was told of them: the topic's retention is \
                 shorter than the time that no notifier ran"
            );
        }
        Ok(told.clamp(low, end.max(low)))
    }

    /// Reads what there is; waits at most `wait` for the first record.
    pub(super) fn read(&mut self, wait: Duration) -> Result<(), NotifierError> {
        let mut wait = wait;
        for _ in 0..READ_MAX {
            match self.reader.poll(wait) {
                Ok(None) => return Ok(()),
                Ok(Some(Read::End(_))) => {}
                Ok(Some(Read::Record(record))) => {
                    if let Some(lead) = &mut self.lead {
                        self.desk.take(lead, &record)?;
                    }
                }
                Ok(Some(Read::OutOfRange(reason))) => {
                    tracing::error!(%reason, "the log no longer holds what was to be read");
                    return Ok(self.step_down()?);
                }
                Err(error) => {
                    self.is_away = true;
                    self.health.not_ready("broker", format!("the broker is away: {error}"));
                    return Ok(());
                }
            }
            wait = Duration::ZERO;
        }
        Ok(())
    }

    /// Asks for the broker that went away: librdkafka never says that it came back.
    pub(super) fn look_for_broker(&mut self) {
        match self.probe.partitions(&self.desk.topics.dead_letters) {
            Ok(_) => {
                self.is_away = false;
                self.health.ready("broker");
            }
            Err(error) => self.health.not_ready("broker", format!("the broker is away: {error}")),
        }
    }

    /// Commits how far everything is told.
    pub(super) fn commit(&self, mode: CommitMode) {
        let Some(lead) = &self.lead else { return };
        if let Err(error) = self.commit_all(&lead.told(), mode) {
            tracing::warn!(%error, "how far is told was not committed: some of it may be repeated");
        }
    }

    fn commit_all(&self, offsets: &BTreeMap<Log, Offset>, mode: CommitMode) -> KafkaResult<()> {
        let name = |log: &Log| self.desk.topics.name(log.source);
        let offsets: Vec<_> =
            offsets.iter().map(|(log, offset)| (name(log), log.partition, *offset)).collect();
        self.member.commit(&offsets, mode)
    }
}

impl Desk {
    /// Takes in a record.
    fn take(&self, lead: &mut Lead, record: &BorrowedMessage<'_>) -> Result<(), NotifierError> {
        let place = self.topics.place(record);
        lead.pass(place);
        let (value, now) = (record.payload().unwrap_or_default(), clock::monotonic());
        match place.log.source {
            Source::DeadLetters => {
                let letter = readable(self.schemas.decode_dead_letter(value), place)?;
                if let Some(letter) = letter.filter(|l| !matches!(l.content, Content::Mark(_))) {
                    lead.letter(self.audience.of(letter.caller()), &letter, place, now);
                }
            }
            Source::Outcomes => {
                // Nearly all outcomes are others: they are passed over by their keys.
                if !record.key().is_some_and(|key| key.starts_with(CIRCUIT_KEY.as_bytes())) {
                    return Ok(());
                }
                let outcome = readable(self.schemas.decode_outcome(value), place)?;
                let Some(Outcome { at, verdict: Verdict::Circuit(circuit), .. }) = outcome else {
                    return Ok(());
                };
                let caller = circuit.caller.as_ref().map(|caller| caller.as_str());
                lead.circuit(self.audience.of(caller), &circuit, at, place, now);
            }
        }
        Ok(())
    }
}

/// What could be read; what nobody of us wrote is passed over.
fn readable<T>(decoded: Result<T, CodecError>, place: Place) -> Result<Option<T>, NotifierError> {
    match decoded {
        Ok(value) => Ok(Some(value)),
        Err(error @ CodecError::Newer { .. }) => Err(error.into()),
        Err(error @ CodecError::Corrupt { .. }) => {
            tracing::warn!(?place, %error, "passed over");
            Ok(None)
        }
    }
}
