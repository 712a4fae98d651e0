//! Checks one trigger with a lifecycle against its owner's outcomes and fires, in their order.
//!
//! Invariant: what is due when follows from the registration and its `Schedule` alone; what the
//! owner answers changes what is expected, and is itself expected. Each occurrence of a schedule
//! fires once, or is skipped once, in order, and nothing fires that the owner has stopped.

use std::borrow::Cow;
use std::collections::BTreeSet;

use orloj_core::model::lifecycle::{Command, OnFailure};
use orloj_core::model::outcome::{Outcome, OutcomeKind};
use orloj_core::model::schedule::Schedule;
use orloj_core::model::{Millis, Offset, Timestamp};

use super::history::{EventKind, FirstAttempt, SimulatedEvent, TriggerHistory};
use super::pending_generation::PendingGeneration;
use crate::audit::Violation;
use crate::audit::report::Finding;
use crate::simulation::clients::{RequestedChange, RequestedTrigger, UserRequest};

/// The run is over: what is missing will not happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedIdle {
    /// The system became idle in time. If not, what is missing is stuck.
    pub(super) quiet: bool,
    /// What was due by then must have happened, in ms since the epoch.
    pub(super) until: Timestamp,
}

impl SimulatedIdle {
    pub(super) fn missing(self) -> Violation {
        if self.quiet { Violation::Lost } else { Violation::Stuck }
    }
}

struct LifecycleCheck<'a> {
    trigger: &'a str,
    history: &'a TriggerHistory<'a>,
    callback_result_timeout: Millis,
    pending: Option<PendingGeneration<'a>>,
    /// Generations that have ended, and those that were stopped.
    over: BTreeSet<Offset>,
    stopped: BTreeSet<Offset>,
    answered: BTreeSet<Offset>,
    findings: &'a mut Vec<Finding>,
}

/// Checks everything that the logs say about a trigger. `rest`: what has not happened never will.
pub(super) fn check_trigger(
    trigger: &str,
    history: &TriggerHistory<'_>,
    rest: Option<SimulatedIdle>,
    callback_result_timeout: Millis,
    findings: &mut Vec<Finding>,
) {
    let (over, stopped, answered) = Default::default();
    let pending = None;
    let mut check = LifecycleCheck {
        trigger,
        history,
        callback_result_timeout,
        pending,
        over,
        stopped,
        answered,
        findings,
    };
    for event in &history.events {
        check.count_failures(event);
        match &event.what {
            EventKind::Outcome(outcome) => check.on_outcome(event, outcome),
            EventKind::Fired(attempt) => check.on_fire(event, attempt),
        }
    }
    if let Some(rest) = rest.filter(|_| !history.repeated) {
        check.end(rest);
    }
}

impl<'a> LifecycleCheck<'a> {
    fn find(&mut self, violation: Violation, generation: Offset, why: String) {
        let trigger = self.trigger.to_owned();
        self.findings.push(Finding {
            violation,
            trigger,
            generation,
            command_offset: generation,
            why,
        });
    }

    fn on_outcome(&mut self, event: &SimulatedEvent<'_>, outcome: &Outcome) {
        let Some(offset) = outcome.answers else {
            return self.on_unrequested_outcome(event, &outcome.kind);
        };
        if !self.answered.insert(offset) {
            return self.find(Violation::Duplicate, offset, "answered twice".to_owned());
        }
        let (pending, kind) = (self.pending.as_ref().map(|life| life.generation), &outcome.kind);
        let is = |generation: &Offset| pending == Some(*generation);
        let fits = match (self.history.requests.get(&offset).map(|asked| asked.request), kind) {
            (
                Some(UserRequest::Register(wanted)),
                OutcomeKind::Accepted { generation, replaced, fire_at },
            ) => {
                let fits = *generation == offset && *replaced == pending;
                self.accepted(offset, *fire_at, wanted);
                fits
            }
            (Some(UserRequest::Register(wanted)), OutcomeKind::Kept { generation, .. }) => {
                wanted.keeps && is(generation)
            }
            (Some(UserRequest::Cancel), OutcomeKind::Cancelled { generation }) => {
                self.stop();
                // Else it was a retry that it took unavailable.
                pending.is_none_or(|pending| pending == *generation)
            }
            (
                Some(UserRequest::Cancel | UserRequest::Command(_) | UserRequest::Change(_)),
                OutcomeKind::NotPending { .. },
            ) => pending.is_none(),
            (Some(UserRequest::Change(asked)), OutcomeKind::Kept { .. }) => {
                asked.stale && pending.is_some()
            }
            (
                Some(UserRequest::Change(asked)),
                OutcomeKind::Changed { generation, revision, fire_at, executions },
            ) => {
                let fired = self.pending.as_ref().map(|life| life.executions);
                let is_right = is(generation) && *revision == offset && !asked.stale;
                let is_right = is_right && fired == *executions;
                self.changed(offset, *fire_at, asked) && is_right
            }
            (Some(UserRequest::Command(asked)), kind) => self.commanded(event, *asked, kind),
            _ => false,
        };
        if !fits {
            let why = format!("answered {kind:?}, while {pending:?} was pending");
            self.find(Violation::NotStopped, offset, why);
        }
    }

