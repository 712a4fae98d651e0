//! The content of one transaction of a worker: results, changes of circuits, and the progress that
//! covers them.
//!
//! Invariant: the result of a callback, and that it is finished, are committed together or not at
//! all. The content does not change after it was submitted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::completion::CompletedFire;
use super::partition::PartitionCommit;
use super::report::FireReport;
use crate::codec::schemas::Schemas;
use crate::commit::committer::{ReportedRecords, TransactionRecords};
use crate::environment::transaction::{
    OffsetCommit, ProducerRecord, TransactionError, TransactionalSending,
};
use crate::model::names::Names;
use crate::model::outcome::Outcome;
use crate::model::{PartitionId, Timestamp};

/// The content of a transaction.
#[derive(Debug, Default)]
pub(crate) struct ResultBatch {
    pub(crate) results: Vec<Arc<CompletedFire>>,
    /// Changes of circuits.
    pub(crate) circuits: Vec<Arc<Outcome>>,
    /// The progress, by partition.
    pub(crate) commits: BTreeMap<PartitionId, PartitionCommit>,
}

impl ResultBatch {
    /// The offsets to commit. `topic` is that of the fires.
    pub(crate) fn offset_commits(&self, topic: &str) -> Vec<OffsetCommit> {
        let commits = self.commits.iter().map(|(partition, commit)| OffsetCommit {
            topic: topic.to_owned(),
            partition: *partition,
            offset: commit.offset,
            metadata: commit.metadata.clone(),
        });
        commits.collect()
    }
}

/// Encodes and sends reports.
#[derive(Debug)]
pub(crate) struct ResultEncoder {
    signals: String,
    outcomes: String,
    dead_letters: String,
    schemas: Arc<Schemas>,
    /// Called at points at which a test may stop the process.
    reached: fn(&'static str),
}

impl ResultEncoder {
    pub(crate) fn new(names: &Names, schemas: Arc<Schemas>, reached: fn(&'static str)) -> Self {
        let (signals, outcomes) = (names.signals(), names.outcomes());
        Self { signals, outcomes, dead_letters: names.dead_letters(), schemas, reached }
    }

    /// The records of a report: topic and value.
    pub(crate) fn records<'a>(
        &'a self,
        report: &'a FireReport,
    ) -> impl Iterator<Item = (&'a str, Vec<u8>)> {
        let signal = report.signal.iter();
        let signal = signal.map(|it| (self.signals.as_str(), self.schemas.encode_signal(it)));
        let letter = report
            .dead_letter
            .iter()
            .map(|letter| (self.dead_letters.as_str(), self.schemas.encode_dead_letter(letter)));
        let outcome = report.outcome.iter();
        let outcome = outcome.map(|it| (self.outcomes.as_str(), self.schemas.encode_outcome(it)));
        signal.chain(letter).chain(outcome)
    }

    /// Whether results are written to this topic.
    pub(crate) fn is_topic(&self, topic: &str) -> bool {
        [&self.signals, &self.outcomes, &self.dead_letters].iter().any(|ours| *ours == topic)
    }

    /// Whether changes of circuits are written to this topic.
    pub(crate) fn is_outcomes(&self, topic: &str) -> bool {
        self.outcomes == topic
    }

    /// What was read from partition p is written to partition p, so that a transaction touches few
    /// partitions.
    fn send(
        &self,
        producer: &impl TransactionalSending,
        partition: PartitionId,
        report: &FireReport,
    ) -> Result<(), TransactionError> {
        let key = report.trigger().map(|trigger| trigger.bytes().as_ref());
        for (topic, value) in self.records(report) {
            let (partition, value) = (Some(partition), Some(value.as_slice()));
            producer.send(ProducerRecord { topic, partition, key, value, headers: &[] })?;
        }
        Ok(())
    }

    /// The key decides the partition, so that a reader sees the changes of a circuit in order.
    fn send_circuit(
        &self,
        producer: &impl TransactionalSending,
        outcome: &Outcome,
    ) -> Result<(), TransactionError> {
        let value = self.schemas.encode_outcome(outcome);
        producer.send(ProducerRecord {
            topic: &self.outcomes,
            partition: None,
            key: Some(outcome.trigger.bytes()),
            value: Some(&value),
            headers: &[],
        })
    }
}

impl TransactionRecords for ResultBatch {
    type Encoder = ResultEncoder;

    fn send(
        &self,
        producer: &impl TransactionalSending,
        encoder: &ResultEncoder,
        commit_not_before: Timestamp,
        _time_left: impl Fn() -> Duration,
    ) -> Result<(), TransactionError> {
        producer.begin_at(commit_not_before)?;
        for result in &self.results {
            (encoder.reached)("worker.before_report");
            encoder.send(producer, result.place.partition, &result.report)?;
            (encoder.reached)("worker.after_report");
        }
        self.circuits.iter().try_for_each(|outcome| encoder.send_circuit(producer, outcome))
    }
}

impl<R> ReportedRecords<R> for ResultBatch {
    /// The loop reports what is committed.
    fn report(&self, _reporter: &R, _now: Timestamp) {}
}
