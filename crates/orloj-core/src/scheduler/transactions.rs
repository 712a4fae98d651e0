//! Submits transactions and handles their results. One transaction contains the steps of several
//! partitions. Their spills go to the store writer after the commit.
//!
//! Invariant: `engine::assignment` decides what the end of a transaction means; this module
//! executes it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::config::Mode;
use super::local_store::local_state;
use super::partition_task::{PartitionState, PartitionTask};
use super::store_writer::{Spill, StoreWriteResult};
use super::targets::TargetsOf;
use super::transaction_batch::{TakeoverBarrier, TransactionBatch, for_each_target};
use super::{LoopError, Scheduler, ms};
use crate::commit::committer::{CommitFailure, CommitJob, CommitStage, GivenUp, GroupMetadata};
use crate::commit::producer_jobs::ProducerResult;
use crate::engine::assignment::{AssignmentAction, TransactionOutcome};
use crate::engine::interrupted_transaction::TransactionFailure;
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition::Partition;
use crate::engine::takeover::TakeoverRequest;
use crate::environment::group::GroupMembership as _;
use crate::environment::store::RowStore as _;
use crate::environment::transaction::TransactionError;
use crate::environment::{Clock as _, Environment, ProcessReporter as _};
use crate::model::names::Names;
use crate::model::{PartitionId, Timestamp};

impl<E: Environment> Scheduler<E> {
    /// Submits the decided steps to the committer, in one transaction.
    pub(super) fn commit_if_ready(&mut self) -> Result<(), LoopError> {
        if !self.spacing().is_zero()
            || !self.tasks.values_mut().any(PartitionTask::is_ready_to_commit)
        {
            return Ok(());
        }
        // A sealed step must be committed, or its partition taken over again. So check first
        // whether this process is a member of the group.
        let Ok(group_metadata) = self.group_metadata() else { return Ok(()) };
        let limit = self.config.partitions_per_commit_max;
        let batch = self.seal(limit);
        if batch.is_empty() {
            return Ok(());
        }
        E::reached("step.sealed");
        self.assignment.on_transaction_begin(batch.content());
        self.last_transaction_at = self.clock.monotonic();
        self.submit_transaction(Arc::new(batch), group_metadata);
        Ok(())
    }

    /// The remaining time until the next transaction may start.
    pub(super) fn spacing(&self) -> Duration {
        let next = self.last_transaction_at + self.config.commit_interval_min;
        next.saturating_sub(self.clock.monotonic())
    }

    /// Waits at most `timeout` for the result of the open transaction, and handles it.
    pub(super) fn poll_transaction(&mut self, timeout: Duration) -> Result<(), LoopError> {
        let reports = (&self.clock, &self.reporter);
        let result = self.committer.poll_result(timeout, &self.environment, reports);
        let Some(result) = result else {
            self.on_slow_transaction();
            return Ok(());
        };
        if self.slow_transaction.on_end(&result) {
            self.reporter.ready("transaction");
        }
        match result {
            Ok(()) => self.on_transaction_end(TransactionOutcome::Committed),
            Err(CommitFailure { error: error @ TransactionError::StaleGeneration(_), .. }) => {
                tracing::debug!(%error, "the group has a newer generation");
                self.on_transaction_end(TransactionOutcome::StaleGeneration)
            }
            Err(failure) => self.on_failed(&failure),
        }
    }

    pub(super) fn on_transaction_end(
        &mut self,
        outcome: TransactionOutcome,
    ) -> Result<(), LoopError> {
        let actions = self.assignment.on_transaction_end(outcome);
        self.execute(actions)
    }

    /// Executes the actions that the assignment requests, in their order.
    pub(super) fn execute(&mut self, actions: Vec<AssignmentAction>) -> Result<(), LoopError> {
        for action in actions {
            match action {
                AssignmentAction::TakeOver(partition) => self.take_over(partition)?,
                AssignmentAction::TakeOverAgain(partition) if self.is_restoring(partition) => {
                    // What its reader knows of the end of the log may be of a time before the
                    // outage.
                    self.restart_reader(partition, self.clock.monotonic())?;
                }
                AssignmentAction::TakeOverAgain(partition) => self.take_over(partition)?,
                AssignmentAction::FinalCommit(partitions) => {
                    self.commit_final_steps(&partitions)?
                }
                AssignmentAction::Release(partitions) => self.release(&partitions)?,
                AssignmentAction::ApplyCommitted => self.on_committed(),
                AssignmentAction::RetryTransaction => self.abort_transaction(),
                AssignmentAction::RecreateProducer => self.recreate_producers(),
                AssignmentAction::ReadCommitted(partition) => self.read_committed(partition)?,
                AssignmentAction::ApplyInterrupted(partitions) => {
                    self.apply_interrupted(&partitions)
                }
            }
        }
        if self.assignment.is_idle() {
            self.forget_interrupted();
        }
        Ok(())
    }

