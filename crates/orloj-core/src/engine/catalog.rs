//! The state of target topics, and of pools' topics, when an entry is due. The shell
//! looks them up before the decision; the decision only reads.
//!
//! Invariant: a pool is looked up by its own name, so that no trigger reaches our topics as its
//! target.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// How many bytes the client sends at once to a partition, at most.
pub const BATCH_BYTES_MAX: usize = 1_000_000;

/// The topics that the due entries of a step name.
#[derive(Clone, Debug, Default)]
pub struct TopicCatalog {
    topics: HashMap<String, TopicState, FixedState>,
    pools: HashMap<String, TopicState, FixedState>,
    any_may_wait: bool,
}

/// Whether and how a topic can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicState {
    /// It can be written.
    Usable {
        /// Its partitions.
        partitions: i32,
        /// Bytes a record may have at most, key and headers included; and as many records as are
        /// sent at once.
        record_bytes_max: usize,
    },
    /// It cannot be written until a person changes something: the fire is a dead letter.
    Unusable(String),
    /// It cannot be reached now: the fire waits and is tried again.
    Unavailable(String),
    /// It was looked up for the first time a moment ago: the fire waits for the answer.
    Unknown,
}

impl TopicState {
    /// Whether a fire may have to wait: the topic cannot be reached now, or takes so little at once
    /// that not every fire has room in a step.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        match self {
            Self::Usable { record_bytes_max, .. } => *record_bytes_max < BATCH_BYTES_MAX,
            Self::Unusable(_) => false,
            Self::Unavailable(_) | Self::Unknown => true,
        }
    }
}

impl TopicCatalog {
    /// Remembers a topic's state.
    pub fn insert(&mut self, topic: String, state: TopicState) {
        self.any_may_wait |= state.may_wait();
        let _previous = self.topics.insert(topic, state);
    }

    /// Remembers the state of a pool's topic.
    pub fn insert_pool(&mut self, pool: String, state: TopicState) {
        self.any_may_wait |= state.may_wait();
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

    /// Whether a fire to one of the topics may have to wait.
    #[must_use]
    pub fn any_may_wait(&self) -> bool {
        self.any_may_wait
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

#[cfg(test)]
mod tests {
    use super::*;

    fn usable(partitions: i32) -> TopicState {
        TopicState::Usable { partitions, record_bytes_max: BATCH_BYTES_MAX }
    }

    #[test]
    fn a_pool_and_a_topic_of_the_same_name_have_states_of_their_own() {
        let mut catalog = TopicCatalog::default();
        catalog.insert("a".to_owned(), usable(1));
        catalog.insert_pool("a".to_owned(), usable(2));
        catalog.insert_pool("pool".to_owned(), usable(3));
        assert_eq!(catalog.state("a"), Some(&usable(1)));
        assert_eq!(catalog.pool("a"), Some(&usable(2)));
        assert_eq!((catalog.state("pool"), catalog.pool("b")), (None, None));
        assert!(catalog.contains("a") && !catalog.contains("pool"));
    }

    #[test]
    fn one_unavailable_topic_or_pool_is_enough_however_many_follow() {
        let unavailable = || TopicState::Unavailable("no answer".to_owned());
        let inserts: [fn(&mut TopicCatalog, String, TopicState); 2] =
            [TopicCatalog::insert, TopicCatalog::insert_pool];
        for insert in inserts {
            let mut catalog = TopicCatalog::default();
            insert(&mut catalog, "a".to_owned(), usable(1));
            insert(&mut catalog, "b".to_owned(), TopicState::Unusable("denied".to_owned()));
            assert!(!catalog.any_may_wait());
            for name in ["c", "d"] {
                insert(&mut catalog, name.to_owned(), unavailable());
                assert!(catalog.any_may_wait(), "{name}");
            }
            insert(&mut catalog, "e".to_owned(), usable(1));
            assert!(catalog.any_may_wait());
        }
    }

    #[test]
    fn the_last_answer_is_for_its_own_topic_only() {
        let mut catalog = TopicCatalog::default();
        catalog.insert("a".to_owned(), usable(1));
        catalog.insert("b".to_owned(), usable(2));
        catalog.insert_pool("a".to_owned(), usable(3));
        let mut caching = CachingCatalog::new(&catalog);
        for (topic, partitions) in [("a", 1), ("a", 1), ("b", 2), ("a", 1)] {
            assert_eq!(caching.state(topic), Some(&usable(partitions)), "{topic}");
        }
        assert_eq!((caching.state("c"), caching.pool("b")), (None, None));
        assert_eq!(caching.pool("a"), Some(&usable(3)));
    }
}
