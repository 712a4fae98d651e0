//! Target topics and pools: which may be written, and how. The configured policy is applied when a
//! trigger fires.
//!
//! Invariant: topics are looked up beside the loop. One that was usable is looked up twice before
//! its fires are dead letters. The first fire into a topic waits for the answer for a short time,
//! and else as long as for a topic that cannot be reached; a known topic never delays a fire. One
//! that cannot be used is looked up again before its fires return, as long as there are any. A
//! topic that has not taken a record counts as unusable or unavailable for some time, whatever its
//! metadata shows, and for longer each time, until a record of it is committed.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::config::TargetPolicy;
use crate::engine::catalog::{TopicCatalog, TopicState};
use crate::environment::job::{Job, JobQueue, JobStep};
use crate::environment::{Clock, ClusterQueries, Environment};
use crate::model::Millis;
use crate::model::names::Names;

/// The first refusal may be that of a topic that was deleted meanwhile: it is looked up again.
const REFUSALS_MAX: u32 = 2;
/// How often a transaction may be refused because one of its topics may not be written.
const UNAUTHORIZED_MAX: u32 = 3;
/// A topic that fails again and again is left out for at most so many times the usual time.
const BACKOFF_MAX: u32 = 8;
/// For so many times the time that an unavailable topic is cached it is asked for after a fire was
/// to be sent to it: a fire that waits returns sooner.
const USED_FOR: u32 = 10;
/// How long the loop waits for the state of a topic that is not known. A broker that is available
/// answers in a few milliseconds.
const FIRST_LOOKUP_WAIT: Duration = Duration::from_millis(20);
/// How many topics are cached, and how many look-ups are in progress, at most.
const CACHED_MAX: usize = 10_000;

/// The states of the target topics.
pub(super) struct Targets<C, K, Q> {
    policy: Box<dyn TargetPolicy>,
    /// How long a state is cached.
    ttl: Duration,
    /// The same of a topic that cannot be reached.
    unreachable_ttl: Duration,
    names: Names,
    cluster: C,
    clock: K,
    cached: HashMap<String, CachedTopic>,
    /// Topics that have not taken a record since one of theirs was committed.
    failures: HashMap<String, TopicFailures>,
    lookups: Q,
    /// No state that must be asked for again expires before this time, on the monotonic clock.
    next_refresh: Duration,
    /// A first look-up took too long: until all are answered, the loop waits for no other one.
    is_late: bool,
}

/// The targets of a scheduler.
pub(super) type TargetsOf<E> = Targets<
    <E as Environment>::Cluster,
    <E as Environment>::Clock,
    <E as Environment>::Queue<TopicLookup<<E as Environment>::Cluster>>,
>;

/// Asks for the state of a topic again.
#[derive(Debug)]
pub(super) struct TopicLookup<C> {
    cluster: C,
    topic: String,
}

impl<C: ClusterQueries> Job for TopicLookup<C> {
    type Output = (String, TopicState);
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<(String, TopicState)> {
        let state = self.cluster.topic_state(&self.topic);
        JobStep::Done((std::mem::take(&mut self.topic), state))
    }
}

/// How often a topic has not taken a record.
#[derive(Debug, Default)]
struct TopicFailures {
    refused: u32,
    undelivered: u32,
    unauthorized: u32,
    /// Until then no look-up changes its state, on the monotonic clock.
    until: Duration,
}

#[derive(Debug)]
struct CachedTopic {
    state: TopicState,
    /// On the monotonic clock.
    expires_at: Duration,
    is_refreshing: bool,
    /// When a fire was last to be sent to it, on the monotonic clock.
    used_at: Duration,
    /// It was usable since it is cached.
    was_usable: bool,
    /// It was usable, and one answer since says that it is not.
    is_doubted: bool,
}

impl CachedTopic {
    /// Whether it is asked for again as soon as its state expires: fires wait for it.
    fn is_awaited(&self, used_since: Duration) -> bool {
        self.used_at >= used_since
            && !self.is_refreshing
            && !matches!(self.state, TopicState::Usable { .. })
    }
}

