//! The state of target topics, and of pools' topics, when an entry is due. The shell
//! looks them up before the decision; the decision only reads.
//!
//! Invariant: a pool is looked up by its own name, so that no trigger reaches our topics as its
//! target.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// The topics that the due entries of a step name.
#[derive(Clone, Debug, Default)]
pub struct TopicCatalog {
    topics: HashMap<String, TopicState, FixedState>,
    pools: HashMap<String, TopicState, FixedState>,
    any_unavailable: bool,
}

/// Whether and how a topic can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicState {
    /// It can be written.
    Usable {
        /// Its partitions.
        partitions: i32,
        /// Bytes a record may have at most, key and headers included.
        record_bytes_max: usize,
    },
    /// It cannot be written until a person changes something: the fire is a dead letter.
    Unusable(String),
    /// Its state is unknown, or it cannot be reached now: the fire waits and is tried again.
    Unavailable(String),
}

impl TopicCatalog {
    /// Remembers a topic's state.
    pub fn insert(&mut self, topic: String, state: TopicState) {
        self.any_unavailable |= matches!(state, TopicState::Unavailable(_));
        let _previous = self.topics.insert(topic, state);
    }

    /// Remembers the state of a pool's topic.
    pub fn insert_pool(&mut self, pool: String, state: TopicState) {
        self.any_unavailable |= matches!(state, TopicState::Unavailable(_));
        let _previous = self.pools.insert(pool, state);
    }

    /// The state of a pool's topic; `None` if it was not looked up.
    #[must_use]
    pub fn pool(&self, pool: &str) -> Option<&TopicState> {
        self.pools.get(pool)
    }

    /// Whether the topic has been looked up.
    #[must_use]
    pub fn contains(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// Whether the state of a topic is unknown or it cannot be reached now.
    #[must_use]
    pub fn any_unavailable(&self) -> bool {
        self.any_unavailable
    }

    /// The state of a topic; `None` if it was not looked up.
    #[must_use]
    pub fn state(&self, topic: &str) -> Option<&TopicState> {
        self.topics.get(topic)
    }
}

/// A catalog that remembers the last answer: fires of one topic tend to come together.
#[derive(Debug)]
pub(super) struct CachingCatalog<'a> {
    catalog: &'a TopicCatalog,
    last: Option<(String, Option<&'a TopicState>)>,
}

impl<'a> CachingCatalog<'a> {
    pub(super) fn new(catalog: &'a TopicCatalog) -> Self {
        Self { catalog, last: None }
    }

    /// The state of a pool's topic; `None` if it was not looked up.
    pub(super) fn pool(&self, pool: &str) -> Option<&'a TopicState> {
        self.catalog.pool(pool)
    }

    /// The state of a topic; `None` if it was not looked up.
    pub(super) fn state(&mut self, topic: &str) -> Option<&'a TopicState> {
        if let Some((last, state)) = &self.last
            && last == topic
        {
            return *state;
        }
        let state = self.catalog.state(topic);
        self.last = Some((topic.to_owned(), state));
        state
    }
}
