//! The membership in the consumer group: changes of the assignment.
//!
//! Invariant: the group is polled only while no transaction is in progress. Nothing is committed
//! for a member other than the one that was assigned the partitions.

use std::time::Duration;

use super::callback::WorkerEnvironment;
use super::partition::RunningPartition;
use super::{Worker, WorkerLoopError};
use crate::commit::committer::GroupMetadata;
use crate::engine::assignment::AssignmentChange;
use crate::environment::call_error::CallError;
use crate::environment::group::{GroupMembership as _, GroupMetadataError, MemberMetadata as _};
use crate::environment::log::LogReading as _;
use crate::model::PartitionId;

impl<E: WorkerEnvironment> Worker<E> {
    /// Handles changes of the group assignment. No transaction is in progress here.
    pub(super) fn poll_group(&mut self) -> Result<(), WorkerLoopError> {
        let changes = match self.member.poll(Duration::ZERO) {
            Ok(changes) => changes,
            Err(fatal) => return self.join_again(&fatal),
        };
        for change in changes {
            tracing::info!(?change, "group assignment changed");
            match change {
                AssignmentChange::Joined(member_id) => {
                    let is_expelled = !self.partitions.is_empty() && self.member_id != member_id;
                    self.member_id = member_id;
                    if is_expelled {
                        let text = "the group has a new member id for this process";
                        return self.join_again(&CallError::new(text));
                    }
                }
                AssignmentChange::Assigned(partitions) => {
                    self.readiness.assigned();
                    partitions.into_iter().for_each(|partition| self.start_epoch(partition));
                }
                AssignmentChange::Revoked(partitions) => self.give_up(&partitions)?,
                AssignmentChange::Lost(partitions) => {
                    self.release_partitions(&partitions)?;
                    self.readiness.unassigned();
                }
            }
            self.report_readiness();
        }
        self.restart_cut_partitions();
        self.on_partitions_changed();
        Ok(())
    }

    /// What a transaction carries, if the group has not expelled this worker since it was assigned
    /// its partitions.
    pub(super) fn group_metadata(&self) -> Result<GroupMetadata<E>, GroupMetadataError> {
        self.member.metadata()?.if_of_member(&self.member_id)
    }

    /// Commits what is known of revoked partitions, and releases them with the end of that
    /// transaction; at once, if another one is not decided yet: the next owner repeats what it
    /// contains.
    fn give_up(&mut self, partitions: &[PartitionId]) -> Result<(), WorkerLoopError> {
        self.process_ended();
        if self.transaction.is_idle() {
            self.prepare_final_commit(|partition| partitions.contains(partition));
            if self.commit_final(partitions) {
                return Ok(());
            }
        }
        self.release_partitions(partitions)
    }

    /// Joins as a new client, without any partition: the client has failed, or the group has
    /// expelled this worker, which the client does not report. During a
    /// shutdown it only releases what it has: it would be assigned partitions, and leave at once.
    pub(super) fn join_again(&mut self, fatal: &CallError) -> Result<(), WorkerLoopError> {
        let all: Vec<_> = self.partitions.keys().copied().collect();
        if !all.is_empty() {
            self.release_partitions(&all)?;
        }
        if self.leaving.is_some() {
            tracing::debug!(error = %fatal, "fenced by the group during the shutdown");
            self.on_partitions_changed();
            return Ok(());
        }
        tracing::warn!(error = %fatal, "fenced by the group; joining again");
        self.readiness.unassigned();
        self.report_readiness();
        self.member.rejoin().map_err(WorkerLoopError::FencedRepeatedly)?;
        self.on_partitions_changed();
        Ok(())
    }

    /// Removes partitions: their next owner repeats what was not committed.
    pub(super) fn release_partitions(
        &mut self,
        partitions: &[PartitionId],
    ) -> Result<(), WorkerLoopError> {
        for partition in partitions {
            self.reader.stop(&self.config.topic, *partition)?;
            self.discard_waiting(*partition);
            self.partitions.remove(partition);
            self.readiness.reading.on_read(*partition);
        }
        self.member.release(partitions)?;
        if self.partitions.is_empty() {
            self.readiness.unassigned();
        }
        Ok(())
    }

    /// No further callback of these partitions starts: their last commit says up to which offset
    /// one did.
    pub(super) fn prepare_final_commit(&mut self, is_revoked: impl Fn(&PartitionId) -> bool) {
        let revoked: Vec<_> = self.partitions.keys().copied().filter(|id| is_revoked(id)).collect();
        for partition in revoked {
            self.discard_waiting(partition);
            let Some(owned) = self.partitions.get_mut(&partition) else { continue };
            owned.unreserved.clear();
            owned.running.iter_mut().for_each(RunningPartition::prepare_final_commit);
        }
    }
}
