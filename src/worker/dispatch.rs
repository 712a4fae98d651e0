//! From a fire that was read to a callback in progress: its caller's queue, its host's circuit.
//!
//! Invariant: only a caller's own fires wait for that caller. A fire that cannot wait goes back to
//! its owner as a signal: no request is made, no attempt is counted, and its record of the log is
//! finished. A cancelled fire is withdrawn only if no worker can have started its callback.

use std::num::NonZeroU32;
use std::sync::Arc;

use reqwest::Url;

use super::Worker;
use super::circuit::{CircuitTransition, HostHealth, Route, Ticket};
use super::completion::{CompletedFire, Completion};
use super::deferral::DeferralCause;
use super::queue::QueueLimits;
use crate::callers::Caller;
use crate::clock;
use crate::config::WorkerSettings;
use crate::model::definition::Target;
use crate::model::fire::{Fire, Withdrawal};
use crate::model::outcome::{Circuit, CircuitState, Outcome, OutcomeKind};
use crate::model::text::Text;
use crate::model::{Millis, Offset, PartitionId};
use crate::telemetry;

/// A fire that was read and whose callback has not started.
#[derive(Debug)]
pub(super) struct WaitingFire {
    pub(super) partition: PartitionId,
    pub(super) epoch: u64,
    pub(super) offset: Offset,
    pub(super) route: Route,
    pub(super) fire: Box<Fire>,
}

/// What a callback in progress occupies until it ends.
#[derive(Debug)]
pub(super) struct Permit {
    pub(super) route: Route,
    pub(super) ticket: Ticket,
}

impl Worker {
    /// Queues a fire that was read, or defers it.
    pub(super) fn offer(&mut self, waiting: WaitingFire) {
        if let Some(wait) = self.circuits.blocked_for(&waiting.route, clock::monotonic()) {
            return self.defer(waiting, DeferralCause::CircuitOpen(wait));
        }
        let caller = waiting.route.caller.clone();
        let own = self.callers.for_record(caller.as_ref().map(Text::as_str));
        let limits = queue_limits(&own, &self.settings.worker);
        let priority = waiting.fire.priority;
        match self.queue.offer(&caller, limits, priority, waiting) {
            Ok(()) => self.start_callbacks(),
            Err(waiting) => self.defer(waiting, DeferralCause::QueueFull),
        }
    }

    /// After the callers file was read again, applies its limits to the callers in the queue.
    pub(super) fn refresh_limits(&mut self) {
        let callers = self.callers.current();
        if Arc::ptr_eq(&callers, &self.applied_callers) {
            return;
        }
        self.applied_callers = callers;
        let defaults = &self.settings.worker;
        let callers = &self.applied_callers;
        self.queue.set_limits(|caller| {
            queue_limits(callers.by_id(caller.as_ref().map(Text::as_str)), defaults)
        });
    }

    /// Starts the callbacks for which there is capacity, but none during a shutdown.
    pub(super) fn start_callbacks(&mut self) {
        while !self.shutdown.is_cancelled() && !self.is_full() {
            let now = clock::monotonic();
            let Some(waiting) = self.queue.start(now) else { return };
            match self.circuits.admit(&waiting.route, now) {
                Ok(ticket) => {
                    self.record_start(&waiting);
                    let permit = Permit { route: waiting.route.clone(), ticket };
                    self.start_callback(waiting, permit);
                }
                Err(wait) => {
                    self.queue.cancel_started(&waiting.route.caller);
                    self.defer(waiting, DeferralCause::CircuitOpen(wait));
                }
            }
        }
    }

    /// A request is about to start: from here on the fire cannot be withdrawn.
    fn record_start(&mut self, waiting: &WaitingFire) {
        let owned = self.partitions.get_mut(&waiting.partition);
        if let Some(running) = owned.and_then(|owned| owned.in_epoch(waiting.epoch)) {
            running.start(waiting.offset);
        }
    }

