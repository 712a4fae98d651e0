//! What has happened to a trigger, and its status.
//!
//! Invariant: the states of `docs/reference/api.md`, "Looking". What follows from the absence of a
//! record is concluded only from all records.

use super::accepted::subject;
use super::definition::DefinitionOpinion;
use super::{ExecutionOpinion, RecordsRead, Registered, TriggerOpinion};
use crate::model::entry::FireRow;
use crate::model::lifecycle::{LifecyclePhase, OnFailure};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Offset, Timestamp};
use crate::view::results::{ExecutionStatus, Status};

/// All that is known of a generation.
pub(super) struct LifecycleOpinion<'a> {
    generation: Offset,
    created_at: Timestamp,
    pub(super) defined: DefinitionOpinion,
    /// What the ledger holds of it.
    entry: Option<&'a FireRow>,
    /// Its outcomes, in their order.
    outcomes: Vec<(Offset, &'a Outcome)>,
    /// The owner has passed its place on the timeline.
    is_passed: bool,
}

/// How it, or an attempt of it, has ended.
#[derive(Clone, Debug)]
pub(super) struct EndOpinion {
    offset: Offset,
    pub(super) at: Timestamp,
    /// `None`: another attempt follows.
    status: Option<Status>,
    reason: Option<String>,
    occurrence: u32,
}

impl RecordsRead {
    pub(super) fn lifecycle(&self, one: &Registered<'_>) -> LifecycleOpinion<'_> {
        let defined = self.defined(one);
        let is_of =
            |(_, outcome): &&(Offset, Outcome)| subject(&outcome.kind) == Some(one.generation);
        let outcomes = self.outcomes.iter().filter(is_of);
        let place = TimelineKey {
            due: defined.fire_at,
            priority: rank(defined.priority),
            source: Source::Triggers,
            offset: one.generation,
        };
        LifecycleOpinion {
            generation: one.generation,
            created_at: one.created_at,
            entry: self.entry(one),
            outcomes: outcomes.map(|(offset, outcome)| (*offset, outcome)).collect(),
            is_passed: self.cursors.last().is_some_and(|cursor| place <= cursor.fired_through),
            defined,
        }
    }

    pub(super) fn opinion(&self, one: Registered<'_>) -> TriggerOpinion {
        let known = self.lifecycle(&one);
        let (status, end) = known.status();
        let reason = match status {
            Status::Paused => known.pause_reason(),
            _ => end.as_ref().and_then(|end| end.reason.clone()),
        };
        let settled =
            [Status::Fired, Status::Completed, Status::Failed, Status::Cancelled, Status::Expired];
        let settled_at = settled
            .contains(&status)
            .then(|| end.as_ref().map_or_else(|| known.fired_at(), |end| end.at));
        let fire_at = known.due();
        let defined = &known.defined;
        TriggerOpinion {
            id: one.new.id.to_string(),
            generation: one.generation,
            revision: defined.revision,
            created_at: one.created_at,
            status,
            reason,
            fire_at,
            settled_at,
            executions: known.executions(status),
            last_execution: known.last_execution(status, settled_at.unwrap_or(fire_at)),
            definition: defined.definition.clone(),
            schedule: defined.schedule.clone(),
            after: defined.after.clone(),
            expire_after: defined.expire_after,
            retain: defined.retain,
            priority: defined.priority,
        }
    }

    /// The executions of all registrations of a trigger, the newest first. One that no outcome has
    /// reported is the last one.
    pub(super) fn executions(&self, of: &TriggerOpinion) -> Vec<ExecutionOpinion> {
        let is_open = |one: &&ExecutionOpinion| {
            matches!(one.status, ExecutionStatus::Fired | ExecutionStatus::InFlight)
        };
        let open = of.last_execution.iter().filter(is_open).cloned();
        let newest_first = self.outcomes.iter().rev();
        let own = newest_first.filter(|(_, outcome)| outcome.trigger.as_str() == of.id);
        open.chain(own.filter_map(|(_, outcome)| execution_of(outcome))).collect()
    }
}

impl LifecycleOpinion<'_> {
    /// The status, and what led to it if an outcome says that.
    fn status(&self) -> (Status, Option<EndOpinion>) {
        let recurs = self.defined.schedule.is_some();
        let is_callback = self.defined.definition.target.is_http();
        let end = if recurs { self.stopped() } else { self.last_of(self.stopped()) };
        if let Some((status, end)) = end.and_then(|end| Some((end.status?, end))) {
            return (status, Some(end));
        }
        let Some(entry) = self.entry else { return self.status_without_entry() };
        let lifecycle = entry.lifecycle.as_deref();
        match lifecycle.map_or(LifecyclePhase::Pending, |lifecycle| lifecycle.phase) {
            LifecyclePhase::Pending | LifecyclePhase::Queued => {
                let is = |state: bool, status: Status| state.then_some(status);
                let awaits = lifecycle.is_some_and(|state| state.dependencies.is_some());
                let recurs = lifecycle.is_some_and(|state| state.recurrence.is_some());
                let status = is(self.is_paused(), Status::Paused)
                    .or_else(|| is(awaits, Status::Waiting))
                    .or_else(|| is(recurs, Status::Scheduled));
                (status.unwrap_or(Status::Pending), None)
            }
            LifecyclePhase::Open if recurs => self.status_of_last_occurrence(),
            LifecyclePhase::Open => (Status::InFlight, self.retry()),
            LifecyclePhase::Done if is_callback => (Status::Completed, None),
            LifecyclePhase::Done => (Status::Fired, None),
            LifecyclePhase::Failed => (Status::Failed, None),
        }
    }

