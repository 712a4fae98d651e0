//! Launching and landing transactions: steps of a few partitions go out together, and what they
//! spill goes to the writer when the transaction is known to be committed.
//!
//! Law: what the end of a transaction means is decided by `engine::tenure`; here it is done.

use std::sync::Arc;
use std::time::Duration;

use super::committer::Job;
use super::flight::{Barrier, Flight};
use super::lane::{Lane, Stage};
use super::takeover::state_of;
use super::writer::{Spill, Written};
use super::{Scheduler, SchedulerError, ms, open_relay};
use crate::clock;
use crate::engine::local::Local;
use crate::engine::takeover::Ask;
use crate::engine::tenure::{Ending, Order};
use crate::fault;
use crate::kafka::fence::{Fence, FenceError};
use crate::kafka::transaction::TransactionError;
use crate::model::PartitionId;
use crate::telemetry;

/// How long to wait before a transactor is opened again after it could not be.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);
/// How long to wait before a transaction is sent again whose generation was refused.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

impl Scheduler {
    /// Hands what is decided to the committer, in one transaction.
    pub(super) fn launch(&mut self) -> Result<(), SchedulerError> {
        if !self.spacing().is_zero() || !self.lanes.values_mut().any(Lane::is_ripe) {
            return Ok(());
        }
        // Sealing makes a step that must be committed or its partition dropped: look first
        // whether we are a member at all.
        let Ok(fence) = self.member.fence() else { return Ok(()) };
        let limit = self.settings.scheduler.partitions_per_commit_max.get();
        let flight = self.seal(limit);
        if flight.is_empty() {
            return Ok(());
        }
        fault::reached("step.sealed");
        self.tenure.on_launch();
        self.launched_at = clock::monotonic();
        self.take_off(Arc::new(flight), fence);
        Ok(())
    }

    /// How long the next transaction still keeps its distance from the last one.
    pub(super) fn spacing(&self) -> Duration {
        let next = self.launched_at + self.settings.scheduler.commit_spacing;
        next.saturating_duration_since(clock::monotonic())
    }

    /// Waits for the transaction under way, at most `timeout`, and does what follows from its end.
    pub(super) fn land(&mut self, timeout: Duration) -> Result<(), SchedulerError> {
        let Some(result) = self.committer.landed(timeout) else { return Ok(()) };
        let ending = match result {
            Ok(()) => Ending::Committed,
            Err(error @ TransactionError::Generation(_)) => {
                tracing::debug!(%error, "the group has moved on");
                Ending::StaleGeneration
            }
            Err(error) => {
                self.report_failure(&error);
                Ending::Unknown
            }
        };
        self.end(ending)
    }

    pub(super) fn end(&mut self, ending: Ending) -> Result<(), SchedulerError> {
        let orders = self.tenure.on_ending(ending);
        self.obey(orders)
    }

    /// Does what the rules of tenure order, in their order.
    pub(super) fn obey(&mut self, orders: Vec<Order>) -> Result<(), SchedulerError> {
        for order in orders {
            match order {
                Order::TakeOver(partition) => self.take_over(partition)?,
                Order::LastWords(partitions) => self.say_last_words(&partitions)?,
                Order::LetGo(partitions) => self.let_go(&partitions)?,
                Order::Settle => self.settle(),
                Order::SendAgain => self.send_again()?,
                Order::Reopen => self.reopen()?,
            }
        }
        Ok(())
    }

    fn take_off(&mut self, flight: Arc<Flight>, fence: Fence) {
        let progress = flight.progress(&self.names.triggers(), &self.rules.owner);
        let relay = Arc::clone(&self.relay);
        self.flight = Some(Arc::clone(&flight));
        // A clock that was set back since holds nothing up.
        let most = clock::now_ms() + ms(self.settings.scheduler.ahead_max);
        let time = flight.time().min(most);
        self.committer.submit(Job { relay, flight, progress, fence, time });
    }

    /// The group does not know us just now; nothing was sent.
    fn ground(&mut self, flight: Arc<Flight>, error: &FenceError) -> Result<(), SchedulerError> {
        tracing::debug!(%error, "no member of the group");
        self.flight = Some(flight);
        self.end(Ending::StaleGeneration)
    }

    /// The same under the generation of now.
    fn send_again(&mut self) -> Result<(), SchedulerError> {
        let flight = self.flight.take().expect("only what was launched can end");
        std::thread::park_timeout(ATTEMPT_PAUSE);
        match self.relay.abort(self.settings.scheduler.transaction_timeout) {
            Ok(()) => match self.member.fence() {
                Ok(fence) => self.take_off(flight, fence),
                Err(error) => return self.ground(flight, &error),
            },
            Err(error) => {
                self.report_failure(&error);
                return self.end(Ending::Unknown);
            }
        }
        Ok(())
    }

