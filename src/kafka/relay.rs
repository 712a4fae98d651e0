//! Two transactors that take turns, so that a transaction need not wait for the markers of the one
//! before.
//!
//! Law: one begins only when the other's transaction has ended, so no more than one is undecided,
//! and what is read in order of offsets is what was decided in order. A broker that has promised
//! to commit still writes markers; a producer that begins anew meanwhile is refused
//! (`CONCURRENT_TRANSACTIONS`), and librdkafka lets it wait for 20 ms. Its partner need not wait:
//! its own markers have been written long ago.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::fence::Fence;
use super::transaction::{Outgoing, Progress, TransactionError, Transactor};
use crate::config::Settings;
use crate::model::Timestamp;

/// Two transactors under one identity.
#[derive(Debug)]
pub struct Relay {
    partners: [Transactor; 2],
    turn: AtomicUsize,
}

impl Relay {
    /// Opens both under `id`, and blocks until the broker has ended whatever earlier ones of that
    /// id left open, at most `timeout`.
    pub fn open(
        settings: &Settings,
        id: &str,
        timeout: Duration,
    ) -> Result<Self, TransactionError> {
        let open = |id: &str| Transactor::open(settings, id, timeout);
        let second = second_id(id);
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(|| open(&second));
            let first = open(id);
            (first, second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        Ok(Self { partners: [first?, second?], turn: AtomicUsize::new(0) })
    }

    /// Gets to know a topic, so that the first record for it does not wait for that.
    pub fn meet(&self, topic: &str) -> Result<(), TransactionError> {
        self.partners.iter().try_for_each(|transactor| transactor.meet(topic))
    }

    /// It is the other's turn; see [`Transactor::begin_for`].
    pub fn begin_for(&self, time: Timestamp) -> Result<(), TransactionError> {
        let _before = self.turn.fetch_xor(1, Ordering::Relaxed);
        self.current().begin_for(time)
    }

    /// See [`Transactor::send`].
    pub fn send(&self, record: Outgoing<'_>) -> Result<(), TransactionError> {
        self.current().send(record)
    }

    /// See [`Transactor::commit`].
    pub fn commit(
        &self,
        progress: &[Progress],
        fence: &Fence,
    ) -> Result<Instant, TransactionError> {
        self.current().commit(progress, fence)
    }

    /// See [`Transactor::abort`].
    pub fn abort(&self, timeout: Duration) -> Result<(), TransactionError> {
        self.current().abort(timeout)
    }

    fn current(&self) -> &Transactor {
        &self.partners[self.turn.load(Ordering::Relaxed)]
    }
}

/// An instance's id has no slash (`scheduler.instance_id`), so no two processes share one of these.
fn second_id(id: &str) -> String {
    format!("{id}/2")
}