    /// The ledger does not hold it. What the ledger always holds while it is pending has fired, and
    /// so has what the owner has passed.
    fn status_without_entry(&self) -> (Status, Option<EndOpinion>) {
        let defined = &self.defined;
        let (recurs, awaits) = (defined.schedule.is_some(), defined.after.is_some());
        let is_changed = self.outcomes.iter().any(|(_, outcome)| is_change(outcome))
            || defined.revision != self.generation;
        let is_always_held = recurs || awaits || defined.retain.is_some() || is_changed;
        match defined.definition.target.is_http() {
            _ if !is_always_held && !self.is_passed => (Status::Pending, None),
            _ if recurs => self.status_of_last_occurrence(),
            true => (Status::InFlight, self.retry()),
            false => (Status::Fired, None),
        }
    }

    /// A schedule ends like its last occurrence.
    fn status_of_last_occurrence(&self) -> (Status, Option<EndOpinion>) {
        let executions = self.ended().map(|(executions, _)| executions);
        if executions == Some(0) {
            return (Status::Expired, None);
        }
        if !self.defined.definition.target.is_http() {
            return (Status::Fired, None);
        }
        let of_last = |end: &EndOpinion| executions.is_some_and(|all| end.occurrence + 1 >= all);
        match self.last_attempt().filter(of_last) {
            Some(end) => (end.status.unwrap_or(Status::InFlight), Some(end)),
            None => (Status::InFlight, None),
        }
    }

    /// The later one of the end of the only occurrence, and of what has stopped it.
    fn last_of(&self, stopped: Option<EndOpinion>) -> Option<EndOpinion> {
        let attempt = self.last_attempt().filter(|attempt| attempt.occurrence >= self.left());
        [attempt, stopped].into_iter().flatten().max_by_key(|end| end.offset)
    }

    /// The number of the occurrence that a change has left: those before it may end after it.
    fn left(&self) -> u32 {
        let waiting = self.entry.filter(|_| self.is_waiting()).map(|entry| entry.id.occurrence);
        waiting.max(self.last(executions_at_change)).unwrap_or(0)
    }

    /// The last attempt of the newest occurrence.
    fn last_attempt(&self) -> Option<EndOpinion> {
        let attempts = self.outcomes.iter().filter_map(|(offset, outcome)| {
            let (occurrence, status, reason) = match &outcome.kind {
                OutcomeKind::Delivered { occurrence, .. } => {
                    (*occurrence, Some(Status::Completed), None)
                }
                OutcomeKind::Failed { occurrence, attempt, reason, retry_at, .. } => {
                    if self.was_delivered_before(*offset, (*occurrence, *attempt)) {
                        return None;
                    }
                    let status = retry_at.is_none().then_some(Status::Failed);
                    (*occurrence, status, Some(reason.clone()))
                }
                OutcomeKind::Withdrawn { occurrence, .. } => {
                    (*occurrence, Some(Status::Cancelled), None)
                }
                _ => return None,
            };
            Some(EndOpinion { offset: *offset, at: outcome.at, status, reason, occurrence })
        });
        attempts.max_by_key(|end| (end.occurrence, end.offset))
    }