impl<C: ClusterQueries, K: Clock, Q: JobQueue<TopicLookup<C>>> Targets<C, K, Q> {
    pub(super) fn new(
        lookups: Q,
        (cluster, clock): (C, K),
        names: Names,
        policy: Box<dyn TargetPolicy>,
        (ttl, unreachable_ttl): (Duration, Millis),
    ) -> Self {
        let unreachable_ttl = Duration::from_millis(unreachable_ttl);
        let (cached, failures) = (HashMap::new(), HashMap::new());
        Self {
            policy,
            ttl,
            unreachable_ttl,
            names,
            cluster,
            clock,
            cached,
            failures,
            lookups,
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
        while let Some((topic, state)) = self.lookups.poll(Duration::ZERO) {
            self.cache_state(topic, state, now);
        }
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
        let failures = self.failures_of(topic, now);
        failures.refused = failures.refused.saturating_add(1);
        if let Some(again) = failures.refused.checked_sub(REFUSALS_MAX) {
            let state = TopicState::Unusable(format!("topic {topic} refuses records: {reason}"));
            self.block(topic, state, again, now);
        } else {
            let _removed = self.cached.remove(topic);
        }
    }

    /// A record was not acknowledged in time: the fires of this topic wait, and those of the others
    /// do not.
    pub(super) fn on_undelivered(&mut self, topic: &str, reason: &str) {
        let now = self.clock.monotonic();
        let failures = self.failures_of(topic, now);
        failures.undelivered = failures.undelivered.saturating_add(1);
        let again = failures.undelivered - 1;
        self.block(topic, TopicState::Unavailable(format!("topic {topic}: {reason}")), again, now);
    }

    /// The broker has refused a transaction because one of these topics may not be written: asks
    /// for their states. Until there is an answer their fires go on; but if that is repeated, the
    /// answers do not help. Then their fires wait, and return one topic after the other, so that
    /// only the one that is refused waits again, and for longer.
    pub(super) fn on_unauthorized(&mut self, topics: &BTreeSet<String>, reason: &str) {
        let now = self.clock.monotonic();
        for (place, topic) in (1..).zip(topics) {
            let failures = self.failures_of(topic, now);
            failures.unauthorized = failures.unauthorized.saturating_add(1);
            let until = match failures.unauthorized.checked_sub(UNAUTHORIZED_MAX + 1) {
                None => {
                    self.refresh(topic);
                    continue;
                }
                Some(0) => now + self.unreachable_ttl * place,
                Some(again) => {
                    let factor = 1_u32.checked_shl(again - 1).unwrap_or(BACKOFF_MAX);
                    now + self.ttl * factor.min(BACKOFF_MAX)
                }
            };
            let state = TopicState::Unavailable(format!("topic {topic}: {reason}"));
            self.block_until(topic, state, until);
        }
    }

    /// The brokers may be back: asks for the states of topics that could not be reached, before
    /// their fires wait again.
    pub(super) fn refresh_unavailable(&mut self) {
        let now = self.clock.monotonic();
        let is_old = |entry: &CachedTopic| now >= entry.expires_at;
        let unavailable = self.cached.iter().filter(|(_, entry)| {
            is_old(entry) && matches!(entry.state, TopicState::Unavailable(_))
        });
        let mut topics: Vec<_> = unavailable.map(|(topic, _)| topic.clone()).collect();
        topics.sort_unstable();
        topics.iter().for_each(|topic| self.refresh(topic));
    }

    /// Asks for the states that have expired of topics that cannot be used and that fires wait for.
    pub(super) fn refresh_expired(&mut self) {
        let now = self.clock.monotonic();
        if now < self.next_refresh {
            return;
        }
        let used_since = now.saturating_sub(self.unreachable_ttl * USED_FOR);
        let is_awaited = |entry: &CachedTopic| entry.is_awaited(used_since);
        let expired = self.cached.iter().filter(|(_, entry)| now >= entry.expires_at);
        let expired = expired.filter(|(_, entry)| is_awaited(entry));
        let mut topics: Vec<_> = expired.map(|(topic, _)| topic.clone()).collect();
        topics.sort_unstable();
        topics.iter().for_each(|topic| self.refresh(topic));
        let awaited = self.cached.values().filter(|entry| is_awaited(entry));
        self.next_refresh = awaited.map(|entry| entry.expires_at).min().unwrap_or(Duration::MAX);
    }

    /// Asks for the state of a known topic, which stays as it is until there is an answer.
    fn refresh(&mut self, topic: &str) {
        let is_busy = self.lookups.in_flight() >= CACHED_MAX;
        if let Some(entry) = self.cached.get_mut(topic).filter(|entry| !entry.is_refreshing)
            && !is_busy
        {
            entry.is_refreshing = true;
            self.look_up(topic);
        }
    }

    /// The topic has this state until then.
    fn block_until(&mut self, topic: &str, state: TopicState, until: Duration) {
        if let Some(failures) = self.failures.get_mut(topic) {
            failures.until = until;
        }
        self.insert(topic.to_owned(), state, until, false);
    }

    /// Whether a topic has not taken a record since one of its records was committed.
    pub(super) fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }

    /// A record for this topic is committed.
    pub(super) fn on_committed(&mut self, topic: &str) {
        let _recovered = self.failures.remove(topic);
    }

