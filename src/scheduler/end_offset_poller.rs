//! Looks up where `triggers` and the ledger end, again and again, on a thread of its
//! own.
//!
//! Invariant: a reader cannot tell an idle log from a slow fetch. What it has read counts as
//! everything written before a moment only if the log's end, asked for after that moment, has been
//! reached. The ledger is ours alone to write: what lies below an end of it that was read
//! before a step is of that step or an earlier one, once the step is committed under its fence.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// A cancel written this long before its trigger is due is never too late.
pub(super) const GRACE_MS: Millis = 1_000;
/// How often an end is looked up: several times within the grace, so that a look-up that is slow
/// holds up no fire.
const INTERVAL: Duration = Duration::from_millis(200);
/// The ledger's is looked up once in so many rounds, every 5 s: what was written to it since is
/// what a restart reads again without need.
const LEDGER_EVERY: u32 = 25;

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolledLog {
    Triggers,
    Ledger,
}

/// Where a log ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEnd {
    pub(super) log: PolledLog,
    pub(super) partition: PartitionId,
    /// The first offset that was not there.
    pub(super) end: Offset,
    /// When the broker was asked, in ms since the epoch.
    pub(super) at: Timestamp,
}

/// Watches the ends of the partitions that are ours.
#[derive(Debug)]
pub(super) struct EndOffsetPoller {
    watched: Arc<Mutex<BTreeSet<PartitionId>>>,
    ends: Receiver<LogEnd>,
}

impl EndOffsetPoller {
    /// Watches no partition yet. Ends when it is dropped.
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

    /// Watches these partitions from now on.
    pub(super) fn watch(&self, partitions: impl Iterator<Item = PartitionId>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        *watched = partitions.collect();
    }

    /// The ends seen since the last call.
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
