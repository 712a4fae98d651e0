//! From results to the log: signals, outcomes, dead letters and progress, in one transaction, which
//! a thread of its own makes. And what becomes of it.
//!
//! Invariant: the result of a callback, and that it is finished, are committed together or not at
//! all. A transaction that is not committed loses nothing: its results are sent again with the next
//! one, and no callback is repeated. Whether one is committed whose outcome is unknown is read from
//! the progress of one of its partitions, after the broker has ended it.
//!
//! ```text
//!   Idle ─► InProgress ─ committed ───────────────────────────────────► Idle
//!               │  └──── group has a newer generation ─► Aborting ────► Idle
//!               └─ failed ─► Opening ─► Reading ─► (a topic refused a record?) Asking ─► Idle
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::callback::{WorkerEnvironment, WorkerReporter as _};
use super::completion::CompletedFire;
use super::partition::{RunningPartition, WorkerPartition};
use super::result_batch::ResultBatch;
use super::transaction_state::{
    FailedTransaction, OpenTransaction, Refusal, RefusedRecord, TransactionState,
};
use super::{Worker, WorkerLoopError};
use crate::commit::committer::{CommitFailure, CommitJob, CommitStage, GivenUp, GroupMetadata};
use crate::commit::producer_jobs::ProducerResult;
use crate::commit::topic_lookup::TopicLookup;
use crate::engine::interrupted_transaction::Finding;
use crate::environment::call_error::CallError;
use crate::environment::job::JobQueue as _;
use crate::environment::transaction::TransactionError;
use crate::environment::{Clock as _, ProcessReporter as _};
use crate::model::{Offset, PartitionId};

/// Doublings of the pause after transactions that fail.
const DOUBLINGS_MAX: u32 = 6;
/// How often the last transaction of revoked partitions is sent again because the group has a newer
/// generation.
const ATTEMPTS_MAX: u32 = 3;
/// For so long after brokers have refused the time of this machine, no other refusal is about a
/// record.
const REFUSED_TIME_LASTS: Duration = Duration::from_secs(60);
/// Why the worker is not ready while a transaction is decided.
const OPENING: &str = "a transaction failed; recreating its producer";
const READING: &str = "a transaction failed; reading whether it is committed";

impl<E: WorkerEnvironment> Worker<E> {
    /// How long until a transaction is due; `None` if there is nothing to commit, or one is not
    /// decided.
    pub(super) fn time_to_commit(&self) -> Option<Duration> {
        if !self.transaction.is_idle() {
            return None;
        }
        let now = self.clock.monotonic();
        let interval = self.config.commit_interval;
        let left_out = self.left_out();
        let is_blocked = self
            .partitions
            .iter()
            .any(|(partition, owned)| owned.awaits_reservation() && !left_out.contains(partition));
        let needs_commit = || {
            let mut running = self.partitions.values().filter_map(|owned| owned.running.as_ref());
            running.any(RunningPartition::needs_commit)
        };
        let due = if is_blocked || self.results.is_due(self.config.commit_bytes_max) {
            Duration::ZERO
        } else {
            let waiting = self.results.oldest_at().map(|oldest_at| oldest_at + interval);
            let waiting = waiting.or_else(|| needs_commit().then(|| self.committed_at + interval));
            [waiting, self.results.refused_until()].into_iter().flatten().min()?
        };
        Some(due.max(self.retry_at).saturating_sub(now))
    }

    /// Begins a transaction with what is finished, if there is anything and this worker is a member
    /// of the group. Returns whether it does.
    pub(super) fn commit(&mut self) -> bool {
        let all: BTreeSet<_> = self.partitions.keys().copied().collect();
        self.begin(&all, Vec::new())
    }

    /// Begins the last transaction of these partitions, which are released with its end. Returns
    /// whether it does.
    pub(super) fn commit_final(&mut self, partitions: &[PartitionId]) -> bool {
        self.begin(&partitions.iter().copied().collect(), partitions.to_vec())
    }