    /// The last steps of partitions that go, before they go.
    fn say_last_words(&mut self, partitions: &[PartitionId]) -> Result<(), SchedulerError> {
        fault::reached("revoke.before_last_words");
        self.await_restorers()?;
        let mut flight = Flight::default();
        for id in partitions {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            lane.before_seal();
            match &mut lane.stage {
                Stage::Active(partition) => flight.steps.push((*id, partition.seal_clean())),
                Stage::Restoring(restoring) => {
                    let farewell = restoring.takeover.as_ref().and_then(|it| it.farewell());
                    flight.farewells.extend(farewell.map(|(offset, said)| (*id, offset, said)));
                }
                Stage::Waiting(partition) => {
                    let cursor = partition.cursor();
                    let said = cursor.to_farewell(&self.rules.owner);
                    flight.farewells.push((*id, cursor.triggers, said));
                }
                Stage::Refused(_) | Stage::Changing => {}
            }
        }
        match self.member.fence() {
            Ok(fence) if !flight.is_empty() => self.take_off(Arc::new(flight), fence),
            _ => return self.end(Ending::Committed),
        }
        Ok(())
    }

    /// Closes the steps and barriers of at most `limit` partitions, in turn.
    fn seal(&mut self, limit: usize) -> Flight {
        let mut flight = Flight::default();
        let (before, from): (Vec<_>, Vec<_>) =
            self.lanes.keys().copied().partition(|id| *id < self.turn);
        for id in from.into_iter().chain(before) {
            if flight.len() == limit {
                break;
            }
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            lane.before_seal();
            match &mut lane.stage {
                Stage::Active(partition) => {
                    flight.steps.extend(partition.seal().map(|step| (id, step)));
                }
                Stage::Restoring(restoring) => {
                    let Some(takeover) = &restoring.takeover else { continue };
                    if let Ask::Barrier { offset, metadata, nonce } = takeover.ask() {
                        let step = takeover.cursor().step;
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

    /// The transaction is committed: what its steps spill may go into the stores.
    fn settle(&mut self) {
        fault::reached("step.before_settle");
        let Some(flight) = self.flight.take() else { return };
        let now = clock::now_ms();
        self.refused = None;
        for (id, step) in &flight.steps {
            let (Some(lane), Some(delta)) = (self.lanes.get(id), &step.spill) else { continue };
            let local = Local {
                applied: step.cursor.triggers,
                step: step.number,
                ledger_position: lane.ledger_position,
                w: step.cursor.w,
            };
            let (step, ledger_position) = (local.step, local.ledger_position);
            tracing::debug!(partition = id, step, ledger_position, "spilled");
            self.writer.submit(Spill {
                partition: *id,
                store: Arc::clone(&lane.store),
                delta: Arc::clone(delta),
                state: state_of(local, &self.cluster, now),
            });
        }
        for (id, _) in &flight.barriers {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            if let Stage::Restoring(restoring) = &mut lane.stage
                && let Some(takeover) = &mut restoring.takeover
            {
                takeover.on_barrier();
            }
        }
        fault::reached("step.after_settle");
    }

    /// What the writer has brought into the stores is no longer the engine's to answer for.
    pub(super) fn hear_writer(&mut self) -> Result<(), SchedulerError> {
        let written = self.writer.written();
        self.note_written(written)
    }

    /// Waits for whoever writes: a store that is read or closed next must hold what is committed,
    /// and nobody else may have it open.
    pub(super) fn await_stores(&mut self) -> Result<(), SchedulerError> {
        self.await_restorers()?;
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

    fn report_failure(&mut self, error: &TransactionError) {
        tracing::warn!(%error, "a transaction failed; taking over again");
        metrics::counter!(telemetry::COMMIT_FAILURES).increment(1);
        if let TransactionError::Refused { topic, reason, .. } = error {
            self.blame(topic, reason);
        }
    }

    /// A new transactor makes the broker decide what the old one left open. Nothing else can be
    /// done meanwhile.
    fn reopen(&mut self) -> Result<(), SchedulerError> {
        self.flight = None;
        // Opening one takes as long as the broker is away.
        self.health.not_ready("broker", "a transaction failed; opening a producer anew");
        loop {
            match open_relay(&self.settings, &self.rules.owner) {
                Ok(relay) => {
                    self.health.ready("broker");
                    self.relay = Arc::new(relay);
                    let orders = self.tenure.on_reopened();
                    return self.obey(orders);
                }
                Err(error) => {
                    self.health.not_ready("broker", error.to_string());
                    tracing::warn!(%error, "no transactional producer yet");
                    std::thread::park_timeout(REOPEN_PAUSE);
                }
            }
        }
    }

    /// A topic refused a record: look at it again, and if it refuses twice in a row its fires
    /// become dead letters, so that one bad target does not hold up the others.
    fn blame(&mut self, topic: &str, reason: &str) {
        if self.names.owns(topic) && !self.names.is_pools(topic) {
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