    /// An earlier outcome says that this attempt, or a later one, was delivered.
    fn was_delivered_before(&self, offset: Offset, failed: (u32, u32)) -> bool {
        self.outcomes.iter().any(|(earlier, outcome)| match outcome.kind {
            OutcomeKind::Delivered { occurrence, attempt, .. } => {
                *earlier < offset && occurrence == failed.0 && attempt >= failed.1
            }
            _ => false,
        })
    }

    /// The last attempt, if another one follows.
    fn retry(&self) -> Option<EndOpinion> {
        self.last_attempt().filter(|end| end.status.is_none() && end.occurrence >= self.left())
    }

    /// What has stopped it before it fired, or before it fired again.
    pub(super) fn stopped(&self) -> Option<EndOpinion> {
        let mut stops = self.outcomes.iter().filter_map(|(offset, outcome)| {
            let (status, reason) = match &outcome.kind {
                OutcomeKind::Cancelled { .. } => (Status::Cancelled, None),
                OutcomeKind::Expired { .. } => (Status::Expired, None),
                OutcomeKind::Unmet { then: OnFailure::Fail, reason, .. } => {
                    (Status::Failed, Some(reason.clone()))
                }
                OutcomeKind::Unmet { then: OnFailure::Skip, reason, .. } => {
                    (Status::Cancelled, Some(reason.clone()))
                }
                _ => return None,
            };
            let (at, status) = (outcome.at, Some(status));
            Some(EndOpinion { offset: *offset, at, status, reason, occurrence: 0 })
        });
        stops.next_back()
    }

    /// How often a schedule has fired in all, and when it ended.
    pub(super) fn ended(&self) -> Option<(u32, Timestamp)> {
        self.last(|outcome| match outcome.kind {
            OutcomeKind::Ended { executions, .. } => Some((executions, outcome.at)),
            _ => None,
        })
    }

    /// When the occurrence was called that the last change has left, or one after it: it fires
    /// when both are known. A request that is repeated is answered with another call.
    pub(super) fn called_at(&self) -> Option<Timestamp> {
        let is_change = |(_, outcome): &(Offset, &Outcome)| executions_at_change(outcome).is_some();
        let change_at = self.outcomes.iter().rposition(is_change);
        let changed_at = change_at.map_or(0, |at| self.outcomes[at].1.at);
        let left = self.last(executions_at_change).unwrap_or(0);
        let calls = |outcomes: &[(Offset, &Outcome)]| {
            let calls = outcomes.iter().filter_map(|(_, outcome)| match outcome.kind {
                OutcomeKind::Called { occurrence, .. } if occurrence >= left => {
                    Some((occurrence, outcome.at))
                }
                _ => None,
            });
            calls.collect::<Vec<_>>()
        };
        let (before, after) = self.outcomes.split_at(change_at.unwrap_or(0));
        let first_of_newest = |calls: Vec<(u32, Timestamp)>| {
            let newest = calls.iter().map(|(occurrence, _)| *occurrence).max();
            calls.into_iter().find(|(occurrence, _)| Some(*occurrence) == newest)
        };
        let called =
            first_of_newest(calls(after)).or_else(|| calls(before).into_iter().next_back());
        called.map(|(_, at)| Timestamp::max(at, changed_at))
    }

    /// Why it is paused, if that is the last word about it.
    pub(super) fn pause_reason(&self) -> Option<String> {
        self.last_pause().flatten()
    }

    /// The last word about whether it is paused: why, or that it is not.
    fn last_pause(&self) -> Option<Option<String>> {
        self.last(|outcome| match &outcome.kind {
            OutcomeKind::Paused { reason, .. } => Some(Some(reason.clone())),
            OutcomeKind::Resumed { .. } => Some(None),
            _ => None,
        })
    }

    fn is_paused(&self) -> bool {
        let by_ledger = || {
            let lifecycle = self.entry.and_then(|entry| entry.lifecycle.as_deref());
            lifecycle.is_some_and(|lifecycle| lifecycle.paused)
        };
        self.last_pause().map_or_else(by_ledger, |reason| reason.is_some())
    }

