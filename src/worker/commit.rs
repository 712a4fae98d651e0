//! From results to the log: signals, outcomes, dead letters and progress, in one transaction.
//!
//! Invariant: the result of a callback, and that it is finished, are committed together or not at
//! all. After any failure the results are dropped and every partition starts a new epoch from what
//! is committed: a callback may then be repeated, under the same id.

use std::collections::BTreeSet;
use std::time::Duration;

use super::completion::{CompletedFire, Completion};
use super::disposition::CallbackResponse;
use super::partition::RunningPartition;
use super::report::{AttemptRecord, FireReport};
use super::{Worker, WorkerError};
use crate::clock;
use crate::fault;
use crate::kafka::group_metadata::{GroupMetadata, GroupMetadataError, MemberMetadata as _};
use crate::kafka::transaction::{
    OffsetCommit, ProducerRecord, TransactionError, TransactionalProducer,
};
use crate::model::PartitionId;
use crate::model::dead_letter::Origin;
use crate::model::signal::Signal;
use crate::telemetry;

/// This many results make a transaction due before the commit interval has passed.
pub(super) const RESULTS_MAX: usize = 1_000;
/// Pause after the first failed transaction; each further one in a row doubles it. Callbacks are
/// repeated after a failure; a broker that refuses our transactions must not cause many repeated
/// requests to receivers.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// After how long the broker aborts the transaction of a worker that died. Shorter than that of a
/// scheduler: no other worker ends it, and what is behind it in the signals waits.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take to open a producer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Doublings of the pause: 12.8 s at most.
const DOUBLINGS_MAX: u32 = 6;

impl Worker {
    /// How long until a transaction is due; `None` if there is nothing to commit.
    pub(super) fn time_to_commit(&self) -> Option<Duration> {
        let due = self.oldest_result_at? + self.settings.worker.commit_interval;
        let full = self.completed.len() >= RESULTS_MAX;
        let left = due.saturating_duration_since(clock::monotonic());
        Some(if full { Duration::ZERO } else { left })
    }

    /// Commits all results, if this worker is a member of the group.
    pub(super) fn commit(&mut self) -> Result<(), WorkerError> {
        self.oldest_result_at = None;
        let partitions = &mut self.partitions;
        self.completed.retain(|ended| {
            partitions
                .get_mut(&ended.partition)
                .is_some_and(|owned| owned.in_epoch(ended.epoch).is_some())
        });
        // Changes of circuits are committed with the progress of any partition, never without: the
        // progress is what fences them.
        let running = || self.partitions.values().filter_map(|owned| owned.running.as_ref());
        let has_circuit_outcomes = !self.circuit_outcomes.is_empty() && running().next().is_some();
        if self.completed.is_empty()
            && !has_circuit_outcomes
            && !running().any(RunningPartition::needs_commit)
        {
            return Ok(());
        }
        if self.group_metadata().is_err() {
            // The next assignment will show what this worker owns; until then the results wait.
            self.oldest_result_at = Some(clock::monotonic());
            return Ok(());
        }
        let started = clock::monotonic();
        let ended = std::mem::take(&mut self.completed);
        match self.write_transaction(ended) {
            Ok(()) => {
                fault::reached("worker.after_commit");
                let took = clock::monotonic() - started;
                metrics::histogram!(telemetry::COMMIT).record(took.as_secs_f64());
                self.failed_commits = 0;
                self.circuit_outcomes.clear();
                self.health.ready("broker");
                self.resume_paused()
            }
            Err(error) => self.recover_from_failure(&error),
        }
    }

    /// What a transaction carries, if the group has not expelled this worker since it was assigned
    /// its partitions.
    pub(super) fn group_metadata(&self) -> Result<GroupMetadata, GroupMetadataError> {
        self.member.group_metadata()?.if_of_member(&self.member_id)
    }

    fn write_transaction(&mut self, ended: Vec<CompletedFire>) -> Result<(), TransactionError> {
        self.transactor.begin()?;
        let needing_commit = self.partitions.iter().filter(|(_, owned)| {
            owned.running.as_ref().is_some_and(RunningPartition::needs_commit)
        });
        let mut touched: BTreeSet<_> = needing_commit.map(|(partition, _)| *partition).collect();
        for ended in ended {
            let CompletedFire { partition, epoch, offset, .. } = ended;
            let owned = self.partitions.get_mut(&partition).and_then(|owned| owned.in_epoch(epoch));
            let Some(running) = owned else { continue };
            running.progress.finish(offset);
            touched.insert(partition);
            let report = self.report(ended);
            fault::reached("worker.before_report");
            self.send(partition, &report)?;
            fault::reached("worker.after_report");
        }
        self.send_circuit_outcomes()?;
        if touched.is_empty() {
            touched
                .extend(self.partitions.iter().find(|(_, l)| l.running.is_some()).map(|(p, _)| *p));
        }
        let progress = touched.into_iter().filter_map(|partition| {
            let running = self.partitions.get_mut(&partition)?.running.as_mut()?;
            let (offset, metadata) = running.next_commit();
            Some(OffsetCommit { topic: self.topic.clone(), partition, offset, metadata })
        });
        let progress: Vec<_> = progress.collect();
        let fence = self.group_metadata();
        let fence = fence.map_err(|error| TransactionError::StaleGeneration(error.to_string()))?;
        self.transactor.commit_with_offsets(&progress, &fence)
    }

