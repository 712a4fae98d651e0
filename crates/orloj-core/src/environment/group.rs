//! The membership in a consumer group: assigned partitions, and their committed offsets.
//!
//! Invariant: the group is polled only while no transaction is in progress. Metadata of the group
//! always has a member and a generation, so that the broker checks every commit.

use std::time::Duration;

use super::call_error::CallResult;
use super::transaction::OffsetCommit;
use crate::engine::assignment::AssignmentChange;
use crate::model::{Offset, PartitionId};

/// Why there is no group metadata. Do not commit; poll the group, or take the partitions over
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupMetadataError {
    /// The process is not a member of the group.
    #[error("not a member of the consumer group")]
    NotMember,
    /// The group has revoked the partitions without waiting for this process.
    #[error("the consumer group has reassigned the partitions")]
    AssignmentLost,
}

/// Tells the broker which member commits, for one transaction.
pub trait MemberMetadata: Send + 'static {
    /// The member. The group gives a process that it has expelled a new id.
    fn member_id(&self) -> String;

    /// Refuses metadata of another member than `member_id`, which was assigned the partitions: the
    /// group has expelled this process since.
    fn if_of_member(self, member_id: &str) -> Result<Self, GroupMetadataError>
    where
        Self: Sized,
    {
        if self.member_id() == member_id {
            Ok(self)
        } else {
            Err(GroupMetadataError::AssignmentLost)
        }
    }
}

/// A member of a consumer group.
pub trait GroupMembership: 'static {
    /// What a transaction carries.
    type Metadata: MemberMetadata;
    /// Reads committed offsets on another thread.
    type Offsets: CommittedOffsets;

    /// Polls the group for at most `timeout`. Changes begin with the member id. An error is fatal
    /// for the membership: call [`rejoin`](Self::rejoin).
    fn poll(&mut self, timeout: Duration) -> CallResult<Vec<AssignmentChange>>;

    /// Joins the group again with the same instance id, after the fatal error of a poll, or if the
    /// group has expelled this process without a report of the client. All partitions are lost.
    /// Returns that error if that has happened too often recently.
    fn rejoin(&mut self) -> CallResult<()>;

    /// The current group metadata. It may be of another member than the one that was assigned the
    /// partitions.
    fn metadata(&self) -> Result<Self::Metadata, GroupMetadataError>;

    /// Whether the client is the member with this id still, as far as it knows. Asks and changes
    /// nothing, unlike [`metadata`](Self::metadata), with which a scheduler may look at the group.
    fn is_member(&self, member_id: &str) -> bool;

    /// Releases revoked or lost partitions. Call it when no transaction or record of ours can
    /// affect them any more.
    fn release(&self, partitions: &[PartitionId]) -> CallResult<()>;

    /// A handle that reads committed offsets.
    fn committed_offsets(&self) -> Self::Offsets;

    /// Commits offsets outside of a transaction, without waiting.
    fn commit_offsets(&self, commits: &[OffsetCommit]) -> CallResult<()>;

    /// Starts to release all partitions; poll until [`has_released_all`](Self::has_released_all).
    fn leave_gracefully(&self) -> CallResult<()>;

    /// Whether the group has completed an assignment in which this member has no partitions.
    fn has_released_all(&self) -> bool;
}

/// Committed offsets, and the transactions that hide them.
pub trait CommittedOffsets: Send + 'static {
    /// The stable committed offset of a partition and its metadata. An error (also a timeout) means
    /// that it is not known yet, not that there is none.
    fn stable(
        &self,
        partition: PartitionId,
        timeout: Duration,
    ) -> CallResult<Option<(Offset, String)>>;

    /// The metadata of the last committed offset, also while a transaction with a later one is
    /// open; empty if none was committed.
    fn latest_metadata(&self, partition: PartitionId) -> CallResult<String>;

    /// Makes the broker end the open transaction of the owner that wrote `metadata`, if that owner
    /// is another process and its last commit was not final. Does not wait. Does nothing once the
    /// client knows that the group has reassigned its partitions.
    fn fence_owner(&self, metadata: &str);

    /// Makes the broker end the open transactions of those that were members of the group lately
    /// and are absent now: one that died in its first transaction for a partition is named by no
    /// committed offset. Does not wait. Does nothing once the client knows that the group has
    /// reassigned its partitions.
    fn fence_absent_members(&self);
}

/// A member of the group, as the coordinator describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// The member id. For a static member it starts with the instance id and a dash.
    pub member_id: String,
    /// The member's partitions.
    pub partitions: Vec<PartitionId>,
}

/// Questions about the group by a client that is not a member. No answer takes longer than a
/// fraction of a second.
pub trait GroupQueries: Send + 'static {
    /// The stable committed offset of a partition and its metadata. An error (also a timeout) means
    /// that it is not known yet, not that there is none.
    fn committed(&self, partition: PartitionId) -> CallResult<Option<(Offset, String)>>;

    /// The members and their partitions. The answer may already be out of date.
    fn members(&self) -> CallResult<Vec<GroupMember>>;
}
