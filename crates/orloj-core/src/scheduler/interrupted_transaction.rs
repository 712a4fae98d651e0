//! A transaction that has failed: opens new producers, so that the broker ends it, reads whether it
//! is committed if its commit was requested, and applies its steps or sends them again.
//!
//! Invariant: the loop waits neither for producers nor for the committed offset, and its partitions
//! go on as while a transaction is in progress: they read, and decide one more step, which is not
//! sealed before this transaction is decided. `engine::assignment` says what is done with it.

use std::sync::Arc;
use std::time::Duration;

use super::config::Mode;
use super::{LoopError, Scheduler, ms};
use crate::commit::committer::ReportedRecords as _;
use crate::engine::interrupted_transaction::{Finding, finding_of};
use crate::environment::{Clock as _, Environment, ProcessReporter as _};
use crate::model::{Offset, PartitionId, Timestamp};

/// Why the process is not ready while a transaction is interrupted.
const OPENING: &str = "a transaction failed; recreating its producer";
const READING: &str = "a transaction failed; reading whether it is committed";
const WAITING: &str = "a transaction failed; it is sent again when the group answers";

impl<E: Environment> Scheduler<E> {
    /// Opening new producers makes the broker end the transaction of the old ones. Partitions go on
    /// meanwhile, and their next step waits.
    pub(super) fn recreate_producers(&mut self) {
        // This lasts as long as the broker is unavailable.
        self.reporter.not_ready("broker", OPENING.to_owned());
        self.findings.is_awaited = true;
        let old = self.producer.take();
        let now = self.clock.monotonic();
        self.producer_jobs.open(self.producers.clone(), self.reporter.clone(), old, now);
    }

    /// New producers are open: the broker has ended the transaction of the old ones.
    pub(super) fn on_producers_opened(&mut self, producer: E::Producer) -> Result<(), LoopError> {
        self.targets.refresh_unavailable();
        self.producer = Some(Arc::new(producer));
        let now = self.clock.monotonic();
        let mut ids: Vec<_> = self.tasks.keys().copied().collect();
        ids.retain(|id| self.is_restoring(*id));
        for id in ids {
            // What its reader knows of the end of the log may be of a time before the outage.
            self.restart_reader(id, now)?;
        }
        let actions = self.assignment.on_producer_recreated();
        self.execute(actions)
    }

    /// Reads, beside the loop, what this partition has committed.
    pub(super) fn read_committed(&mut self, partition: PartitionId) -> Result<(), LoopError> {
        // The built-in broker does not store the offsets of a transaction.
        if self.config.mode == Mode::Trial {
            return self.on_finding(partition, Finding::Unclear);
        }
        self.reporter.not_ready("broker", READING.to_owned());
        let batch = self.batch.as_ref().expect("an interrupted transaction keeps its batch");
        let commits =
            batch.offset_commits(&self.config.names.triggers(), &self.config.partition.owner);
        let sent = commits.into_iter().find(|commit| commit.partition == partition);
        let sent = sent.expect("it is judged by a partition of it");
        let judge = move |committed: Option<(Offset, &str)>| {
            finding_of((sent.offset, &sent.metadata), committed)
        };
        self.findings.request(partition, Box::new(judge), &self.member, &self.clock);
        Ok(())
    }

    /// Waits at most `timeout` for what is known of the interrupted transaction, and handles it.
    pub(super) fn poll_interrupted(&mut self, timeout: Duration) -> Result<(), LoopError> {
        if let Some((partition, finding)) = self.findings.poll(timeout) {
            self.on_finding(partition, finding)?;
        }
        if self.assignment.must_be_sent_again() { self.send_again() } else { Ok(()) }
    }

    /// The time that decides whether something is too late to be committed, in ms since the epoch:
    /// any commit may take as long as a transaction.
    pub(super) fn too_late_at(&self) -> Timestamp {
        self.clock.now_ms().saturating_sub(ms(self.config.transaction_timeout))
    }

    fn on_finding(&mut self, partition: PartitionId, finding: Finding) -> Result<(), LoopError> {
        tracing::info!(
            partition,
            ?finding,
            "it is known whether the last transaction is committed"
        );
        let actions = self.assignment.on_finding(partition, finding);
        if !self.assignment.must_be_sent_again() {
            if !matches!(finding, Finding::Committed) {
                E::reached("interrupted.taken_over");
            }
            self.on_decided();
        }
        self.execute(actions)
    }

    /// The interrupted transaction is applied, sent again or given up.
    fn on_decided(&mut self) {
        if std::mem::take(&mut self.findings.is_awaited) {
            self.reporter.ready("broker");
        }
    }

    /// Sends the steps of the interrupted transaction again, if the group gives metadata. If not,
    /// this process may have lost its partitions: the next polls of the group say it.
    fn send_again(&mut self) -> Result<(), LoopError> {
        let Ok(group_metadata) = self.group_metadata() else {
            self.reporter.not_ready("broker", WAITING.to_owned());
            return Ok(());
        };
        let batch = self.batch.take().expect("an interrupted transaction keeps its batch");
        if batch.is_late(self.too_late_at()) {
            E::reached("interrupted.taken_over");
            let actions = self.assignment.on_too_late();
            return self.execute(actions);
        }
        self.assignment.on_sent_again();
        self.on_decided();
        self.last_transaction_at = self.clock.monotonic();
        E::reached("interrupted.sent_again");
        self.submit_transaction(Arc::new(batch.without_barriers()), group_metadata);
        Ok(())
    }

    /// The interrupted transaction is committed: applies the steps of these partitions.
    pub(super) fn apply_interrupted(&mut self, partitions: &[PartitionId]) {
        E::reached("interrupted.committed");
        let Some(batch) = self.batch.take() else { return };
        self.apply(&batch, |id| partitions.contains(&id));
        batch.report(&self.reporter, self.clock.now_ms());
    }

    /// No transaction is interrupted: nothing is asked for, and nothing is kept.
    pub(super) fn forget_interrupted(&mut self) {
        self.batch = None;
        self.findings.cancel();
        self.on_decided();
    }
}

#[cfg(test)]
#[path = "interrupted_transaction/tests.rs"]
mod tests;
