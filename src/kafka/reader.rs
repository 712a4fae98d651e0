//! Reads partitions by manual assignment, read_committed, from given offsets.
//!
//! Invariant: the reader is in no consumer group and commits nothing. Records of a partition are
//! returned in offset order. After [`LogReader::start`], records that were fetched earlier are
//! discarded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use super::error::ClientResult;
use super::record::ConsumerRecord;
use super::{LogContext, consumer_config, whole_ms};
use crate::config::Settings;
use crate::model::{Offset, PartitionId};

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
    /// the log is shorter. [`LogReader::out_of_range`] returns which.
    OutOfRange(String),
}

/// How long a request for the bounds of one partition may take.
const BOUNDS_TIMEOUT: Duration = Duration::from_millis(500);

/// Where reading was started, by topic and partition.
type StartedOffsets = BTreeMap<(String, PartitionId), Offset>;

/// A consumer without a group. Clones share it.
#[derive(Clone)]
pub struct LogReader {
    consumer: Arc<BaseConsumer<LogContext>>,
    started: Arc<Mutex<StartedOffsets>>,
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
            .set("queued.max.messages.kbytes", "65536")
            .set("queued.min.messages", "100000")
            .set("fetch.error.backoff.ms", "50");
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
        let _before = self.started().insert((topic.to_owned(), partition), offset);
        let mut list = TopicPartitionList::new();
        let offset = i64::try_from(offset).expect("Kafka's offsets are below 2^63");
        list.add_partition_offset(topic, partition, KafkaOffset::Offset(offset))?;
        Ok(self.consumer.incremental_assign(&list)?)
    }

    /// Stops reading a partition. Does nothing if it was not read.
    pub fn stop(&self, topic: &str, partition: PartitionId) -> ClientResult<()> {
        let assigned = self.consumer.assignment()?;
        if assigned.find_partition(topic, partition).is_none() {
            return Ok(());
        }
        let _before = self.started().remove(&(topic.to_owned(), partition));
        let mut list = TopicPartitionList::new();
        let _element = list.add_partition(topic, partition);
        // A pause would outlast the assignment.
        self.consumer.resume(&list)?;
        Ok(self.consumer.incremental_unassign(&list)?)
    }

    /// Pauses or resumes a partition, so that records which cannot be processed yet do not fill the
    /// memory. Does nothing if it is not read: the pause would last when it is started.
    pub fn pause(&self, topic: &str, partition: PartitionId, paused: bool) -> ClientResult<()> {
        if !self.started().contains_key(&(topic.to_owned(), partition)) {
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

    /// A partition whose position is below its first offset or above its end; `None` if there is
    /// none. rdkafka's error does not contain the partition, so the bounds of each are requested.
    pub fn out_of_range(&self) -> ClientResult<Option<(String, PartitionId)>> {
        let positions = self.consumer.position()?;
        let started = self.started().clone();
        for ((topic, partition), started) in started {
            let position = positions
                .find_partition(&topic, partition)
                .and_then(|element| Offset::try_from(element.offset().to_raw()?).ok())
                .unwrap_or(started);
            let (low, end) = self.consumer.fetch_watermarks(&topic, partition, BOUNDS_TIMEOUT)?;
            let is_valid = |offset: i64| Offset::try_from(offset).ok();
            let is_below = is_valid(low).is_some_and(|low| position < low);
            if is_below || is_valid(end).is_some_and(|end| end < position) {
                return Ok(Some((topic, partition)));
            }
        }
        Ok(None)
    }

    fn started(&self) -> MutexGuard<'_, StartedOffsets> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last stable offset of a partition, where a read_committed reader stops.
    pub fn last_stable_offset(
        &self,
        topic: &str,
        partition: PartitionId,
        timeout: Duration,
    ) -> ClientResult<Offset> {
        let (_low, end) = self.consumer.fetch_watermarks(topic, partition, timeout)?;
        Ok(Offset::try_from(end).unwrap_or(0))
    }
}
