//! Reads the end offsets of `triggers` and of the ledger periodically, on a thread of its own.
//!
//! Invariant: a reader cannot distinguish an idle partition from a slow fetch. All records written
//! before a moment count as read only if the end offset, requested after that moment, is reached.
//! Only the owner writes to the ledger: records below an end offset that was read before a step
//! belong to that step or an earlier one, once the step is committed.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// A cancellation that is written at least this long before the due time is never too late.
pub(super) const GRACE_MS: Millis = 1_000;
/// Interval of the requests. It is a fraction of the grace period, so that one slow request delays
/// no fire.
const INTERVAL: Duration = Duration::from_millis(200);
/// The ledger's end offset is requested once in this number of rounds (every 5 s). A restart reads
/// again what was written to the ledger since then.
const LEDGER_EVERY: u32 = 25;

/// The topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolledLog {
    Triggers,
    Ledger,
}

/// The end offset of a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEnd {
    pub(super) log: PolledLog,
    pub(super) partition: PartitionId,
    /// The end offset (exclusive).
    pub(super) end: Offset,
    /// When the request was sent, in ms since the epoch.
    pub(super) at: Timestamp,
}

/// Polls the end offsets of the owned partitions.
#[derive(Debug)]
pub(super) struct EndOffsetPoller {
    watched: Arc<Mutex<BTreeSet<PartitionId>>>,
    ends: Receiver<LogEnd>,
}

impl EndOffsetPoller {
    /// Starts without partitions. The thread ends when the value is dropped.
    pub(super) fn start(admin: KafkaAdminClient, names: &Names) -> Self {
        let watched: Arc<Mutex<BTreeSet<PartitionId>>> = Arc::default();
        let (sender, ends) = channel();
        let partitions = Arc::clone(&watched);
        let topics = [
            (PolledLog::Triggers, names.triggers(), 1),
            (PolledLog::Ledger, names.ledger(), LEDGER_EVERY),
        ];
        super::spawn("end-offsets", move || {
            for round in 0_u32.. {
                if Arc::strong_count(&partitions) == 1 {
                    return;
                }
                let ours = partitions.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let now = topics.iter().filter(|(_, _, every)| round.is_multiple_of(*every));
                for ((log, topic, _), partition) in
                    now.flat_map(|it| ours.iter().map(move |p| (it, *p)))
                {
                    if let Some(end) = fetch_end(&admin, *log, topic, partition) {
                        let _receiver_closed = sender.send(end);
                    }
                }
                std::thread::park_timeout(INTERVAL);
            }
        });
        Self { watched, ends }
    }

    /// Replaces the polled partitions.
    pub(super) fn watch(&self, partitions: impl Iterator<Item = PartitionId>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        *watched = partitions.collect();
    }

    /// The end offsets read since the last call.
    pub(super) fn poll_ends(&self) -> Vec<LogEnd> {
        self.ends.try_iter().collect()
    }
}

fn fetch_end(
    admin: &KafkaAdminClient,
    log: PolledLog,
    topic: &str,
    partition: PartitionId,
) -> Option<LogEnd> {
    let at = clock::now_ms();
    match admin.bounds(topic, partition) {
        Ok((_low, end)) => Some(LogEnd { log, partition, end, at }),
        Err(error) => {
            tracing::debug!(topic, partition, %error, "the end offset cannot be read");
            None
        }
    }
}
