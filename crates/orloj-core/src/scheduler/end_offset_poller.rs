//! Reads the end offsets of the input logs periodically, beside the loop.
//!
//! Invariant: a reader cannot distinguish an idle partition from a slow fetch. All records written
//! before a moment count as read only if the end offset, requested after that moment, is reached.
//! An end below an offset that was read before proves nothing: the log was cut, or the broker is
//! not the leader any more. Nor does one below the end that the leader has said to the reader, or
//! one that was requested before the reader has fetched.
//! Only the owner writes to the ledger: records below an end offset that was read before a step
//! belong to that step or an earlier one, once the step is committed.
//!
//! The partitions of one leader are asked for in one request, and leaders that do not answer have
//! threads of their own: they delay those of no other one. A partition that waits for its leader
//! and has another one is asked for again at once; only the answer to the last request for a
//! partition counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::config::{QUERY_THREADS, SchedulerTiming};
use super::end_offset_job::{EndOffsetAnswer, EndOffsetJob, LeadersAnswer, LeadersJob};
use super::partition_leaders::PartitionLeaders;
use super::partition_task::InputLog;
use crate::environment::job::{JobQueue as _, Threads};
use crate::environment::{Clock as _, Environment};
use crate::model::names::Names;
use crate::model::{BrokerId, Millis, Offset, PartitionId, Timestamp};

/// A cancellation that is written at least this long before the due time is never too late.
pub const GRACE_MS: Millis = 1_000;

/// After how long an end is requested again that was received before the reader had fetched: as
/// long as fetching one record may take. Without a pause the requests would follow each other while
/// a partition cannot be fetched.
const ASK_AGAIN_PAUSE: Duration = Duration::from_millis(10);

/// After how long a request is repeated that was not answered, if its interval is longer.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// How long a leader may take to answer: as long as fires can wait for a proof.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for one that is slow: a broker that always takes longer than a second must not stop its
/// partitions for good, and while it is waited for it is found out whether another one leads them.
const SLOW_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests in flight for one log and leader: one, and one that was replaced.
const LEADER_REQUESTS_MAX: usize = 2;

/// The last request for the end of a partition of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastRequest {
    /// It is in flight, and has this number.
    InFlight(u64),
    /// It was answered then, on the monotonic clock.
    Answered(Duration),
    /// It was not answered, which was known then, on the monotonic clock.
    Failed(Duration),
}

impl LastRequest {
    /// Whether it is time for the next one.
    fn is_over(self, now: Duration, interval: Duration) -> bool {
        match self {
            Self::InFlight(_) => false,
            Self::Answered(at) => at.is_zero() || now >= at + interval,
            Self::Failed(at) => now >= at + interval.min(FAILED_PAUSE),
        }
    }
}

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
    /// When the request was submitted, in ms since the epoch.
    pub(super) at: Timestamp,
    /// What was known of the log then.
    pub(super) known: KnownLog,
}

/// What was known of a partition when its end was asked for.
#[derive(Clone, Copy, Debug)]
struct AskedPartition {
    known: KnownLog,
    /// How often it had been taken over.
    takeovers: u64,
}

/// A request that is in flight.
#[derive(Debug)]
struct EndOffsetRequest {
    log: InputLog,
    /// The leader of all its partitions.
    leader: BrokerId,
    partitions: BTreeMap<PartitionId, AskedPartition>,
    /// When it was submitted, in ms since the epoch: what is written later it does not prove.
    at: Timestamp,
    /// The same on the monotonic clock.
    sent_at: Duration,
    /// Some of its partitions have another leader: all of them are asked for again.
    is_replaced: bool,
}

