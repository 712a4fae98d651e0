//! Launching and landing transactions: steps of a few partitions go out together, and what they
//! spill goes to the writer when the transaction is known to be committed.
//!
//! Law: every partition with an effect in a transaction has its offset in it. Any failure ends
//! the transactor and sends every partition back to the beginning of its takeover.

use std::sync::Arc;
use std::time::Duration;

use super::committer::Job;
use super::lane::{Lane, Stage};
use super::takeover::state_of;
use super::writer::{Spill, Written};
use super::{Scheduler, SchedulerError, open_transactor};
use crate::clock;
use crate::engine::step::{Emit, Step};
use crate::engine::takeover::{Ask, Local};
use crate::kafka::transaction::{Progress, TransactionError};
use crate::model::dead_letter::Content;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::{Offset, PartitionId, Timestamp};
use crate::telemetry;

/// How long to wait before a transactor is opened again after it could not be.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);

/// How often a transaction is sent again whose generation was refused: our client hears of a
/// new generation a moment after the broker has it.
const ATTEMPTS_MAX: u32 = 20;
/// How long to wait before that.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

/// A transaction under way.
#[derive(Debug, Default)]
pub(super) struct Flight {
    steps: Vec<(PartitionId, Step)>,
    barriers: Vec<(PartitionId, Barrier)>,
    /// How often it was sent again.
    attempts: u32,
}

/// What a takeover's barrier writes.
#[derive(Debug)]
struct Barrier {
    offset: Offset,
    metadata: String,
    nonce: u64,
    step: u64,
}

impl Scheduler {
    /// Sends what is decided in one transaction and hands it to the committer.
    pub(super) fn launch(&mut self) -> Result<(), SchedulerError> {
        // Sealing makes a step that must be committed or its partition dropped: look first
        // whether we are a member at all.
        if self.member.fence().is_err() {
            return Ok(());
        }
        let flight = self.seal(false, None);
        if flight.is_empty() { Ok(()) } else { self.take_off(flight) }
    }

    fn take_off(&mut self, flight: Flight) -> Result<(), SchedulerError> {
        if let Err(error) = self.send(&flight) {
            return self.fail(error);
        }
        let fence = match self.member.fence() {
            Ok(fence) => fence,
            Err(error) => return self.fail(TransactionError::Generation(error.to_string())),
        };
        let progress = self.progress(&flight);
        let transactor = Arc::clone(&self.transactor);
        self.committer.submit(Job { transactor, progress, fence });
        self.flight = Some(flight);
        Ok(())
    }

    /// Waits for the transaction under way, at most `timeout`, and applies what it committed.
    pub(super) fn land(&mut self, timeout: Duration) -> Result<(), SchedulerError> {
        let Some(result) = self.committer.landed(timeout) else { return Ok(()) };
        let flight = self.flight.take().unwrap_or_default();
        match result {
            Ok(()) => self.settle(flight),
            Err(error @ TransactionError::Generation(_)) => self.try_again(flight, error),
            Err(error) => self.fail(error),
        }
    }

    /// The group moved on while the transaction was under way, and the broker refused it whole.
    /// Everything in it is still ours: a partition leaves only when the group is polled, which
    /// does not happen here. So the same steps go out again, under the new generation.
    fn try_again(
        &mut self,
        mut flight: Flight,
        error: TransactionError,
    ) -> Result<(), SchedulerError> {
        flight.attempts += 1;
        if flight.attempts > ATTEMPTS_MAX {
            return self.fail(error);
        }
        tracing::debug!(%error, attempt = flight.attempts, "sent again");
        std::thread::park_timeout(ATTEMPT_PAUSE);
        match self.transactor.abort(self.settings.scheduler.transaction_timeout) {
            Ok(()) => self.take_off(flight),
            Err(error) => self.fail(error),
        }
    }