    fn begin(&mut self, chosen: &BTreeSet<PartitionId>, releasing: Vec<PartitionId>) -> bool {
        let now = self.clock.monotonic();
        let Ok(metadata) = self.group_metadata() else {
            // The next assignment will show what this worker owns; until then the results wait.
            self.retry_at = self.retry_at.max(now + self.config.commit_interval);
            return false;
        };
        let batch = self.next_batch(chosen);
        self.results.on_taken(now);
        if batch.commits.is_empty() {
            // All that waits may be of partitions that are left out.
            self.retry_at = self.retry_at.max(now + self.config.commit_interval);
            return false;
        }
        let batch = Arc::new(batch);
        self.submit(OpenTransaction { batch, releasing, attempts: 1 }, metadata);
        true
    }

    /// Changes of circuits are committed with the progress of any partition, never without: the
    /// progress is what fences them.
    fn next_batch(&mut self, chosen: &BTreeSet<PartitionId>) -> ResultBatch {
        let partitions = &self.partitions;
        let is_current = |result: &CompletedFire| is_current(partitions, result);
        let (bytes_max, now) = (self.config.commit_bytes_max, self.clock.monotonic());
        let left_out = self.left_out();
        let chosen: BTreeSet<_> = chosen.difference(&left_out).copied().collect();
        let is_chosen = |result: &CompletedFire| chosen.contains(&result.place.partition);
        let (results, is_isolated) = self.results.take(bytes_max, now, is_current, is_chosen);
        // So that a refusal is about the result.
        let with_circuits = left_out.is_empty() && !is_isolated;
        let circuits = if with_circuits { self.results.circuits() } else { Vec::new() };
        let mut finished: BTreeMap<PartitionId, Vec<Offset>> = BTreeMap::new();
        for result in &results {
            finished.entry(result.place.partition).or_default().push(result.place.offset);
        }
        let running = |id: &PartitionId| self.partitions.get(id)?.running.as_ref();
        for id in &chosen {
            if running(id).is_some_and(RunningPartition::needs_commit) {
                let _offsets = finished.entry(*id).or_default();
            }
        }
        if finished.is_empty() && !circuits.is_empty() {
            let any = chosen.iter().find(|id| running(id).is_some());
            finished.extend(any.map(|id| (*id, Vec::new())));
        }
        let commits = finished.into_iter().filter_map(|(id, offsets)| {
            let owned = self.partitions.get(&id)?;
            Some((id, owned.running.as_ref()?.prepare_commit(owned.epoch, offsets)))
        });
        let commits = commits.collect();
        ResultBatch { results, circuits, commits }
    }

    /// The partitions of our topics that are left out of the next transaction, also those that are
    /// not ours: changes of circuits are written to any.
    pub(super) fn left_out(&self) -> BTreeSet<PartitionId> {
        let not_ended = self.producer_jobs.not_ended();
        let not_ended = not_ended.filter(|(topic, _)| self.encoder.is_topic(topic));
        let paused = self.left_out_partitions.left_out(self.clock.monotonic());
        not_ended.map(|(_, partition)| partition).chain(paused).collect()
    }

    fn submit(&mut self, transaction: OpenTransaction, group_metadata: GroupMetadata<E>) {
        let producer = self.producer.as_ref().expect("no transaction while producers are opened");
        let batch = Arc::clone(&transaction.batch);
        self.committed_at = self.clock.monotonic();
        self.committer.submit(CommitJob {
            clock: self.clock.clone(),
            reporter: self.reporter.clone(),
            producer: Some(Arc::clone(producer)),
            offset_commits: batch.offset_commits(&self.config.topic),
            batch,
            group_metadata,
            commit_not_before: 0,
            wait_max: Duration::ZERO,
            timeout: self.config.transaction_timeout,
            stage: CommitStage::Send,
            call_began_at: None,
            given_up: GivenUp::default(),
        });
        self.transaction = TransactionState::InProgress(transaction);
    }