/// Polls the end offsets of the owned partitions.
pub(super) struct EndOffsetPoller<E: Environment> {
    cluster: E::Cluster,
    clock: E::Clock,
    names: Names,
    /// How often the end offset of each log is requested.
    intervals: [(InputLog, Duration); 3],
    /// How often leaders are asked for, and after how long without an answer.
    leaders_interval: Duration,
    leader_silence_max: Duration,
    leaders: BTreeMap<InputLog, PartitionLeaders>,
    /// The leaders that have not answered the last request in `leader_silence_max`.
    slow_leaders: BTreeSet<BrokerId>,
    /// Those that have not answered it at all.
    silent_leaders: BTreeSet<BrokerId>,
    /// What was requested last; nothing: the end is requested at once.
    polled: BTreeMap<(InputLog, PartitionId), LastRequest>,
    /// By their number.
    requests: BTreeMap<u64, EndOffsetRequest>,
    /// The number of the last request.
    last_request: u64,
    watched: BTreeSet<PartitionId>,
    /// When an end was read last, or partitions were first watched.
    answered_at: Duration,
    /// How often each was taken over.
    takeovers: BTreeMap<PartitionId, u64>,
    queue: E::Queue<EndOffsetJob<E>>,
    /// Requests to silent leaders.
    silent_queue: E::Queue<EndOffsetJob<E>>,
    leaders_queue: E::Queue<LeadersJob<E>>,
}

impl<E: Environment> EndOffsetPoller<E> {
    /// Starts without partitions.
    pub(super) fn start(
        environment: &E,
        (cluster, clock): (E::Cluster, E::Clock),
        names: &Names,
        timing: &SchedulerTiming,
    ) -> Self {
        let interval = timing.end_offset_interval;
        let intervals = [
            (InputLog::Triggers, interval),
            (InputLog::Signals, timing.silence_max),
            (InputLog::Ledger, interval * timing.ledger_end_rounds),
        ];
        let threads = Threads::Fixed(QUERY_THREADS);
        Self {
            cluster,
            clock,
            names: names.clone(),
            intervals,
            leaders_interval: timing.leaders_interval,
            leader_silence_max: timing.leader_silence_max,
            leaders: intervals.map(|(log, _)| (log, PartitionLeaders::default())).into(),
            slow_leaders: BTreeSet::new(),
            silent_leaders: BTreeSet::new(),
            polled: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_request: 0,
            watched: BTreeSet::new(),
            answered_at: Duration::ZERO,
            takeovers: BTreeMap::new(),
            queue: environment.start_queue("end-offsets", threads, || ()),
            silent_queue: environment.start_queue("silent-leaders", threads, || ()),
            // At most one question is in flight for each log.
            leaders_queue: environment.start_queue("leaders", Threads::Fixed(3), || ()),
        }
    }

    /// A partition is taken over: answers to earlier requests say nothing of it, and the end of its
    /// triggers is requested again at once.
    pub(super) fn on_taken_over(&mut self, partition: PartitionId) {
        *self.takeovers.entry(partition).or_default() += 1;
        let _request = self.polled.remove(&(InputLog::Triggers, partition));
    }

    /// The end of the triggers of a partition is requested again before its interval is over.
    pub(super) fn ask_again(&mut self, partition: PartitionId) {
        let [(log, interval), ..] = self.intervals;
        let pause = ASK_AGAIN_PAUSE.min(interval);
        let answered = (self.clock.monotonic() + pause).saturating_sub(interval);
        let answered = LastRequest::Answered(answered);
        let last = self.polled.entry((log, partition)).or_insert(answered);
        if matches!(last, LastRequest::Answered(_)) {
            *last = answered;
        }
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
        let leaders = std::iter::from_fn(|| self.leaders_queue.poll(Duration::ZERO)).collect();
        let queues = [&mut self.queue, &mut self.silent_queue];
        let answers = queues.into_iter();
        let answers = answers.flat_map(|q| std::iter::from_fn(|| q.poll(Duration::ZERO)));
        let answers = answers.collect();
        self.on_answers(leaders, answers, known)
    }

