//! The transactions of a node: what it seals, sends, commits and applies.
//!
//! Invariant: every partition with an effect in a transaction has its offset in it; rows are
//! applied after the commit, in order.

use orloj_core::engine::assignment::TransactionOutcome;
use orloj_core::engine::takeover::TakeoverRequest;
use orloj_core::fault::{Mutation, is_active};
use orloj_core::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};

use super::SimulatedNode;
use crate::simulation::broker::{SimulatedOffsetCommit, SimulatedOutput, SimulatedProducerError};
use crate::simulation::cluster::{PARTITIONS, SimulatedCluster};
use crate::simulation::fault_kinds::FaultKind;
use crate::simulation::log::SimulatedTransactionState;
use crate::simulation::partition_task::{SimulatedPartitionTask, SimulatedTaskState};
use crate::simulation::transaction::{
    SimulatedBarrier, SimulatedTransaction, TransactionStage, outgoing,
};

impl SimulatedNode {
    /// Seals the steps and barriers of a few partitions.
    pub(super) fn begin_transaction(&mut self, cluster: &mut SimulatedCluster) {
        if self.lost {
            return;
        }
        let (limit, first) = (1 + cluster.rng.place(PARTITIONS), cluster.rng.place(PARTITIONS));
        let mut transaction = SimulatedTransaction::default();
        for id in (0..PARTITIONS).map(|nth| (first + nth) % PARTITIONS) {
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if transaction.steps.len() + transaction.barriers.len() == limit {
                break;
            }
            task.before_seal();
            match &mut task.state {
                SimulatedTaskState::Active(partition) => {
                    if let Some(step) = partition.seal() {
                        let before = task.on_sealed(&step);
                        transaction.steps.push((id, step, before));
                    }
                }
                SimulatedTaskState::Restoring(restoring) => {
                    if let TakeoverRequest::Barrier { offset, metadata, nonce } =
                        restoring.takeover.next_request()
                    {
                        let step = restoring.takeover.cursor().step;
                        let value = LedgerValue::Barrier { nonce };
                        transaction
                            .barriers
                            .push((id, SimulatedBarrier { offset, metadata, value, step }));
                    }
                }
                SimulatedTaskState::Waiting(_)
                | SimulatedTaskState::Refused(_)
                | SimulatedTaskState::Stopping => {}
            }
        }
        if !transaction.has_no_content() {
            self.assignment.on_transaction_begin();
            self.transaction = Some(transaction);
        }
    }

    /// Advances the transaction by one stage.
    pub(super) fn advance_transaction(&mut self, cluster: &mut SimulatedCluster) {
        let Some(transaction) = &mut self.transaction else { return };
        let result = match transaction.stage {
            TransactionStage::Sealed => {
                transaction.stage = TransactionStage::Sent;
                self.send(cluster)
            }
            TransactionStage::Sent => {
                transaction.stage = TransactionStage::OffsetsSent;
                self.send_offsets(cluster)
            }
            TransactionStage::OffsetsSent => return self.end(cluster),
        };
        match result {
            Ok(()) => {}
            Err(SimulatedProducerError::Fenced) => {
                cluster.counts.add(FaultKind::ProducerFenced);
                self.ended(TransactionOutcome::Unknown, cluster);
            }
            Err(SimulatedProducerError::Generation) => {
                cluster.counts.add(FaultKind::GenerationRefused);
                self.ended(TransactionOutcome::StaleGeneration, cluster);
            }
        }
    }