    /// Handles what has become of the transaction, and of what follows its failure.
    pub(super) fn poll_transaction(&mut self) -> Result<(), WorkerLoopError> {
        let reports = (&self.clock, &self.reporter);
        if let Some(result) = self.committer.poll_result(Duration::ZERO, &self.environment, reports)
        {
            self.on_transaction_end(result)?;
        }
        match self.producer_jobs.poll(Duration::ZERO, self.clock.monotonic()) {
            None => {}
            Some(ProducerResult::Aborted(result)) => self.on_aborted(result)?,
            Some(ProducerResult::Opened(producer)) => self.on_producer_opened(producer),
        }
        if let Some((partition, finding)) = self.findings.poll(Duration::ZERO) {
            self.on_finding(partition, finding)?;
        }
        if let Some(answer) = self.lookups.poll(Duration::ZERO) {
            self.on_topic_state(answer.state);
        }
        Ok(())
    }

    fn on_transaction_end(
        &mut self,
        result: Result<(), CommitFailure>,
    ) -> Result<(), WorkerLoopError> {
        let state = std::mem::replace(&mut self.transaction, TransactionState::Idle);
        let TransactionState::InProgress(transaction) = state else {
            unreachable!("a transaction that ends was in progress");
        };
        match result {
            Ok(()) => {
                E::reached("worker.after_commit");
                self.on_committed(&transaction.batch)?;
                self.release_after(&transaction.releasing)
            }
            Err(CommitFailure { error: error @ TransactionError::StaleGeneration(_), .. }) => {
                tracing::debug!(%error, "the group has a newer generation");
                let producer = self.producer.as_ref().expect("it has made the transaction");
                self.producer_jobs.abort(Arc::clone(producer), self.config.transaction_timeout);
                self.transaction = TransactionState::Aborting(transaction);
                Ok(())
            }
            Err(failure) => self.on_failed(transaction, &failure),
        }
    }

    /// What was refused. Brokers that refuse the times of several records say only that the records
    /// are invalid.
    fn refusal(&mut self, error: &TransactionError) -> Option<Refusal> {
        let now = self.clock.monotonic();
        let is_known = self.time_refused_at.is_some_and(|at| now < at + REFUSED_TIME_LASTS);
        match error {
            TransactionError::RefusedTime { .. } => {
                self.time_refused_at = Some(now);
                Some(Refusal::Time(error.to_string()))
            }
            TransactionError::Refused { .. } if is_known => Some(Refusal::Time(error.to_string())),
            TransactionError::Refused { topic, partition, reason } => {
                let (topic, partition, reason) = (topic.clone(), *partition, reason.clone());
                Some(Refusal::Record(RefusedRecord { topic, partition, reason }))
            }
            _ => None,
        }
    }

    fn release_after(&mut self, releasing: &[PartitionId]) -> Result<(), WorkerLoopError> {
        if releasing.is_empty() { Ok(()) } else { self.release_partitions(releasing) }
    }

    /// The results are sent again with the current generation of the group, as soon as the group
    /// was polled; those of partitions that are released at once, or not at all.
    fn on_aborted(&mut self, result: Result<(), TransactionError>) -> Result<(), WorkerLoopError> {
        let state = std::mem::replace(&mut self.transaction, TransactionState::Idle);
        let TransactionState::Aborting(transaction) = state else {
            unreachable!("a transaction that is aborted was open");
        };
        if let Err(error) = result {
            let failure = CommitFailure { error, is_uncommitted: true };
            return self.on_failed(transaction, &failure);
        }
        let OpenTransaction { batch, releasing, attempts } = transaction;
        if !releasing.is_empty()
            && attempts < ATTEMPTS_MAX
            && let Ok(metadata) = self.group_metadata()
        {
            let again = OpenTransaction { batch, releasing, attempts: attempts + 1 };
            self.submit(again, metadata);
            return Ok(());
        }
        self.put_back(&batch);
        self.release_after(&releasing)
    }

