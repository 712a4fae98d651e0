//! The traits of `environment`, as the clients of this module have them.
//!
//! Invariant: nothing is decided here. Each function is a call of a client.

use std::collections::BTreeMap;
use std::time::Duration;

use super::admin_client::KafkaAdminClient;
use super::error::ClientResult;
use super::group_metadata::GroupMetadata;
use super::producer_pair::ProducerPair;
use super::reader::{LogReader, ReadEvent};
use super::record::{ConsumerRecord, RecordHeader};
use super::transaction::TransactionalProducer;
use crate::engine::catalog::TopicState;
use crate::environment::ClusterQueries;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::log::{LogEvent, LogReading, LogRecord};
use crate::environment::transaction::{
    OffsetCommit, ProducerRecord, TransactionError, TransactionalSending,
};
use crate::model::{BrokerId, Offset, PartitionId, Timestamp};

/// The error of a client as the loops see it.
pub fn call<T>(result: ClientResult<T>) -> CallResult<T> {
    result.map_err(CallError::new)
}

impl LogRecord for ConsumerRecord<'_> {
    fn position(&self) -> (&str, PartitionId, Offset) {
        self.position()
    }

    fn timestamp(&self) -> Timestamp {
        self.timestamp()
    }

    fn key(&self) -> Option<&[u8]> {
        self.key()
    }

    fn value(&self) -> Option<&[u8]> {
        self.value()
    }

    fn headers(&self) -> impl Iterator<Item = RecordHeader<'_>> {
        self.headers()
    }

    fn partition(&self) -> PartitionId {
        self.partition()
    }

    fn offset(&self) -> Offset {
        self.offset()
    }
}

impl LogReading for LogReader {
    type Record<'a> = ConsumerRecord<'a>;

    fn start(&self, topic: &str, partition: PartitionId, offset: Offset) -> CallResult<()> {
        call(self.start(topic, partition, offset))
    }

    fn position(&self, topic: &str, partition: PartitionId) -> CallResult<Option<Offset>> {
        call(self.position(topic, partition))
    }

    fn fetched_end(&self, topic: &str, partition: PartitionId) -> Option<Offset> {
        self.fetched_end(topic, partition)
    }

    fn stop(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        call(self.stop(topic, partition))
    }

    fn pause(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        call(self.pause(topic, partition, true))
    }

    fn resume(&self, topic: &str, partition: PartitionId) -> CallResult<()> {
        call(self.pause(topic, partition, false))
    }

    fn poll(&self, timeout: Duration) -> CallResult<Option<LogEvent<ConsumerRecord<'_>>>> {
        Ok(call(self.poll(timeout))?.map(|event| match event {
            ReadEvent::Record(record) => LogEvent::Record(record),
            ReadEvent::PartitionEof(partition) => LogEvent::End(partition),
            ReadEvent::OutOfRange(_) => LogEvent::OutOfRange,
        }))
    }
}

impl TransactionalSending for ProducerPair {
    type Metadata = GroupMetadata;

    fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError> {
        self.begin_at(time)
    }

    fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        self.send(record)
    }

    fn limit_batch(
        &self,
        record: &ProducerRecord<'_>,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        self.limit_batch(record, bytes_max, timeout)
    }

    fn is_flushed(&self, timeout: Duration) -> Result<bool, TransactionError> {
        self.is_flushed(timeout)
    }

    fn send_offsets(
        &self,
        commits: &[OffsetCommit],
        metadata: &GroupMetadata,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        self.send_offsets(commits, metadata, timeout)
    }

    fn commit(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.commit(timeout)
    }

    fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.abort(timeout)
    }
}

impl TransactionalSending for TransactionalProducer {
    type Metadata = GroupMetadata;

    fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError> {
        self.begin_at(time)
    }

    fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        self.send(record)
    }

    fn limit_batch(
        &self,
        record: &ProducerRecord<'_>,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        self.limit_batch(record, bytes_max, timeout)
    }

    fn is_flushed(&self, timeout: Duration) -> Result<bool, TransactionError> {
        self.is_flushed(timeout)
    }

    fn send_offsets(
        &self,
        commits: &[OffsetCommit],
        metadata: &GroupMetadata,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        self.send_offsets(commits, metadata, timeout)
    }

    fn commit(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.commit(timeout)
    }

    fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.abort(timeout)
    }
}

/// Asks the brokers.
#[derive(Clone, Debug)]
pub struct KafkaQueries {
    /// Read_uncommitted.
    pub admin: KafkaAdminClient,
    /// Read_committed.
    pub reader: LogReader,
    /// How long the broker may take to answer.
    pub timeout: Duration,
}

impl ClusterQueries for KafkaQueries {
    fn bounds(&self, topic: &str, partition: PartitionId) -> CallResult<(Offset, Offset)> {
        call(self.admin.bounds(topic, partition))
    }

    fn leaders(&self, topic: &str) -> CallResult<BTreeMap<PartitionId, BrokerId>> {
        call(self.admin.leaders(topic))
    }

    fn end_offsets(
        &self,
        topic: &str,
        partitions: &[PartitionId],
        timeout: Duration,
    ) -> CallResult<BTreeMap<PartitionId, Offset>> {
        call(self.admin.end_offsets(topic, partitions, timeout))
    }

    fn last_stable_offset(&self, topic: &str, partition: PartitionId) -> CallResult<Offset> {
        call(self.reader.last_stable_offset(topic, partition, self.timeout))
    }

    fn offset_for_time(
        &self,
        topic: &str,
        partition: PartitionId,
        time: Timestamp,
    ) -> CallResult<Offset> {
        call(self.admin.offset_for_time(topic, partition, time))
    }

    fn topic_state(&self, topic: &str) -> CallResult<TopicState> {
        call(self.admin.topic_state(topic))
    }
}
