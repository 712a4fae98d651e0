//! A cluster, a group and a schema registry for tests, which answer what a test has set.
//!
//! Invariant: clones share what is set. What is not set is not answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codec::registration::{SchemaLookup, WriterSchemas};
use crate::engine::catalog::TopicState;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::group::{GroupMember, GroupQueries};
use crate::environment::{ClusterQueries, SchemaSource};
use crate::model::{BrokerId, Offset, PartitionId, Timestamp};

/// The leader of a log if a test does not say another one.
const LEADER: BrokerId = 1;

/// The bounds of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestBounds {
    pub(crate) low: Offset,
    pub(crate) stable: Offset,
    pub(crate) end: Offset,
    /// The first record since any time.
    pub(crate) first_new: Offset,
}

impl TestBounds {
    /// No transaction is open in it, and no record is new.
    pub(crate) fn whole(low: Offset, end: Offset) -> Self {
        Self { low, stable: end, end, first_new: end }
    }
}

/// Answers what is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestCluster {
    logs: Arc<Mutex<BTreeMap<(String, PartitionId), TestBounds>>>,
    /// The leaders that are set, also of logs without bounds.
    leaders: Arc<Mutex<BTreeMap<(String, PartitionId), BrokerId>>>,
    /// The topics whose state was asked for since this was last read.
    looked_up: Arc<Mutex<Vec<String>>>,
    /// The answer about each topic; `None`: all of it can be written.
    topic_state: Arc<Mutex<Option<CallResult<TopicState>>>>,
}

impl TestCluster {
    fn logs(&self) -> MutexGuard<'_, BTreeMap<(String, PartitionId), TestBounds>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn looked_up(&self) -> Vec<String> {
        std::mem::take(&mut self.looked_up.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Each topic has this state from now on.
    pub(crate) fn set_topic_state(&self, state: TopicState) {
        *self.topic_state.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ok(state));
    }

    /// No broker answers from now on if a topic is looked up.
    pub(crate) fn leave_topics_unanswered(&self) {
        let unanswered = Some(Err(CallError::new("no answer")));
        *self.topic_state.lock().unwrap_or_else(PoisonError::into_inner) = unanswered;
    }

    /// A log has these bounds from now on.
    pub(crate) fn set(&self, topic: &str, partition: PartitionId, bounds: TestBounds) {
        let _before = self.logs().insert((topic.to_owned(), partition), bounds);
    }

    /// This broker leads a log from now on.
    pub(crate) fn set_leader(&self, topic: &str, partition: PartitionId, leader: BrokerId) {
        let mut leaders = self.leaders.lock().unwrap_or_else(PoisonError::into_inner);
        let _before = leaders.insert((topic.to_owned(), partition), leader);
    }

    fn bounds_of(&self, topic: &str, partition: PartitionId) -> CallResult<TestBounds> {
        let bounds = self.logs().get(&(topic.to_owned(), partition)).copied();
        bounds.ok_or_else(|| CallError::new("no leader"))
    }
}

impl ClusterQueries for TestCluster {
    fn bounds(&self, topic: &str, partition: PartitionId) -> CallResult<(Offset, Offset)> {
        self.bounds_of(topic, partition).map(|bounds| (bounds.low, bounds.end))
    }

    fn leaders(&self, topic: &str) -> CallResult<BTreeMap<PartitionId, BrokerId>> {
        let logs = self.logs().keys().cloned().map(|log| (log, LEADER)).collect::<BTreeMap<_, _>>();
        let set = self.leaders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = logs.into_iter().chain(set);
        let of_topic = all.filter(|((of, _), _)| of == topic);
        Ok(of_topic.map(|((_, partition), leader)| (partition, leader)).collect())
    }

    fn end_offsets(
        &self,
        topic: &str,
        partitions: &[PartitionId],
        _timeout: Duration,
    ) -> CallResult<BTreeMap<PartitionId, Offset>> {
        let end = |id: &PartitionId| Some((*id, self.bounds_of(topic, *id).ok()?.end));
        Ok(partitions.iter().filter_map(end).collect())
    }

    fn last_stable_offset(&self, topic: &str, partition: PartitionId) -> CallResult<Offset> {
        self.bounds_of(topic, partition).map(|bounds| bounds.stable)
    }

    fn offset_for_time(
        &self,
        topic: &str,
        partition: PartitionId,
        _time: Timestamp,
    ) -> CallResult<Offset> {
        self.bounds_of(topic, partition).map(|bounds| bounds.first_new)
    }

    fn topic_state(&self, topic: &str) -> CallResult<TopicState> {
        self.looked_up.lock().unwrap_or_else(PoisonError::into_inner).push(topic.to_owned());
        let state = self.topic_state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        state.unwrap_or_else(|| Ok(topic_without(&[])))
    }
}

/// A topic with these partitions that cannot be written.
pub(crate) fn topic_without(unavailable: &[PartitionId]) -> TopicState {
    TopicState::Usable {
        partitions: 1,
        record_bytes_max: 1_000_000,
        unavailable: unavailable.iter().copied().collect(),
    }
}

/// What a group is asked for.
#[derive(Debug, Default)]
pub(crate) struct GroupAnswers {
    /// `None`: no answer.
    pub(crate) members: Option<Vec<GroupMember>>,
    /// `None`: no offset is committed.
    pub(crate) committed: Option<(Offset, String)>,
}

/// Answers what is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestGroup(pub(crate) Arc<Mutex<GroupAnswers>>);

impl TestGroup {
    pub(crate) fn answers(&self) -> MutexGuard<'_, GroupAnswers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GroupQueries for TestGroup {
    fn committed(&self, _partition: PartitionId) -> CallResult<Option<(Offset, String)>> {
        Ok(self.answers().committed.clone())
    }

    fn members(&self) -> CallResult<Vec<GroupMember>> {
        self.answers().members.clone().ok_or_else(|| CallError::new("no coordinator"))
    }
}

/// A registry that has no schema.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestSchemas(Arc<Mutex<RegistryAnswers>>);

/// How a registry that has no schema answers.
#[derive(Debug, Default)]
pub(crate) struct RegistryAnswers {
    pub(crate) refusal: Option<String>,
    pub(crate) denied: Vec<u32>,
    /// It answers that there is no such schema, instead of not at all.
    pub(crate) is_back: bool,
}

impl TestSchemas {
    pub(crate) fn answers(&self) -> MutexGuard<'_, RegistryAnswers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SchemaSource for TestSchemas {
    fn at(&self, _now: Duration) -> impl WriterSchemas + '_ {
        self
    }

    fn refusal(&self, _now: Duration) -> Option<String> {
        self.answers().refusal.clone()
    }

    fn denies(&self, schema: u32, _now: Duration) -> bool {
        self.answers().denied.contains(&schema)
    }
}

impl WriterSchemas for &TestSchemas {
    fn by_id(&self, _id: u32) -> SchemaLookup {
        if self.answers().is_back { SchemaLookup::Unknown } else { SchemaLookup::Unreachable }
    }
}
