//! A scheduler process: its membership, its producer, its partitions, and the one transaction that
//! it may have open. It does what the scheduler does, one action at a time.
//!
//! Invariant: the group is polled only while no transaction is open.

mod transactions;

use std::collections::{BTreeMap, BTreeSet};

use orloj_core::engine::assignment::{
    AssignmentAction, AssignmentChange, GroupAssignment, TransactionOutcome,
};
use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::partition::PartitionConfig;
use orloj_core::engine::takeover::TakeoverError;
use orloj_core::model::{Millis, Offset, PartitionId, Timestamp};

use super::broker::Producer;
use super::cluster::{PARTITIONS, SimulatedCluster};
use super::disk::SimulatedDisk;
use super::fault_kinds::FaultKind;
use super::group::{GroupPoll, Membership, NodeId, transactional_id};
use super::partition_task::{SimulatedPartitionTask, SimulatedTaskState};
use super::standby::{PassEnd, SimulatedStandbyRead, pass};
use super::transaction::{SimulatedTransaction, TransactionStage};

/// A running process.
#[derive(Debug)]
pub(super) struct SimulatedNode {
    pub(super) id: NodeId,
    rules: PartitionConfig,
    /// By how many ms its clock is ahead of true time.
    skew: i64,
    /// How far ahead of their time fires are decided, in ms.
    ahead: Millis,
    /// The latest time its clock has shown, or would have shown had it not been set back, and the
    /// true time then.
    shown: (Timestamp, Timestamp),
    membership: Membership,
    /// The coordinator has answered that it is not a member.
    lost: bool,
    producer: Producer,
    assignment: GroupAssignment,
    pub(super) tasks: BTreeMap<usize, SimulatedPartitionTask>,
    pub(super) disks: Vec<SimulatedDisk>,
    transaction: Option<SimulatedTransaction>,
    /// A partition that it is a standby of, the cursor that it has read, and when.
    followed: Option<(usize, Cursor, Timestamp)>,
    /// The partitions whose revocation is in progress.
    revoked: BTreeSet<usize>,
    leaving: bool,
}

impl SimulatedNode {
    /// A process starts with the disks that an earlier one left.
    pub(super) fn start(
        id: NodeId,
        disks: Vec<SimulatedDisk>,
        cluster: &mut SimulatedCluster,
    ) -> Self {
        let ledger_after = cluster.rng.pick(&[50, 50, 90]);
        if ledger_after != 50 {
            cluster.counts.add(FaultKind::SettingsChanged);
        }
        let skew = cluster.any_skew();
        Self {
            id,
            rules: cluster.rules(transactional_id(id), ledger_after),
            skew,
            ahead: cluster.rng.pick(&[0, 0, 3, 20]),
            shown: (0, cluster.broker.now),
            membership: cluster.broker.group.join(id, &mut cluster.rng),
            lost: false,
            producer: cluster.broker.init(id),
            assignment: GroupAssignment::new(cluster.rng.pick(&[0, 3, 10])),
            tasks: BTreeMap::new(),
            disks,
            transaction: None,
            followed: None,
            revoked: BTreeSet::new(),
            leaving: false,
        }
    }

    pub(super) fn move_clock(&mut self, cluster: &mut SimulatedCluster) {
        self.skew = cluster.any_skew();
    }

