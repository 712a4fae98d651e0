//! Ending what a dead owner left open.
//!
//! Invariant: only a partition's new owner does this, and only to an owner that did not say that it
//! left. Until its transaction ends, no read_committed reader sees what comes after it,
//! and its offset is not stable; the broker alone would wait for the transaction's timeout. An
//! owner that turns out to be alive is fenced, as it should be: the group has given its partition
//! away.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaResult;

use super::producer_pair::ProducerPair;
use super::{client_config, member};
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::model::PartitionId;

/// Several partitions of one dead owner are taken over together: it is ended once for all of them.
/// A caller that still waits after this time tries again.
const FENCED_TTL: Duration = Duration::from_secs(5);

/// What is known of earlier owners; shared by the threads that take partitions over.
pub struct OrphanedTransactions {
    consumer: BaseConsumer,
    settings: Settings,
    topic: String,
    own_transactional_id: String,
    fenced_at: Mutex<BTreeMap<String, Instant>>,
}

impl std::fmt::Debug for OrphanedTransactions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Predecessors").field("ended", &self.fenced_at).finish_non_exhaustive()
    }
}

impl OrphanedTransactions {
    /// Of the partitions of `topic` in `group`; `ours` is our own transactional id. Gets to know
    /// the group's coordinator, for at most `timeout`, so that no takeover waits for that.
    pub fn open(
        settings: &Settings,
        group: &str,
        topic: &str,
        own_transactional_id: &str,
        timeout: Duration,
    ) -> KafkaResult<Self> {
        let mut config = client_config(settings);
        config.remove("compression.type");
        // Read uncommitted: the offset as it is, whatever is open.
        config.set("group.id", group).set("isolation.level", "read_uncommitted");
        let opened = Self {
            consumer: config.create()?,
            settings: settings.clone(),
            topic: topic.to_owned(),
            own_transactional_id: own_transactional_id.to_owned(),
            fenced_at: Mutex::default(),
        };
        let _met = opened.committed_metadata(0, timeout);
        Ok(opened)
    }

    /// Has the broker end whatever the owner that wrote `metadata` left open, if that is another
    /// one which did not leave by itself. Waits for nothing: the broker begins with the first
    /// request, and librdkafka, which is answered to retry, would do so half a second later.
    pub fn fence_owner(&self, metadata: &str, timeout: Duration) {
        let owner =
            Cursor::active_owner(metadata).filter(|owner| *owner != self.own_transactional_id);
        let Some(owner) = owner else { return };
        let mut fenced_at = self.fenced_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic();
        if fenced_at.get(owner).is_some_and(|at| now.duration_since(*at) < FENCED_TTL) {
            return;
        }
        let _earlier = fenced_at.insert(owner.to_owned(), now);
        let (settings, owner) = (self.settings.clone(), owner.to_owned());
        let thread = std::thread::Builder::new().name("predecessor".to_owned());
        let started = thread.spawn(move || {
            tracing::info!(
                owner,
                "ending the transaction that an earlier owner may have left open"
            );
            // Opening is enough: the broker ends what an earlier producer of that name has open.
            if let Err(error) = ProducerPair::open(&settings, &owner, timeout) {
                tracing::warn!(owner, %error, "waiting for the earlier owner's timeout");
            }
        });
        let _detached = started.expect("the system has room for a few threads");
    }

    /// What was committed last, stable or not; empty if nothing ever was.
    pub fn committed_metadata(
        &self,
        partition: PartitionId,
        timeout: Duration,
    ) -> KafkaResult<String> {
        let committed = member::committed(&self.consumer, &self.topic, partition, timeout)?;
        Ok(committed.map_or_else(String::new, |(_offset, metadata)| metadata))
    }
}
