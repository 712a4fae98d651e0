//! Writing submissions to `triggers`, with the position of each record.
//!
//! Invariant: a record is written to the partition of the configured hash, so that its owner does
//! not forward it and its outcome names the offset that the writer knows.

use std::pin::Pin;
use std::time::Duration;

use super::SubmitError;
use super::submission::Submission;
use crate::config::Settings;
use crate::kafka::Names;
use crate::kafka::error::ClientResult;
use crate::kafka::record_producer::RecordProducer;
use crate::kafka::transaction::ProducerRecord;
use crate::model::partitioner::Partitioner;
use crate::model::{Offset, PartitionId};

/// The acknowledgement of a record.
pub(crate) type Acknowledgement<'a> =
    Pin<Box<dyn Future<Output = Result<RecordMetadata, SubmitError>> + Send + 'a>>;

/// What writes submissions: [`TriggerProducer`], or a simulation of it.
pub(crate) trait SubmissionWriter: std::fmt::Debug + Send + Sync {
    /// Writes a record and waits for the acknowledgement, as [`TriggerProducer::send`] does.
    fn write<'a>(&'a self, submission: &'a Submission) -> Acknowledgement<'a>;
}

/// A producer for `triggers`.
pub struct TriggerProducer {
    producer: RecordProducer,
    topic: String,
    partitioner: Partitioner,
    partitions: i32,
}

/// The position of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
}

impl std::fmt::Debug for TriggerProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TriggerProducer").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl std::fmt::Display for RecordMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]@{}", self.topic, self.partition, self.offset)
    }
}

impl TriggerProducer {
    /// Opens a producer that waits for the acknowledgement of a record for `wait`.
    pub fn open(settings: &Settings, wait: Duration) -> ClientResult<Self> {
        Ok(Self {
            producer: RecordProducer::open(settings, Some(wait))?,
            topic: Names::new(&settings.topics.prefix).triggers(),
            partitioner: settings.triggers.partitioner,
            partitions: settings.topics.partitions.get().into(),
        })
    }

    /// Writes a record and waits for the acknowledgement. The error says whether the record may be
    /// written.
    pub async fn send(&self, submission: &Submission) -> Result<RecordMetadata, SubmitError> {
        let key = submission.id.as_bytes();
        let headers = submission.headers.iter();
        let headers: Vec<_> = headers.map(|(key, value)| (&key[..], Some(&value[..]))).collect();
        let record = ProducerRecord {
            topic: &self.topic,
            partition: self.partitioner.partition(key, self.partitions),
            key: Some(key),
            value: submission.value.as_deref(),
            headers: &headers,
        };
        let delivery = self.producer.send(record).map_err(SubmitError::NotSent)?;
        let acknowledged = delivery.acknowledged().await;
        let (partition, offset) = acknowledged.map_err(SubmitError::NotAcknowledged)?;
        Ok(RecordMetadata { topic: self.topic.clone(), partition, offset })
    }
}

impl SubmissionWriter for TriggerProducer {
    fn write<'a>(&'a self, submission: &'a Submission) -> Acknowledgement<'a> {
        Box::pin(self.send(submission))
    }
}
