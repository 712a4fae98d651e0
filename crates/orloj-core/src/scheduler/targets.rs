//! Target topics and pools: which may be written, and how. The configured policy is applied when a
//! trigger fires.
//!
//! Invariant: an unknown topic is looked up before its first fire. After that its state is
//! refreshed in the background, so that a known topic never delays a fire.

use std::collections::HashMap;
use std::time::Duration;

use super::config::TargetPolicy;
use crate::engine::catalog::{TopicCatalog, TopicState};
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::{ClusterQueries, Environment};
use crate::model::names::Names;
use crate::model::{Millis, Timestamp};

/// The states of the target topics.
pub(super) struct Targets<E: Environment> {
    policy: Box<dyn TargetPolicy>,
    /// How long a state is cached, in ms.
    ttl: Millis,
    /// The same of a topic that cannot be reached.
    unreachable_ttl: Millis,
    names: Names,
    cluster: E::Cluster,
    cached: HashMap<String, CachedTopic>,
    lookups: E::Queue<TopicLookup<E::Cluster>>,
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

#[derive(Debug)]
struct CachedTopic {
    state: TopicState,
    expires_at: Timestamp,
    is_refreshing: bool,
}

impl<E: Environment> Targets<E> {
    pub(super) fn new(
        environment: &E,
        cluster: E::Cluster,
        names: Names,
        policy: Box<dyn TargetPolicy>,
        (ttl, unreachable_ttl): (Duration, Millis),
    ) -> Self {
        let lookups = environment.start_queue("targets", Threads::Fixed(1), || ());
        let (ttl, cached) = (super::ms(ttl), HashMap::new());
        Self { policy, ttl, unreachable_ttl, names, cluster, cached, lookups }
    }

    /// The states of `topics` and `pools`. Blocks only for topics that are not cached.
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

    /// A record was refused although the topic seemed usable: look it up again.
    pub(super) fn invalidate(&mut self, topic: &str) {
        let _removed = self.cached.remove(topic);
    }

    /// The broker refuses records for a reason that the topic's metadata does not show.
    pub(super) fn mark_refused(&mut self, topic: &str, reason: &str, now: Timestamp) {
        let state = TopicState::Unusable(format!("topic {topic} refuses records: {reason}"));
        self.cache_state(topic.to_owned(), state, now);
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
        let Some(entry) = self.cached.get_mut(topic) else {
            let state = self.cluster.topic_state(topic);
            self.cache_state(topic.to_owned(), state.clone(), now);
            return state;
        };
        if now >= entry.expires_at && !entry.is_refreshing {
            entry.is_refreshing = true;
            let (cluster, topic) = (self.cluster.clone(), topic.to_owned());
            self.lookups.submit(TopicLookup { cluster, topic });
        }
        entry.state.clone()
    }

    fn cache_state(&mut self, topic: String, state: TopicState, now: Timestamp) {
        let ttl = match state {
            TopicState::Unavailable(_) => self.unreachable_ttl,
            _ => self.ttl,
        };
        let entry =
            CachedTopic { state, expires_at: now.saturating_add(ttl), is_refreshing: false };
        let _previous = self.cached.insert(topic, entry);
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