    /// The transaction has failed: opening a new producer makes the broker end it. What is released
    /// with it is released now: its next owner repeats what it contains, if it is not committed.
    fn on_failed(
        &mut self,
        transaction: OpenTransaction,
        failure: &CommitFailure,
    ) -> Result<(), WorkerLoopError> {
        let CommitFailure { error, is_uncommitted } = failure;
        tracing::warn!(%error, is_uncommitted, "a transaction failed; opening a new producer");
        self.reporter.transaction_failed();
        self.reporter.not_ready("broker", OPENING.to_owned());
        self.failed_commits += 1;
        let refusal = self.refusal(error);
        if let TransactionError::Undelivered { topic, partition, .. } = error {
            self.producer_jobs.on_undelivered(topic, *partition);
            self.left_out_partitions.on_failed(*partition, self.clock.monotonic());
        }
        // Who is fenced may have lost its partitions; and a process that cannot reach the
        // coordinator of the group may have been expelled: what is committed tells.
        let is_fenced = matches!(error, TransactionError::Fenced(_));
        let is_repeated = self.failed_commits > 1 && refusal.is_none();
        let is_unknown = !is_uncommitted || is_fenced || is_repeated;
        let OpenTransaction { batch, releasing, .. } = transaction;
        self.transaction =
            TransactionState::Opening(FailedTransaction { batch, is_unknown, refusal });
        let (producers, reporter) = (self.producers.clone(), self.reporter.clone());
        let (failed, now) = (self.producer.take(), self.clock.monotonic());
        self.producer_jobs.open(producers, reporter, failed, now);
        self.release_after(&releasing)
    }

    /// The broker has ended the transaction that has failed.
    fn on_producer_opened(&mut self, producer: E::Producer) {
        self.producer = Some(Arc::new(producer));
        let state = std::mem::replace(&mut self.transaction, TransactionState::Idle);
        let TransactionState::Opening(failed) = state else {
            unreachable!("no new producer was requested");
        };
        if failed.is_unknown {
            self.read_next(failed);
        } else {
            self.on_not_committed(failed);
        }
    }

    /// Reads whether a partition that has been ours without a break is committed. Without any,
    /// nothing is left that could be sent again but changes of circuits.
    fn read_next(&mut self, failed: FailedTransaction) {
        let judge = failed.batch.commits.iter().find(|(id, commit)| {
            let owned = self.partitions.get(*id);
            commit.is_distinct() && owned.is_some_and(|owned| owned.epoch == commit.epoch)
        });
        let Some((partition, commit)) = judge.map(|(id, commit)| (*id, commit.clone())) else {
            return self.on_not_committed(failed);
        };
        self.reporter.not_ready("broker", READING.to_owned());
        let judge = move |committed: Option<(Offset, &str)>| {
            let before = commit.before.as_ref().map(|(offset, text)| (*offset, text.as_str()));
            if committed == Some((commit.offset, commit.metadata.as_str())) {
                Finding::Committed
            } else if committed == before {
                Finding::NotCommitted
            } else {
                Finding::Unclear
            }
        };
        self.findings.request(partition, Box::new(judge), &self.member, &self.clock);
        self.transaction = TransactionState::Reading(failed, partition);
    }

    /// Partitions were released or assigned: one that is read may not be ours any more.
    pub(super) fn on_partitions_changed(&mut self) {
        let TransactionState::Reading(failed, partition) = &self.transaction else { return };
        let epoch = failed.batch.commits.get(partition).map(|commit| commit.epoch);
        let owned = self.partitions.get(partition).map(|owned| owned.epoch);
        if owned.is_none() || owned != epoch {
            let failed = failed.clone();
            self.findings.cancel();
            self.transaction = TransactionState::Idle;
            self.read_next(failed);
        }
    }

