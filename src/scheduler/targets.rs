//! Target topics and pools: which may be written, and how. Policy is applied here, at the fire.
//!
//! Law: a topic seen for the first time is looked up before its first fire; later its state is
//! refreshed in the background, so that a known topic never holds up a due one.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::config::TargetSettings;
use crate::engine::catalog::{Catalog, TopicState};
use crate::kafka::Names;
use crate::kafka::probe::Probe;
use crate::model::{Millis, Timestamp};

/// How long a topic that could not be reached is left alone.
const AWAY_TTL_MS: Millis = 1_000;

/// What is known of target topics.
#[derive(Debug)]
pub(super) struct Targets {
    settings: TargetSettings,
    names: Names,
    probe: Probe,
    known: HashMap<String, Seen>,
    ask: Sender<String>,
    answers: Receiver<(String, TopicState)>,
}

#[derive(Debug)]
struct Seen {
    state: TopicState,
    until: Timestamp,
    asked: bool,
}

impl Targets {
    pub(super) fn new(settings: TargetSettings, names: Names, probe: Probe) -> Self {
        let (ask, asked) = channel::<String>();
        let (answer, answers) = channel();
        let background = probe.clone();
        super::spawn("targets", move || {
            for topic in asked {
                let state = background.topic_state(&topic);
                if answer.send((topic, state)).is_err() {
                    break;
                }
            }
        });
        Self { settings, names, probe, known: HashMap::new(), ask, answers }
    }

    /// The states of `topics` and `pools`; blocks only for one that was never seen.
    pub(super) fn catalog<'a>(
        &mut self,
        topics: impl Iterator<Item = &'a str>,
        pools: impl Iterator<Item = &'a str>,
        now: Timestamp,
    ) -> Catalog {
        while let Ok((topic, state)) = self.answers.try_recv() {
            self.learn(topic, state, now);
        }
        let mut catalog = Catalog::default();
        let mut last: Option<&str> = None;
        for topic in topics {
            if last == Some(topic) {
                continue; // fires of one topic tend to come together
            }
            last = Some(topic);
            if !catalog.contains(topic) {
                let forbidden = self.forbidden(topic).map(TopicState::Refused);
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

    /// A record was refused although the topic looked usable: look again.
    pub(super) fn forget(&mut self, topic: &str) {
        let _forgotten = self.known.remove(topic);
    }

    /// The broker refuses what we write to a topic, for no reason that can be seen beforehand.
    pub(super) fn condemn(&mut self, topic: &str, reason: &str, now: Timestamp) {
        let state = TopicState::Refused(format!("topic {topic} refuses records: {reason}"));
        self.learn(topic.to_owned(), state, now);
    }

    /// The state of a pool's topic, which is one of ours.
    fn pool(&mut self, pool: &str, now: Timestamp) -> TopicState {
        match self.state(&self.names.fires_of(pool), now) {
            TopicState::Refused(reason) => TopicState::Refused(format!(
                "pool {pool}: {reason}; a pool is named in topics.pools, and `orloj topics apply` \
                 creates its topic"
            )),
            state => state,
        }
    }

    fn state(&mut self, topic: &str, now: Timestamp) -> TopicState {
        let Some(seen) = self.known.get_mut(topic) else {
            let state = self.probe.topic_state(topic);
            self.learn(topic.to_owned(), state.clone(), now);
            return state;
        };
        if now >= seen.until && !seen.asked {
            seen.asked = self.ask.send(topic.to_owned()).is_ok();
        }
        seen.state.clone()
    }

    fn learn(&mut self, topic: String, state: TopicState, now: Timestamp) {
        let ttl = match state {
            TopicState::Away(_) => AWAY_TTL_MS,
            _ => super::ms(self.settings.lookup_ttl),
        };
        let seen = Seen { state, until: now.saturating_add(ttl), asked: false };
        let _previous = self.known.insert(topic, seen);
    }

    fn forbidden(&self, topic: &str) -> Option<String> {
        if self.names.owns(topic) || topic.starts_with("__") {
            return Some(format!(
                "topic {topic} belongs to Orloj or to Kafka itself; fire into one of your own"
            ));
        }
        self.settings.refusal(topic)
    }
}
