//! Writing submissions to `triggers`, with the position of each record.
//!
//! Invariant: a record is written to the partition of the configured hash, so that its owner does
//! not forward it and its outcome names the offset that the writer knows.

use std::time::Duration;

use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::submission::Submission;
use crate::config::Settings;
use crate::kafka::{Names, producer_config};
use crate::model::partitioner::Partitioner;
use crate::model::{Offset, PartitionId};

/// A producer for `triggers`.
pub struct TriggerProducer {
    producer: FutureProducer,
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
    /// Opens a producer with a delivery timeout of `timeout`.
    pub fn open(settings: &Settings, timeout: Duration) -> KafkaResult<Self> {
        let mut config = producer_config(settings);
        let _set = config.set("message.timeout.ms", timeout.as_millis().to_string());
        Ok(Self {
            producer: config.create()?,
            topic: Names::new(&settings.topics.prefix).triggers(),
            partitioner: settings.triggers.partitioner,
            partitions: settings.topics.partitions.get().into(),
        })
    }

    /// Writes a record and waits for the acknowledgement. After an error the record may be written
    /// or not: the same submission may be written again, since its id is the same.
    pub async fn send(&self, submission: &Submission) -> Result<RecordMetadata, KafkaError> {
        let mut headers = OwnedHeaders::new_with_capacity(submission.headers.len());
        for (key, value) in &submission.headers {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let mut record = FutureRecord::to(&self.topic).key(&submission.id).headers(headers);
        record.payload = submission.value.as_ref();
        record.partition = self.partitioner.partition(submission.id.as_bytes(), self.partitions);
        let sent = self.producer.send(record, Duration::ZERO).await;
        let delivery = sent.map_err(|(error, _record)| error)?;
        let offset = Offset::try_from(delivery.offset).unwrap_or_default();
        Ok(RecordMetadata { topic: self.topic.clone(), partition: delivery.partition, offset })
    }
}