    /// The last steps of partitions that go, before they go.
    pub(super) fn commit_last_words(
        &mut self,
        partitions: &[PartitionId],
    ) -> Result<(), SchedulerError> {
        assert!(self.flight.is_none(), "the group is polled only while no transaction is open");
        let flight = self.seal(true, Some(partitions));
        if flight.is_empty() {
            return Ok(());
        }
        let fence = match self.member.fence() {
            Ok(fence) => fence,
            Err(error) => {
                tracing::warn!(%error, "no last words");
                return Ok(());
            }
        };
        let progress = self.progress(&flight);
        let sent = self.send(&flight);
        match sent.and_then(|()| self.transactor.commit(&progress, &fence)) {
            Ok(()) => self.settle(flight),
            Err(error) => self.fail(error),
        }
    }

    /// Closes the steps (and barriers) of a few partitions, in turn.
    fn seal(&mut self, clean: bool, only: Option<&[PartitionId]>) -> Flight {
        let limit = only.map_or_else(
            || self.settings.scheduler.partitions_per_commit_max.get(),
            <[PartitionId]>::len,
        );
        let mut flight = Flight::default();
        let (before, from): (Vec<_>, Vec<_>) =
            self.lanes.keys().copied().partition(|id| *id < self.turn);
        for id in from.into_iter().chain(before) {
            if flight.steps.len() + flight.barriers.len() == limit {
                break;
            }
            if only.is_some_and(|only| !only.contains(&id)) {
                continue;
            }
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            match &mut lane.stage {
                Stage::Active(partition) => {
                    let step = if clean { Some(partition.seal_clean()) } else { partition.seal() };
                    flight.steps.extend(step.map(|step| (id, step)));
                }
                Stage::Restoring(restoring) => {
                    if let (false, Ask::Barrier { offset, metadata, nonce }) =
                        (clean, restoring.takeover.ask())
                    {
                        let step = restoring.takeover.cursor().step;
                        let barrier = Barrier { offset, metadata, nonce, step };
                        flight.barriers.push((id, barrier));
                    }
                }
                Stage::Waiting(_) | Stage::Refused(_) | Stage::Changing => {}
            }
            self.turn = id + 1;
        }
        flight
    }

    fn send(&self, flight: &Flight) -> Result<(), TransactionError> {
        self.transactor.begin()?;
        for (id, step) in &flight.steps {
            self.emission.send(&self.transactor, *id, step.number, &step.emits)?;
        }
        for (id, barrier) in &flight.barriers {
            let value = LedgerValue::Barrier { nonce: barrier.nonce };
            let (step, key) = (barrier.step, LedgerKey::Barrier);
            self.emission.send_ledger(&self.transactor, *id, step, &key, Some(&value))?;
        }
        Ok(())
    }

    fn progress(&self, flight: &Flight) -> Vec<Progress> {
        let topic = self.names.triggers();
        let steps = flight.steps.iter().map(|(partition, step)| Progress {
            topic: topic.clone(),
            partition: *partition,
            offset: step.cursor.triggers,
            metadata: step.cursor.to_metadata(&self.rules.owner),
        });
        let barriers = flight.barriers.iter().map(|(partition, barrier)| Progress {
            topic: topic.clone(),
            partition: *partition,
            offset: barrier.offset,
            metadata: barrier.metadata.clone(),
        });
        steps.chain(barriers).collect()
    }

    /// The transaction is committed: what its steps spill may go into the stores.
    fn settle(&mut self, flight: Flight) -> Result<(), SchedulerError> {
        let now = clock::now_ms();
        self.refused = None;
        for (id, step) in flight.steps {
            count(&step, now);
            let Some(lane) = self.lanes.get(&id) else { continue };
            let Step { number, spill: Some(delta), cursor, .. } = step else { continue };
            let (applied, w, ledger_position) = (cursor.triggers, cursor.w, lane.ledger_position);
            let local = Local { applied, step: number, ledger_position, w };
            let state = state_of(local, &self.cluster, now);
            let store = Arc::clone(&lane.store);
            self.writer.submit(Spill { partition: id, step: number, store, delta, state });
        }
        for (id, _) in flight.barriers {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            if let Stage::Restoring(restoring) = &mut lane.stage {
                restoring.takeover.on_barrier();
            }
        }
        Ok(())
    }

