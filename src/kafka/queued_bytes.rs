//! How many bytes are queued for partitions whose topics take less at once than the client would
//! send.
//!
//! Invariant: a batch counts as larger than it is, never as smaller. librdkafka puts what is queued
//! for a partition into one batch, whatever the topic takes, and the broker refuses it as a whole.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::environment::log::RecordHeader;
use crate::environment::transaction::ProducerRecord;
use crate::model::PartitionId;

/// The header of a record batch (version 2) has 61 bytes.
const BATCH_BYTES: usize = 61;
/// The numbers in a record: attributes, two differences and four lengths, of at most ten bytes.
const RECORD_BYTES: usize = 64;
/// The lengths of a header's name and value.
const HEADER_BYTES: usize = 10;

/// What is queued since the last flush.
#[derive(Debug, Default)]
pub(super) struct QueuedBytes(Mutex<HashMap<(String, PartitionId), usize>>);

impl QueuedBytes {
    fn queued(&self) -> MutexGuard<'_, HashMap<(String, PartitionId), usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a batch of what is queued for the record's partition and of the record has at most
    /// `bytes_max`. A record alone always fits: nothing can be split then.
    pub(super) fn fits(&self, record: &ProducerRecord<'_>, bytes_max: usize) -> bool {
        let queued = self.queued().get(&place(record)).copied();
        queued.is_none_or(|queued| BATCH_BYTES + queued + bytes_of(record) <= bytes_max)
    }

    /// The record is queued.
    pub(super) fn add(&self, record: &ProducerRecord<'_>) {
        *self.queued().entry(place(record)).or_default() += bytes_of(record);
    }

    /// Nothing is queued any more.
    pub(super) fn clear(&self) {
        self.queued().clear();
    }
}

fn place(record: &ProducerRecord<'_>) -> (String, PartitionId) {
    (record.topic.to_owned(), record.partition.unwrap_or(-1))
}

/// How many bytes a record takes in a batch at most, before compression.
fn bytes_of(record: &ProducerRecord<'_>) -> usize {
    let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let header = |(name, value): &RecordHeader<'_>| name.len() + length(*value) + HEADER_BYTES;
    let headers: usize = record.headers.iter().map(header).sum();
    RECORD_BYTES + length(record.key) + length(record.value) + headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_fit_until_their_batch_is_full_and_again_when_nothing_is_queued() {
        let (key, value) = (Some(&b"key"[..]), Some(&[0; 100][..]));
        let headers = [("name", Some(&b"value"[..]))];
        let record =
            ProducerRecord { topic: "a", partition: Some(0), key, value, headers: &headers };
        let bytes = 64 + 3 + 100 + 4 + 5 + 10;
        let queued = QueuedBytes::default();
        assert!(queued.fits(&record, 1), "a record alone");
        queued.add(&record);
        let both = 61 + 2 * bytes;
        assert!(queued.fits(&record, both) && !queued.fits(&record, both - 1));
        let elsewhere = ProducerRecord { partition: Some(1), ..record };
        assert!(queued.fits(&elsewhere, 1), "another partition");
        queued.clear();
        assert!(queued.fits(&record, 1));
    }
}
