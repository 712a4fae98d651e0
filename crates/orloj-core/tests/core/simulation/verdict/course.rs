//! One trigger with a course, judged by what its owner said and did, in its order.
//!
//! Invariant: what is due when follows from the registration and its `Schedule` alone; what the
//! owner answers moves on what is expected, and is itself expected. Each occurrence of a schedule
//! fires once, or is left out once, in order, and nothing fires that the owner has stopped.

use std::collections::BTreeSet;

use orloj_core::model::lifecycle::{Command, OnFailure};
use orloj_core::model::outcome::{Outcome, OutcomeKind};
use orloj_core::model::schedule::{Overlap, Schedule};
use orloj_core::model::{Millis, Offset, Timestamp};

use super::story::{Shot, SimulatedEvent, TriggerHistory, What};
use crate::audit::Violation;
use crate::audit::report::Finding;
use crate::simulation::broker::SimulatedDecidedOffsets;
use crate::simulation::people::{Wanted, Wish};

/// Nothing is left to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedIdle {
    /// It came to rest by itself. If not, what is missing is stuck.
    pub(super) quiet: bool,
    /// What was due by then must have happened, in ms since the epoch.
    pub(super) until: Timestamp,
}

impl SimulatedIdle {
    pub(super) fn missing(self) -> Violation {
        if self.quiet { Violation::Lost } else { Violation::Stuck }
    }
}

/// A generation that is pending.
struct Life<'a> {
    generation: Offset,
    wanted: &'a Wanted,
    schedule: Option<Schedule>,
    /// When it is due next by its schedule, before its jitter; once only if it has none.
    next: Option<Timestamp>,
    executions: u32,
    paused: bool,
    called: bool,
    unmet: bool,
    /// The last one that fired: its occurrence, and when, by the owner's clock.
    last: Option<(u32, Timestamp)>,
    /// How many failures in a row were heard of, and how much of what workers said that is.
    failures: u32,
    counted: usize,
    /// That number is not to be known from here.
    loose: bool,
    /// What was decided before the step that resumed it, until another step is heard of.
    resumed: Option<SimulatedDecidedOffsets>,
}

struct LifecycleCheck<'a> {
    trigger: &'a str,
    story: &'a TriggerHistory<'a>,
    open_ttl: Millis,
    pending: Option<Life<'a>>,
    /// Generations that have come to their end, and those that were stopped.
    over: BTreeSet<Offset>,
    stopped: BTreeSet<Offset>,
    answered: BTreeSet<Offset>,
    findings: &'a mut Vec<Finding>,
}

