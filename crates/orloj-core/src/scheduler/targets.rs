//! Target topics and pools: which may be written, and how. The configured policy is applied when a
//! trigger fires.
//!
//! Invariant: topics are looked up beside the loop. One that was usable is looked up twice before
//! its fires are dead letters. The first fire into a topic waits for the answer for a short time,
//! and no longer because it is late; a known topic never delays a fire. One that cannot be used is
//! looked up again before its fires return, as long as there are any: what was known of it long ago
//! makes no dead letter. A look-up that no broker answers shows nothing, and lets nothing return: a
//! usable topic stays so for some time. A topic that has refused a record, and a partition that has
//! not acknowledged one, is left out for some time, whatever the metadata shows, and for longer
//! each time, until a record of it is committed. A partition that cannot be written delays the
//! fires into no other one.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::cached_topic::CachedTopic;
use super::config::TargetPolicy;
use super::topic_failures::{TopicFailures, backoff};
use crate::commit::topic_lookup::{TopicAnswer, TopicLookup};
use crate::engine::catalog::{TopicCatalog, TopicState};
use crate::environment::job::JobQueue;
use crate::environment::{Clock, ClusterQueries, ProcessEnvironment};
use crate::model::names::Names;
use crate::model::{Millis, PartitionId};

/// For how long a usable topic stays as it was although no broker answers, in times of those that
/// cannot be reached: 30 s. Brokers replace one of them within 13 s as a rule; and a transaction
/// names what has not acknowledged its records within 20 s, whatever the look-ups are.
const KEPT_MAX: u32 = 30;

/// The first refusal may be that of a topic that was deleted meanwhile: it is looked up again.
const REFUSALS_MAX: u32 = 2;
/// How often a transaction may be refused because one of its topics cannot be used.
const UNUSABLE_MAX: u32 = 3;
/// A topic that cannot be used is asked for again until no fire was to be sent to it for so many
/// times the time for which an unavailable one is cached.
const USED_FOR: u32 = 10;
/// And for so many times the time for which its fires wait at most.
const RETRIES: u32 = 2;
/// Between two searches for states that have expired.
const REFRESH_PAUSE: Duration = Duration::from_millis(10);
/// How long the loop waits for the state of a topic that is not known. A broker that is available
/// answers in a few milliseconds.
const FIRST_LOOKUP_WAIT: Duration = Duration::from_millis(20);
/// How long the first look-up of a topic may take before the topic counts as unavailable.
const UNKNOWN_MAX: Duration = Duration::from_secs(1);
/// For how long a partition is left out whose transaction the brokers have just not ended yet.
const NOT_ENDED_PAUSE: Duration = Duration::from_millis(250);
/// How many topics are cached, and how many look-ups are in progress, at most.
const CACHED_MAX: usize = 10_000;

/// The states of the target topics.
pub(super) struct Targets<C, K, Q> {
    policy: Box<dyn TargetPolicy>,
    /// How long a state is cached.
    ttl: Duration,
    /// The same of a topic that cannot be reached.
    unreachable_ttl: Duration,
    /// For how long a topic counts as used after a fire was to be sent to it.
    used_for: Duration,
    names: Names,
    cluster: C,
    clock: K,
    cached: HashMap<String, CachedTopic>,
    failures: TopicFailures,
    lookups: Q,
    /// Of the last look-up.
    lookup_number: u64,
    /// No state that must be asked for again expires before this time, on the monotonic clock.
    next_refresh: Duration,
    /// A first look-up took too long: until all are answered, the loop waits for no other one.
    is_late: bool,
}

/// The targets of a scheduler.
pub(super) type TargetsOf<E> = Targets<
    <E as ProcessEnvironment>::Cluster,
    <E as ProcessEnvironment>::Clock,
    <E as ProcessEnvironment>::Queue<TopicLookup<<E as ProcessEnvironment>::Cluster>>,
>;

impl<C: ClusterQueries, K: Clock, Q: JobQueue<TopicLookup<C>>> Targets<C, K, Q> {
    pub(super) fn new(
        lookups: Q,
        (cluster, clock): (C, K),
        names: Names,
        policy: Box<dyn TargetPolicy>,
        (ttl, unreachable_ttl, retry_interval): (Duration, Millis, Millis),
    ) -> Self {
        let unreachable_ttl = Duration::from_millis(unreachable_ttl);
        let retries = Duration::from_millis(retry_interval).saturating_mul(RETRIES);
        let (cached, failures) = (HashMap::new(), TopicFailures::default());
        Self {
            policy,
            ttl,
            unreachable_ttl,
            used_for: retries.max(unreachable_ttl * USED_FOR),
            names,
            cluster,
            clock,
            cached,
            failures,
            lookups,
            lookup_number: 0,
            next_refresh: Duration::MAX,
            is_late: false,
        }
    }

