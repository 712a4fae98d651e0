//! Reads the end offsets of `triggers` and of the ledger periodically, beside the loop.
//!
//! Invariant: a reader cannot distinguish an idle partition from a slow fetch. All records written
//! before a moment count as read only if the end offset, requested after that moment, is reached.
//! Only the owner writes to the ledger: records below an end offset that was read before a step
//! belong to that step or an earlier one, once the step is committed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::{Clock, ClusterQueries, Environment};
use crate::model::names::Names;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// A cancellation that is written at least this long before the due time is never too late.
pub const GRACE_MS: Millis = 1_000;

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
pub(super) struct EndOffsetPoller<E: Environment> {
    cluster: E::Cluster,
    clock: E::Clock,
    names: Names,
    interval: Duration,
    /// The ledger's end offset is requested once in so many rounds.
    ledger_rounds: u32,
    watched: BTreeSet<PartitionId>,
    queue: E::Queue<EndOffsetJob<E>>,
    rounds: u32,
    /// When the last round ended, on the monotonic clock.
    ended_at: Option<Duration>,
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
    type Output = Option<LogEnd>;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<Option<LogEnd>> {
        let Self { log, partition, .. } = *self;
        let at = self.clock.now_ms();
        JobStep::Done(match self.cluster.bounds(&self.topic, partition) {
            Ok((_low, end)) => Some(LogEnd { log, partition, end, at }),
            Err(error) => {
                let topic = &self.topic;
                tracing::debug!(topic, partition, %error, "the end offset cannot be read");
                None
            }
        })
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
        let queue = environment.start_queue("end-offsets", Threads::Fixed(1), || ());
        let (names, watched) = (names.clone(), BTreeSet::new());
        Self {
            cluster,
            clock,
            names,
            interval,
            ledger_rounds,
            watched,
            queue,
            rounds: 0,
            ended_at: None,
        }
    }

    /// Replaces the polled partitions.
    pub(super) fn watch(&mut self, partitions: impl Iterator<Item = PartitionId>) {
        self.watched = partitions.collect();
    }

    /// The end offsets read since the last call. Starts the next round if it is time.
    pub(super) fn poll_ends(&mut self) -> Vec<LogEnd> {
        let mut ends = Vec::new();
        while self.queue.in_flight() > 0 {
            let Some(answer) = self.queue.poll(Duration::ZERO) else { return ends };
            ends.extend(answer);
            if self.queue.in_flight() == 0 {
                self.ended_at = Some(self.clock.monotonic());
            }
        }
        if self.ended_at.is_none_or(|at| self.clock.monotonic() >= at + self.interval) {
            self.start_round();
        }
        ends
    }

    fn start_round(&mut self) {
        let topics = [
            (PolledLog::Triggers, self.names.triggers(), 1),
            (PolledLog::Ledger, self.names.ledger(), self.ledger_rounds),
        ];
        let now = topics.into_iter().filter(|(_, _, every)| self.rounds.is_multiple_of(*every));
        for (log, topic, _) in now {
            for partition in &self.watched {
                self.queue.submit(EndOffsetJob {
                    cluster: self.cluster.clone(),
                    clock: self.clock.clone(),
                    log,
                    topic: topic.clone(),
                    partition: *partition,
                });
            }
        }
        self.rounds = self.rounds.wrapping_add(1);
        self.ended_at = Some(self.clock.monotonic());
    }
}