    /// Starts to release all partitions.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
        self.assignment.disable_grace();
    }

    pub(super) fn has_left(&self) -> bool {
        self.leaving && self.assignment.owned().is_empty() && self.assignment.is_idle()
    }

    /// At which point a crash would stop it now.
    pub(super) fn crash_kind(&self) -> FaultKind {
        match self.transaction.as_ref().map(|transaction| transaction.stage) {
            Some(TransactionStage::Sealed) => FaultKind::CrashBeforeSend,
            Some(TransactionStage::Sent | TransactionStage::OffsetsSent) => {
                FaultKind::CrashBeforeCommit
            }
            None if self.tasks.values().any(SimulatedPartitionTask::is_unapplied) => {
                FaultKind::CrashBeforeApply
            }
            None if self
                .tasks
                .values()
                .any(|task| matches!(task.state, SimulatedTaskState::Restoring(_))) =>
            {
                FaultKind::CrashInTakeover
            }
            None => FaultKind::CrashAfterApply,
        }
    }

    pub(super) fn is_in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// The partitions whose cursor is lost, and the offset that the error names.
    pub(super) fn lost_cursors(&self) -> Vec<(usize, Offset)> {
        let lost = |task: &SimulatedPartitionTask| match &task.state {
            SimulatedTaskState::Refused(TakeoverError::CursorLost { offset, .. }) => {
                Some((task.id, *offset))
            }
            SimulatedTaskState::Refused(TakeoverError::TakenOverByOther { .. }) => None,
            SimulatedTaskState::Refused(other) => panic!("{other}"),
            _ => None,
        };
        self.tasks.values().filter_map(lost).collect()
    }

    /// Does one of the actions that are possible now.
    pub(super) fn run_once(&mut self, cluster: &mut SimulatedCluster) {
        match (cluster.rng.below(9) / 2, self.assignment.is_idle()) {
            (0, true) => self.poll_group(cluster),
            (1, true) => self.begin_transaction(cluster),
            (0 | 1, false) => self.advance_transaction(cluster),
            (2, _) => self.apply_some(cluster),
            (4, _) if cluster.rng.one_in(8) => self.follow_standby(cluster),
            _ => self.work(cluster),
        }
    }

    fn clock(&self, cluster: &SimulatedCluster) -> Timestamp {
        cluster.broker.now.saturating_add_signed(self.skew)
    }

    /// By a clock that is never set back.
    fn time(&mut self, cluster: &SimulatedCluster) -> Timestamp {
        let (shown, at) = self.shown;
        let passed = cluster.broker.now.saturating_sub(at);
        self.shown = (self.clock(cluster).max(shown + passed), cluster.broker.now);
        self.shown.0
    }

    fn work(&mut self, cluster: &mut SimulatedCluster) {
        let clock = self.clock(cluster);
        let ids: Vec<usize> = self.tasks.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = cluster.rng.pick(&ids);
        if let Some(task) = self.tasks.get_mut(&id) {
            if cluster.rng.one_in(4) {
                task.look_at_ledger(cluster);
            }
            task.work(&self.rules, &mut self.disks[id], (clock, self.ahead), cluster);
        }
    }

    fn apply_some(&mut self, cluster: &mut SimulatedCluster) {
        for (id, task) in &mut self.tasks {
            let _applied = task.apply_next(&mut self.disks[*id], cluster);
        }
    }

    /// Keeps the store of a partition that another node owns nearly up to date: reads the cursor;
    /// later, while the ledger's newest records are still there, makes a catch-up pass.
    fn follow_standby(&mut self, cluster: &mut SimulatedCluster) {
        let now = cluster.broker.now;
        let Some((id, cursor, at)) = self.followed.take() else {
            let id = cluster.rng.place(PARTITIONS);
            let metadata =
                cluster.broker.stable_offset(id).and_then(|committed| committed.committed);
            let cursor =
                metadata.and_then(|(n, metadata)| Cursor::from_metadata(n, &metadata).ok());
            self.followed = cursor.map(|(cursor, _owner)| (id, cursor, now));
            return;
        };
        if self.tasks.contains_key(&id) || now >= at + cluster.compaction_lag {
            return;
        }
        let breaks = match cluster.rng.below(8) {
            0 => Some(SimulatedStandbyRead::Ledger),
            1 => Some(SimulatedStandbyRead::Triggers),
            _ => None,
        };
        let clock = at.saturating_add_signed(self.skew);
        match pass(id, cursor, &mut self.disks[id], clock, cluster, breaks) {
            PassEnd::Missing => {}
            PassEnd::Broken => cluster.counts.add(FaultKind::PassAborted),
            PassEnd::Whole => cluster.counts.add(FaultKind::Followed),
        }
    }

    /// Polls the group. No transaction is open here.
    fn poll_group(&mut self, cluster: &mut SimulatedCluster) {
        let held: Vec<usize> = self.assignment.owned().iter().copied().map(number).collect();
        let now = cluster.broker.now;
        match cluster.broker.group.poll(&mut self.membership, &held) {
            GroupPoll::Expelled => {
                self.change(AssignmentChange::Lost(numbers(held)), cluster);
                if !self.leaving {
                    self.membership = cluster.broker.group.join(self.id, &mut cluster.rng);
                }
                self.lost = false;
            }
            GroupPoll::Owns { assigned, revoked } => {
                let revoked = if self.leaving { held } else { revoked };
                let new: Vec<_> =
                    revoked.into_iter().filter(|id| self.revoked.insert(*id)).collect();
                if !new.is_empty() {
                    self.change(AssignmentChange::Revoked(numbers(new)), cluster);
                }
                if !self.leaving && !assigned.is_empty() {
                    self.change(AssignmentChange::Assigned(numbers(assigned)), cluster);
                }
            }
        }
        let actions = self.assignment.on_tick(now);
        self.execute(actions, cluster);
    }

    fn change(&mut self, change: AssignmentChange, cluster: &mut SimulatedCluster) {
        let actions = self.assignment.on_assignment_change(change, cluster.broker.now);
        self.execute(actions, cluster);
    }

    /// Executes the actions that the engine returned, in their order.
    fn execute(&mut self, actions: Vec<AssignmentAction>, cluster: &mut SimulatedCluster) {
        for action in actions {
            match action {
                AssignmentAction::TakeOver(partition) => self.take_over(number(partition), cluster),
                AssignmentAction::FinalCommit(partitions) => {
                    self.begin_final_commit(partitions, cluster)
                }
                AssignmentAction::Release(partitions) => self.release(partitions, cluster),
                AssignmentAction::ApplyCommitted => self.on_committed(cluster),
                AssignmentAction::RetryTransaction => self.retry_transaction(cluster),
                AssignmentAction::RecreateProducer => {
                    self.transaction = None;
                    cluster.counts.add(FaultKind::StepDropped);
                    self.producer = cluster.broker.init(self.id);
                    let actions = self.assignment.on_producer_recreated();
                    self.execute(actions, cluster);
                }
            }
        }
    }

    fn ended(&mut self, outcome: TransactionOutcome, cluster: &mut SimulatedCluster) {
        let actions = self.assignment.on_transaction_end(outcome);
        self.execute(actions, cluster);
    }

    fn take_over(&mut self, id: usize, cluster: &mut SimulatedCluster) {
        self.drain(id, cluster);
        let (owner, clock) = (self.rules.owner.clone(), self.clock(cluster));
        let task = SimulatedPartitionTask::assigned(id, &owner, &self.disks[id], clock, cluster);
        let _previous = self.tasks.insert(id, task);
    }

    /// Applies what is committed before the state of the store is read.
    fn drain(&mut self, id: usize, cluster: &mut SimulatedCluster) {
        if let Some(task) = self.tasks.get_mut(&id) {
            while task.apply_next(&mut self.disks[id], cluster) {}
        }
    }

    fn begin_final_commit(&mut self, partitions: Vec<PartitionId>, cluster: &mut SimulatedCluster) {
        let mut transaction = SimulatedTransaction::default();
        for id in partitions.into_iter().map(number) {
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            task.before_seal();
            match &mut task.state {
                SimulatedTaskState::Active(partition) => {
                    let step = partition.seal_final();
                    let before = task.on_sealed(&step);
                    transaction.steps.push((id, step, before));
                    task.state = SimulatedTaskState::Stopping;
                    cluster.counts.add(FaultKind::Handover);
                }
                SimulatedTaskState::Restoring(restoring) => {
                    let final_commit = restoring.takeover.final_commit();
                    transaction
                        .final_commits
                        .extend(final_commit.map(|(offset, metadata)| (id, offset, metadata)));
                }
                SimulatedTaskState::Waiting(partition) => {
                    let cursor = partition.cursor();
                    let metadata = cursor.to_final_metadata(&self.rules.owner);
                    transaction.final_commits.push((id, cursor.next_offset, metadata));
                }
                SimulatedTaskState::Refused(_) | SimulatedTaskState::Stopping => {}
            }
        }
        if transaction.has_no_content() || self.lost {
            return self.ended(TransactionOutcome::Committed, cluster);
        }
        self.transaction = Some(transaction);
    }

    fn release(&mut self, partitions: Vec<PartitionId>, cluster: &mut SimulatedCluster) {
        for id in partitions.into_iter().map(number) {
            cluster.broker.group.release(&self.membership, id);
            self.drain(id, cluster);
            if self.tasks.remove(&id).is_some() {
                self.disks[id].flush();
            }
            self.revoked.remove(&id);
        }
    }
}

/// A partition as an index into the tables of a run.
fn number(partition: PartitionId) -> usize {
    usize::try_from(partition).unwrap()
}

fn numbers(partitions: Vec<usize>) -> Vec<PartitionId> {
    partitions.into_iter().map(|id| PartitionId::try_from(id).unwrap()).collect()
}
