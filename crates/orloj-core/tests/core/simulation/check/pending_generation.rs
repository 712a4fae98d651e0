//! A generation that is pending, as the owner's outcomes and fires have made it so far.
//!
//! Invariant: when it is due next follows from what was registered and changed, and its schedule.

use std::borrow::Cow;

use orloj_core::model::schedule::{Overlap, Schedule};
use orloj_core::model::{Millis, Offset, Timestamp};

use super::history::{FirstAttempt, SimulatedEvent, TriggerHistory};
use crate::audit::Violation;
use crate::simulation::broker::SimulatedDecidedOffsets;
use crate::simulation::clients::RequestedTrigger;

/// A generation that is pending.
pub(super) struct PendingGeneration<'a> {
    pub(super) generation: Offset,
    pub(super) wanted: Cow<'a, RequestedTrigger>,
    pub(super) schedule: Option<Schedule>,
    /// When it is due next by its schedule, before jitter; without a schedule, its only due time.
    pub(super) next: Option<Timestamp>,
    pub(super) executions: u32,
    pub(super) counted_from: u32,
    pub(super) paused: bool,
    pub(super) called: bool,
    pub(super) unmet: bool,
    /// The last one that fired: its occurrence, and when, by the owner's clock.
    pub(super) last: Option<(u32, Timestamp)>,
    /// Consecutive failures so far, and how many workers' reports were counted for them.
    pub(super) failures: u32,
    pub(super) counted: usize,
    /// The number of failures is uncertain.
    pub(super) loose: bool,
    /// What was decided before the step that resumed it, until there is an event of another step.
    pub(super) resumed: Option<SimulatedDecidedOffsets>,
}

impl PendingGeneration<'_> {
    pub(super) fn recurs(&self) -> bool {
        self.schedule.is_some()
    }

    /// When it is due next by its registration.
    pub(super) fn due(&self, trigger: &str) -> Option<Timestamp> {
        self.by_schedule(trigger).filter(|_| !self.has_had_all())
    }

    /// The same, whatever the number of its executions.
    pub(super) fn by_schedule(&self, trigger: &str) -> Option<Timestamp> {
        let next = self.next?;
        Some(self.schedule.as_ref().map_or(next, |schedule| schedule.jittered(trigger, next)))
    }

    pub(super) fn has_had_all(&self) -> bool {
        let most = self.schedule.as_ref().and_then(Schedule::max_executions);
        most.is_some_and(|most| self.executions - self.counted_from >= most)
    }

    pub(super) fn is_over(&self) -> bool {
        self.has_had_all() || self.next.is_none()
    }

    /// Whether it fires although the callback of the last occurrence is in progress.
    pub(super) fn overlaps(
        &self,
        history: &TriggerHistory<'_>,
        event: &SimulatedEvent<'_>,
        attempt: &FirstAttempt,
        callback_result_timeout: Millis,
    ) -> Option<(Violation, String)> {
        let (last, at) = self.last?;
        let allowed = self.schedule.as_ref()?.overlap() == Overlap::Allow;
        let ended = history.settled.iter().any(|report| {
            let id = &report.settled.id;
            (id.generation, id.occurrence) == (self.generation, last)
                && report.appended <= event.appended
        });
        let decided = if attempt.http { attempt.decided } else { event.clock };
        let lapsed = decided >= at + callback_result_timeout;
        let why = format!("the callback of occurrence {last} is in progress");
        (!allowed && !self.called && !ended && !lapsed).then_some((Violation::Early, why))
    }

    /// For the text of a finding.
    pub(super) fn describe(&self) -> String {
        let Self { next, executions, paused, called, failures, loose, .. } = self;
        format!(
            "next {next:?} after {executions}, paused {paused}, called {called}, {failures} \
             failures{}, {:?}",
            if *loose { " (uncertain)" } else { "" },
            self.wanted.schedule
        )
    }

    /// Occurrences are skipped. Returns whether they are the next ones, and their number is right.
    pub(super) fn skip_occurrences(
        &mut self,
        occurrences: u32,
        from: Timestamp,
        until: Timestamp,
    ) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        let all = std::iter::successors(self.next, |at| schedule.next(*at));
        let all: Vec<Timestamp> = all.take_while(|at| *at <= until).collect();
        let right = (all.first(), all.last()) == (Some(&from), Some(&until))
            && all.len() == occurrences as usize
            && !self.paused;
        self.next = schedule.next(until);
        right
    }

    /// What is wrong with a fire, if anything. Advances to the next occurrence.
    pub(super) fn check_attempt(
        &mut self,
        trigger: &str,
        event: &SimulatedEvent<'_>,
        attempt: &FirstAttempt,
    ) -> Option<(Violation, String)> {
        let find = |violation, why: &str| Some((violation, why.to_owned()));
        if attempt.payload != self.wanted.payload {
            return find(Violation::WrongContent, "another payload");
        }
        if attempt.id.occurrence < self.executions {
            return find(Violation::Duplicate, "it has fired before");
        }
        if attempt.id.occurrence > self.executions || self.due(trigger).is_none() {
            return find(Violation::Unexpected, "this is not the next one");
        }
        let (called, due) = (self.called, self.due(trigger));
        if !called || !self.recurs() {
            let next = self.next.and_then(|next| self.schedule.as_ref()?.next(next));
            self.next = next;
            if Some(attempt.scheduled) != due {
                return find(Violation::Lost, &format!("the next one is due {due:?}"));
            }
        }
        if called {
            return None;
        }
        if attempt.scheduled > event.clock.min(event.committed) {
            return find(Violation::Early, "fired before");
        }
        if self.paused {
            return find(Violation::NotStopped, "it is paused");
        }
        let most = self.schedule.as_ref().and_then(Schedule::pause_after);
        if !self.loose && most.is_some_and(|most| self.failures >= most) {
            return find(Violation::NotStopped, "it has failed too often");
        }
        None
    }

    /// The owner has paused it: counts reports until it has failed as often as its schedule says.
    pub(super) fn failed_often(&mut self, history: &TriggerHistory<'_>) -> bool {
        let Some(most) = self.schedule.as_ref().and_then(Schedule::pause_after) else {
            return false;
        };
        while self.failures < most && !self.loose {
            let Some(report) = history.settled.get(self.counted) else { return false };
            self.counted += 1;
            if report.settled.id.generation == self.generation {
                self.failures = if report.settled.ok { 0 } else { self.failures + 1 };
            }
        }
        (self.paused, self.failures) = (true, 0);
        true
    }
}
