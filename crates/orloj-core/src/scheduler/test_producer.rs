//! A producer for tests, which keeps what is sent.
//!
//! Invariant: it refuses nothing, and commits nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::environment::transaction::{
    OffsetCommit, ProducerRecord, TransactionError, TransactionalSending,
};
use crate::model::{PartitionId, Timestamp};

/// A record that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentRecord {
    pub(super) topic: String,
    pub(super) partition: Option<PartitionId>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Vec<(String, Option<Vec<u8>>)>,
}

/// Keeps the records of a transaction, and when that began.
#[derive(Debug, Default)]
pub(super) struct TestProducer {
    began_at: Mutex<Option<Timestamp>>,
    sent: Mutex<Vec<SentRecord>>,
}

impl TestProducer {
    pub(super) fn began_at(&self) -> Option<Timestamp> {
        *lock(&self.began_at)
    }

    /// In the order of sending.
    pub(super) fn sent(&self) -> Vec<SentRecord> {
        lock(&self.sent).clone()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TransactionalSending for TestProducer {
    type Metadata = ();

    fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError> {
        *lock(&self.began_at) = Some(time);
        Ok(())
    }

    fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        let headers =
            record.headers.iter().map(|(name, value)| ((*name).to_owned(), owned(*value)));
        lock(&self.sent).push(SentRecord {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: owned(record.key),
            value: owned(record.value),
            headers: headers.collect(),
        });
        Ok(())
    }

    fn flush(&self, _timeout: Duration) -> Result<(), TransactionError> {
        Ok(())
    }

    fn send_offsets(
        &self,
        _commits: &[OffsetCommit],
        (): &(),
        _timeout: Duration,
    ) -> Result<(), TransactionError> {
        Ok(())
    }

    fn commit(&self, _timeout: Duration) -> Result<(), TransactionError> {
        Ok(())
    }

    fn abort(&self, _timeout: Duration) -> Result<(), TransactionError> {
        Ok(())
    }
}
