//! The membership in the consumer group: changes of the assignment, the release of partitions, and
//! the shutdown.
//!
//! Invariant: the group is polled only while no transaction is in progress. Nothing is committed
//! for a member other than the one that was assigned the partitions.

use std::time::Duration;

use super::config::Mode;
use super::partition_task::PartitionTask;
use super::{IDLE_WAIT, LoopError, Scheduler, ms};
use crate::commit::committer::GroupMetadata;
use crate::engine::assignment::AssignmentChange;
use crate::environment::call_error::CallError;
use crate::environment::group::{GroupMembership as _, GroupMetadataError, MemberMetadata as _};
use crate::environment::{Clock as _, Environment};
use crate::model::{Millis, PartitionId};

impl<E: Environment> Scheduler<E> {
    /// Polls the group. No transaction is in progress at this point.
    pub(super) fn poll_group(&mut self) -> Result<(), LoopError> {
        let fatal = match self.member.poll(Duration::ZERO) {
            Ok(changes) => self.apply_group_changes(changes)?,
            Err(fatal) => Some(fatal),
        };
        if let Some(fatal) = fatal {
            tracing::warn!(error = %fatal, "fenced by the group; joining again");
            let all = self.assignment.owned().iter().copied().collect();
            self.apply_group_change(AssignmentChange::Lost(all))?;
            self.member.rejoin().map_err(LoopError::FencedRepeatedly)?;
        }
        let actions = self.assignment.on_tick(self.uptime());
        self.execute(actions)
    }

    /// Returns an error if the group has expelled this process: then it must join again.
    fn apply_group_changes(
        &mut self,
        changes: Vec<AssignmentChange>,
    ) -> Result<Option<CallError>, LoopError> {
        for change in changes {
            if self.assignment.is_expelled(&change) {
                return Ok(Some(CallError::new("the group has a new member id for this process")));
            }
            self.apply_group_change(change)?;
        }
        Ok(None)
    }

    /// What the next transaction carries, if the group has not expelled this process.
    pub(super) fn group_metadata(&self) -> Result<GroupMetadata<E>, GroupMetadataError> {
        self.member.metadata()?.if_of_member(self.assignment.assigned_member())
    }

    fn apply_group_change(&mut self, change: AssignmentChange) -> Result<(), LoopError> {
        let is_assignment = !matches!(change, AssignmentChange::Joined(_));
        tracing::info!(?change, "group assignment changed");
        let actions = self.assignment.on_assignment_change(change, self.uptime());
        self.execute(actions)?;
        if is_assignment {
            self.refresh_membership();
            self.report_readiness();
        }
        self.end_offsets.watch(self.assignment.owned().iter().copied());
        Ok(())
    }

    /// Milliseconds since the start, on the monotonic clock.
    pub(super) fn uptime(&self) -> Millis {
        ms(self.clock.monotonic() - self.started)
    }

    /// Releases partitions that no transaction or record of ours can affect any more. Their stores
    /// are flushed and closed beside the loop.
    pub(super) fn release(&mut self, partitions: &[PartitionId]) -> Result<(), LoopError> {
        E::reached("revoke.after_last_words");
        for partition in partitions {
            self.stop_reading(*partition)?;
            // Another owner may read on in what was written to it again.
            self.truncated_logs.on_not_shorter(*partition, &self.config.names.signals());
        }
        let mut without_store = Vec::new();
        for id in partitions {
            match self.tasks.remove(id) {
                Some(PartitionTask { store, .. }) => self.close_store(*id, store),
                None => without_store.push(*id),
            }
        }
        self.member.release(partitions)?;
        self.give_back_stores(&without_store);
        Ok(())
    }

    /// One turn of a process that is shutting down: releases all partitions. If so configured, the
    /// partitions stay assigned to this instance id for the next start. Returns whether it may end.
    pub fn leave(&mut self) -> Result<bool, LoopError> {
        let now = self.clock.monotonic();
        let leaving = *self.leaving.get_or_insert(Leaving { began: now, is_requested: false });
        let is_late = now >= leaving.began + self.config.timing.leave_timeout;
        let releases = self.config.leave_on_shutdown && self.config.mode == Mode::Guaranteed;
        if !leaving.is_requested {
            if !self.assignment.accepts_changes() && !is_late {
                self.poll_transaction(IDLE_WAIT)?;
                self.poll_producer_jobs(IDLE_WAIT)?;
            } else if self.request_leave(releases)? {
                self.leaving = Some(Leaving { is_requested: true, ..leaving });
            } else if is_late {
                return Ok(true);
            } else {
                self.poll_once()?;
            }
            return Ok(false);
        }
        let has_left =
            self.assignment.owned().is_empty() && (!releases || self.member.has_released_all());
        if !has_left && !is_late {
            self.poll_once()?;
        }
        if has_left {
            // A store is closed when no other job uses it any more.
            self.await_stores()?;
        }
        let is_closing = has_left && self.awaited_stores.is_closing(IDLE_WAIT);
        Ok(has_left && !is_closing || is_late)
    }

    /// Returns whether it is requested; if not, the broker may answer later.
    fn request_leave(&mut self, releases: bool) -> Result<bool, LoopError> {
        self.assignment.disable_grace();
        if releases {
            if let Err(error) = self.member.leave_gracefully() {
                tracing::warn!(%error, "the group cannot be asked to take the partitions yet");
                return Ok(false);
            }
        } else if self.assignment.accepts_changes() {
            let all = self.assignment.owned().iter().copied().collect();
            let actions =
                self.assignment.on_assignment_change(AssignmentChange::Revoked(all), self.uptime());
            self.execute(actions)?;
        }
        Ok(true)
    }
}

/// A shutdown in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    /// On the monotonic clock.
    began: Duration,
    /// The group was asked to take the partitions.
    is_requested: bool,
}
