//! The state of target topics, and of pools' topics, when an entry is due. The shell
//! looks them up before the decision; the decision only reads.
//!
//! Invariant: a pool is looked up by its own name, so that no trigger reaches our topics as its
//! target.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::model::PartitionId;
use crate::model::partitioner::murmur2_partition;

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
    /// It can be written, but for some of its partitions.
    Usable {
        /// How many partitions it has.
        partitions: i32,
        /// Bytes a record may have at most, key and headers included; and as many records as are
        /// sent at once.
        record_bytes_max: usize,
        /// Those that cannot take a record now: their fires wait and are tried again.
        unavailable: UnavailablePartitions,
    },
    /// It cannot be written until a person changes something: the fire is a dead letter.
    Unusable(String),
    /// It cannot be reached now: the fire waits and is tried again.
    Unavailable(String),
    /// It was looked up for the first time a moment ago: the fire waits for the answer.
    Unknown,
}

impl TopicState {
    /// A topic of so many partitions, which all can be written. A record has at most so many bytes,
    /// key and headers included.
    #[must_use]
    pub fn usable(partitions: i32, record_bytes_max: usize) -> Self {
        Self::Usable { partitions, record_bytes_max, unavailable: UnavailablePartitions::NONE }
    }

    /// Whether a fire may have to wait: the topic or one of its partitions cannot be reached now,
    /// or it takes so little at once that not every fire has room in a step.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        match self {
            Self::Usable { record_bytes_max, unavailable, .. } => {
                *record_bytes_max < BATCH_BYTES_MAX || !unavailable.is_empty()
            }
            Self::Unusable(_) => false,
            Self::Unavailable(_) | Self::Unknown => true,
        }
    }

    /// Whether a callback may have to wait if this is the state of its pool's topic, whose batches
    /// have no limit of their own.
    #[must_use]
    pub fn may_wait_for_pool(&self) -> bool {
        match self {
            Self::Usable { unavailable, .. } => !unavailable.is_empty(),
            state => state.may_wait(),
        }
    }

    /// Whether the fire with this key of its record may have to wait.
    #[must_use]
    pub fn may_wait_with_key(&self, key: &[u8]) -> bool {
        match self {
            Self::Usable { partitions, record_bytes_max, unavailable }
                if *record_bytes_max >= BATCH_BYTES_MAX && !unavailable.is_empty() =>
            {
                unavailable.contains(murmur2_partition(key, *partitions))
            }
            state => state.may_wait(),
        }
    }
}

/// Partitions of a topic that cannot take a record now: they have no leader, or fewer in-sync
/// replicas than the topic asks for, or one has not acknowledged a record in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnavailablePartitions(
    /// In ascending order; `None` if all partitions can take records.
    Option<Arc<[PartitionId]>>,
);

impl UnavailablePartitions {
    /// All partitions can take records.
    pub const NONE: Self = Self(None);

    /// Whether all partitions can take records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether this partition cannot take a record now.
    #[must_use]
    pub fn contains(&self, partition: PartitionId) -> bool {
        self.0.as_ref().is_some_and(|ids| ids.binary_search(&partition).is_ok())
    }

    /// The partitions, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = PartitionId> + '_ {
        self.0.iter().flat_map(|ids| ids.iter().copied())
    }
}

impl FromIterator<PartitionId> for UnavailablePartitions {
    fn from_iter<I: IntoIterator<Item = PartitionId>>(partitions: I) -> Self {
        let mut ids: Vec<_> = partitions.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        Self((!ids.is_empty()).then(|| ids.into()))
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
        TopicState::usable(partitions, BATCH_BYTES_MAX)
    }

    /// Two partitions, of which these are out.
    fn without(unavailable: &[PartitionId], record_bytes_max: usize) -> TopicState {
        let unavailable = unavailable.iter().copied().collect();
        TopicState::Usable { partitions: 2, record_bytes_max, unavailable }
    }

    #[test]
    fn partitions_that_are_out_are_a_set_in_ascending_order() {
        let out: UnavailablePartitions = [7, 3, 7, 0].into_iter().collect();
        assert_eq!(out.iter().collect::<Vec<_>>(), [0, 3, 7]);
        assert_eq!(
            [-1, 0, 1, 3, 7, 8].map(|id| out.contains(id)),
            [false, true, false, true, true, false]
        );
        assert!(!out.is_empty());
        let none: UnavailablePartitions = [].into_iter().collect();
        assert!(none == UnavailablePartitions::NONE && none.is_empty() && !none.contains(0));
        assert_eq!(none.iter().count(), 0);
    }

    #[test]
    fn of_a_topic_with_a_partition_that_is_out_only_the_fires_into_it_may_wait() {
        let [first, second] = [0, 1].map(|partition| {
            let mut keys = (0..).map(|n: u32| format!("key-{n}"));
            keys.find(|key| murmur2_partition(key.as_bytes(), 2) == partition).unwrap()
        });
        let may_wait = |state: TopicState| {
            let keys = [&first, &second].map(|key| state.may_wait_with_key(key.as_bytes()));
            (state.may_wait(), keys)
        };
        let (large, small) = (BATCH_BYTES_MAX, BATCH_BYTES_MAX - 1);
        assert_eq!(may_wait(without(&[], large)), (false, [false, false]));
        assert_eq!(may_wait(without(&[1], large)), (true, [false, true]));
        assert_eq!(may_wait(without(&[0], large)), (true, [true, false]));
        assert_eq!(may_wait(without(&[0, 1], large)), (true, [true, true]));
        // Its batches are limited: any fire may find no room.
        assert_eq!(may_wait(without(&[], small)), (true, [true, true]));
        assert_eq!(may_wait(without(&[1], small)), (true, [true, true]));
        assert_eq!(may_wait(TopicState::Unknown), (true, [true, true]));
        assert_eq!(may_wait(TopicState::Unusable(String::new())), (false, [false, false]));
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
            let mut partly = TopicCatalog::default();
            insert(&mut partly, "a".to_owned(), without(&[1], BATCH_BYTES_MAX));
            assert!(partly.any_may_wait());
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