    /// Removes the waiting fires that a cancel withdraws, if no worker can have started them: each
    /// is finished in the transaction that reports it, and so is the record at `offset`, which
    /// requested it.
    pub(super) fn withdraw(
        &mut self,
        (partition, epoch, offset): (PartitionId, u64, Offset),
        withdrawal: &Withdrawal,
    ) {
        let at = clock::now_ms();
        let owned = self.partitions.get_mut(&partition);
        let Some(running) = owned.and_then(|owned| owned.in_epoch(epoch)) else { return };
        let never_started = |waiting: &WaitingFire| {
            waiting.partition == partition && running.was_never_started(waiting.offset)
        };
        let matches =
            |waiting: &WaitingFire| never_started(waiting) && withdrawal.matches(&waiting.fire.id);
        for WaitingFire { offset, fire, .. } in self.queue.withdraw(matches) {
            let completion = Completion::Withdrawn { id: fire.id, report_end: fire.report_end };
            self.record_completion(CompletedFire { partition, epoch, offset, at, completion });
        }
        self.record_completion(CompletedFire {
            partition,
            epoch,
            offset,
            at,
            completion: Completion::WithdrawalProcessed,
        });
    }

    /// A callback has ended: frees its capacity and records the result with its circuit.
    pub(super) fn on_callback_ended(&mut self, ended: CompletedFire, permit: &Permit) {
        let Permit { route, ticket } = permit;
        self.queue.end(&route.caller);
        if let Completion::Attempt(_, response, _) = &ended.completion {
            self.circuits.record(
                route,
                *ticket,
                &HostHealth::of_response(response),
                clock::monotonic(),
            );
        }
        self.record_completion(ended);
    }

    /// Reading `partition` has stopped because its window is full. Its waiting fires go back to
    /// their owner, so that only callbacks in progress can delay it.
    pub(super) fn defer_waiting(&mut self, partition: PartitionId) {
        for waiting in self.queue.withdraw(|waiting| waiting.partition == partition) {
            self.defer(waiting, DeferralCause::WindowFull);
        }
    }

    /// Drops the waiting fires of a partition: its next owner reads them again.
    pub(super) fn discard_waiting(&mut self, partition: PartitionId) {
        drop(self.queue.withdraw(|waiting| waiting.partition == partition));
    }

    fn defer(&mut self, waiting: WaitingFire, cause: DeferralCause) {
        let WaitingFire { partition, epoch, offset, fire, .. } = waiting;
        metrics::counter!(telemetry::DEFERRED, "reason" => cause.label()).increment(1);
        let at = clock::now_ms();
        let delay = Millis::try_from(self.delays.delay(&fire.id, cause).as_millis());
        let due = at.saturating_add(delay.unwrap_or(Millis::MAX));
        let completion = Completion::Deferred { fire, due, reason: cause.reason() };
        self.record_completion(CompletedFire { partition, epoch, offset, at, completion });
    }

    /// Removes idle circuits, and records every change of a circuit as an outcome.
    pub(super) fn update_circuits(&mut self) {
        let now = clock::monotonic();
        if self.circuits.sweep(now) {
            for (state, count) in self.circuits.count_by_state() {
                let state = match state {
                    CircuitState::Closed => "closed",
                    CircuitState::Open => "open",
                    CircuitState::HalfOpen => "half_open",
                };
                metrics::gauge!(telemetry::CIRCUITS, "state" => state).set(count as f64);
            }
        }
        for change in self.circuits.take_transitions() {
            let outcome = self.circuit_outcome(change);
            self.oldest_result_at.get_or_insert(now);
            self.circuit_outcomes.push(outcome);
        }
    }