    fn send(&mut self, cluster: &mut SimulatedCluster) -> Result<(), SimulatedProducerError> {
        let Some(transaction) = &self.transaction else { return Ok(()) };
        let clock = self.clock(cluster);
        for (id, step, before) in &transaction.steps {
            let Some(task) = self.tasks.get(id) else { continue };
            if is_active(Mutation::RowsBeforeCommit) {
                task.apply_early(step, &mut self.disks[*id], clock);
            }
            for emit in &step.emits {
                let record = outgoing(task, *before, step.number, emit);
                cluster.broker.send(self.producer, record)?;
            }
        }
        for (id, SimulatedBarrier { value, step, .. }) in &transaction.barriers {
            let (key, value) = (LedgerKey::Barrier, Some(value.clone()));
            let record = LedgerRecord { key, value, step: *step };
            cluster.broker.send(self.producer, SimulatedOutput::Ledger(*id, record))?;
        }
        Ok(())
    }

    fn send_offsets(
        &mut self,
        cluster: &mut SimulatedCluster,
    ) -> Result<(), SimulatedProducerError> {
        if is_active(Mutation::OffsetsOutsideTransaction) {
            return Ok(());
        }
        if self.lost {
            return Err(SimulatedProducerError::Generation);
        }
        cluster.broker.send_offsets(self.producer, &self.offset_commits(), &self.membership)
    }

    fn offset_commits(&self) -> Vec<SimulatedOffsetCommit> {
        let owner = &self.rules.owner;
        self.transaction
            .as_ref()
            .map_or_else(Vec::new, |transaction| transaction.offset_commits(owner))
    }

    /// Commits, not before the time of what it fires. The request may be lost, and so may the
    /// response.
    fn end(&mut self, cluster: &mut SimulatedCluster) {
        let time = self.time(cluster);
        let waits = self.transaction.as_ref().is_some_and(|transaction| transaction.time() > time);
        if waits && !is_active(Mutation::CommitTooEarly) {
            return;
        }
        let steps =
            self.transaction.as_ref().map_or(0, |transaction| transaction.steps.len() as u64);
        if !cluster.calm && cluster.rng.one_in(60) {
            if cluster.rng.one_in(2) {
                let committed = cluster.broker.commit(self.producer, time);
                cluster.steps += committed.map_or(0, |()| steps);
                cluster.counts.add(FaultKind::OutcomeUnknownCommitted);
            } else {
                cluster.counts.add(FaultKind::OutcomeUnknownAborted);
            }
            return self.ended(TransactionOutcome::Unknown, cluster);
        }
        if cluster.broker.commit(self.producer, time).is_err() {
            cluster.counts.add(FaultKind::ProducerFenced);
            return self.ended(TransactionOutcome::Unknown, cluster);
        }
        cluster.steps += steps;
        if is_active(Mutation::OffsetsOutsideTransaction) {
            cluster.broker.commit_offsets(&self.offset_commits(), &self.membership);
        }
        self.ended(TransactionOutcome::Committed, cluster);
    }

    /// The transaction is committed: what its steps spill may be applied to the stores.
    pub(super) fn on_committed(&mut self, cluster: &mut SimulatedCluster) {
        let clock = self.clock(cluster);
        let Some(transaction) = self.transaction.take() else { return };
        for (id, step, _) in &transaction.steps {
            if let Some(task) = self.tasks.get_mut(id) {
                task.committed(step, clock);
            }
        }
        for (id, _) in &transaction.barriers {
            if let Some(SimulatedPartitionTask {
                state: SimulatedTaskState::Restoring(restoring),
                ..
            }) = self.tasks.get_mut(id)
            {
                restoring.takeover.on_barrier();
            }
        }
    }

    /// The generation was stale: the broker stored nothing, and the sealed steps are sent again.
    pub(super) fn retry_transaction(&mut self, cluster: &mut SimulatedCluster) {
        if let Some(transaction) = &mut self.transaction {
            transaction.stage = TransactionStage::Sealed;
        }
        if cluster.broker.end(self.producer, SimulatedTransactionState::Aborted).is_err() {
            return self.ended(TransactionOutcome::Unknown, cluster);
        }
        if cluster.rng.one_in(2) {
            self.lost = !cluster.broker.group.heartbeat(&mut self.membership);
        }
    }
}
