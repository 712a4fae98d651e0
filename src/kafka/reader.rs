//! Reads partitions by manual assignment, read_committed, from given offsets.
//!
//! Invariant: the reader is in no consumer group and commits nothing. Records of a partition are
//! returned in offset order. After [`LogReader::start`], records that were fetched earlier are
//! discarded.
#![allow(unsafe_code, reason = "rdkafka gives no access to fetched ends; see the SAFETY comment")]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::error::ClientResult;
use super::record::ConsumerRecord;
use super::watermarks::watermarks;
use super::{LogContext, consumer_config, whole_ms};
use crate::config::Settings;
use crate::model::{Offset, PartitionId};

/// The client's setting of what a reader fetches ahead, in KiB. Other clients do not have it.
pub(super) const READ_AHEAD_MAX: &str = "queued.max.messages.kbytes";

/// How long the broker may take to return the metadata of a topic.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// What a poll returned.
#[derive(Debug)]
pub enum ReadEvent<'a> {
    /// A record.
    Record(ConsumerRecord<'a>),
    /// There are no more committed records for now in some partition with this number. The event
    /// does not contain the topic: compare positions with end offsets.
    PartitionEof(PartitionId),
    /// The offset at which some partition is read does not exist: it was deleted by retention, or
    /// the log is shorter. The client's error does not contain the partition.
    OutOfRange(String),
}

/// The topics and partitions that are read.
type StartedPartitions = BTreeSet<(String, PartitionId)>;

/// A consumer without a group. Clones share it.
#[derive(Clone)]
pub struct LogReader {
    consumer: Arc<BaseConsumer<LogContext>>,
    started: Arc<Mutex<StartedPartitions>>,
}

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogReader").finish_non_exhaustive()
    }
}

impl LogReader {
    /// Opens a reader. It has the group's name only so that the group's ACLs also cover it.
    pub fn open(settings: &Settings, group: &str) -> ClientResult<Self> {
        let mut config = consumer_config(settings, group);
        config
            // A partition that is added has to wait until the current fetch request ends.
            .set("fetch.wait.max.ms", "25")
            .set("fetch.queue.backoff.ms", "5")
            .set("max.partition.fetch.bytes", "4194304")
            // An answer must arrive within timeouts.fetch, also over a slow network.
            .set("fetch.max.bytes", "8388608")
            .set("queued.min.messages", "100000")
            .set("fetch.error.backoff.ms", "50");
        if let Some(size) = settings.kafka.get(READ_AHEAD_MAX) {
            let _set = config.set(READ_AHEAD_MAX, size);
        }
        let consumer = Arc::new(config.create_with_context(LogContext)?);
        Ok(Self { consumer, started: Arc::default() })
    }

    /// Fetches the metadata of a topic, so that the first read does not wait for it.
    pub fn prefetch_metadata(&self, topic: &str) -> ClientResult<()> {
        let _cached = self.consumer.fetch_metadata(Some(topic), METADATA_TIMEOUT)?;
        Ok(())
    }

    /// Starts reading a partition at `offset`.
    pub fn start(&self, topic: &str, partition: PartitionId, offset: Offset) -> ClientResult<()> {
        self.stop(topic, partition)?;
        let mut list = TopicPartitionList::new();
        let offset = i64::try_from(offset).expect("Kafka's offsets are below 2^63");
        list.add_partition_offset(topic, partition, KafkaOffset::Offset(offset))?;
        self.consumer.incremental_assign(&list)?;
        let _is_new = self.started().insert((topic.to_owned(), partition));
        Ok(())
    }

    /// The offset until which a partition was read since it was started. Unlike the offset after
    /// the last record it counts transaction markers.
    pub fn position(&self, topic: &str, partition: PartitionId) -> ClientResult<Option<Offset>> {
        let positions = self.consumer.position()?;
        let position = positions.find_partition(topic, partition).map(|element| element.offset());
        Ok(match position {
            Some(KafkaOffset::Offset(offset)) => Offset::try_from(offset).ok(),
            _ => None,
        })
    }

    /// The end of a partition (exclusive, read_uncommitted) as its leader said when it was last
    /// fetched; `None` if it was not.
    #[must_use]
    pub fn fetched_end(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        let topic = CString::new(topic).ok()?;
        let native = self.consumer.client().native_ptr();
        let (mut low, mut high) = (-1, -1);
        // SAFETY: the client lives as long as `self`, the name is NUL-terminated, and both offsets
        // are written before the call returns.
        let _known = unsafe {
            let (low, high) = (&raw mut low, &raw mut high);
            c::rd_kafka_get_watermark_offsets(native, topic.as_ptr(), partition, low, high)
        };
        Offset::try_from(high).ok() // negative if it is unknown
    }

    /// Stops reading a partition. Does nothing if it was not read.
    pub fn stop(&self, topic: &str, partition: PartitionId) -> ClientResult<()> {
        let started = (topic.to_owned(), partition);
        if !self.started().contains(&started) {
            return Ok(());
        }
        let mut list = TopicPartitionList::new();
        let _element = list.add_partition(topic, partition);
        // A pause would outlast the assignment.
        self.consumer.resume(&list)?;
        self.consumer.incremental_unassign(&list)?;
        let _was_started = self.started().remove(&started);
        Ok(())
    }

    /// Pauses or resumes a partition, so that records which cannot be processed yet do not fill the
    /// memory. Does nothing if it is not read: the pause would last when it is started.
    pub fn pause(&self, topic: &str, partition: PartitionId, paused: bool) -> ClientResult<()> {
        if !self.started().contains(&(topic.to_owned(), partition)) {
            return Ok(());
        }
        let mut list = TopicPartitionList::new();
        let _element = list.add_partition(topic, partition);
        let result = if paused { self.consumer.pause(&list) } else { self.consumer.resume(&list) };
        Ok(result?)
    }

    /// The next event; waits at most `timeout`.
    pub fn poll(&self, timeout: Duration) -> ClientResult<Option<ReadEvent<'_>>> {
        match self.consumer.poll(whole_ms(timeout)) {
            None => Ok(None),
            Some(Ok(message)) => Ok(Some(ReadEvent::Record(ConsumerRecord::new(message)))),
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                Ok(Some(ReadEvent::PartitionEof(partition)))
            }
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(
                    RDKafkaErrorCode::OffsetOutOfRange
                    | RDKafkaErrorCode::AutoOffsetReset
                    | RDKafkaErrorCode::LogTruncation,
                ) => Ok(Some(ReadEvent::OutOfRange(error.to_string()))),
                _ => Err(error.into()),
            },
        }
    }

    fn started(&self) -> MutexGuard<'_, StartedPartitions> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last stable offset of a partition, where a read_committed reader stops.
    pub fn last_stable_offset(
        &self,
        topic: &str,
        partition: PartitionId,
        timeout: Duration,
    ) -> ClientResult<Offset> {
        watermarks(&self.consumer, topic, partition, timeout).map(|(_low, end)| end)
    }
}