    pub(super) fn submit_transaction(
        &mut self,
        batch: Arc<TransactionBatch>,
        group_metadata: GroupMetadata<E>,
    ) {
        let offset_commits =
            batch.offset_commits(&self.config.names.triggers(), &self.config.partition.owner);
        self.batch = Some(Arc::clone(&batch));
        // If the clock was set back in the meantime, the commit must not wait longer than this.
        let latest = self.clock.now_ms() + ms(self.config.commit_lead_max);
        self.committer.submit(CommitJob {
            clock: self.clock.clone(),
            reporter: self.reporter.clone(),
            producer: Some(self.producer()),
            commit_not_before: batch.commit_not_before().min(latest),
            wait_max: self.config.commit_lead_max,
            batch,
            offset_commits,
            group_metadata,
            timeout: self.config.transaction_timeout,
            stage: CommitStage::Send,
            call_began_at: None,
            given_up: GivenUp::default(),
        });
    }

    fn producer(&self) -> Arc<E::Producer> {
        Arc::clone(self.producer.as_ref().expect("no transaction while producers are opened"))
    }

    /// Aborts, so that the same batch can be sent with the current group generation.
    fn abort_transaction(&mut self) {
        let producer = self.producer();
        self.producer_jobs.abort(producer, self.config.transaction_timeout);
    }

    /// Waits at most `timeout` for the abort or the opening that is in progress, and handles its
    /// result.
    pub(super) fn poll_producer_jobs(&mut self, timeout: Duration) -> Result<(), LoopError> {
        match self.producer_jobs.poll(timeout, self.clock.monotonic()) {
            None => Ok(()),
            Some(ProducerResult::Aborted(Ok(()))) => self.retry_transaction(),
            Some(ProducerResult::Aborted(Err(error))) => {
                self.on_failed(&CommitFailure { error, is_uncommitted: true })
            }
            Some(ProducerResult::Opened(producer)) => self.on_producers_opened(producer),
        }
    }