    fn commanded(
        &mut self,
        event: &SimulatedEvent<'_>,
        asked: Command,
        kind: &OutcomeKind,
    ) -> bool {
        let Some(life) = &mut self.pending else { return false };
        match (asked, kind) {
            (Command::Pause, OutcomeKind::Paused { generation, .. }) => {
                life.paused = true;
                *generation == life.generation
            }
            (Command::Resume, OutcomeKind::Resumed { generation, .. }) => {
                if std::mem::take(&mut life.paused) {
                    (life.failures, life.resumed) = (0, Some(event.before));
                }
                *generation == life.generation
            }
            (Command::FireNow, OutcomeKind::Called { generation, occurrence }) => {
                life.called = true;
                (*generation, *occurrence) == (life.generation, life.executions)
            }
            _ => false,
        }
    }

    /// What is pending is another one from now on. Returns whether it is due as was answered.
    fn changed(&mut self, offset: Offset, fire_at: Timestamp, asked: &RequestedChange) -> bool {
        let at = self.history.requests[&offset].at;
        let Some(life) = &mut self.pending else { return false };
        let wanted = life.wanted.to_mut();
        if let Some(payload) = &asked.payload {
            wanted.payload.clone_from(payload);
        }
        wanted.expire_after = asked.expire_after;
        life.next = asked.due.or(life.next);
        if let Some(json) = &asked.schedule {
            let schedule = Schedule::from_json(json).unwrap().anchored(at);
            wanted.schedule = Some(json.clone());
            let was_decided = |at: &Timestamp| {
                let before = life.schedule.as_ref().and_then(|before| before.next(at - 1));
                life.next.is_none_or(|next| *at < next) && before == Some(*at)
            };
            let mut all = std::iter::successors(schedule.first(at), |at| schedule.next(*at));
            let next = all.find(|at| !was_decided(at));
            (life.next, life.schedule) = (next, Some(schedule));
            if !asked.counts_on {
                life.counted_from = life.executions;
            }
            // A report of a failure may have been read before the change, or after it.
            life.loose = true;
        }
        // A schedule of which all was decided before has ended.
        life.next.is_none() || life.by_schedule(self.trigger) == Some(fire_at)
    }

    fn stop(&mut self) {
        self.stopped.extend(self.pending.take().map(|life| life.generation));
    }

    fn accepted(&mut self, generation: Offset, fire_at: Timestamp, wanted: &'a RequestedTrigger) {
        let at = self.history.requests[&generation].at;
        let schedule = wanted.schedule.as_deref();
        let schedule = schedule.map(|json| Schedule::from_json(json).unwrap().anchored(at));
        let next = match &schedule {
            Some(schedule) => schedule.first(at),
            None => Some(wanted.due.unwrap_or(at)),
        };
        let before = self.pending.as_ref().filter(|life| wanted.counts_on && life.recurs());
        let executions = before.map_or(0, |life| life.executions - life.counted_from);
        // The count of failures continues, too.
        let loose = before.is_some();
        self.stop();
        let life = PendingGeneration {
            generation,
            wanted: Cow::Borrowed(wanted),
            schedule,
            next,
            executions,
            counted_from: 0,
            paused: false,
            called: false,
            unmet: false,
            last: None,
            failures: 0,
            counted: 0,
            loose,
            resumed: None,
        };
        if life.by_schedule(self.trigger) != Some(fire_at) {
            let why = format!("answered that it is due {fire_at}, not {:?}", life.next);
            self.find(Violation::WrongContent, generation, why);
        }
        self.pending = Some(life);
    }

