//! From a fire that was read to a callback in progress: its caller's queue, its host's circuit.
//!
//! Invariant: only a caller's own fires wait for that caller. A fire that cannot wait goes back to
//! its owner as a signal: no request is made, no attempt is counted, and its record of the log is
//! finished. A cancelled fire is withdrawn only if no worker can have started its callback.

use std::time::Duration;

use super::Worker;
use super::callback::{
    Callback, CallbackEnd, CallbackMaking as _, FirePlace, Permit, WorkerEnvironment,
    WorkerReporter as _,
};
use super::circuit::{CircuitTransition, HostHealth, Route, Ticket};
use super::completion::Completion;
use super::deferral::DeferralCause;
use super::partition::RESUME_ROOM;
use super::returns::ReturnGroup;
use crate::environment::Clock as _;
use crate::model::fire::{Fire, Withdrawal};
use crate::model::outcome::{Circuit, Outcome, OutcomeKind};
use crate::model::time::whole_ms;
use crate::model::{Offset, PartitionId};

/// A fire that was read and whose callback has not started.
#[derive(Debug)]
pub(super) struct WaitingFire {
    pub(super) place: FirePlace,
    pub(super) route: Route,
    pub(super) fire: Box<Fire>,
    /// About how many it has.
    pub(super) bytes: usize,
}

impl<E: WorkerEnvironment> Worker<E> {
    /// Queues a fire that was read, or defers it.
    pub(super) fn offer(&mut self, waiting: WaitingFire) {
        if let Some(wait) = self.circuits.blocked_for(&waiting.route, self.clock.monotonic()) {
            return self.defer(waiting, DeferralCause::CircuitOpen(wait));
        }
        if self.is_left_to_others(&waiting.route) {
            return self.leave_to_others(waiting);
        }
        let caller = waiting.route.caller.clone();
        let limits = self.callbacks.limits(&caller);
        let priority = waiting.fire.priority;
        match self.queue.offer(&caller, limits, priority, waiting) {
            Ok(()) => self.start_callbacks(),
            Err(waiting) => self.defer(waiting, DeferralCause::QueueFull),
        }
    }

    /// After the limits of callers have changed, applies them to the callers in the queue.
    pub(super) fn refresh_limits(&mut self) {
        if self.callbacks.have_limits_changed() {
            let callbacks = &self.callbacks;
            self.queue.set_limits(|caller| callbacks.limits(caller));
        }
    }

    /// Starts the callbacks for which there is capacity.
    pub(super) fn start_callbacks(&mut self) {
        while !self.is_full() {
            let now = self.clock.monotonic();
            let Some(waiting) = self.queue.start(now) else { return };
            if self.is_left_to_others(&waiting.route) {
                self.queue.cancel_started(&waiting.route.caller, waiting.bytes);
                self.leave_to_others(waiting);
                continue;
            }
            match self.circuits.admit(&waiting.route, now) {
                Ok(ticket) => self.start_callback(waiting, ticket, now),
                Err(wait) => {
                    self.queue.cancel_started(&waiting.route.caller, waiting.bytes);
                    self.defer(waiting, DeferralCause::CircuitOpen(wait));
                }
            }
        }
    }

    fn start_callback(&mut self, waiting: WaitingFire, ticket: Ticket, started: Duration) {
        self.record_start(&waiting);
        let WaitingFire { place, route, fire, bytes } = waiting;
        self.in_progress.start(started, place, &route);
        let permit = Permit { route, ticket, started };
        self.callbacks.start(Callback { place, fire, bytes, permit });
    }

    /// A request is about to start: from here on the fire cannot be withdrawn.
    fn record_start(&mut self, waiting: &WaitingFire) {
        let owned = self.partitions.get_mut(&waiting.place.partition);
        if let Some(running) = owned.and_then(|owned| owned.in_epoch(waiting.place.epoch)) {
            running.start(waiting.place.offset);
        }
    }

    /// Removes the waiting fires that a cancel withdraws, if no worker can have started them: each
    /// is finished in the transaction that reports it, and so is the record at `place`, which
    /// requested it.
    pub(super) fn withdraw(&mut self, place: FirePlace, withdrawal: &Withdrawal) {
        let owned = self.partitions.get_mut(&place.partition);
        let Some(running) = owned.and_then(|owned| owned.in_epoch(place.epoch)) else { return };
        let never_started = |waiting: &WaitingFire| {
            waiting.place.partition == place.partition
                && running.was_never_started(waiting.place.offset)
        };
        let matches =
            |waiting: &WaitingFire| never_started(waiting) && withdrawal.matches(&waiting.fire.id);
        let mut withdrawn = self.queue.withdraw(matches);
        if let Some(leaving) = &mut self.leaving {
            withdrawn.extend(leaving.withdraw(place.partition, matches));
        }
        for WaitingFire { place, fire, .. } in withdrawn {
            let completion = Completion::Withdrawn { id: fire.id, report_end: fire.report_end };
            self.record_completion(place, completion);
        }
        self.record_completion(place, Completion::WithdrawalProcessed);
    }

