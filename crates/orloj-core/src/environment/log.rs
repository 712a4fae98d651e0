//! Reading the log: records, and the ends of partitions.
//!
//! Invariant: a reader returns committed records of a partition in offset order, from the offset
//! at which it was started.

use std::time::Duration;

use super::call_error::CallResult;
use crate::model::{Offset, PartitionId, Timestamp};

/// A header's name and value.
pub type RecordHeader<'a> = (&'a str, Option<&'a [u8]>);

/// A record that was read. All values are borrowed.
pub trait LogRecord {
    /// The topic, partition and offset.
    fn position(&self) -> (&str, PartitionId, Offset);

    /// The timestamp in ms since the epoch; 0 if the record has none.
    fn timestamp(&self) -> Timestamp;

    /// The key.
    fn key(&self) -> Option<&[u8]>;

    /// The value; `None` is a tombstone.
    fn value(&self) -> Option<&[u8]>;

    /// The headers, in order.
    fn headers(&self) -> impl Iterator<Item = RecordHeader<'_>>;

    /// The partition.
    fn partition(&self) -> PartitionId {
        self.position().1
    }

    /// The offset.
    fn offset(&self) -> Offset {
        self.position().2
    }

    /// The value of the first header with this name; `None` if there is none, or if it has no
    /// value.
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(key, _)| *key == name).and_then(|(_, value)| value)
    }
}

/// What a poll returned.
#[derive(Debug)]
pub enum LogEvent<R> {
    /// A record.
    Record(R),
    /// There are no more committed records for now in some partition with this number. The event
    /// does not contain the topic: compare positions with end offsets.
    End(PartitionId),
    /// The broker has refused the offset at which some partition is read: it was deleted by
    /// retention, or the log is shorter, or that broker is not the leader any more. Nothing of it
    /// is read until it is started again. The event does not contain the partition: compare the
    /// positions of all with the bounds of their logs.
    OutOfRange,
}

/// Reads partitions by manual assignment, `read_committed`, from given offsets.
pub trait LogReading {
    /// A record, borrowed from the reader.
    type Record<'a>: LogRecord
    where
        Self: 'a;

    /// Starts reading a partition at `offset`. Records that were fetched earlier are discarded.
    fn start(&self, topic: &str, partition: PartitionId, offset: Offset) -> CallResult<()>;

    /// The offset until which a partition was read since it was started: what polls have returned
    /// and the transaction markers after that. `None` if nothing was.
    fn position(&self, topic: &str, partition: PartitionId) -> CallResult<Option<Offset>>;

    /// The end of a partition (exclusive) as its leader said when it was last fetched; `None` if it
    /// was not.
    fn fetched_end(&self, topic: &str, partition: PartitionId) -> Option<Offset>;

    /// Stops reading a partition. Does nothing if it was not read.
    fn stop(&self, topic: &str, partition: PartitionId) -> CallResult<()>;

    /// Returns nothing of a partition until [`resume`](Self::resume) or [`start`](Self::start); its
    /// position stays. Does nothing if it is not read.
    fn pause(&self, topic: &str, partition: PartitionId) -> CallResult<()>;

    /// Continues after [`pause`](Self::pause).
    fn resume(&self, topic: &str, partition: PartitionId) -> CallResult<()>;

    /// The next event; waits at most `timeout`.
    fn poll(&self, timeout: Duration) -> CallResult<Option<LogEvent<Self::Record<'_>>>>;
}