/// Judges all that the logs say of a trigger. `rest`: what has not happened never will.
pub(super) fn judge(
    trigger: &str,
    story: &TriggerHistory<'_>,
    rest: Option<SimulatedIdle>,
    open_ttl: Millis,
    findings: &mut Vec<Finding>,
) {
    let (over, stopped, answered) = Default::default();
    let pending = None;
    let mut judge =
        LifecycleCheck { trigger, story, open_ttl, pending, over, stopped, answered, findings };
    for event in &story.events {
        judge.count_failures(event);
        match &event.what {
            What::Said(outcome) => judge.said(event, outcome),
            What::Fired(shot) => judge.fired(event, shot),
        }
    }
    if let Some(rest) = rest.filter(|_| !story.repeated) {
        judge.end(rest);
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

    fn said(&mut self, event: &SimulatedEvent<'_>, outcome: &Outcome) {
        let Some(offset) = outcome.answers else { return self.noted(event, &outcome.kind) };
        if !self.answered.insert(offset) {
            return self.find(Violation::Duplicate, offset, "answered twice".to_owned());
        }
        let (pending, verdict) = (self.pending.as_ref().map(|life| life.generation), &outcome.kind);
        let is = |generation: &Offset| pending == Some(*generation);
        let fits = match (self.story.told.get(&offset).map(|told| told.wish), verdict) {
            (
                Some(Wish::Register(wanted)),
                OutcomeKind::Accepted { generation, replaced, fire_at },
            ) => {
                let fits = *generation == offset && *replaced == pending;
                self.accepted(offset, *fire_at, wanted);
                fits
            }
            (Some(Wish::Register(wanted)), OutcomeKind::Kept { generation, .. }) => {
                wanted.keeps && is(generation)
            }
            (Some(Wish::Cancel), OutcomeKind::Cancelled { generation }) => {
                self.stop();
                // Else it was a retry that it took away.
                pending.is_none_or(|pending| pending == *generation)
            }
            (Some(Wish::Cancel | Wish::Command(_)), OutcomeKind::NotPending { .. }) => {
                pending.is_none()
            }
            (Some(Wish::Command(asked)), verdict) => self.commanded(event, *asked, verdict),
            _ => false,
        };
        if !fits {
            let why = format!("answered {verdict:?}, while {pending:?} was pending");
            self.find(Violation::NotStopped, offset, why);
        }
    }

    fn commanded(
        &mut self,
        event: &SimulatedEvent<'_>,
        asked: Command,
        verdict: &OutcomeKind,
    ) -> bool {
        let Some(life) = &mut self.pending else { return false };
        match (asked, verdict) {
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

    fn stop(&mut self) {
        self.stopped.extend(self.pending.take().map(|life| life.generation));
    }

    fn accepted(&mut self, generation: Offset, fire_at: Timestamp, wanted: &'a Wanted) {
        let at = self.story.told[&generation].at;
        let schedule = wanted.schedule.as_deref();
        let schedule = schedule.map(|json| Schedule::from_json(json).unwrap().anchored(at));
        let next = match &schedule {
            Some(schedule) => schedule.first(at),
            None => Some(wanted.due.unwrap_or(at)),
        };
        let before = self.pending.as_ref().filter(|life| wanted.counts_on && life.recurs());
        let executions = before.map_or(0, |life| life.executions);
        // Failures are counted on, too.
        let loose = before.is_some();
        self.stop();
        let life = Life {
            generation,
            wanted,
            schedule,
            next,
            executions,
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

    /// What nobody asked for.
    fn noted(&mut self, event: &SimulatedEvent<'_>, verdict: &OutcomeKind) {
        let Some(life) = &mut self.pending else {
            if !matches!(verdict, OutcomeKind::Cancelled { .. }) {
                let why = format!("nothing is pending, but: {verdict:?}");
                self.find(Violation::Unexpected, 0, why);
            }
            return;
        };
        let was = life.tell();
        let right = match verdict {
            OutcomeKind::Skipped { generation, occurrences, from, until, .. } => {
                *generation == life.generation && life.left_out(*occurrences, *from, *until)
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
                *generation == life.generation && life.failed_often(self.story)
            }
            OutcomeKind::Cancelled { .. } => true,
            _ => false,
        };
        if !right {
            let (generation, why) = (life.generation, format!("{verdict:?}, with {was}"));
            self.find(Violation::Unexpected, generation, why);
        }
        let ends = match verdict {
            OutcomeKind::Ended { .. } | OutcomeKind::Expired { .. } => true,
            OutcomeKind::Unmet { then, .. } => *then != OnFailure::Fire,
            _ => false,
        };
        if ends {
            self.over.extend(self.pending.take().map(|life| life.generation));
        }
    }

    fn fired(&mut self, event: &SimulatedEvent<'_>, shot: &Shot) {
        let (generation, occurrence) = (shot.id.generation, shot.id.occurrence);
        let Some(life) = self.pending.as_mut().filter(|life| life.generation == generation) else {
            let (violation, why) = if self.stopped.contains(&generation) {
                (Violation::NotStopped, "was stopped before")
            } else if self.over.contains(&generation) {
                (Violation::Duplicate, "had come to its end before")
            } else {
                (Violation::Unexpected, "nobody registered it")
            };
            return self.find(violation, generation, format!("occurrence {occurrence}: {why}"));
        };
        let was = life.tell();
        let wrong = life.judge_shot(self.trigger, event, shot);
        let wrong = wrong.or_else(|| life.overlaps(self.story, event, shot, self.open_ttl));
        life.called = false;
        life.last = shot.settles.then_some((occurrence, shot.decided));
        life.executions = occurrence + 1;
        if !life.recurs() {
            self.over.extend(self.pending.take().map(|life| life.generation));
        }
        if let Some((violation, why)) = wrong {
            let why = format!("occurrence {occurrence}, due {}: {why}; {was}", shot.scheduled);
            self.find(violation, generation, why);
        }
    }

    /// Reads on in what workers said, as far as the owner had before an event.
    fn count_failures(&mut self, event: &SimulatedEvent<'_>) {
        let Some(life) = &mut self.pending else { return };
        while let Some(said) = self.story.settled.get(life.counted) {
            if said.offset >= event.before.signals {
                break;
            }
            life.counted += 1;
            if said.settled.id.generation == life.generation {
                // What ran on while it was paused does not count: the step that resumes it may have
                // read of it before the command, or after.
                life.loose |= life.paused || life.resumed.is_some();
                life.failures = if said.settled.ok { 0 } else { life.failures + 1 };
            }
        }
        life.resumed = life.resumed.filter(|before| *before == event.before);
    }

    /// Everything has had its time.
    fn end(&mut self, rest: SimulatedIdle) {
        let unanswered: Vec<Offset> =
            self.story.told.keys().filter(|told| !self.answered.contains(told)).copied().collect();
        for offset in unanswered {
            let why = format!("{:?}", self.story.told[&offset].wish);
            self.find(Violation::Unanswered, offset, why);
        }
        let Some(life) = self.pending.take() else { return };
        let due = match life.due(self.trigger) {
            _ if life.called => Some(0),
            _ if life.paused => None,
            due if life.wanted.after.is_empty() => due.or(Some(0)),
            due => due.max(Some(self.story.told[&life.generation].at + life.wanted.timeout)),
        };
        if due.is_some_and(|due| due <= rest.until) {
            let why = format!("due {due:?}, and still pending: {}", life.tell());
            self.find(rest.missing(), life.generation, why);
        }
    }
}

impl Life<'_> {
    fn recurs(&self) -> bool {
        self.schedule.is_some()
    }

    /// When it is due next by its registration.
    fn due(&self, trigger: &str) -> Option<Timestamp> {
        self.by_schedule(trigger).filter(|_| !self.has_had_all())
    }

    /// The same, however often it has come.
    fn by_schedule(&self, trigger: &str) -> Option<Timestamp> {
        let next = self.next?;
        Some(self.schedule.as_ref().map_or(next, |schedule| schedule.jittered(trigger, next)))
    }

    fn has_had_all(&self) -> bool {
        let most = self.schedule.as_ref().and_then(Schedule::max_executions);
        most.is_some_and(|most| self.executions >= most)
    }

    fn is_over(&self) -> bool {
        self.has_had_all() || self.next.is_none()
    }

    /// Whether it fires although the callback of the last one is under way.
    fn overlaps(
        &self,
        story: &TriggerHistory<'_>,
        event: &SimulatedEvent<'_>,
        shot: &Shot,
        open_ttl: Millis,
    ) -> Option<(Violation, String)> {
        let (last, at) = self.last?;
        let allowed = self.schedule.as_ref()?.overlap() == Overlap::Allow;
        let ended = story.settled.iter().any(|said| {
            let id = &said.settled.id;
            (id.generation, id.occurrence) == (self.generation, last)
                && said.appended <= event.appended
        });
        let why = || format!("the callback of occurrence {last} is under way");
        let lapsed = shot.decided >= at + open_ttl;
        (!allowed && !self.called && !ended && !lapsed).then(|| (Violation::Early, why()))
    }

    /// For people.
    fn tell(&self) -> String {
        let Self { next, executions, paused, called, failures, loose, .. } = self;
        format!(
            "next {next:?} after {executions}, paused {paused}, called {called}, {failures} \
             failures{}, {:?}",
            if *loose { " or so" } else { "" },
            self.wanted.schedule
        )
    }

    /// Occurrences are left out: those that are next, and counted right. Says whether they may be.
    fn left_out(&mut self, occurrences: u32, from: Timestamp, until: Timestamp) -> bool {
        let Some(schedule) = &self.schedule else { return false };
        let all = std::iter::successors(self.next, |at| schedule.next(*at));
        let all: Vec<Timestamp> = all.take_while(|at| *at <= until).collect();
        let right = (all.first(), all.last()) == (Some(&from), Some(&until))
            && all.len() == occurrences as usize
            && !self.paused;
        self.next = schedule.next(until);
        right
    }

    /// What is wrong with a fire, if anything is. Moves on to the next one.
    fn judge_shot(
        &mut self,
        trigger: &str,
        event: &SimulatedEvent<'_>,
        shot: &Shot,
    ) -> Option<(Violation, String)> {
        let find = |violation, why: &str| Some((violation, why.to_owned()));
        if shot.payload != self.wanted.payload {
            return find(Violation::WrongContent, "another payload");
        }
        if shot.id.occurrence < self.executions {
            return find(Violation::Duplicate, "it has fired before");
        }
        if shot.id.occurrence > self.executions || self.due(trigger).is_none() {
            return find(Violation::Unexpected, "this is not the next one");
        }
        let (called, due) = (self.called, self.due(trigger));
        if !called || !self.recurs() {
            let next = self.next.and_then(|next| self.schedule.as_ref()?.next(next));
            self.next = next;
            if Some(shot.scheduled) != due {
                return find(Violation::Lost, &format!("what was next is due {due:?}"));
            }
        }
        if called {
            return None;
        }
        if shot.scheduled > event.clock.min(event.committed) {
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

    /// The owner has paused it: reads on until it has failed as often as its schedule says.
    fn failed_often(&mut self, story: &TriggerHistory<'_>) -> bool {
        let Some(most) = self.schedule.as_ref().and_then(Schedule::pause_after) else {
            return false;
        };
        while self.failures < most && !self.loose {
            let Some(said) = story.settled.get(self.counted) else { return false };
            self.counted += 1;
            if said.settled.id.generation == self.generation {
                self.failures = if said.settled.ok { 0 } else { self.failures + 1 };
            }
        }
        (self.paused, self.failures) = (true, 0);
        true
    }
}
