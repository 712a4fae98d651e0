//! A member of a consumer group for tests, which is assigned what a test has set.
//!
//! Invariant: clones share it. It keeps the requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::assignment::AssignmentChange;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::group::{
    CommittedOffsets, GroupMembership, GroupMetadataError, MemberMetadata,
};
use crate::environment::transaction::OffsetCommit;
use crate::model::{Offset, PartitionId};

/// What a member is answered, and what was requested of it.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// What polls return. Without anything, the assignment has not changed.
    pub(crate) polls: VecDeque<CallResult<Vec<AssignmentChange>>>,
    /// The id that the group has for it.
    pub(crate) member_id: String,
    /// It is not a member of the group.
    pub(crate) is_out: bool,
    /// It joins again, and fails.
    pub(crate) is_fenced: bool,
    pub(crate) has_released_all: bool,
    /// The broker does not answer the request to leave.
    pub(crate) cannot_leave: bool,
    /// What is committed for each partition.
    pub(crate) committed: Option<(Offset, String)>,
    /// What a second client reads; the same, if it is not set.
    pub(crate) latest: Option<String>,
    /// The broker does not say what is committed.
    pub(crate) is_silent: bool,
    /// What was committed outside of transactions.
    pub(crate) commits: Vec<OffsetCommit>,
    /// `release [0]`, and so on.
    calls: Vec<String>,
}

/// The id of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestMetadata(String);

impl MemberMetadata for TestMetadata {
    fn member_id(&self) -> String {
        self.0.clone()
    }
}

/// Is assigned what is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestMember(Arc<Mutex<Membership>>);

impl TestMember {
    pub(crate) fn membership(&self) -> MutexGuard<'_, Membership> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was requested since the last call.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.membership().calls)
    }

    fn called(&self, call: String) {
        self.membership().calls.push(call);
    }
}

impl GroupMembership for TestMember {
    type Metadata = TestMetadata;
    type Offsets = Self;

    fn poll(&mut self, _timeout: Duration) -> CallResult<Vec<AssignmentChange>> {
        self.membership().polls.pop_front().unwrap_or_else(|| Ok(Vec::new()))
    }

    fn rejoin(&mut self) -> CallResult<()> {
        self.called("rejoin".to_owned());
        if self.membership().is_fenced { Err(CallError::new("fenced")) } else { Ok(()) }
    }

    fn metadata(&self) -> Result<TestMetadata, GroupMetadataError> {
        let membership = self.membership();
        let metadata = TestMetadata(membership.member_id.clone());
        if membership.is_out { Err(GroupMetadataError::NotMember) } else { Ok(metadata) }
    }

    fn is_member(&self, member_id: &str) -> bool {
        let membership = self.membership();
        !membership.is_out && membership.member_id == member_id
    }

    fn release(&self, partitions: &[PartitionId]) -> CallResult<()> {
        self.called(format!("release {partitions:?}"));
        Ok(())
    }

    fn committed_offsets(&self) -> Self {
        self.clone()
    }

    fn commit_offsets(&self, commits: &[OffsetCommit]) -> CallResult<()> {
        self.membership().commits.extend_from_slice(commits);
        Ok(())
    }

    fn leave_gracefully(&self) -> CallResult<()> {
        self.called("leave".to_owned());
        if self.membership().cannot_leave { Err(CallError::new("no answer")) } else { Ok(()) }
    }

    fn has_released_all(&self) -> bool {
        self.membership().has_released_all
    }
}

impl CommittedOffsets for TestMember {
    fn stable(
        &self,
        _partition: PartitionId,
        _timeout: Duration,
    ) -> CallResult<Option<(Offset, String)>> {
        let membership = self.membership();
        if membership.is_silent {
            return Err(CallError::new("no answer"));
        }
        Ok(membership.committed.clone())
    }

    fn latest_metadata(&self, _partition: PartitionId) -> CallResult<String> {
        let membership = self.membership();
        let committed = membership.committed.as_ref().map(|(_, metadata)| metadata.clone());
        Ok(membership.latest.clone().or(committed).unwrap_or_default())
    }

    fn fence_owner(&self, _metadata: &str) {}

    fn fence_absent_members(&self) {}
}
