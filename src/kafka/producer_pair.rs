//! Two transactors that take turns, so that a transaction need not wait for the markers of the one
//! before.
//!
//! Invariant: one begins only when the other's transaction has ended, so no more than one is
//! undecided, and what is read in order of offsets is what was decided in order. A broker that has
//! promised to commit still writes markers; a producer that starts its next one meanwhile is
//! refused (`CONCURRENT_TRANSACTIONS`), and librdkafka lets it wait for 20 ms. Its partner need not
//! wait: its own markers have been written long ago.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::group_metadata::GroupMetadata;
use super::transaction::{OffsetCommit, ProducerRecord, TransactionError, TransactionalProducer};
use crate::config::Settings;
use crate::model::Timestamp;

/// Two transactors under one identity.
#[derive(Debug)]
pub struct ProducerPair {
    producers: [TransactionalProducer; 2],
    current: AtomicUsize,
}

impl ProducerPair {
    /// Opens both under `id`, and blocks until the broker has ended whatever earlier ones of that
    /// id left open, at most `timeout`.
    pub fn open(
        settings: &Settings,
        id: &str,
        timeout: Duration,
    ) -> Result<Self, TransactionError> {
        let open = |id: &str| TransactionalProducer::open(settings, id, timeout);
        let second = second_transactional_id(id);
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| open(&second));
            let first = open(id);
            (first, second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        Ok(Self { producers: [first?, second?], current: AtomicUsize::new(0) })
    }

    /// Gets to know a topic, so that the first record for it does not wait for that.
    pub fn prefetch_metadata(&self, topic: &str) -> Result<(), TransactionError> {
        self.producers.iter().try_for_each(|transactor| transactor.prefetch_metadata(topic))
    }

    /// It is the other's turn; see [`TransactionalProducer::begin_at`].
    pub fn begin_at(&self, time: Timestamp) -> Result<(), TransactionError> {
        let _before = self.current.fetch_xor(1, Ordering::Relaxed);
        self.current().begin_at(time)
    }

    /// See [`TransactionalProducer::send`].
    pub fn send(&self, record: ProducerRecord<'_>) -> Result<(), TransactionError> {
        self.current().send(record)
    }

    /// See [`TransactionalProducer::commit`].
    pub fn commit(
        &self,
        offset_commits: &[OffsetCommit],
        group_metadata: &GroupMetadata,
    ) -> Result<Instant, TransactionError> {
        self.current().commit(offset_commits, group_metadata)
    }

    /// See [`TransactionalProducer::abort`].
    pub fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.current().abort(timeout)
    }

    fn current(&self) -> &TransactionalProducer {
        &self.producers[self.current.load(Ordering::Relaxed)]
    }
}

/// An instance's id has no slash (`scheduler.instance_id`), so no two processes share one of these.
fn second_transactional_id(id: &str) -> String {
    format!("{id}/2")
}
