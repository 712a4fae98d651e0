//! Reading the inputs by plain assignment, read_committed, from offsets that the cursor says.
//!
//! Invariant: the reader belongs to no group and commits nothing. Within a partition records come
//! in offset order; where one starts over, what was fetched before is discarded.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::{LogContext, consumer_config, whole_ms};
use crate::config::Settings;
use crate::model::{Offset, PartitionId};

/// How long the broker may take to say where a topic's partitions are.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// What the reader found.
#[derive(Debug)]
pub enum ReadEvent<'a> {
    /// A record.
    Record(BorrowedMessage<'a>),
    /// Some partition with this number has no more committed records for now. The event does not
    /// say of which topic: compare positions with ends.
    PartitionEof(PartitionId),
    /// An offset that was asked for is not there (deleted by retention, or never written).
    OutOfRange(String),
}

/// A consumer without a group.
pub struct LogReader {
    consumer: BaseConsumer<LogContext>,
}

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl LogReader {
    /// Opens a reader. It carries the group's name only so that the same ACLs cover it.
    pub fn open(settings: &Settings, group: &str) -> KafkaResult<Self> {
        let mut config = consumer_config(settings, group);
        config
            // A partition that is added waits for the fetch under way.
            .set("fetch.wait.max.ms", "25")
            .set("fetch.queue.backoff.ms", "5")
            .set("max.partition.fetch.bytes", "4194304")
            .set("queued.max.messages.kbytes", "65536")
            .set("queued.min.messages", "100000")
            .set("fetch.error.backoff.ms", "50");
        Ok(Self { consumer: config.create_with_context(LogContext)? })
    }

    /// Gets to know a topic, so that the first read of it does not wait for that.
    pub fn prefetch_metadata(&self, topic: &str) -> KafkaResult<()> {
        self.consumer.fetch_metadata(Some(topic), METADATA_TIMEOUT).map(drop)
    }

    /// Reads a partition from `offset` on.
    pub fn start(&self, topic: &str, partition: PartitionId, offset: Offset) -> KafkaResult<()> {
        self.stop(topic, partition)?;
        let mut list = TopicPartitionList::new();
        let offset = i64::try_from(offset).expect("Kafka's offsets are below 2^63");
        list.add_partition_offset(topic, partition, KafkaOffset::Offset(offset))?;
        self.consumer.incremental_assign(&list)
    }

    /// Reads a partition no longer; nothing happens if it was not read.
    pub fn stop(&self, topic: &str, partition: PartitionId) -> KafkaResult<()> {
        let assigned = self.consumer.assignment()?;
        if assigned.find_partition(topic, partition).is_none() {
            return Ok(());
        }
        let mut list = TopicPartitionList::new();
        let _element = list.add_partition(topic, partition);
        self.consumer.incremental_unassign(&list)
    }

    /// Pauses or resumes a partition: what its owner cannot take must not pile up in memory.
    pub fn pause(&self, topic: &str, partition: PartitionId, paused: bool) -> KafkaResult<()> {
        let mut list = TopicPartitionList::new();
        let _element = list.add_partition(topic, partition);
        if paused { self.consumer.pause(&list) } else { self.consumer.resume(&list) }
    }

    /// The next thing read, waiting at most `timeout`.
    pub fn poll(&self, timeout: Duration) -> Result<Option<ReadEvent<'_>>, KafkaError> {
        match self.consumer.poll(whole_ms(timeout)) {
            None => Ok(None),
            Some(Ok(message)) => Ok(Some(ReadEvent::Record(message))),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                Ok(Some(ReadEvent::PartitionEof(partition)))
            }
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::OffsetOutOfRange | RDKafkaErrorCode::AutoOffsetReset) => {
                    Ok(Some(ReadEvent::OutOfRange(error.to_string())))
                }
                _ => Err(error),
            },
        }
    }

    /// The last stable offset of a partition: where a read_committed reader stops.
    pub fn last_stable_offset(
        &self,
        topic: &str,
        partition: PartitionId,
        timeout: Duration,
    ) -> KafkaResult<Offset> {
        let (_low, end) = self.consumer.fetch_watermarks(topic, partition, timeout)?;
        Ok(Offset::try_from(end).unwrap_or(0))
    }

    /// The topic and partition of a record.
    #[must_use]
    pub fn position<'a>(message: &'a BorrowedMessage<'_>) -> (&'a str, PartitionId, Offset) {
        let offset = Offset::try_from(message.offset()).expect("a record's offset is not negative");
        (message.topic(), message.partition(), offset)
    }
}