    /// Sends the batch of an aborted transaction again.
    fn retry_transaction(&mut self) -> Result<(), LoopError> {
        let batch = self.batch.take().expect("only a submitted transaction can end");
        match self.group_metadata() {
            Ok(group_metadata) => {
                self.submit_transaction(batch, group_metadata);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "a transaction was aborted; taking partitions over again"
                );
                self.on_transaction_end(TransactionOutcome::Aborted)
            }
        }
    }

    /// Commits the last steps of partitions that are being released. What is drafted in those for
    /// which there is no room is dropped: their next owners decide it. All say that their owner has
    /// left: otherwise the next one would fence it, with the partitions that it keeps.
    fn commit_final_steps(&mut self, partitions: &[PartitionId]) -> Result<(), LoopError> {
        E::reached("revoke.before_last_words");
        self.await_restores()?;
        let (bytes_max, too_late_at) = (self.config.bytes_per_commit_max, self.too_late_at());
        let (targets, names) = (&self.targets, &self.config.names);
        let mut batch = TransactionBatch::default();
        for id in partitions {
            let Some(task) = self.tasks.get_mut(id) else { continue };
            task.before_seal();
            match &mut task.state {
                PartitionState::Active(partition)
                    if batch.bytes() < bytes_max
                        && !task.must_start_again
                        && !partition.is_draft_late(too_late_at)
                        && !is_draft_out::<E>((*id, partition), targets, names) =>
                {
                    batch.add_step(*id, partition.seal_final())
                }
                PartitionState::Restoring(restoring) => {
                    let final_offset = restoring.takeover.as_ref().and_then(|it| it.final_commit());
                    batch
                        .final_offsets
                        .extend(final_offset.map(|(offset, metadata)| (*id, offset, metadata)));
                }
                PartitionState::Active(partition) | PartitionState::WaitingForClock(partition) => {
                    let cursor = partition.last_cursor();
                    let metadata = cursor.to_final_metadata(&self.config.partition.owner);
                    batch.final_offsets.push((*id, cursor.next_offset, metadata));
                }
                PartitionState::StoreFailed
                | PartitionState::Refused(_)
                | PartitionState::Transitioning => {}
            }
        }
        match self.group_metadata() {
            Ok(group_metadata) if !batch.is_empty() => {
                self.submit_transaction(Arc::new(batch), group_metadata)
            }
            _ => return self.on_transaction_end(TransactionOutcome::Committed),
        }
        Ok(())
    }

    /// Seals the steps and barriers of at most `limit` partitions, in turn, until their steps have
    /// so many bytes as are configured.
    fn seal(&mut self, limit: usize) -> TransactionBatch {
        let mut batch = TransactionBatch::default();
        let too_late_at = self.too_late_at();
        let (targets, names) = (&self.targets, &self.config.names);
        let (lower, upper): (Vec<_>, Vec<_>) =
            self.tasks.keys().copied().partition(|id| *id < self.next_partition);
        for id in upper.into_iter().chain(lower) {
            if batch.len() == limit || batch.bytes() >= self.config.bytes_per_commit_max {
                break;
            }
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if task.must_start_again {
                continue;
            }
            task.before_seal();
            match &mut task.state {
                // It waited until a transaction could be made, or a target has failed since.
                PartitionState::Active(partition)
                    if partition.is_draft_late(too_late_at)
                        || is_draft_out::<E>((id, partition), targets, names) =>
                {
                    task.must_start_again = true;
                }
                PartitionState::Active(partition) => {
                    if let Some(step) = partition.seal() {
                        batch.add_step(id, step);
                    }
                }
                PartitionState::Restoring(restoring) => {
                    let Some(takeover) = &restoring.takeover else { continue };
                    if let TakeoverRequest::Barrier { offset, metadata, nonce } =
                        takeover.next_request()
                    {
                        let step = takeover.cursor().step;
                        let barrier = TakeoverBarrier { offset, metadata, nonce, step };
                        batch.barriers.push((id, barrier));
                    }
                }
                PartitionState::WaitingForClock(_)
                | PartitionState::StoreFailed
                | PartitionState::Refused(_)
                | PartitionState::Transitioning => {}
            }
            self.next_partition = id + 1;
        }
        batch
    }

    /// The transaction is committed: sends the spills of its steps to the store writer.
    fn on_committed(&mut self) {
        E::reached("step.before_settle");
        let Some(batch) = self.batch.take() else { return };
        self.apply(&batch, |_| true);
        for (id, _) in &batch.barriers {
            let Some(task) = self.tasks.get_mut(id) else { continue };
            if let PartitionState::Restoring(restoring) = &mut task.state
                && let Some(takeover) = &mut restoring.takeover
            {
                takeover.on_barrier();
            }
        }
        E::reached("step.after_settle");
    }

    /// Applies the committed steps of those partitions that still have what they were decided with.
    pub(super) fn apply(
        &mut self,
        batch: &TransactionBatch,
        is_held: impl Fn(PartitionId) -> bool,
    ) {
        let now = self.clock.now_ms();
        if self.targets.has_failures() {
            batch.for_each_target(&self.config.names, |topic, partition| {
                self.targets.on_committed(topic, partition);
            });
        }
        if self.config.mode == Mode::Trial {
            self.commit_offsets(batch);
        }
        self.submit_spills(batch, now, is_held);
    }

    /// Sends what the steps of these partitions spill to the store writer.
    fn submit_spills(
        &mut self,
        batch: &TransactionBatch,
        now: Timestamp,
        is_held: impl Fn(PartitionId) -> bool,
    ) {
        for (id, step) in batch.steps.iter().filter(|(id, _)| is_held(*id)) {
            let (Some(task), Some(delta)) = (self.tasks.get(id), &step.spill) else { continue };
            if matches!(task.state, PartitionState::StoreFailed) {
                continue;
            }
            let local = LocalCheckpoint {
                applied_until: step.cursor.decided_until(),
                step: step.number,
                ledger_position: task.ledger_position,
                fired_through: step.cursor.fired_through,
            };
            let (step, ledger_position) = (local.step, local.ledger_position);
            tracing::debug!(
                partition = id,
                step,
                ledger_position,
                "a spill is submitted to the store writer"
            );
            self.writer.submit(Spill {
                partition: *id,
                store: Arc::clone(&task.store),
                delta: Arc::clone(delta),
                state: local_state(local, &self.config.cluster_id, now),
            });
        }
    }

    /// The built-in broker does not store the offsets of a transaction. The gateway's view reads
    /// committed offsets, so they are committed once more without a transaction.
    fn commit_offsets(&self, batch: &TransactionBatch) {
        let commits =
            batch.offset_commits(&self.config.names.triggers(), &self.config.partition.owner);
        if let Err(error) = self.member.commit_offsets(&commits) {
            tracing::warn!(%error, "the offsets are not committed; lists are behind");
        }
    }

    /// Reports the written spills to the engine, which then drops its copies.
    pub(super) fn poll_store_writer(&mut self) -> Result<(), LoopError> {
        let written = self.writer.poll_results();
        self.on_written(written)
    }

    /// Waits for the store writer and the restore pool. A store that is read or closed next must
    /// hold all committed rows, and no other thread may use it.
    pub(super) fn await_stores(&mut self) -> Result<(), LoopError> {
        self.await_restores()?;
        let written = self.writer.drain();
        self.on_written(written)
    }

    pub(super) fn on_written(&mut self, written: Vec<StoreWriteResult>) -> Result<(), LoopError> {
        for StoreWriteResult { partition, step, result } in written {
            match result {
                Ok(flushes) => {
                    let Some(task) = self.tasks.get_mut(&partition) else { continue };
                    task.store.refresh_view();
                    if let Some(partition) = task.active() {
                        partition.on_applied(step);
                        if !flushes {
                            partition.request_spill();
                        }
                    }
                }
                Err(error) if self.tasks.contains_key(&partition) => {
                    self.on_store_failed(partition, &error.into())?;
                }
                Err(error) => {
                    tracing::warn!(partition, %error, "the last rows were not written")
                }
            }
        }
        Ok(())
    }

    /// The transaction has failed like this, and nothing of it may be committed.
    fn on_failed(&mut self, failure: &CommitFailure) -> Result<(), LoopError> {
        use TransactionError::{Refused, RefusedTime};
        let outcome = self.report_failure(failure);
        self.on_transaction_end(TransactionOutcome::Failed(outcome))?;
        if let Refused { topic, .. } | RefusedTime { topic, .. } = &failure.error
            && self.is_target(topic)
        {
            self.drop_drafts_for(topic);
        }
        Ok(())
    }

    /// What was decided for a target that has refused a record is decided again, with what is known
    /// of it by then: a topic that takes smaller records than before is usable again at once.
    fn drop_drafts_for(&mut self, target: &str) {
        for task in self.tasks.values_mut() {
            let PartitionState::Active(partition) = &task.state else { continue };
            let mut is_drafted = false;
            let drafted = (task.id, partition.drafted());
            for_each_target(drafted, &self.config.names, |topic, _| is_drafted |= topic == target);
            task.must_start_again |= is_drafted;
        }
    }

    /// Reports the failure of a transaction, and says what is known of it.
    fn report_failure(&mut self, failure: &CommitFailure) -> TransactionFailure {
        let CommitFailure { error, is_uncommitted } = failure;
        tracing::warn!(%error, is_uncommitted, "a transaction failed; opening new producers");
        self.reporter.transaction_failed();
        let blames_target = match error {
            TransactionError::Refused { topic, reason, .. }
            | TransactionError::RefusedTime { topic, reason, .. } => {
                if self.is_target(topic) {
                    self.targets.on_refused(topic, reason);
                }
                true
            }
            TransactionError::Undelivered { topic, partition, .. } if self.is_target(topic) => {
                self.targets.on_undelivered(topic, *partition);
                self.producer_jobs.on_undelivered(topic, *partition);
                true
            }
            TransactionError::UnusableTopic(reason) => {
                self.on_unusable(reason);
                true
            }
            _ => false,
        };
        // Who is fenced may have lost its partitions: what is committed tells.
        let is_fenced = matches!(error, TransactionError::Fenced(_));
        TransactionFailure { is_uncommitted: *is_uncommitted && !is_fenced, blames_target }
    }

    /// One of the targets of the transaction cannot be used.
    fn on_unusable(&mut self, reason: &str) {
        let mut topics = BTreeSet::new();
        if let Some(batch) = &self.batch {
            batch.for_each_target(&self.config.names, |topic, _partition| {
                if !topics.contains(topic) {
                    let _is_new = topics.insert(topic.to_owned());
                }
            });
        }
        self.targets.on_unusable(&topics, reason);
    }

    pub(super) fn is_restoring(&self, id: PartitionId) -> bool {
        let task = self.tasks.get(&id);
        task.is_some_and(|task| matches!(task.state, PartitionState::Restoring(_)))
    }

    /// Whether fires alone are written to this topic: a topic of users, or of a pool.
    pub(super) fn is_target(&self, topic: &str) -> bool {
        !self.config.names.owns(topic) || self.config.names.is_pool_topic(topic)
    }
}

/// Whether the next step of a partition has something for a target that has failed and cannot be
/// written: its transaction would fail, as late as the one before, and delay all.
fn is_draft_out<E: Environment>(
    (id, partition): (PartitionId, &Partition),
    targets: &TargetsOf<E>,
    names: &Names,
) -> bool {
    let mut is_out = false;
    if targets.has_failures() {
        for_each_target((id, partition.drafted()), names, |topic, partition| {
            is_out |= targets.is_out(topic, partition);
        });
    }
    is_out
}

#[cfg(test)]
#[path = "transactions/tests.rs"]
mod tests;
