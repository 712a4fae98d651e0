//! A record that was read from Kafka, without rdkafka's types.
//!
//! Invariant: it copies nothing. All values are borrowed from librdkafka's buffer, which is freed
//! when the record is dropped.

use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};

pub use crate::environment::log::RecordHeader;
use crate::model::{Offset, PartitionId, Timestamp};

/// A record in librdkafka's buffer.
#[derive(Debug)]
pub struct ConsumerRecord<'a>(BorrowedMessage<'a>);

impl<'a> ConsumerRecord<'a> {
    pub(super) fn new(message: BorrowedMessage<'a>) -> Self {
        Self(message)
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.0.topic()
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        self.0.partition()
    }

    /// The offset.
    #[must_use]
    pub fn offset(&self) -> Offset {
        Offset::try_from(self.0.offset()).expect("a record's offset is not negative")
    }

    /// The topic, partition and offset.
    #[must_use]
    pub fn position(&self) -> (&str, PartitionId, Offset) {
        (self.topic(), self.partition(), self.offset())
    }

    /// The timestamp in ms since the epoch; 0 if the record has none.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.0.timestamp().to_millis().and_then(|at| Timestamp::try_from(at).ok()).unwrap_or(0)
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.0.key()
    }

    /// The value; `None` is a tombstone.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.0.payload()
    }

    /// The headers, in order.
    pub fn headers(&self) -> impl Iterator<Item = RecordHeader<'_>> {
        let headers = self.0.headers().into_iter().flat_map(|headers| headers.iter());
        headers.map(|header| (header.key, header.value))
    }

    /// The value of the first header with this name; `None` if there is none, or if it has no
    /// value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(key, _)| *key == name).and_then(|(_, value)| value)
    }
}
