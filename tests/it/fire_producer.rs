//! Plays the owner of a worker's partitions: writes fires.

use std::time::Duration;

use orloj::codec::schemas::Schemas;
use orloj::model::PartitionId;
use orloj::model::fire::Fire;
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};

const DEADLINE: Duration = Duration::from_secs(60);

/// Bytes of the largest record: the brokers' default.
const RECORD_BYTES_MAX: &str = "1048588";

/// A producer of `fires`.
pub(crate) struct FireProducer {
    producer: ThreadedProducer<DefaultProducerContext>,
    topic: String,
    schemas: Schemas,
}

impl FireProducer {
    pub(crate) fn open(kafka: &ClientConfig, topic: &str) -> Self {
        let mut config = kafka.clone();
        config.set("message.max.bytes", RECORD_BYTES_MAX);
        let producer = config.create().unwrap();
        Self { producer, topic: topic.to_owned(), schemas: Schemas::new() }
    }

    /// Writes one, without waiting for the broker.
    pub(crate) fn publish(&self, partition: PartitionId, fire: &Fire) {
        let value = self.schemas.encode_fire(fire);
        let record = BaseRecord::to(&self.topic).partition(partition);
        let record = record.key(fire.id.trigger.bytes().as_ref()).payload(&value);
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
    }

    /// Waits until the broker has them all.
    pub(crate) fn flush(&self) {
        self.producer.flush(DEADLINE).unwrap();
    }
}
