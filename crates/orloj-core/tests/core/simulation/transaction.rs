//! What one transaction of a node contains, as in `scheduler::batch`.
//!
//! Invariant: every partition that it has an effect for has its offset in it.

use orloj_core::engine::step::{Emit, PartitionStep};
use orloj_core::model::ledger::{LedgerRecord, LedgerValue};
use orloj_core::model::{Offset, Timestamp};

use super::broker::{
    SimulatedDecidedOffsets, SimulatedOffsetCommit, SimulatedOutput, SimulatedRawRecord,
    SimulatedSend,
};
use super::partition_task::SimulatedPartitionTask;

/// A transaction in progress.
#[derive(Debug, Default)]
pub(super) struct SimulatedTransaction {
    pub(super) steps: Vec<(usize, PartitionStep, SimulatedDecidedOffsets)>,
    pub(super) barriers: Vec<(usize, SimulatedBarrier)>,
    /// Of partitions that are released before they were active.
    pub(super) final_commits: Vec<SimulatedOffsetCommit>,
    pub(super) stage: TransactionStage,
}

/// What a takeover's barrier writes.
#[derive(Debug)]
pub(super) struct SimulatedBarrier {
    pub(super) offset: Offset,
    pub(super) metadata: String,
    pub(super) value: LedgerValue,
    pub(super) step: u64,
}

/// How far a transaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TransactionStage {
    #[default]
    Sealed,
    Sent,
    OffsetsSent,
}

impl SimulatedTransaction {
    pub(super) fn has_no_content(&self) -> bool {
        self.steps.is_empty() && self.barriers.is_empty() && self.final_commits.is_empty()
    }

    /// It must not be committed before this time, as in the scheduler.
    pub(super) fn time(&self) -> Timestamp {
        self.steps.iter().map(|(_, step, _)| step.commit_not_before).max().unwrap_or(0)
    }

    /// The offsets that it commits. `owner` is the transactional id.
    pub(super) fn offset_commits(&self, owner: &str) -> Vec<SimulatedOffsetCommit> {
        let steps = self.steps.iter().map(|(id, step, _)| {
            let cursor = &step.cursor;
            let metadata = if step.is_final {
                cursor.to_final_metadata(owner)
            } else {
                cursor.to_metadata(owner)
            };
            (*id, cursor.next_offset, metadata)
        });
        let barriers = self.barriers.iter().map(|(id, b)| (*id, b.offset, b.metadata.clone()));
        steps.chain(barriers).chain(self.final_commits.iter().cloned()).collect()
    }
}

/// A record of step `step` on its way. `before`: what was decided before it.
pub(super) fn outgoing(
    task: &SimulatedPartitionTask,
    before: SimulatedDecidedOffsets,
    step: u64,
    emit: &Emit,
) -> SimulatedOutput {
    let (takeover_number, clock) = (task.takeover_number, task.clock);
    let sent = || SimulatedSend {
        emit: emit.clone(),
        takeover_number,
        clock,
        before,
        order: 0,
        txn: None,
    };
    match emit {
        Emit::Ledger { key, value } => {
            let (key, value) = (key.clone(), value.as_deref().cloned());
            SimulatedOutput::Ledger(task.id, LedgerRecord { key, value, step })
        }
        Emit::Forward(forward) => {
            let (key, value) = (forward.key.clone(), forward.value.clone());
            let raw = SimulatedRawRecord { key, value, headers: forward.headers.clone() };
            SimulatedOutput::Trigger(usize::try_from(forward.partition).unwrap(), raw)
        }
        Emit::Signal { partition, signal } => {
            SimulatedOutput::Signal(usize::try_from(*partition).unwrap(), (**signal).clone())
        }
        Emit::ToWorker(_) | Emit::Withdraw { .. } => SimulatedOutput::Fire(task.id, sent()),
        Emit::ToTopic(_) | Emit::Outcome(_) | Emit::DeadLetter(_) => {
            SimulatedOutput::Other(task.id, sent())
        }
    }
}