    fn is_waiting(&self) -> bool {
        let lifecycle = self.entry.and_then(|entry| entry.lifecycle.as_deref());
        self.entry.is_some() && lifecycle.is_none_or(|lifecycle| lifecycle.phase.is_waiting())
    }

    /// It was pending until its time, and until it was registered, resumed and changed.
    pub(super) fn certainly_pending_until(&self) -> Timestamp {
        let known = self.last(|outcome| match outcome.kind {
            OutcomeKind::Resumed { .. } => Some(outcome.at),
            _ => None,
        });
        let changed = self.last(|outcome| is_change(outcome).then_some(outcome.at));
        [known, changed].into_iter().flatten().fold(self.defined.fire_at, Timestamp::max)
    }

    /// When it fired, if no outcome says that.
    fn fired_at(&self) -> Timestamp {
        let said = self.ended().map(|(_, at)| at).or_else(|| self.called_at());
        said.unwrap_or_else(|| self.certainly_pending_until().max(self.created_at))
    }

    /// When it is due next, or was due last.
    fn due(&self) -> Timestamp {
        match (self.entry, self.ended()) {
            (Some(entry), _) if self.is_waiting() => entry.scheduled,
            (_, Some((_, at))) => at,
            _ => self.defined.fire_at,
        }
    }

    fn executions(&self, status: Status) -> u32 {
        let at_change = self.last(executions_at_change).unwrap_or(0);
        let attempted = self.last_attempt().map_or(0, |end| end.occurrence + 1).max(at_change);
        if self.defined.schedule.is_some() {
            let held = self.entry.map(|entry| entry.id.occurrence);
            let known = held.or_else(|| self.ended().map(|(executions, _)| executions));
            return known.unwrap_or(0).max(attempted);
        }
        match status {
            Status::Fired | Status::InFlight | Status::Completed => attempted.max(self.left() + 1),
            _ => attempted.max(self.left()),
        }
    }

    /// The one execution of what is left, if it has no outcome yet; else the newest that has one.
    fn last_execution(&self, status: Status, at: Timestamp) -> Option<ExecutionOpinion> {
        let newest_first = self.outcomes.iter().rev();
        let newest_first = newest_first.filter_map(|(_, outcome)| execution_of(outcome));
        let newest_first: Vec<_> = newest_first.collect();
        let (occurrence, attempt) = (self.left(), 1);
        let open = match status {
            Status::Fired => Some(ExecutionStatus::Fired),
            Status::InFlight => Some(ExecutionStatus::InFlight),
            _ => None,
        };
        let is_known = newest_first.iter().any(|one| one.occurrence >= occurrence);
        match open.filter(|_| self.defined.schedule.is_none() && !is_known) {
            Some(status) => Some(ExecutionOpinion { occurrence, attempt, status, at }),
            None => newest_first.into_iter().next(),
        }
    }

    /// The last that `read` takes of the outcomes.
    fn last<T>(&self, read: impl Fn(&Outcome) -> Option<T>) -> Option<T> {
        self.outcomes.iter().rev().find_map(|(_, outcome)| read(outcome))
    }
}

/// The execution that an outcome reports. No log here has skipped occurrences.
fn execution_of(outcome: &Outcome) -> Option<ExecutionOpinion> {
    let (occurrence, attempt, status) = match &outcome.kind {
        OutcomeKind::Delivered { occurrence, attempt, .. } => {
            (*occurrence, *attempt, ExecutionStatus::Completed)
        }
        OutcomeKind::Failed { occurrence, attempt, retry_at: None, .. } => {
            (*occurrence, *attempt, ExecutionStatus::Failed)
        }
        OutcomeKind::Failed { occurrence, attempt, .. } => {
            (*occurrence, *attempt, ExecutionStatus::Retrying)
        }
        OutcomeKind::Withdrawn { occurrence, attempt, .. } => {
            (*occurrence, *attempt, ExecutionStatus::Withdrawn)
        }
        _ => return None,
    };
    Some(ExecutionOpinion { occurrence, attempt, status, at: outcome.at })
}

fn executions_at_change(outcome: &Outcome) -> Option<u32> {
    match outcome.kind {
        OutcomeKind::Changed { executions, .. } => executions,
        _ => None,
    }
}

fn is_change(outcome: &Outcome) -> bool {
    matches!(outcome.kind, OutcomeKind::Changed { .. })
}
