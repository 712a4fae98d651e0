//! Target topics and pools: which may be written, and how. The configured policy is applied when a
//! trigger fires.
//!
//! Invariant: an unknown topic is looked up before its first fire. After that its state is
//! refreshed in the background, so that a known topic never delays a fire.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::config::TargetSettings;
use crate::engine::catalog::{TopicCatalog, TopicState};
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::model::{Millis, Timestamp};

/// How long the state of an unreachable topic is cached.
const UNREACHABLE_TTL_MS: Millis = 1_000;

/// The states of the target topics.
#[derive(Debug)]
pub(super) struct Targets {
    settings: TargetSettings,
    names: Names,
    admin: KafkaAdminClient,
    cached: HashMap<String, CachedTopic>,
    requests: Sender<String>,
    results: Receiver<(String, TopicState)>,
}

#[derive(Debug)]
struct CachedTopic {
    state: TopicState,
    expires_at: Timestamp,
    is_refreshing: bool,
}

impl Targets {
    pub(super) fn new(settings: TargetSettings, names: Names, admin: KafkaAdminClient) -> Self {
        let (requests, inbox) = channel::<String>();
        let (outbox, results) = channel();
        let background = admin.clone();
        super::spawn("targets", move || {
            for topic in inbox {
                let state = background.topic_state(&topic);
                if outbox.send((topic, state)).is_err() {
                    break;
                }
            }
        });
        Self { settings, names, admin, cached: HashMap::new(), requests, results }
    }

    /// The states of `topics` and `pools`. Blocks only for topics that are not cached.
    pub(super) fn catalog<'a>(
        &mut self,
        topics: impl Iterator<Item = &'a str>,
        pools: impl Iterator<Item = &'a str>,
        now: Timestamp,
    ) -> TopicCatalog {
        while let Ok((topic, state)) = self.results.try_recv() {
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
            let state = self.admin.topic_state(topic);
            self.cache_state(topic.to_owned(), state.clone(), now);
            return state;
        };
        if now >= entry.expires_at && !entry.is_refreshing {
            entry.is_refreshing = self.requests.send(topic.to_owned()).is_ok();
        }
        entry.state.clone()
    }

    fn cache_state(&mut self, topic: String, state: TopicState, now: Timestamp) {
        let ttl = match state {
            TopicState::Unavailable(_) => UNREACHABLE_TTL_MS,
            _ => super::ms(self.settings.lookup_ttl),
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
        self.settings.refusal(topic)
    }
}