    /// A callback has ended: frees its capacity and records the result with its circuit.
    pub(super) fn on_callback_ended(&mut self, end: CallbackEnd) {
        let CallbackEnd { callback, response, took, at } = end;
        let Callback { place, fire, bytes, permit } = callback;
        let Permit { route, ticket, started } = permit;
        self.queue.end(&route.caller, bytes);
        self.in_progress.end(started, place);
        let health = HostHealth::of_response(&response);
        self.circuits.record(&route, ticket, &health, self.clock.monotonic());
        self.record_completion_at(place, at, Completion::Attempt(fire, response, took));
    }

    /// Reading `partition` has stopped at `offset` because its window is full. Its waiting fires go
    /// back to their owner, so that only callbacks in progress can delay it; but those that are
    /// not kept for another worker only if there is too little room without the others.
    pub(super) fn defer_waiting(&mut self, partition: PartitionId, offset: Offset) {
        let held = self.take_held(partition);
        let running = self.partitions.get(&partition).and_then(|owned| owned.running.as_ref());
        let room = running.map_or(0, |it| it.progress.room_without(offset, held.len()));
        for waiting in held {
            self.defer_in_shutdown(waiting);
        }
        if room >= RESUME_ROOM {
            return;
        }
        for waiting in self.take_queued(partition) {
            self.defer(waiting, DeferralCause::WindowFull);
        }
    }

    /// Drops the waiting fires of a partition: its next owner reads them again.
    pub(super) fn discard_waiting(&mut self, partition: PartitionId) {
        drop(self.take_held(partition));
        drop(self.take_queued(partition));
    }

    fn take_queued(&mut self, partition: PartitionId) -> Vec<WaitingFire> {
        self.queue.withdraw(|waiting| waiting.place.partition == partition)
    }

    /// Those that are kept for the next owner.
    fn take_held(&mut self, partition: PartitionId) -> Vec<WaitingFire> {
        let leaving = self.leaving.as_mut();
        leaving.map_or_else(Vec::new, |leaving| leaving.withdraw(partition, |_| true))
    }

    pub(super) fn defer(&mut self, waiting: WaitingFire, cause: DeferralCause) {
        let WaitingFire { place, route, fire, bytes } = waiting;
        self.reporter.deferred(cause.label());
        let now = self.clock.monotonic();
        let mut wait =
            |group, deferrals| self.returns.wait((&route.caller, group), bytes, deferrals, now);
        let before = match cause {
            DeferralCause::QueueFull | DeferralCause::WindowFull => {
                wait(ReturnGroup::of_bytes(bytes), fire.id.deferral)
            }
            // All return soon after it has closed, however long it was open.
            DeferralCause::CircuitOpen(_) => wait(ReturnGroup::Circuit, 0),
            // Another worker has room for them soon.
            DeferralCause::ShuttingDown(_) => Duration::ZERO,
        };
        let delay = self.config.deferral.delay_after(before, &fire.id, cause);
        let due = self.clock.now_ms().saturating_add(whole_ms(delay));
        let reason = cause.reason();
        self.record_completion(place, Completion::Deferred { fire, due, reason });
    }

    /// Removes idle circuits, and records every change of a circuit as an outcome.
    pub(super) fn update_circuits(&mut self) {
        let now = self.clock.monotonic();
        if self.circuits.sweep(now) {
            for (state, count) in self.circuits.count_by_state() {
                self.reporter.circuits(state, count);
            }
        }
        for change in self.circuits.take_transitions() {
            let outcome = self.circuit_outcome(change);
            self.results.add_circuit(outcome, now);
        }
    }

    fn circuit_outcome(&self, change: CircuitTransition) -> Outcome {
        let CircuitTransition { route: Route { caller, host }, state, reason, probe_in } = change;
        tracing::info!(?caller, %host, ?state, reason, "circuit changed");
        let (worker, at) = (self.config.id.clone(), self.clock.now_ms());
        let probe_at = probe_in.map(|wait| at.saturating_add(whole_ms(wait)));
        let circuit = Circuit { worker, caller, host, state, reason, probe_at };
        Outcome {
            trigger: circuit.key(),
            answers: None,
            request: None,
            at,
            kind: OutcomeKind::Circuit(circuit),
        }
    }
}
