//! Reads the end offsets of the input logs periodically, beside the loop.
//!
//! Invariant: a reader cannot distinguish an idle partition from a slow fetch. All records written
//! before a moment count as read only if the end offset, requested after that moment, is reached.
//! An end below an offset that was read before proves nothing: the log was cut, or the broker is
//! not the leader any more. Nor does one below the end that the leader has said to the reader, or
//! one that was requested before the reader has fetched.
//! Only the owner writes to the ledger: records below an end offset that was read before a step
//! belong to that step or an earlier one, once the step is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::config::{QUERY_THREADS, SchedulerTiming};
use super::partition_task::InputLog;
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::{Clock, ClusterQueries, Environment};
use crate::model::names::Names;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// A cancellation that is written at least this long before the due time is never too late.
pub const GRACE_MS: Millis = 1_000;

/// After how long an end is requested again that was received before the reader had fetched: as
/// long as fetching one record may take. Without a pause the requests would follow each other while
/// a partition cannot be fetched.
const ASK_AGAIN_PAUSE: Duration = Duration::from_millis(10);

/// What the reader knows of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownLog {
    /// Everything below this offset was read.
    pub(super) read_until: Offset,
    /// The log was at least so long, as its leader said since reading was last started; `None`: it
    /// has said nothing.
    pub(super) end: Option<Offset>,
}

/// The end offset of a partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogEnd {
    pub(super) log: InputLog,
    pub(super) partition: PartitionId,
    /// The end offset (exclusive); `None` if the request failed.
    pub(super) end: Option<Offset>,
    /// When the request was sent, in ms since the epoch.
    pub(super) at: Timestamp,
    /// What was known of the log before the request was sent.
    pub(super) known: KnownLog,
    /// The takeovers of the partition until then.
    takeovers: u64,
}

/// Polls the end offsets of the owned partitions.
pub(super) struct EndOffsetPoller<E: Environment> {
    cluster: E::Cluster,
    clock: E::Clock,
    names: Names,
    /// How often the end offset of each log is requested.
    intervals: [(InputLog, Duration); 3],
    /// When each was answered last; `None`: the request is in flight.
    polled: BTreeMap<(InputLog, PartitionId), Option<Duration>>,
    watched: BTreeSet<PartitionId>,
    /// When an end was read last, or partitions were first watched.
    answered_at: Duration,
    /// How often each was taken over.
    takeovers: BTreeMap<PartitionId, u64>,
    queue: E::Queue<EndOffsetJob<E>>,
}

/// Asks for the end offset of one partition.
pub(super) struct EndOffsetJob<E: Environment> {
    cluster: E::Cluster,
    clock: E::Clock,
    log: InputLog,
    topic: String,
    partition: PartitionId,
    known: KnownLog,
    takeovers: u64,
}

impl<E: Environment> Job for EndOffsetJob<E> {
    type Output = LogEnd;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<LogEnd> {
        let Self { log, partition, known, takeovers, .. } = *self;
        let at = self.clock.now_ms();
        let end = match self.cluster.bounds(&self.topic, partition) {
            Ok((_low, end)) => Some(end),
            Err(error) => {
                let topic = &self.topic;
                tracing::debug!(topic, partition, %error, "the end offset cannot be read");
                None
            }
        };
        JobStep::Done(LogEnd { log, partition, end, at, known, takeovers })
    }
}

impl<E: Environment> EndOffsetPoller<E> {
    /// Starts without partitions.
    pub(super) fn start(
        environment: &E,
        (cluster, clock): (E::Cluster, E::Clock),
        names: &Names,
        timing: &SchedulerTiming,
    ) -> Self {
        // Few partitions without a leader delay no other one.
        let queue = environment.start_queue("end-offsets", Threads::Fixed(QUERY_THREADS), || ());
        let (names, polled, watched) = (names.clone(), BTreeMap::new(), BTreeSet::new());
        let takeovers = BTreeMap::new();
        let interval = timing.end_offset_interval;
        let intervals = [
            (InputLog::Triggers, interval),
            (InputLog::Signals, timing.silence_max),
            (InputLog::Ledger, interval * timing.ledger_end_rounds),
        ];
        let answered_at = Duration::ZERO;
        Self { cluster, clock, names, intervals, polled, watched, answered_at, takeovers, queue }
    }

    /// A partition is taken over: answers to earlier requests say nothing of it, and the end of its
    /// triggers is requested again at once.
    pub(super) fn on_taken_over(&mut self, partition: PartitionId) {
        *self.takeovers.entry(partition).or_default() += 1;
        let _answered = self.polled.remove(&(InputLog::Triggers, partition));
    }

    /// The end of the triggers of a partition is requested again before its interval is over.
    pub(super) fn ask_again(&mut self, partition: PartitionId) {
        let [(log, interval), ..] = self.intervals;
        let pause = ASK_AGAIN_PAUSE.min(interval);
        let answered = (self.clock.monotonic() + pause).saturating_sub(interval);
        let _answered = self.polled.insert((log, partition), Some(answered));
    }

    /// Replaces the polled partitions.
    pub(super) fn watch(&mut self, partitions: impl Iterator<Item = PartitionId>) {
        if self.watched.is_empty() {
            self.answered_at = self.clock.monotonic();
        }
        self.watched = partitions.collect();
    }

    /// For how long no broker has said an end of a watched partition.
    pub(super) fn unanswered_for(&self) -> Duration {
        let since = self.clock.monotonic().saturating_sub(self.answered_at);
        if self.watched.is_empty() { Duration::ZERO } else { since }
    }

    /// The answers since the last call. Requests what is due; `known` says what is known of a
    /// log now.
    pub(super) fn poll_ends(
        &mut self,
        known: impl Fn(InputLog, PartitionId) -> KnownLog,
    ) -> Vec<LogEnd> {
        let ends: Vec<_> = std::iter::from_fn(|| self.queue.poll(Duration::ZERO)).collect();
        let now = self.clock.monotonic();
        for LogEnd { log, partition, end, .. } in &ends {
            self.answered_at = end.map_or(self.answered_at, |_| now);
            let _request = self.polled.insert((*log, *partition), Some(now));
        }
        for (log, interval) in self.intervals {
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
                    topic: log.topic(&self.names),
                    partition: *partition,
                    known: known(log, *partition),
                    takeovers: self.takeovers_of(*partition),
                });
            }
        }
        let is_current = |end: &LogEnd| end.takeovers == self.takeovers_of(end.partition);
        ends.into_iter().filter(is_current).collect()
    }

    fn takeovers_of(&self, partition: PartitionId) -> u64 {
        self.takeovers.get(&partition).copied().unwrap_or(0)
    }
}

#[cfg(test)]
#[path = "end_offset_poller/tests.rs"]
mod tests;