    /// An outcome that answers no command.
    fn on_unrequested_outcome(&mut self, event: &SimulatedEvent<'_>, kind: &OutcomeKind) {
        let Some(life) = &mut self.pending else {
            if !matches!(kind, OutcomeKind::Cancelled { .. }) {
                let why = format!("nothing is pending, but: {kind:?}");
                self.find(Violation::Unexpected, 0, why);
            }
            return;
        };
        let before = life.describe();
        let right = match kind {
            OutcomeKind::Skipped { generation, occurrences, from, until, .. } => {
                *generation == life.generation && life.skip_occurrences(*occurrences, *from, *until)
            }
            OutcomeKind::Ended { generation, executions } => {
                (*generation, *executions) == (life.generation, life.executions) && life.is_over()
            }
            OutcomeKind::Expired { generation, fire_at } => {
                let late = life.wanted.expire_after.map(|most| fire_at + most);
                *generation == life.generation
                    && !life.called
                    && late.is_some_and(|late| late < event.clock)
            }
            OutcomeKind::Unmet { generation, then, .. } => {
                let (twice, waits) = (life.unmet, !life.wanted.after.is_empty());
                life.unmet = true;
                *generation == life.generation && !twice && waits && *then == life.wanted.on_failure
            }
            OutcomeKind::Paused { generation, .. } => {
                *generation == life.generation && life.failed_often(self.history)
            }
            OutcomeKind::Cancelled { .. } => true,
            _ => false,
        };
        if !right {
            let (generation, why) = (life.generation, format!("{kind:?}, with {before}"));
            self.find(Violation::Unexpected, generation, why);
        }
        let ends = match kind {
            OutcomeKind::Ended { .. } | OutcomeKind::Expired { .. } => true,
            OutcomeKind::Unmet { then, .. } => *then != OnFailure::Fire,
            _ => false,
        };
        if ends {
            self.over.extend(self.pending.take().map(|life| life.generation));
        }
    }

    fn on_fire(&mut self, event: &SimulatedEvent<'_>, attempt: &FirstAttempt) {
        let (generation, occurrence) = (attempt.id.generation, attempt.id.occurrence);
        let Some(life) = self.pending.as_mut().filter(|life| life.generation == generation) else {
            let (violation, why) = if self.stopped.contains(&generation) {
                (Violation::NotStopped, "was stopped before")
            } else if self.over.contains(&generation) {
                (Violation::Duplicate, "had ended before")
            } else {
                (Violation::Unexpected, "it was not registered")
            };
            return self.find(violation, generation, format!("occurrence {occurrence}: {why}"));
        };
        let before = life.describe();
        let wrong = life.check_attempt(self.trigger, event, attempt);
        let wrong = wrong
            .or_else(|| life.overlaps(self.history, event, attempt, self.callback_result_timeout));
        life.called = false;
        life.last = attempt.settles.then_some((occurrence, attempt.decided));
        life.executions = occurrence + 1;
        if !life.recurs() {
            self.over.extend(self.pending.take().map(|life| life.generation));
        }
        if let Some((violation, why)) = wrong {
            let why =
                format!("occurrence {occurrence}, due {}: {why}; {before}", attempt.scheduled);
            self.find(violation, generation, why);
        }
    }

    /// Counts workers' reports, as far as the owner had read them before an event.
    fn count_failures(&mut self, event: &SimulatedEvent<'_>) {
        let Some(life) = &mut self.pending else { return };
        while let Some(report) = self.history.settled.get(life.counted) {
            if report.offset >= event.before.signals {
                break;
            }
            life.counted += 1;
            if report.settled.id.generation == life.generation {
                // A callback that ended while it was paused does not count: the step that resumes
                // it may have read the report before the command, or after it.
                life.loose |= life.paused || life.resumed.is_some();
                life.failures = if report.settled.ok { 0 } else { life.failures + 1 };
            }
        }
        life.resumed = life.resumed.filter(|before| *before == event.before);
    }

    /// Checks what is missing at the end.
    fn end(&mut self, rest: SimulatedIdle) {
        let unanswered: Vec<Offset> = self
            .history
            .requests
            .keys()
            .filter(|offset| !self.answered.contains(offset))
            .copied()
            .collect();
        for offset in unanswered {
            let why = format!("{:?}", self.history.requests[&offset].request);
            self.find(Violation::Unanswered, offset, why);
        }
        let Some(life) = self.pending.take() else { return };
        let due = match life.due(self.trigger) {
            _ if life.called => Some(0),
            _ if life.paused => None,
            due if life.wanted.after.is_empty() => due.or(Some(0)),
            due => due.max(Some(self.history.requests[&life.generation].at + life.wanted.timeout)),
        };
        if due.is_some_and(|due| due <= rest.until) {
            let why = format!("due {due:?}, and still pending: {}", life.describe());
            self.find(rest.missing(), life.generation, why);
        }
    }
}
