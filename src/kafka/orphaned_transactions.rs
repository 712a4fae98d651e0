//! Fences the transactions that a failed owner left open.
//!
//! Invariant: only the new owner of a partition fences the earlier one, and only if the earlier
//! owner did not mark its last commit as final. While the old transaction is open, read_committed
//! readers stop before it and its offset is not stable; without fencing, that lasts until the
//! transaction times out. If the earlier owner is still running, fencing it is correct: the group
//! has reassigned its partition.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;

use super::error::ClientResult;
use super::producer_pair::ProducerPair;
use super::{client_config, member};
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::environment::transaction::PRODUCERS_MAX;
use crate::model::PartitionId;

/// An owner is fenced once within this time, even if several of its partitions are taken over. A
/// takeover that still waits after that time fences it again.
const FENCED_TTL: Duration = Duration::from_secs(5);

/// The earlier owners that were fenced. Shared by the threads that read committed offsets.
pub struct OrphanedTransactions {
    consumer: BaseConsumer,
    settings: Settings,
    topic: String,
    own_transactional_id: String,
    fenced_at: Mutex<BTreeMap<String, Instant>>,
}

impl std::fmt::Debug for OrphanedTransactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrphanedTransactions")
            .field("fenced_at", &self.fenced_at)
            .finish_non_exhaustive()
    }
}

impl OrphanedTransactions {
    /// Opens a client for the partitions of `topic` in `group`. Connects to the group coordinator
    /// now, waiting at most `timeout`, so that a takeover does not wait for the connection.
    pub fn open(
        settings: &Settings,
        group: &str,
        topic: &str,
        own_transactional_id: &str,
        timeout: Duration,
    ) -> ClientResult<Self> {
        let mut config = client_config(settings);
        config.remove("compression.type");
        // Read the committed offset also while a transaction is open.
        config.set("group.id", group).set("isolation.level", "read_uncommitted");
        let opened = Self {
            consumer: config.create()?,
            settings: settings.clone(),
            topic: topic.to_owned(),
            own_transactional_id: own_transactional_id.to_owned(),
            fenced_at: Mutex::default(),
        };
        let _connected = opened.committed_metadata(0, timeout);
        Ok(opened)
    }

    /// Makes the broker end the open transaction of the owner that wrote `metadata`, if that owner
    /// is another process and its last commit was not final. Does not wait for it.
    pub fn fence_owner(&self, metadata: &str, timeout: Duration) {
        let owner =
            Cursor::active_owner(metadata).filter(|owner| *owner != self.own_transactional_id);
        let Some(owner) = owner else { return };
        let mut fenced_at = self.fenced_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic();
        if fenced_at.get(owner).is_some_and(|at| now.duration_since(*at) < FENCED_TTL) {
            return;
        }
        let _previous = fenced_at.insert(owner.to_owned(), now);
        tracing::info!(
            owner,
            "fencing the earlier owner of a partition to end its open transaction"
        );
        // Any of them may have one. Of those that the broker cannot end now none waits for others.
        for number in 0..PRODUCERS_MAX {
            let (settings, name) = (self.settings.clone(), owner.to_owned());
            let thread = std::thread::Builder::new().name("fence-owner".to_owned());
            let started = thread.spawn(move || fence(&settings, (&name, number), timeout));
            if let Err(error) = started {
                let _not_fenced = fenced_at.remove(owner);
                tracing::warn!(%error, "a thread cannot be started; fencing again later");
            }
        }
    }

    /// The metadata of the last committed offset, stable or not; empty if none was committed.
    pub fn committed_metadata(
        &self,
        partition: PartitionId,
        timeout: Duration,
    ) -> ClientResult<String> {
        let committed = member::committed(&self.consumer, &self.topic, partition, timeout)?;
        Ok(committed.map_or_else(String::new, |(_offset, metadata)| metadata))
    }
}

/// Opening a producer is enough: it makes the broker end the transaction of the earlier one.
fn fence(settings: &Settings, (owner, number): (&str, usize), timeout: Duration) {
    match ProducerPair::open(settings, (owner, number), timeout) {
        Ok(_fenced) => tracing::info!(owner, number, "the earlier owner is fenced"),
        Err(error) => tracing::warn!(
            owner,
            number,
            %error,
            "the earlier owner cannot be fenced; waiting for its transaction timeout"
        ),
    }
}