    fn report(&self, ended: CompletedFire) -> FireReport {
        let CompletedFire { partition, offset, at, completion, .. } = ended;
        let origin = Origin { topic: self.topic.as_str().into(), partition, offset };
        match completion {
            Completion::Attempt(fire, response, duration) => {
                let attempt_record = AttemptRecord {
                    response: &response,
                    duration,
                    ended_at: at,
                    worker: &self.name,
                };
                let report = FireReport::of_attempt(
                    *fire,
                    &attempt_record,
                    origin,
                    &self.default_retry_policy,
                );
                count_result(&report, &response);
                report
            }
            Completion::Deferred { fire, due, reason } => {
                FireReport::of_deferral(*fire, due, reason)
            }
            Completion::Withdrawn { id, report_end } => {
                metrics::counter!(telemetry::CALLBACKS, "result" => "withdrawn").increment(1);
                FireReport::of_withdrawal(id, report_end, at)
            }
            Completion::WithdrawalProcessed => FireReport::default(),
            Completion::Unreadable(record) => {
                metrics::counter!(telemetry::DEAD_LETTERS, "reason" => "unreadable").increment(1);
                FireReport::of_unreadable(record, origin, at)
            }
        }
    }

    /// What was read from partition p is written to partition p, so that a transaction touches few
    /// partitions.
    fn send(&self, partition: PartitionId, report: &FireReport) -> Result<(), TransactionError> {
        let key = report.trigger().map(|trigger| trigger.bytes().as_ref());
        let send = |topic: &str, value: &[u8]| {
            let (partition, value) = (Some(partition), Some(value));
            self.transactor.send(ProducerRecord { topic, partition, key, value, headers: &[] })
        };
        if let Some(signal) = &report.signal {
            send(&self.names.signals(), &self.schemas.encode_signal(signal))?;
        }
        if let Some(letter) = &report.dead_letter {
            send(&self.names.dead_letters(), &self.schemas.encode_dead_letter(letter))?;
        }
        if let Some(outcome) = &report.outcome {
            send(&self.names.outcomes(), &self.schemas.encode_outcome(outcome))?;
        }
        Ok(())
    }

    /// The key decides the partition, so that a reader sees the changes of a circuit in order.
    fn send_circuit_outcomes(&self) -> Result<(), TransactionError> {
        for outcome in &self.circuit_outcomes {
            let value = self.schemas.encode_outcome(outcome);
            self.transactor.send(ProducerRecord {
                topic: &self.names.outcomes(),
                partition: None,
                key: Some(outcome.trigger.bytes()),
                value: Some(&value),
                headers: &[],
            })?;
        }
        Ok(())
    }

    /// Resumes reading where a full window had stopped it.
    fn resume_paused(&mut self) -> Result<(), WorkerError> {
        for (partition, owned) in &mut self.partitions {
            if let Some(offset) =
                owned.running.as_mut().and_then(|running| running.take_resume_offset())
            {
                self.reader.start(&self.topic, *partition, offset)?;
            }
        }
        Ok(())
    }

    /// A transaction failed, or its result is unknown: opening a new producer makes the broker
    /// decide.
    fn recover_from_failure(&mut self, error: &TransactionError) -> Result<(), WorkerError> {
        tracing::warn!(%error, "a transaction failed; restarting from the committed progress");
        metrics::counter!(telemetry::COMMIT_FAILURES).increment(1);
        self.health.not_ready("broker", error.to_string());
        loop {
            std::thread::sleep(RETRY_PAUSE * 2_u32.pow(self.failed_commits.min(DOUBLINGS_MAX)));
            self.failed_commits += 1;
            match open_transactor(&self.settings, &self.transactional_id) {
                Ok(transactor) => {
                    self.transactor = transactor;
                    // What failed may be committed all the same, and then no commit follows.
                    self.health.ready("broker");
                    return self.restart_partitions();
                }
                Err(error) if self.shutdown.is_cancelled() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "the transactional producer cannot be opened; retrying")
                }
            }
        }
    }

    /// Every partition starts a new epoch.
    pub(super) fn restart_partitions(&mut self) -> Result<(), WorkerError> {
        let partitions: Vec<_> = self.partitions.keys().copied().collect();
        for partition in partitions {
            self.reader.stop(&self.topic, partition)?;
            self.start_epoch(partition);
        }
        Ok(())
    }
}

/// Opens the transactional producer, and ends the transaction that an earlier one of the same id
/// left open.
pub(super) fn open_transactor(
    settings: &super::Settings,
    id: &str,
) -> Result<TransactionalProducer, TransactionError> {
    TransactionalProducer::open_with(settings, id, OPEN_TIMEOUT, TRANSACTION_TIMEOUT)
}

fn count_result(report: &FireReport, response: &CallbackResponse) {
    let result = match (&report.signal, &report.dead_letter) {
        (Some(Signal::Retry(_)), _) => "retried",
        (_, Some(_)) => "exhausted",
        (_, None) => "delivered",
    };
    metrics::counter!(telemetry::CALLBACKS, "result" => result).increment(1);
    if report.dead_letter.is_some() {
        let reason = if matches!(response, CallbackResponse::Unsendable(_)) {
            "impossible"
        } else {
            "exhausted"
        };
        metrics::counter!(telemetry::DEAD_LETTERS, "reason" => reason).increment(1);
    }
}
