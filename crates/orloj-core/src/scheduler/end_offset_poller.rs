//! Reads the end offsets of `triggers` and of the ledger periodically, beside the loop.
//!
//! Invariant: a reader cannot distinguish an idle partition from a slow fetch. All records written
//! before a moment count as read only if the end offset, requested after that moment, is reached.
//! Only the owner writes to the ledger: records below an end offset that was read before a step
//! belong to that step or an earlier one, once the step is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::config::QUERY_THREADS;
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::{Clock, ClusterQueries, Environment};
use crate::model::names::Names;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// A cancellation that is written at least this long before the due time is never too late.
pub const GRACE_MS: Millis = 1_000;

/// The topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PolledLog {
    Triggers,
    Ledger,
}

/// The end offset of a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEnd {
    pub(super) log: PolledLog,
    pub(super) partition: PartitionId,
    /// The end offset (exclusive); `None` if the request failed.
    pub(super) end: Option<Offset>,
    /// When the request was sent, in ms since the epoch.
    pub(super) at: Timestamp,
}

/// Polls the end offsets of the owned partitions.
pub(super) struct EndOffsetPoller<E: Environment> {
    cluster: E::Cluster,
    clock: E::Clock,
    names: Names,
    interval: Duration,
    /// The ledger's end offset is requested once in so many intervals.
    ledger_rounds: u32,
    /// When each was requested or answered last; `None`: the request is in flight.
    polled: BTreeMap<(PolledLog, PartitionId), Option<Duration>>,
    watched: BTreeSet<PartitionId>,
    queue: E::Queue<EndOffsetJob<E>>,
}

/// Asks for the end offset of one partition.
pub(super) struct EndOffsetJob<E: Environment> {
    cluster: E::Cluster,
    clock: E::Clock,
    log: PolledLog,
    topic: String,
    partition: PartitionId,
}

impl<E: Environment> Job for EndOffsetJob<E> {
    type Output = LogEnd;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<LogEnd> {
        let Self { log, partition, .. } = *self;
        let at = self.clock.now_ms();
        let end = match self.cluster.bounds(&self.topic, partition) {
            Ok((_low, end)) => Some(end),
            Err(error) => {
                let topic = &self.topic;
                tracing::debug!(topic, partition, %error, "the end offset cannot be read");
                None
            }
        };
        JobStep::Done(LogEnd { log, partition, end, at })
    }
}

impl<E: Environment> EndOffsetPoller<E> {
    /// Starts without partitions.
    pub(super) fn start(
        environment: &E,
        cluster: E::Cluster,
        clock: E::Clock,
        names: &Names,
        (interval, ledger_rounds): (Duration, u32),
    ) -> Self {
        // Few partitions without a leader delay no other one.
        let queue = environment.start_queue("end-offsets", Threads::Fixed(QUERY_THREADS), || ());
        let (names, polled, watched) = (names.clone(), BTreeMap::new(), BTreeSet::new());
        Self { cluster, clock, names, interval, ledger_rounds, polled, watched, queue }
    }

    /// Replaces the polled partitions.
    pub(super) fn watch(&mut self, partitions: impl Iterator<Item = PartitionId>) {
        self.watched = partitions.collect();
    }

    /// The answers since the last call. Requests what is due.
    pub(super) fn poll_ends(&mut self) -> Vec<LogEnd> {
        let ends: Vec<_> = std::iter::from_fn(|| self.queue.poll(Duration::ZERO)).collect();
        let now = self.clock.monotonic();
        for LogEnd { log, partition, .. } in &ends {
            let _request = self.polled.insert((*log, *partition), Some(now));
        }
        let logs = [
            (PolledLog::Triggers, self.interval),
            (PolledLog::Ledger, self.interval * self.ledger_rounds),
        ];
        for (log, interval) in logs {
            for partition in &self.watched {
                let state = self.polled.entry((log, *partition)).or_insert(Some(Duration::ZERO));
                let is_due = |at: Duration| at.is_zero() || now >= at + interval;
                if !state.is_some_and(is_due) {
                    continue;
                }
                *state = None;
                self.queue.submit(EndOffsetJob {
                    cluster: self.cluster.clone(),
                    clock: self.clock.clone(),
                    log,
                    topic: match log {
                        PolledLog::Triggers => self.names.triggers(),
                        PolledLog::Ledger => self.names.ledger(),
                    },
                    partition: *partition,
                });
            }
        }
        ends
    }
}
