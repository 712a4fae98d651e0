//! A producer for tests, which keeps what is sent.
//!
//! Invariant: clones share it. It refuses nothing but what a test has set.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::member::TestMetadata;
use crate::environment::transaction::{
    OffsetCommit, ProducerFactory, ProducerRecord, TransactionError, TransactionalSending,
};
use crate::model::{PartitionId, Timestamp};

/// A record that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentRecord {
    pub(crate) topic: String,
    pub(crate) partition: Option<PartitionId>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

/// What a producer was given, and how it answers.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    began_at: Option<Timestamp>,
    sent: Vec<SentRecord>,
    /// The topics whose batches were limited, and how many bytes they take.
    pub(crate) limits: Vec<(String, usize)>,
    /// The offsets of all transactions.
    pub(crate) offsets: Vec<OffsetCommit>,
    /// For how long each call could wait.
    pub(crate) timeouts: Vec<Duration>,
    /// This partition has no leader: a transaction with a record for it fails.
    pub(crate) without_leader: Option<(&'static str, PartitionId)>,
    /// A transaction with a record of this key fails so.
    pub(crate) refuses: Option<(&'static str, TransactionError)>,
    /// The next flush, commit, abort or opening fails.
    pub(crate) fails: Option<TransactionError>,
    /// The next commit fails.
    pub(crate) commit_fails: Option<TransactionError>,
    /// Records are not acknowledged.
    pub(crate) unflushed: bool,
    /// The producers with these numbers cannot be opened.
    pub(crate) unopened: Vec<usize>,
    /// The numbers of the producers that were opened, and of those that were used.
    pub(crate) opened: Vec<usize>,
    pub(crate) used: Vec<usize>,
}

/// Keeps the records of all transactions, and when the last one began.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestProducer(Arc<Mutex<Sending>>);

impl TestProducer {
    pub(crate) fn sending(&self) -> MutexGuard<'_, Sending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn began_at(&self) -> Option<Timestamp> {
        self.sending().began_at
    }

    /// In the order of sending.
    pub(crate) fn sent(&self) -> Vec<SentRecord> {
        self.sending().sent.clone()
    }

    fn wait(&self, timeout: Duration) -> Result<(), TransactionError> {
        let mut sending = self.sending();
        sending.timeouts.push(timeout);
        sending.fails.take().map_or(Ok(()), Err)
    }
}

impl TransactionalSending for TestProducer {
    type Metadata = TestMetadata;

    fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError> {
        self.sending().began_at = Some(time);
        Ok(())
    }

    fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        let headers =
            record.headers.iter().map(|(name, value)| ((*name).to_owned(), owned(*value)));
        let mut sending = self.sending();
        if let Some((key, error)) = &sending.refuses
            && record.key == Some(key.as_bytes())
        {
            sending.fails = Some(error.clone());
        }
        if let Some((topic, partition)) = sending.without_leader
            && (record.topic, record.partition) == (topic, Some(partition))
        {
            let (topic, reason) = (topic.to_owned(), "no leader".to_owned());
            sending.fails = Some(TransactionError::Undelivered { topic, partition, reason });
        }
        sending.sent.push(SentRecord {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: owned(record.key),
            value: owned(record.value),
            headers: headers.collect(),
        });
        Ok(())
    }

    fn limit_batch(
        &self,
        record: &ProducerRecord<'_>,
        bytes_max: usize,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        self.sending().timeouts.push(timeout);
        self.sending().limits.push((record.topic.to_owned(), bytes_max));
        Ok(())
    }

    fn is_flushed(&self, timeout: Duration) -> Result<bool, TransactionError> {
        self.wait(timeout).map(|()| !self.sending().unflushed)
    }

    fn send_offsets(
        &self,
        commits: &[OffsetCommit],
        _metadata: &TestMetadata,
        timeout: Duration,
    ) -> Result<(), TransactionError> {
        self.sending().offsets.extend_from_slice(commits);
        self.wait(timeout)
    }

    fn commit(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.wait(timeout)?;
        self.sending().commit_fails.take().map_or(Ok(()), Err)
    }

    fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.wait(timeout)
    }
}

impl ProducerFactory for TestProducer {
    type Producer = Self;

    fn open(&self, number: usize) -> Result<Self, TransactionError> {
        let mut sending = self.sending();
        if sending.unopened.contains(&number) {
            return Err(TransactionError::Unknown("a partition has no leader".to_owned()));
        }
        if let Some(error) = sending.fails.take() {
            return Err(error);
        }
        sending.opened.push(number);
        drop(sending);
        Ok(self.clone())
    }

    fn prepare(&self, number: usize) {
        self.sending().used.push(number);
    }
}
