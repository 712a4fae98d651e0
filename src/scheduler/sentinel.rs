//! The sentinel: looks up where `triggers` ends, again and again, on a thread of its own.
//!
//! Law: a reader cannot tell an idle log from a slow fetch. What it has read counts as everything
//! written before a moment only if the log's end, asked for after that moment, has been reached.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::kafka::probe::Probe;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// A cancel written this long before its trigger is due is never too late.
pub(super) const GRACE_MS: Millis = 1_000;
/// How often an end is looked up: several times within the grace, so that a look-up that is slow
/// holds up no fire.
const INTERVAL: Duration = Duration::from_millis(200);

/// Where a log ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) partition: PartitionId,
    /// The first offset that was not there.
    pub(super) end: Offset,
    /// When the broker was asked, in ms since the epoch.
    pub(super) at: Timestamp,
}

/// Watches the ends of the partitions that are ours.
#[derive(Debug)]
pub(super) struct Sentinel {
    watched: Arc<Mutex<BTreeSet<PartitionId>>>,
    ends: Receiver<End>,
}

impl Sentinel {
    /// Watches `topic`, no partition yet. Ends when it is dropped.
    pub(super) fn start(probe: Probe, topic: String) -> Self {
        let watched: Arc<Mutex<BTreeSet<PartitionId>>> = Arc::default();
        let (seen, ends) = channel();
        let partitions = Arc::clone(&watched);
        super::spawn("sentinel", move || {
            while Arc::strong_count(&partitions) > 1 {
                let ours = partitions.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for partition in ours {
                    let at = clock::now_ms();
                    match probe.bounds(&topic, partition) {
                        Ok((_low, end)) => {
                            let _unheard = seen.send(End { partition, end, at });
                        }
                        Err(error) => tracing::debug!(partition, %error, "no end to be had"),
                    }
                }
                std::thread::park_timeout(INTERVAL);
            }
        });
        Self { watched, ends }
    }

    /// Watches these partitions from now on.
    pub(super) fn watch(&self, partitions: impl Iterator<Item = PartitionId>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        *watched = partitions.collect();
    }

    /// The ends seen since the last call.
    pub(super) fn seen(&self) -> Vec<End> {
        self.ends.try_iter().collect()
    }
}