    fn on_answers(
        &mut self,
        leaders: Vec<LeadersAnswer>,
        answers: Vec<EndOffsetAnswer>,
        known: impl Fn(InputLog, PartitionId) -> KnownLog,
    ) -> Vec<LogEnd> {
        let now = self.clock.monotonic();
        // Before the ends: those of a leader that was replaced meanwhile do not count.
        for (log, found) in leaders {
            self.on_leaders(log, found, now);
        }
        let mut ends = Vec::new();
        for answer in answers {
            self.on_ends(answer, now, &mut ends);
        }
        for (log, interval) in self.intervals {
            self.ask_for_ends(log, interval, now, &known);
            self.ask_for_leaders(log, now);
        }
        ends
    }

    /// Adds the ends of an answer to `ends`, except those that were asked for again since.
    fn on_ends(&mut self, answer: EndOffsetAnswer, now: Duration, ends: &mut Vec<LogEnd>) {
        let EndOffsetAnswer { number, ends: found, took } = answer;
        let request = self.requests.remove(&number).expect("a request has one answer");
        let EndOffsetRequest { log, leader, at, .. } = request;
        let is_slow = took.is_none_or(|took| took >= self.leader_silence_max);
        set_member(&mut self.slow_leaders, leader, is_slow);
        set_member(&mut self.silent_leaders, leader, took.is_none());
        if !found.is_empty() {
            self.answered_at = now;
        }
        for (partition, AskedPartition { known, takeovers }) in request.partitions {
            let end = found.get(&partition).copied();
            let last = self.polled.get_mut(&(log, partition));
            let Some(last) = last.filter(|last| **last == LastRequest::InFlight(number)) else {
                continue;
            };
            if end.is_some() {
                *last = LastRequest::Answered(now);
            } else {
                *last = LastRequest::Failed(now);
                self.leaders.entry(log).or_default().doubt();
            }
            if takeovers == self.takeovers_of(partition) {
                ends.push(LogEnd { log, partition, end, at, known });
            }
        }
    }

    /// What waits for a broker that is not the leader is requested again, with all of its request:
    /// the others of it may have waited for that broker alone. What is answered stays where it is:
    /// the broker that was asked for the leaders may know less than the one that has answered.
    fn on_leaders(
        &mut self,
        log: InputLog,
        found: Option<BTreeMap<PartitionId, BrokerId>>,
        now: Duration,
    ) {
        let (polled, requests) = (&self.polled, &self.requests);
        let silence_max = self.leader_silence_max;
        let may_move = |id| match polled.get(&(log, id)) {
            Some(LastRequest::Answered(_)) => false,
            Some(LastRequest::InFlight(number)) => {
                requests.get(number).is_none_or(|sent| now >= sent.sent_at + silence_max)
            }
            Some(LastRequest::Failed(_)) | None => true,
        };
        let moved = self.leaders.entry(log).or_default().on_answer(found, may_move);
        if moved.is_empty() {
            return;
        }
        self.polled.retain(|(of, id), last| {
            *of != log || !moved.contains(id) || !matches!(last, LastRequest::Failed(_))
        });
        for (number, request) in &mut self.requests {
            if request.log == log && request.partitions.keys().any(|id| moved.contains(id)) {
                request.is_replaced = true;
                self.polled.retain(|_, last| *last != LastRequest::InFlight(*number));
            }
        }
    }