    /// What the writer has brought into the stores is no longer the engine's to answer for.
    pub(super) fn hear_writer(&mut self) -> Result<(), SchedulerError> {
        let written = self.writer.written();
        self.note_written(written)
    }

    /// Waits for the writer: a store that is read or closed next must hold what is committed.
    pub(super) fn await_writer(&mut self) -> Result<(), SchedulerError> {
        let written = self.writer.drain();
        self.note_written(written)
    }

    fn note_written(&mut self, written: Vec<Written>) -> Result<(), SchedulerError> {
        for Written { partition, step, result } in written {
            match result {
                Ok(()) => {
                    if let Some(partition) = self.lanes.get_mut(&partition).and_then(Lane::active) {
                        partition.applied(step);
                    }
                }
                Err(error) if self.lanes.contains_key(&partition) => {
                    self.rebuild_store(partition, &error.into())?;
                }
                Err(error) => tracing::warn!(partition, %error, "the last rows were not kept"),
            }
        }
        Ok(())
    }

    /// The outcome of a transaction is unknown, or it failed: a new transactor makes the broker
    /// decide, and every partition starts over from what is committed.
    pub(super) fn fail(&mut self, error: TransactionError) -> Result<(), SchedulerError> {
        tracing::warn!(%error, "a transaction failed; taking over again");
        metrics::counter!(telemetry::COMMIT_FAILURES).increment(1);
        if let TransactionError::Refused { topic, reason, .. } = &error {
            self.blame(topic, reason);
        }
        self.flight = None;
        loop {
            match open_transactor(&self.settings, &self.rules.owner) {
                Ok(transactor) => {
                    self.transactor = Arc::new(transactor);
                    return self.retake_all();
                }
                Err(error) => {
                    self.health.not_ready("broker", error.to_string());
                    tracing::warn!(%error, "no transactional producer yet");
                    // The group must be served meanwhile; its changes are heard later.
                    std::thread::park_timeout(REOPEN_PAUSE);
                }
            }
        }
    }

    /// A topic refused a record: look at it again, and if it refuses twice in a row its fires
    /// become dead letters, so that one bad target does not hold up the others.
    fn blame(&mut self, topic: &str, reason: &str) {
        if self.names.owns(topic) {
            return;
        }
        if self.refused.as_deref() == Some(topic) {
            self.targets.condemn(topic, reason, clock::now_ms());
            self.refused = None;
        } else {
            self.targets.forget(topic);
            self.refused = Some(topic.to_owned());
        }
    }
}

impl Flight {
    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.barriers.is_empty()
    }
}

fn count(step: &Step, now: Timestamp) {
    metrics::counter!(telemetry::INGESTED).increment(step.ingested as u64);
    let mut letters = 0;
    for emit in &step.emits {
        let (scheduled, target) = match emit {
            Emit::ToTopic(fire) => (fire.scheduled, "topic"),
            Emit::ToWorker(fire) => (fire.scheduled, "http"),
            Emit::DeadLetter(letter) => {
                letters += 1;
                if matches!(letter.content, Content::Record { .. }) {
                    metrics::counter!(telemetry::REJECTED).increment(1);
                }
                continue;
            }
            Emit::Forward(_) => {
                metrics::counter!(telemetry::FORWARDED).increment(1);
                continue;
            }
            Emit::Ledger { .. } | Emit::Outcome(_) => continue,
        };
        metrics::counter!(telemetry::FIRED, "target" => target).increment(1);
        let late = Duration::from_millis(now.saturating_sub(scheduled));
        metrics::histogram!(telemetry::LATENESS).record(late.as_secs_f64());
    }
    metrics::counter!(telemetry::DEAD_LETTERS).increment(letters);
}