    /// The states of `topics` and `pools`. Waits only for topics that are not cached, and not long
    /// for all of them together.
    pub(super) fn catalog<'a>(
        &mut self,
        topics: impl Iterator<Item = &'a str>,
        pools: impl Iterator<Item = &'a str>,
    ) -> TopicCatalog {
        let now = self.clock.monotonic();
        self.take_answers(now);
        let mut catalog = TopicCatalog::default();
        let mut last: Option<&str> = None;
        for topic in topics {
            if last == Some(topic) {
                continue; // successive fires often have the same topic
            }
            last = Some(topic);
            if !catalog.contains(topic) {
                let forbidden = self.forbidden(topic).map(TopicState::Unusable);
                let state = forbidden.unwrap_or_else(|| self.state(topic, now));
                catalog.insert(topic.to_owned(), state);
            }
        }
        for pool in pools {
            if catalog.pool(pool).is_none() {
                catalog.insert_pool(pool.to_owned(), self.pool(pool, now));
            }
        }
        catalog
    }

    /// The broker refused a record although the topic seemed usable. If that is repeated, its fires
    /// become dead letters, so that one broken target does not delay the others.
    pub(super) fn on_refused(&mut self, topic: &str, reason: &str) {
        let now = self.clock.monotonic();
        let refused = self.failures.on_refused(topic, now);
        if let Some(again) = refused.checked_sub(REFUSALS_MAX) {
            let state = TopicState::Unusable(format!("topic {topic} refuses records: {reason}"));
            self.block(topic, state, again, now);
        } else {
            // Its fires wait until it is looked up.
            let reason = format!("topic {topic} has refused a record: {reason}");
            self.block_until(topic, TopicState::Unavailable(reason), now);
        }
    }

    /// A partition has not acknowledged a record in time: its fires wait, and those into others do
    /// not. The topic is asked for at once: more of it may be without a leader by now.
    pub(super) fn on_undelivered(&mut self, topic: &str, partition: PartitionId) {
        let now = self.clock.monotonic();
        let place = (topic, partition);
        let until = self.failures.on_undelivered(place, self.unreachable_ttl, now);
        self.next_refresh = self.next_refresh.min(until);
        if self.failures.is_blocked(topic, now) || self.is_busy() {
            return;
        }
        if !self.cached.contains_key(topic) {
            self.insert(topic.to_owned(), TopicState::Unknown, now + UNKNOWN_MAX);
        }
        self.look_up(topic, now);
    }

    /// Whether the answer to a look-up since `asked_since`, on the monotonic clock, shows that this
    /// partition or its topic cannot be written. One that only says that the topic is not available
    /// now shows nothing.
    pub(super) fn is_shown_unavailable(
        &self,
        topic: &str,
        partition: PartitionId,
        asked_since: Duration,
    ) -> bool {
        let entry = self.cached.get(topic);
        entry.is_some_and(|entry| entry.shows_unavailable(partition, asked_since))
    }

    /// Asks for the states of these topics, unless that is in progress.
    pub(super) fn look_up_now(&mut self, topics: &BTreeSet<String>) {
        let now = self.clock.monotonic();
        topics.iter().for_each(|topic| self.refresh(topic, now));
    }

    /// The brokers have not yet ended the transaction in which this partition has not acknowledged
    /// a record: they cannot write to it either. It is left out until shortly after that.
    pub(super) fn on_not_ended(&mut self, topic: &str, partition: PartitionId) {
        let until = self.clock.monotonic() + self.unreachable_ttl.min(NOT_ENDED_PAUSE);
        self.failures.leave_out_until((topic, partition), until);
    }

    /// The broker has refused a transaction because one of these topics cannot be used: asks for
    /// their states. Until there is an answer their fires go on; but if that is repeated, the
    /// answers do not help. Then their fires wait, and return one topic after the other, so that
    /// only the one that is refused waits again, and for longer.
    pub(super) fn on_unusable(&mut self, topics: &BTreeSet<String>, reason: &str) {
        let now = self.clock.monotonic();
        for (place, topic) in (1..).zip(topics) {
            let unusable = self.failures.on_unusable(topic, now);
            let until = match unusable.checked_sub(UNUSABLE_MAX + 1) {
                None => {
                    self.refresh(topic, now);
                    continue;
                }
                Some(0) => now + self.unreachable_ttl * place,
                Some(again) => now + backoff(self.ttl, again - 1),
            };
            let state = TopicState::Unavailable(format!("topic {topic}: {reason}"));
            self.block_until(topic, state, until);
        }
    }

    /// The brokers may be back: asks for the states of topics that could not be used, or not all of
    /// them, before their fires wait again. What was asked before does not count.
    pub(super) fn refresh_unavailable(&mut self) {
        let now = self.clock.monotonic();
        self.refresh_all(now, |entry, left_out_until| {
            let expires_at = entry.expires_for_fires(left_out_until);
            expires_at.is_some_and(|at| now >= at || entry.pending.is_some())
        });
    }

    /// Takes the answers, and asks for the states that have expired of topics that cannot be used,
    /// or not all of them, and that fires wait for.
    pub(super) fn refresh_expired(&mut self) {
        let now = self.clock.monotonic();
        self.take_answers(now);
        if now < self.next_refresh {
            return;
        }
        let used_since = now.saturating_sub(self.used_for);
        self.refresh_all(now, |entry, left_out_until| {
            entry.asked_again_at(left_out_until, used_since).is_some_and(|at| now >= at)
        });
        let awaited = self.cached.iter().filter_map(|(topic, entry)| {
            entry.asked_again_at(self.failures.first_until(topic), used_since)
        });
        let next = awaited.min();
        self.next_refresh = next.map_or(Duration::MAX, |next| next.max(now + REFRESH_PAUSE));
    }

    /// Asks for the states of some topics, in the order of their names.
    fn refresh_all(
        &mut self,
        now: Duration,
        is_asked_for: impl Fn(&CachedTopic, Option<Duration>) -> bool,
    ) {
        let failures = &self.failures;
        let is_asked_for = |(topic, entry): &(&String, &CachedTopic)| {
            is_asked_for(entry, failures.first_until(topic))
        };
        let entries = self.cached.iter().filter(is_asked_for);
        let mut topics: Vec<_> = entries.map(|(topic, _)| topic.clone()).collect();
        topics.sort_unstable();
        let room = CACHED_MAX.saturating_sub(self.lookups.in_flight());
        topics.iter().take(room).for_each(|topic| self.look_up(topic, now));
    }

    /// Asks for the state of a known topic, which stays as it is until there is an answer.
    fn refresh(&mut self, topic: &str, now: Duration) {
        let (is_busy, is_blocked) = (self.is_busy(), self.failures.is_blocked(topic, now));
        let is_pending = self.cached.get(topic).is_none_or(|entry| entry.pending.is_some());
        if !is_busy && !is_blocked && !is_pending {
            self.look_up(topic, now);
        }
    }

    /// The topic has this state until then.
    fn block_until(&mut self, topic: &str, state: TopicState, until: Duration) {
        self.failures.block_until(topic, until);
        self.insert(topic.to_owned(), state, until);
    }

    /// Whether so many look-ups are in progress that no other one begins.
    fn is_busy(&self) -> bool {
        self.lookups.in_flight() >= CACHED_MAX
    }

    /// Whether something has not taken a record since one of its records was committed.
    pub(super) fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The same for one topic.
    pub(super) fn has_failed(&self, topic: &str) -> bool {
        self.failures.contains(topic)
    }

    /// A record of this partition is committed.
    pub(super) fn on_committed(&mut self, topic: &str, partition: PartitionId) {
        self.failures.on_committed(topic, partition);
        // Another one may return now.
        let first = self.failures.first_until(topic);
        self.next_refresh = self.next_refresh.min(first.unwrap_or(Duration::MAX));
    }

    /// Whether this partition is left out, or its topic is: it has refused a record, or the last
    /// answer says that it cannot be used.
    pub(super) fn is_out(&self, topic: &str, partition: PartitionId) -> bool {
        let is_topic_out = self.cached.get(topic).is_some_and(|entry| entry.is_out);
        is_topic_out || self.failures.is_left_out(topic, partition)
    }

    /// The topic has this state for some time, and for longer if it has failed `again`.
    fn block(&mut self, topic: &str, state: TopicState, again: u32, now: Duration) {
        let until = now + backoff(self.ttl_of(&state), again);
        self.block_until(topic, state, until);
    }

    /// The state of a pool's topic, which is one of Orloj's.
    fn pool(&mut self, pool: &str, now: Duration) -> TopicState {
        match self.state(&self.names.fires_of(pool), now) {
            TopicState::Unusable(reason) => TopicState::Unusable(format!(
                "pool {pool}: {reason}; a pool is named in topics.pools, and `orloj topics apply` \
                 creates its topic"
            )),
            state => state,
        }
    }

    /// `asked_at`: when the states were asked for of which this is one, on the monotonic clock.
    fn state(&mut self, topic: &str, asked_at: Duration) -> TopicState {
        let is_busy = self.is_busy();
        if !self.cached.contains_key(topic) && !is_busy {
            // The answer replaces it.
            self.insert(topic.to_owned(), TopicState::Unknown, asked_at + UNKNOWN_MAX);
            self.look_up(topic, asked_at);
            self.wait_for(topic, asked_at);
        }
        let used_for = self.used_for;
        let Some(entry) = self.cached.get_mut(topic) else {
            return TopicState::Unavailable(format!("topic {topic}: no answer yet"));
        };
        entry.is_doubted &= asked_at.saturating_sub(entry.used_at) <= used_for;
        entry.used_at = asked_at;
        let is_old = asked_at >= entry.expires_at;
        let state = match &entry.state {
            // It may be usable by now: its fires wait for the answer.
            TopicState::Unusable(reason) if is_old => TopicState::Unavailable(reason.clone()),
            TopicState::Unknown if is_old => {
                TopicState::Unavailable(format!("topic {topic}: no answer yet"))
            }
            state => self.failures.applied_to(topic, state),
        };
        if let Some(at) = entry.expires_for_fires(self.failures.first_until(topic)) {
            self.next_refresh = self.next_refresh.min(at);
        }
        if is_old && entry.pending.is_none() && !is_busy {
            self.look_up(topic, asked_at);
        }
        state
    }

    /// Asks for the state of a topic, at `now` on the monotonic clock.
    fn look_up(&mut self, topic: &str, now: Duration) {
        self.lookup_number += 1;
        let number = self.lookup_number;
        if let Some(entry) = self.cached.get_mut(topic) {
            (entry.pending, entry.asked_at) = (Some(number), now);
        }
        let cluster = self.cluster.clone();
        self.lookups.submit(TopicLookup { cluster, topic: topic.to_owned(), number });
    }

    fn take_answers(&mut self, now: Duration) {
        while let Some(answer) = self.lookups.poll(Duration::ZERO) {
            self.on_answer(answer, now);
        }
    }

    /// Waits for the first answer about a topic until a short time after `asked_at`.
    fn wait_for(&mut self, topic: &str, asked_at: Duration) {
        self.is_late &= self.lookups.in_flight() > 1;
        let deadline = asked_at + FIRST_LOOKUP_WAIT;
        while !self.is_late {
            let left = deadline.saturating_sub(self.clock.monotonic());
            self.is_late = left.is_zero();
            let Some(answer) = self.lookups.poll(left) else { continue };
            let is_awaited = answer.topic == topic;
            self.on_answer(answer, asked_at);
            if is_awaited {
                return;
            }
        }
    }

    fn on_answer(&mut self, answer: TopicAnswer, now: Duration) {
        let TopicAnswer { topic, number, state } = answer;
        let entry = self.cached.get_mut(&topic).filter(|entry| entry.pending == Some(number));
        let Some(entry) = entry else { return };
        match state {
            Ok(state) => {
                entry.set_answer(state);
                self.failures.on_answer(&topic, entry.asked_at, &entry.state);
            }
            Err(error) => {
                let kept_max = self.unreachable_ttl * KEPT_MAX;
                let reason = format!("topic {topic}: {error}");
                let stays_usable = entry.set_unanswered(reason, now, kept_max);
                tracing::debug!(topic, %error, stays_usable, "no broker says if it can be written");
            }
        }
        let ttl = if entry.expires_soon() { self.unreachable_ttl } else { self.ttl };
        entry.expires_at = now + ttl;
        let expires_at = entry.expires_for_fires(self.failures.first_until(&topic));
        self.next_refresh = self.next_refresh.min(expires_at.unwrap_or(Duration::MAX));
    }

    /// Caches a state that is no answer. If there are too many, those of other topics are asked for
    /// again when they are used.
    fn insert(&mut self, topic: String, state: TopicState, expires_at: Duration) {
        let now = self.clock.monotonic();
        if self.cached.len() >= CACHED_MAX {
            let (failures, used_since) = (&self.failures, now.saturating_sub(self.used_for));
            let stays = |topic: &String, entry: &CachedTopic| {
                entry.pending.is_some()
                    || entry.asked_again_at(None, used_since).is_some()
                    || failures.contains(topic)
            };
            self.cached.retain(|topic, entry| stays(topic, entry));
        }
        let before = self.cached.get(&topic);
        let entry = CachedTopic::new(state, expires_at, before, now);
        self.next_refresh = self.next_refresh.min(expires_at);
        let _previous = self.cached.insert(topic, entry);
    }

    fn ttl_of(&self, state: &TopicState) -> Duration {
        match state {
            TopicState::Unavailable(_) => self.unreachable_ttl,
            _ => self.ttl,
        }
    }

    fn forbidden(&self, topic: &str) -> Option<String> {
        if self.names.owns(topic) || topic.starts_with("__") {
            return Some(format!(
                "topic {topic} belongs to Orloj or to Kafka itself; use a topic of your own"
            ));
        }
        self.policy.refusal(topic)
    }
}

#[cfg(test)]
#[path = "targets/partition_tests.rs"]
mod partition_tests;
#[cfg(test)]
#[path = "targets/tests.rs"]
mod tests;
#[cfg(test)]
#[path = "targets/unanswered_tests.rs"]
mod unanswered_tests;