    /// Requests the ends of a log that are due, and with them those of the same leader that are
    /// due soon: so they come to be due together.
    fn ask_for_ends(
        &mut self,
        log: InputLog,
        interval: Duration,
        now: Duration,
        known: &impl Fn(InputLog, PartitionId) -> KnownLog,
    ) {
        let is_due_at = |id: &PartitionId, time: Duration| {
            let last = self.polled.get(&(log, *id));
            last.is_none_or(|last| last.is_over(time, interval))
        };
        if !self.watched.iter().any(|id| is_due_at(id, now)) {
            return;
        }
        let leaders = self.leaders.entry(log).or_default();
        let mut by_leader = BTreeMap::<BrokerId, Vec<PartitionId>>::new();
        for id in self.watched.iter().filter(|id| is_due_at(id, now + interval / 2)) {
            match leaders.of(*id) {
                Some(leader) => by_leader.entry(leader).or_default().push(*id),
                None => leaders.doubt(),
            }
        }
        by_leader.retain(|_, ids| ids.iter().any(|id| is_due_at(id, now)));
        let (by_leader, waiting) = by_leader
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(leader, _)| self.may_ask(log, *leader));
        let awaits = |leader: &BrokerId| self.requests_to(log, *leader).any(|r| !r.is_replaced);
        if !waiting.keys().all(awaits) {
            // All requests to one of them were replaced: it may have been replaced, too.
            self.leaders.entry(log).or_default().doubt();
        }
        for (leader, ids) in by_leader {
            let asked = |id| {
                let takeovers = self.takeovers_of(id);
                (id, AskedPartition { known: known(log, id), takeovers })
            };
            let partitions = ids.into_iter().map(asked).collect();
            let (at, sent_at) = (self.clock.now_ms(), now);
            let is_replaced = false;
            self.send(EndOffsetRequest { log, leader, partitions, at, sent_at, is_replaced });
        }
    }

    /// The requests to a leader that are in flight.
    fn requests_to(
        &self,
        log: InputLog,
        leader: BrokerId,
    ) -> impl Iterator<Item = &EndOffsetRequest> {
        self.requests.values().filter(move |sent| sent.log == log && sent.leader == leader)
    }

    /// Whether a request to a leader may be sent now.
    fn may_ask(&self, log: InputLog, leader: BrokerId) -> bool {
        self.requests_to(log, leader).count() < LEADER_REQUESTS_MAX
            && self.requests_to(log, leader).all(|sent| sent.is_replaced)
    }

    fn send(&mut self, request: EndOffsetRequest) {
        self.last_request += 1;
        let (number, log) = (self.last_request, request.log);
        let partitions: Vec<_> = request.partitions.keys().copied().collect();
        for id in &partitions {
            let _before = self.polled.insert((log, *id), LastRequest::InFlight(number));
        }
        let is_slow = self.slow_leaders.contains(&request.leader);
        let timeout = if is_slow { SLOW_REQUEST_TIMEOUT } else { REQUEST_TIMEOUT };
        let is_silent = self.silent_leaders.contains(&request.leader);
        let queue = if is_silent { &mut self.silent_queue } else { &mut self.queue };
        let _none = self.requests.insert(number, request);
        let (cluster, clock) = (self.cluster.clone(), self.clock.clone());
        let topic = log.topic(&self.names);
        queue.submit(EndOffsetJob { cluster, clock, topic, number, partitions, timeout });
    }

    /// Asks for the leaders of a log if one of them is not known or does not answer.
    fn ask_for_leaders(&mut self, log: InputLog, now: Duration) {
        let silence_max = self.leader_silence_max;
        let is_unanswered = |sent: &EndOffsetRequest| {
            sent.log == log && !sent.is_replaced && now >= sent.sent_at + silence_max
        };
        let leaders = self.leaders.entry(log).or_default();
        if self.requests.values().any(is_unanswered) {
            leaders.doubt();
        }
        if leaders.ask(now, self.leaders_interval) {
            let topic = log.topic(&self.names);
            self.leaders_queue.submit(LeadersJob { cluster: self.cluster.clone(), log, topic });
        }
    }

    fn takeovers_of(&self, partition: PartitionId) -> u64 {
        self.takeovers.get(&partition).copied().unwrap_or(0)
    }
}

fn set_member(set: &mut BTreeSet<BrokerId>, broker: BrokerId, is_in: bool) {
    let _has_changed = if is_in { set.insert(broker) } else { set.remove(&broker) };
}

#[cfg(test)]
#[path = "end_offset_poller/tests.rs"]
mod tests;

#[cfg(test)]
#[path = "end_offset_poller/leader_tests.rs"]
mod leader_tests;
