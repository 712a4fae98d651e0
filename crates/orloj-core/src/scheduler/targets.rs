//! Target topics and pools: which may be written, and how. The configured policy is applied when a
//! trigger fires.
//!
//! Invariant: topics are looked up beside the loop. The first fire into a topic waits for the
//! answer for a short time, and else as long as for a topic that cannot be reached; a known topic
//! never delays a fire. A topic that has not taken a record counts as unusable or unavailable for
//! some time, whatever its metadata shows, and for longer each time, until a record of it is
//! committed.

use std::collections::HashMap;
use std::time::Duration;

use super::config::{QUERY_THREADS, TargetPolicy};
use crate::engine::catalog::{TopicCatalog, TopicState};
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::{Clock as _, ClusterQueries, Environment};
use crate::model::names::Names;
use crate::model::{Millis, Timestamp};

/// The first refusal may be that of a topic that was deleted meanwhile: it is looked up again.
const REFUSALS_MAX: u32 = 2;
/// A topic that fails again and again is left out for at most so many times the usual time.
const BACKOFF_MAX: u32 = 8;
/// How long the loop waits for the state of a topic that is not known. A broker that is available
/// answers in a few milliseconds.
const FIRST_LOOKUP_WAIT: Duration = Duration::from_millis(20);

/// The states of the target topics.
pub(super) struct Targets<E: Environment> {
    policy: Box<dyn TargetPolicy>,
    /// How long a state is cached, in ms.
    ttl: Millis,
    /// The same of a topic that cannot be reached.
    unreachable_ttl: Millis,
    names: Names,
    cluster: E::Cluster,
    clock: E::Clock,
    cached: HashMap<String, CachedTopic>,
    /// Topics that have not taken a record since one of theirs was committed.
    failures: HashMap<String, TopicFailures>,
    lookups: E::Queue<TopicLookup<E::Cluster>>,
    /// A first look-up took too long: until all are answered, the loop waits for no other one.
    is_late: bool,
}

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
    /// Until then no look-up changes its state (ms since the epoch).
    until: Timestamp,
}

#[derive(Debug)]
struct CachedTopic {
    state: TopicState,
    expires_at: Timestamp,
    is_refreshing: bool,
}

impl<E: Environment> Targets<E> {
    pub(super) fn new(
        environment: &E,
        (cluster, clock): (E::Cluster, E::Clock),
        names: Names,
        policy: Box<dyn TargetPolicy>,
        (ttl, unreachable_ttl): (Duration, Millis),
    ) -> Self {
        let lookups = environment.start_queue("targets", Threads::Fixed(QUERY_THREADS), || ());
        let ttl = super::ms(ttl);
        let (cached, failures, is_late) = (HashMap::new(), HashMap::new(), false);
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
            is_late,
        }
    }

    /// The states of `topics` and `pools`. Waits only for topics that are not cached, and not long.
    pub(super) fn catalog<'a>(
        &mut self,
        topics: impl Iterator<Item = &'a str>,
        pools: impl Iterator<Item = &'a str>,
        now: Timestamp,
    ) -> TopicCatalog {
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
    pub(super) fn on_refused(&mut self, topic: &str, reason: &str, now: Timestamp) {
        let failures = self.failures.entry(topic.to_owned()).or_default();
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
    pub(super) fn on_undelivered(&mut self, topic: &str, reason: &str, now: Timestamp) {
        let failures = self.failures.entry(topic.to_owned()).or_default();
        failures.undelivered = failures.undelivered.saturating_add(1);
        let again = failures.undelivered - 1;
        self.block(topic, TopicState::Unavailable(format!("topic {topic}: {reason}")), again, now);
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
    fn block(&mut self, topic: &str, state: TopicState, again: u32, now: Timestamp) {
        let factor = 1_u32.checked_shl(again).unwrap_or(BACKOFF_MAX).clamp(1, BACKOFF_MAX);
        let until = now.saturating_add(self.ttl_of(&state) * Millis::from(factor));
        if let Some(failures) = self.failures.get_mut(topic) {
            failures.until = until;
        }
        let entry = CachedTopic { state, expires_at: until, is_refreshing: false };
        let _previous = self.cached.insert(topic.to_owned(), entry);
    }

    /// The state of a pool's topic, which is one of Orloj's.
    fn pool(&mut self, pool: &str, now: Timestamp) -> TopicState {
        match self.state(&self.names.fires_of(pool), now) {
            TopicState::Unusable(reason) => TopicState::Unusable(format!(
                "pool {pool}: {reason}; a pool is named in topics.pools, and `orloj topics apply` \
                 creates its topic"
            )),
            state => state,
        }
    }

    fn state(&mut self, topic: &str, now: Timestamp) -> TopicState {
        if !self.cached.contains_key(topic) {
            let state = TopicState::Unavailable(format!("topic {topic}: no answer yet"));
            // The answer replaces it.
            let entry = CachedTopic { state, expires_at: Timestamp::MAX, is_refreshing: true };
            let _none = self.cached.insert(topic.to_owned(), entry);
            self.look_up(topic);
            self.wait_for(topic, now);
        }
        let Some(entry) = self.cached.get_mut(topic) else {
            return TopicState::Unavailable(format!("topic {topic}: no answer yet"));
        };
        let must_refresh = now >= entry.expires_at && !entry.is_refreshing;
        entry.is_refreshing |= must_refresh;
        let state = entry.state.clone();
        if must_refresh {
            self.look_up(topic);
        }
        state
    }

    fn look_up(&mut self, topic: &str) {
        self.lookups.submit(TopicLookup { cluster: self.cluster.clone(), topic: topic.to_owned() });
    }

    /// Waits a short time for the first answer about a topic.
    fn wait_for(&mut self, topic: &str, now: Timestamp) {
        self.is_late &= self.lookups.in_flight() > 1;
        let deadline = self.clock.monotonic() + FIRST_LOOKUP_WAIT;
        while !self.is_late {
            let left = deadline.saturating_sub(self.clock.monotonic());
            self.is_late = left.is_zero();
            let Some((found, state)) = self.lookups.poll(left) else { continue };
            let is_answer = found == topic;
            self.cache_state(found, state, now);
            if is_answer {
                return;
            }
        }
    }

    fn cache_state(&mut self, topic: String, state: TopicState, now: Timestamp) {
        if self.failures.get(&topic).is_some_and(|failures| now < failures.until) {
            return; // it was looked up before it failed
        }
        let expires_at = now.saturating_add(self.ttl_of(&state));
        let entry = CachedTopic { state, expires_at, is_refreshing: false };
        let _previous = self.cached.insert(topic, entry);
    }

    fn ttl_of(&self, state: &TopicState) -> Millis {
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
