//! A record that was fetched.
//!
//! Invariant: it borrows nothing of the client's buffer, so it can wait.

use bytes::Bytes;

use crate::environment::log::LogRecord;
use crate::model::definition::Header;
use crate::model::text::Text;
use crate::model::{Offset, PartitionId, Timestamp};

/// What a fire counts for besides its record, in bytes.
const FIRE_BYTES: usize = 512;

/// A record of `fires`, copied out of the client's buffer.
#[derive(Debug)]
pub(crate) struct FetchedRecord {
    pub(super) partition: PartitionId,
    pub(crate) offset: Offset,
    pub(super) timestamp: Timestamp,
    pub(super) key: Option<Bytes>,
    pub(super) value: Option<Bytes>,
    pub(super) headers: Vec<Header>,
}

impl FetchedRecord {
    pub(super) fn of(record: &impl LogRecord) -> Self {
        let (_topic, partition, offset) = record.position();
        let headers = record.headers().map(|(name, value)| Header {
            name: Text::from(name),
            value: value.map(Bytes::copy_from_slice),
        });
        Self {
            partition,
            offset,
            timestamp: record.timestamp(),
            key: record.key().map(Bytes::copy_from_slice),
            value: record.value().map(Bytes::copy_from_slice),
            headers: headers.collect(),
        }
    }

    /// About how many bytes its fire has.
    pub(crate) fn bytes(&self) -> usize {
        FIRE_BYTES + self.value.as_ref().map_or(0, Bytes::len)
    }
}
