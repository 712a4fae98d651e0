//! Writing submissions to `triggers` and hearing where they ended up.
//!
//! Invariant: a record goes to the partition that the configured hash says, so that its owner need
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

/// Where a record stands.
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
        f.debug_struct("Writer").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl std::fmt::Display for RecordMetadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]@{}", self.topic, self.partition, self.offset)
    }
}

impl TriggerProducer {
    /// Opens a producer that gives up on a record after `timeout`.
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

    /// Writes a record and waits until the broker has it. After an error it may be there or not:
    /// the same submission may be written again, since its id is the same.
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
