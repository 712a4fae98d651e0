//! Ending what a dead owner left open.
//!
//! Law: only a partition's new owner does this, and only to an owner that did not say that it left.
//! Until its transaction ends, nobody who reads committed records sees what comes after it, and its
//! offset is not stable; the broker alone would wait for the transaction's timeout. An owner that
//! turns out to be alive is fenced, as it should be: the group has given its partition away.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaResult;

use super::relay::Relay;
use super::{client_config, member};
use crate::clock;
use crate::config::Settings;
use crate::engine::cursor::Cursor;
use crate::model::PartitionId;

/// Several partitions of one dead owner are taken over together: it is ended once for all of them.
/// Whoever still waits after this long tries again.
const ENDED_TTL: Duration = Duration::from_secs(5);

/// What is known of earlier owners; shared by the threads that take partitions over.
pub struct Predecessors {
    consumer: BaseConsumer,
    settings: Settings,
    topic: String,
    ours: String,
    ended: Mutex<BTreeMap<String, Instant>>,
}

impl std::fmt::Debug for Predecessors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Predecessors").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Predecessors {
    /// Of the partitions of `topic` in `group`; `ours` is our own transactional id. Gets to know
    /// the group's coordinator, for at most `timeout`, so that no takeover waits for that.
    pub fn open(
        settings: &Settings,
        group: &str,
        topic: &str,
        ours: &str,
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
            ours: ours.to_owned(),
            ended: Mutex::default(),
        };
        let _met = opened.metadata(0, timeout);
        Ok(opened)
    }

    /// Has the broker end whatever the owner that wrote `metadata` left open, if that is another
    /// one which did not leave by itself. Waits for nothing: the broker begins with the first
    /// request, and librdkafka, which is told to come back, would do so half a second later.
    pub fn end(&self, metadata: &str, timeout: Duration) {
        let owner = Cursor::owner_still_there(metadata).filter(|owner| *owner != self.ours);
        let Some(owner) = owner else { return };
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::monotonic();
        if ended.get(owner).is_some_and(|at| now.duration_since(*at) < ENDED_TTL) {
            return;
        }
        let _earlier = ended.insert(owner.to_owned(), now);
        let (settings, owner) = (self.settings.clone(), owner.to_owned());
        let thread = std::thread::Builder::new().name("predecessor".to_owned());
        let started = thread.spawn(move || {
            tracing::info!(owner, "ending what an earlier owner may have left open");
            // Opening is enough: the broker ends what an earlier producer of that name has open.
            if let Err(error) = Relay::open(&settings, &owner, timeout) {
                tracing::warn!(owner, %error, "waiting for the earlier owner's timeout");
            }
        });
        let _detached = started.expect("the system has room for a few threads");
    }

    /// What was committed last, stable or not; empty if nothing ever was.
    pub fn metadata(&self, partition: PartitionId, timeout: Duration) -> KafkaResult<String> {
        let committed = member::committed(&self.consumer, &self.topic, partition, timeout)?;
        Ok(committed.map_or_else(String::new, |(_offset, metadata)| metadata))
    }
}
