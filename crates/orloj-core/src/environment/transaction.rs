//! Transactions: records of several partitions and the offsets of their inputs, all or nothing.
//!
//! Invariant: a producer has at most one open transaction, which ends with `commit` or `abort`, or
//! by a newer producer with the same transactional id.

use std::time::Duration;

use super::log::RecordHeader;
use crate::model::{Offset, PartitionId, Timestamp};

/// After [`StaleGeneration`](Self::StaleGeneration) the same records may be sent again. After any
/// other one drop the producer and open a new one. If `commit` was called, read whether the
/// transaction is committed; if not, it is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// Another producer has the same transactional id, or the broker has expired this one.
    #[error("fenced: another process has the same transactional id ({0})")]
    Fenced(String),
    /// The broker refused the offsets: the group has a newer generation, or this process is not a
    /// member. Nothing is committed. Abort, then send again with new group metadata.
    #[error("the consumer group has a newer generation ({0})")]
    StaleGeneration(String),
    /// The broker refused a record, and would refuse it again.
    #[error("{topic}[{partition}] refused a record: {reason}")]
    Refused {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// The error of the broker or the client.
        reason: String,
    },
    /// The broker refused the time of a record, and accepts it when this machine's clock is right.
    #[error("{topic}[{partition}] refused the time of a record: {reason}")]
    RefusedTime {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// The error of the broker.
        reason: String,
    },
    /// A topic of the transaction does not exist, or this process may not write to it; the client
    /// does not say which. Ask for the states of its topics again.
    #[error("a topic of the transaction cannot be used: {0}")]
    UnusableTopic(String),
    /// A record was not acknowledged in time, for example because its partition has no leader.
    #[error("{topic}[{partition}] has not acknowledged a record in time: {reason}")]
    Undelivered {
        /// The topic.
        topic: String,
        /// The partition.
        partition: PartitionId,
        /// The error of the client.
        reason: String,
    },
    /// A timeout or another error: it is not known whether the transaction is committed.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
}

/// A record to send. All fields are borrowed; the producer copies them.
#[derive(Clone, Copy, Debug)]
pub struct ProducerRecord<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition; `None` means the partitioner chooses by the key.
    pub partition: Option<PartitionId>,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// The headers, in order.
    pub headers: &'a [RecordHeader<'a>],
}

/// The offset that a transaction commits for one input partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommit {
    /// The input topic.
    pub topic: String,
    /// The partition.
    pub partition: PartitionId,
    /// The offset of the next record to read.
    pub offset: Offset,
    /// Stored with the offset.
    pub metadata: String,
}

/// A transactional producer. One thread uses it at a time.
pub trait TransactionalSending: Send + Sync + 'static {
    /// Proves the membership in the consumer group whose offsets are committed.
    type Metadata: Send + 'static;

    /// Begins a transaction whose records get the timestamp `time` (ms since the epoch) if it is in
    /// the future. Nothing is sent yet.
    fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError>;

    /// Queues a record. A refusal by the broker is returned by [`is_flushed`](Self::is_flushed) at
    /// the latest.
    fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError>;

    /// Called before [`send`](Self::send) if the topic takes at most `bytes_max` at once, which is
    /// less than [`BATCH_BYTES_MAX`](crate::engine::catalog::BATCH_BYTES_MAX). Waits until what is
    /// queued for the partition fits in one batch together with `record`, at most `timeout`: then
    /// that record counts as undelivered.
    fn limit_batch(
        &self,
        record: &ProducerRecord<'_>,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<(), TransactionError>;

    /// Whether every record is acknowledged; waits at most `timeout` for that.
    fn is_flushed(&self, timeout: Duration) -> Result<bool, TransactionError>;

    /// Adds offsets, which are committed with the transaction. Waits at most `timeout`.
    fn send_offsets(
        &self,
        commits: &[OffsetCommit],
        metadata: &Self::Metadata,
        timeout: Duration,
    ) -> Result<(), TransactionError>;

    /// Commits. `Ok` means committed. Waits at most `timeout`.
    fn commit(&self, timeout: Duration) -> Result<(), TransactionError>;

    /// Aborts the open transaction. An error means that the outcome is unknown. Waits at most
    /// `timeout`.
    fn abort(&self, timeout: Duration) -> Result<(), TransactionError>;
}

/// How many producers a process can have open one after the other, each with a transactional id of
/// its own. While the broker cannot end the transaction of one, the next is used.
pub const PRODUCERS_MAX: usize = 4;

/// Opens the producers of a process.
pub trait ProducerFactory: Clone + Send + 'static {
    /// What it opens.
    type Producer;

    /// Opens the producer with this number, less than [`PRODUCERS_MAX`]. Blocks until the broker
    /// has ended the open transaction of an earlier producer of the same process and number, or
    /// until a timeout.
    fn open(&self, number: usize) -> Result<Self::Producer, TransactionError>;

    /// The producer with this number is used from now on. If it fails, it is opened again. Does not
    /// wait.
    fn prepare(&self, number: usize);
}