    /// The topic has this state for some time, and for longer if it has failed `again`.
    fn block(&mut self, topic: &str, state: TopicState, again: u32, now: Duration) {
        let factor = 1_u32.checked_shl(again).unwrap_or(BACKOFF_MAX).clamp(1, BACKOFF_MAX);
        let until = now + self.ttl_of(&state) * factor;
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
        let is_busy = self.lookups.in_flight() >= CACHED_MAX;
        if !self.cached.contains_key(topic) && !is_busy {
            let state = TopicState::Unavailable(format!("topic {topic}: no answer yet"));
            // The answer replaces it.
            self.insert(topic.to_owned(), state, Duration::MAX, true);
            self.look_up(topic);
            self.wait_for(topic, asked_at);
        }
        let Some(entry) = self.cached.get_mut(topic) else {
            return TopicState::Unavailable(format!("topic {topic}: no answer yet"));
        };
        entry.used_at = asked_at;
        let must_refresh = asked_at >= entry.expires_at && !entry.is_refreshing && !is_busy;
        entry.is_refreshing |= must_refresh;
        let state = entry.state.clone();
        if entry.is_awaited(asked_at) {
            self.next_refresh = self.next_refresh.min(entry.expires_at);
        }
        if must_refresh {
            self.look_up(topic);
        }
        state
    }

    fn look_up(&mut self, topic: &str) {
        self.lookups.submit(TopicLookup { cluster: self.cluster.clone(), topic: topic.to_owned() });
    }

    /// Waits for the first answer about a topic until a short time after `asked_at`.
    fn wait_for(&mut self, topic: &str, asked_at: Duration) {
        self.is_late &= self.lookups.in_flight() > 1;
        let deadline = asked_at + FIRST_LOOKUP_WAIT;
        while !self.is_late {
            let left = deadline.saturating_sub(self.clock.monotonic());
            self.is_late = left.is_zero();
            let Some((found, state)) = self.lookups.poll(left) else { continue };
            let is_answer = found == topic;
            self.cache_state(found, state, asked_at);
            if is_answer {
                return;
            }
        }
    }

    fn cache_state(&mut self, topic: String, state: TopicState, now: Duration) {
        if self.failures.get(&topic).is_some_and(|failures| now < failures.until) {
            // It was looked up before it failed.
            if let Some(entry) = self.cached.get_mut(&topic) {
                entry.is_refreshing = false;
            }
            return;
        }
        // It may be replaced, or its rules: fires are dead letters if it is so for longer.
        let before = self.cached.get(&topic);
        let was_doubted = before.is_some_and(|entry| entry.is_doubted);
        let is_new_doubt = !was_doubted && before.is_some_and(|entry| entry.was_usable);
        let (state, is_doubted) = match state {
            TopicState::Unusable(reason) if is_new_doubt => (TopicState::Unavailable(reason), true),
            TopicState::Usable { .. } => (state, false),
            state => (state, was_doubted),
        };
        let expires_at = now + self.ttl_of(&state);
        self.insert(topic.clone(), state, expires_at, false);
        if let Some(entry) = self.cached.get_mut(&topic) {
            entry.is_doubted = is_doubted;
        }
    }

    /// Caches a state. If there are too many, those of other topics are asked for again when they
    /// are used.
    fn insert(&mut self, topic: String, state: TopicState, expires_at: Duration, refreshing: bool) {
        if self.cached.len() >= CACHED_MAX {
            let failures = &self.failures;
            let stays = |topic: &String, entry: &CachedTopic| {
                entry.is_refreshing || failures.contains_key(topic)
            };
            self.cached.retain(|topic, entry| stays(topic, entry));
        }
        let before = self.cached.get(&topic);
        let entry = CachedTopic {
            was_usable: matches!(state, TopicState::Usable { .. })
                || before.is_some_and(|before| before.was_usable),
            is_doubted: before.is_some_and(|before| before.is_doubted),
            used_at: before.map_or_else(|| self.clock.monotonic(), |before| before.used_at),
            is_refreshing: refreshing,
            expires_at,
            state,
        };
        self.next_refresh = self.next_refresh.min(expires_at);
        let _previous = self.cached.insert(topic, entry);
    }

    /// The failures of a topic. If there are too many, those that are over are forgotten.
    fn failures_of(&mut self, topic: &str, now: Duration) -> &mut TopicFailures {
        if self.failures.len() >= CACHED_MAX {
            self.failures.retain(|_, failures| now < failures.until);
        }
        self.failures.entry(topic.to_owned()).or_default()
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
#[path = "targets/tests.rs"]
mod tests;