    fn on_finding(
        &mut self,
        partition: PartitionId,
        finding: Finding,
    ) -> Result<(), WorkerLoopError> {
        let state = std::mem::replace(&mut self.transaction, TransactionState::Idle);
        let TransactionState::Reading(failed, _) = state else {
            unreachable!("what is not asked for is not answered");
        };
        tracing::info!(partition, ?finding, "it is known whether the transaction is committed");
        match finding {
            Finding::Committed => self.on_committed(&failed.batch),
            Finding::NotCommitted => {
                self.on_not_committed(failed);
                Ok(())
            }
            // So it is another worker's. What that one has reserved must not be started here.
            Finding::Unclear => {
                let text = "another member has committed for a partition of this worker";
                self.join_again(&CallError::new(text))?;
                self.read_next(failed);
                Ok(())
            }
        }
    }

    /// The transaction is committed: its fires are finished, and what it reserves may start.
    fn on_committed(&mut self, batch: &ResultBatch) -> Result<(), WorkerLoopError> {
        self.failed_commits = 0;
        self.retry_at = Duration::ZERO;
        self.reporter.ready("broker");
        for result in &batch.results {
            result.result.into_iter().for_each(|it| self.reporter.result_committed(it));
            result.dead_letter.into_iter().for_each(|it| self.reporter.dead_letter_committed(it));
        }
        self.results.forget(&batch.results);
        self.results.forget_circuits(batch.circuits.len());
        if !batch.circuits.is_empty() {
            self.left_out_partitions.on_circuits_committed(self.clock.monotonic());
        }
        for (id, commit) in &batch.commits {
            self.left_out_partitions.on_committed(*id);
            let owned = self.partitions.get_mut(id);
            let Some(running) = owned.and_then(|owned| owned.in_epoch(commit.epoch)) else {
                continue;
            };
            running.on_committed(commit);
            self.admit_reserved(*id)?;
        }
        Ok(())
    }

    /// The transaction is not committed: its results are sent again.
    fn on_not_committed(&mut self, failed: FailedTransaction) {
        match failed.refusal.clone() {
            Some(Refusal::Record(refused)) => {
                let (cluster, topic) = (self.cluster.clone(), refused.topic.clone());
                self.lookups.submit(TopicLookup { cluster, topic, number: 0 });
                self.transaction = TransactionState::Asking(failed, refused);
                return;
            }
            Some(Refusal::Time(reason)) => self.reporter.not_ready("broker", reason),
            // Perhaps nothing is left of it, and no commit follows.
            None => self.reporter.ready("broker"),
        }
        self.put_back(&failed.batch);
        self.pause_after_failures();
    }

    /// Puts back the results of partitions that are still ours.
    pub(super) fn put_back(&mut self, batch: &ResultBatch) {
        let results = self.keep_current(batch);
        self.results.put_back(results, self.clock.monotonic());
    }

    /// The results of partitions that are still ours; the others are forgotten.
    pub(super) fn keep_current(&mut self, batch: &ResultBatch) -> Vec<Arc<CompletedFire>> {
        let partitions = &self.partitions;
        let (current, lost): (Vec<_>, Vec<_>) =
            batch.results.iter().cloned().partition(|it| is_current(partitions, it));
        self.results.forget(&lost);
        current
    }

    pub(super) fn pause_after_failures(&mut self) {
        if self.failed_commits > 1 {
            let doublings = (self.failed_commits - 2).min(DOUBLINGS_MAX);
            let pause = self.config.timing.retry_pause * 2_u32.pow(doublings);
            self.retry_at = self.clock.monotonic() + pause;
        }
    }
}

/// Whether the result is of the current epoch of its partition.
fn is_current(partitions: &BTreeMap<PartitionId, WorkerPartition>, result: &CompletedFire) -> bool {
    let owned = partitions.get(&result.place.partition);
    owned.is_some_and(|owned| owned.epoch == result.place.epoch)
}