    fn circuit_outcome(&self, change: CircuitTransition) -> Outcome {
        let CircuitTransition { route: Route { caller, host }, state, reason, probe_in } = change;
        tracing::info!(?caller, %host, ?state, reason, "circuit changed");
        let (worker, at) = (self.transactional_id.as_str().into(), clock::now_ms());
        let probe_in =
            probe_in.map(|wait| Millis::try_from(wait.as_millis()).unwrap_or(Millis::MAX));
        let probe_at = probe_in.map(|wait| at.saturating_add(wait));
        let circuit = Circuit { worker, caller, host, state, reason, probe_at };
        Outcome { trigger: circuit.key(), answers: None, at, kind: OutcomeKind::Circuit(circuit) }
    }
}

/// The limits of a caller: of its own entry, and where it has none, of the settings.
fn queue_limits(caller: &Caller, defaults: &WorkerSettings) -> QueueLimits {
    let own = &caller.limits;
    let rate = own.dispatch_rate_max.unwrap_or(defaults.caller_dispatch_rate_max);
    QueueLimits {
        concurrent: own.concurrent.unwrap_or(defaults.caller_in_flight_max).get(),
        waiting: own.waiting.unwrap_or(defaults.caller_queue_max).get(),
        rate: NonZeroU32::new(rate),
    }
}

impl Route {
    /// The route of a fire. A target that is no URL has no host and is never requested.
    pub(super) fn of(fire: &Fire) -> Self {
        let caller = fire.definition.caller.clone();
        let url = match &fire.definition.target {
            Target::Http(target) => Url::parse(target.url.as_str()).ok(),
            Target::Topic(_) => None,
        };
        let host = url.as_ref().and_then(|url| {
            let host = url.host_str()?;
            Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
        });
        Self { caller, host: host.unwrap_or_default().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::CallerTable;
    use crate::config::{Layers, Settings};
    use crate::model::definition::{Definition, HttpTarget};
    use crate::model::entry::FireId;

    #[test]
    fn a_caller_has_its_own_limits_and_otherwise_those_of_the_worker() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callers.toml");
        let entries = "callers.swift.limits.dispatch_rate_max = 0\n\
                       callers.slow.limits = { dispatch_rate_max = 3, concurrent = 2 }\n";
        std::fs::write(&file, entries).unwrap();
        let file = format!("callers.file={}", file.display());
        let overrides = vec![file, "worker.caller_dispatch_rate_max=50".to_owned()];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let callers = CallerTable::read(&settings).unwrap();
        let of = |caller| queue_limits(callers.by_id(caller), &settings.worker);
        assert_eq!(
            of(None),
            QueueLimits { concurrent: 100, waiting: 5_000, rate: NonZeroU32::new(50) }
        );
        assert_eq!(of(Some("swift")), QueueLimits { rate: None, ..of(None) });
        let slow = QueueLimits { rate: NonZeroU32::new(3), concurrent: 2, waiting: 5_000 };
        assert_eq!(of(Some("slow")), slow);
    }

    #[test]
    fn a_route_is_a_caller_and_a_normalized_host() {
        let host = |url: &str| {
            let id = FireId {
                trigger: "a".into(),
                generation: 1,
                occurrence: 0,
                attempt: 1,
                deferral: 0,
            };
            let target = Target::from(HttpTarget::post(url));
            let caller = Some("billing".into());
            let definition =
                Definition { target, payload: None, headers: Vec::new(), retry: None, caller };
            let (scheduled, fired, history, report_end, priority) = (0, 0, None, false, 127);
            let fire = Fire { id, scheduled, fired, definition, history, report_end, priority };
            let route = Route::of(&fire);
            assert_eq!(route.caller, Some("billing".into()));
            route.host.to_string()
        };
        assert_eq!(host("https://Example.com/a?b=c"), "example.com");
        assert_eq!(host("https://example.com:443/"), "example.com");
        assert_eq!(host("http://me:pass@example.com:8080/"), "example.com:8080");
        assert_eq!(host("http://[::1]:9/"), "[::1]:9");
        assert_eq!(host("no url"), "");
    }
}
