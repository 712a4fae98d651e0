//! The status of a trigger: one pure function of what the topics contain about its current
//! generation.
//!
//! Invariant: the result depends on no order of reading, no clock and no earlier result. What
//! follows from something *not* being there (not in the ledger, not cancelled) is concluded only
//! from facts that are `decided`: when everything that the owner wrote with that cursor is read.
//!
//! ```text
//!            ┌─ PAUSED ◄─pause, resume─► ┐          ┌─ into a topic ─► FIRED
//!  register ─┼─ WAITING ──others settle──┼──due─────┤
//!            └─ PENDING, SCHEDULED ◄─────┘ │        └─ callback ─► IN_FLIGHT ─┬─► COMPLETED
//!                   ▲          │           │                        ▲   │     ├─► FAILED ─┐
//!                   └─next one─┘           │                        └───┴─────┼───────────┘
//!                                          │                        again     │   replay
//!      cancel ─► CANCELLED ◄───────────────┼──────── withdrawn ───────────────┘
//!      too late, no occurrence ─► EXPIRED   └─ a dependency failed ─► FAILED, CANCELLED
//! ```
//!
//! A recurring trigger is SCHEDULED while occurrences follow, whatever the results of their
//! callbacks; after the last one it has the status of that one.

use serde::{Deserialize, Serialize};

use super::results::Status;
use crate::model::entry::FireRow;
use crate::model::lifecycle::{LifecyclePhase, OnFailure};
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, Timestamp};

/// The part of a trigger's ledger entry that the status needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LedgerFacts {
    pub(super) generation: Offset,
    /// The record that defines it: its registration, or the newest change.
    pub(super) revision: Offset,
    #[serde(rename = "standing")]
    pub(super) state: LifecyclePhase,
    pub(super) paused: bool,
    pub(super) awaits: bool,
    pub(super) recurs: bool,
    /// When the next occurrence is due, or the last one was.
    pub(super) scheduled: Timestamp,
    /// The number of the next occurrence, or of those that were.
    pub(super) occurrence: u32,
    /// How many of those were before `maxExecutions` began to count.
    pub(super) counted_from: u32,
}

impl LedgerFacts {
    pub(super) fn of(row: &FireRow) -> Self {
        let lifecycle = row.lifecycle.as_deref();
        let recurrence = lifecycle.and_then(|lifecycle| lifecycle.recurrence.as_deref());
        Self {
            generation: row.id.generation,
            revision: row.revision(),
            state: lifecycle.map_or(LifecyclePhase::Pending, |lifecycle| lifecycle.phase),
            paused: lifecycle.is_some_and(|lifecycle| lifecycle.paused),
            awaits: lifecycle.is_some_and(|lifecycle| lifecycle.dependencies.is_some()),
            recurs: recurrence.is_some(),
            scheduled: row.scheduled,
            occurrence: row.id.occurrence,
            counted_from: recurrence.map_or(0, |recurrence| recurrence.counted_from),
        }
    }

    /// Whether the ledger has the change at this offset already.
    pub(super) fn has(&self, revision: Offset) -> bool {
        self.revision >= revision
    }
}

/// What the outcomes of a generation say, the last of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OutcomeFacts {
    /// How an attempt ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "attempt")]
    pub(super) attempt_end: Option<EndFact>,
    /// That it does not fire any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "off")]
    pub(super) stop: Option<EndFact>,
    /// How often it fired, and when its last occurrence was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "ended")]
    pub(super) last_occurrence: Option<(u32, Timestamp)>,
    /// The occurrence that a command has fired before its time, and when.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "called")]
    pub(super) last_call: Option<(u32, Timestamp)>,
    /// When it was resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "resumed")]
    pub(super) resumed_at: Option<Timestamp>,
    /// How often it had fired before its newest change, and when that was made: it was pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "changed")]
    pub(super) last_change: Option<(u32, Timestamp)>,
    /// Why it was paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "paused")]
    pub(super) pause_reason: Option<String>,
    /// When the last outcome was written.
    #[serde(rename = "at")]
    pub(super) last_outcome_at: Timestamp,
}

/// One end, of an attempt or of all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndFact {
    #[serde(rename = "how")]
    pub(super) kind: EndKind,
    /// The offset of the outcome: the later one counts.
    #[serde(rename = "said")]
    pub(super) outcome_offset: Offset,
    pub(super) at: Timestamp,
    pub(super) occurrence: u32,
    /// The number of the attempt, from 1; 0 if none was made.
    pub(super) attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum EndKind {
    Delivered,
    Failed,
    /// An attempt failed, and another follows.
    Retried,
    Withdrawn,
    Cancelled,
    Expired,
    Unmet(OnFailure),
}

impl EndKind {
    fn status(self) -> Option<Status> {
        match self {
            Self::Delivered => Some(Status::Completed),
            Self::Failed | Self::Unmet(OnFailure::Fail) => Some(Status::Failed),
            Self::Withdrawn | Self::Cancelled | Self::Unmet(OnFailure::Skip) => {
                Some(Status::Cancelled)
            }
            Self::Expired => Some(Status::Expired),
            Self::Retried | Self::Unmet(OnFailure::Fire) => None,
        }
    }
}

/// Everything that decides the status of a generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusFacts<'a> {
    /// By its registration: it is a callback, it recurs, it waits for others, and the ledger holds
    /// it in any case until it is settled.
    pub(super) is_callback: bool,
    pub(super) recurs: bool,
    pub(super) awaits: bool,
    /// What it waits for was named by a change that the ledger does not have yet.
    pub(super) has_new_dependencies: bool,
    pub(super) always_in_ledger: bool,
    pub(super) created_at: Timestamp,
    /// The record that defines it, and when it is due by that.
    pub(super) revision: Offset,
    pub(super) fire_at: Timestamp,
    /// N has passed what defines it, and all that was written up to then is read.
    pub(super) decided: bool,
    /// A change is known to be made, and not yet what it has changed.
    pub(super) is_behind: bool,
    /// W has passed its place on the timeline, by the same cursor.
    pub(super) is_fired_through: bool,
    /// What the ledger holds of this generation.
    pub(super) ledger: Option<&'a LedgerFacts>,
    pub(super) outcomes: &'a OutcomeFacts,
}

/// The status of a trigger, since when if it is final, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatusDecision {
    pub(super) status: Status,
    pub(super) settled_at: Option<Timestamp>,
    /// When it is due next, or was last.
    pub(super) fire_at: Timestamp,
    pub(super) executions: u32,
    pub(super) reason: Option<String>,
}

/// Whether a place on the timeline is at or below the cursor's W.
pub(super) fn is_fired_through(fired_through: &TimelineKey, place: &TimelineKey) -> bool {
    place <= fired_through
}

/// Computes the status from the facts.
pub(super) fn status_of(facts: &StatusFacts<'_>) -> StatusDecision {
    let (status, ending) = status_and_end(facts);
    let settled_at =
        status.is_settled().then(|| ending.map_or_else(|| fired_at(facts), |ending| ending.at));
    let reason = match status {
        Status::Paused => facts.outcomes.pause_reason.clone(),
        _ => ending.and_then(|ending| ending.reason.clone()),
    };
    StatusDecision {
        status,
        settled_at,
        fire_at: due_time(facts),
        executions: count_executions(facts, status),
        reason,
    }
}

fn status_and_end<'a>(facts: &StatusFacts<'a>) -> (Status, Option<&'a EndFact>) {
    if let Some((status, ending)) = final_status(facts) {
        return (status, Some(ending));
    }
    match facts.ledger {
        Some(entry) => match entry.state {
            LifecyclePhase::Pending | LifecyclePhase::Queued if is_paused(facts) => {
                (Status::Paused, None)
            }
            LifecyclePhase::Pending | LifecyclePhase::Queued => {
                let (recurs, awaits) = match entry.has(facts.revision) {
                    true => (entry.recurs, entry.awaits),
                    false => {
                        let still_awaits = entry.awaits || facts.has_new_dependencies;
                        (facts.recurs, facts.awaits && still_awaits)
                    }
                };
                (status_before_due(recurs, awaits), None)
            }
            LifecyclePhase::Open if facts.recurs => after_last_occurrence(facts),
            LifecyclePhase::Open => (Status::InFlight, last_retry(facts)),
            LifecyclePhase::Done if facts.is_callback => (Status::Completed, None),
            LifecyclePhase::Done => (Status::Fired, None),
            LifecyclePhase::Failed => (Status::Failed, None),
        },
        None if !facts.decided && is_paused(facts) => (Status::Paused, None),
        None if !facts.decided || !(facts.always_in_ledger || facts.is_fired_through) => {
            (status_before_due(facts.recurs, facts.awaits), None)
        }
        None if facts.recurs => after_last_occurrence(facts),
        None if facts.is_callback => (Status::InFlight, last_retry(facts)),
        None => (Status::Fired, None),
    }
}

/// Whether it is paused: by the last outcome about that, which is known before the ledger is read;
/// by the ledger if that outcome is too old to be kept.
fn is_paused(facts: &StatusFacts<'_>) -> bool {
    match facts.outcomes {
        OutcomeFacts { pause_reason: Some(_), .. } => true,
        OutcomeFacts { resumed_at: Some(_), .. } => false,
        _ => facts.ledger.is_some_and(|held| held.paused),
    }
}

fn status_before_due(recurs: bool, awaits: bool) -> Status {
    match (awaits, recurs) {
        (true, _) => Status::Waiting,
        (false, true) => Status::Scheduled,
        (false, false) => Status::Pending,
    }
}

/// The outcome that ended it as a whole.
fn final_status<'a>(facts: &StatusFacts<'a>) -> Option<(Status, &'a EndFact)> {
    let OutcomeFacts { attempt_end: attempt, stop, .. } = facts.outcomes;
    let stop = stop.as_ref();
    let last = match attempt.as_ref().filter(|attempt| is_of_last_occurrence(facts, attempt)) {
        // The end of one occurrence is not the end of the others.
        _ if facts.recurs => stop,
        attempt => match (attempt, stop) {
            (Some(attempt), Some(stop)) if attempt.outcome_offset < stop.outcome_offset => {
                Some(stop)
            }
            (Some(attempt), _) => Some(attempt),
            (None, stop) => stop,
        },
    }?;
    Some((last.kind.status()?, last))
}

/// Whether an attempt of a one-time trigger was of its last occurrence.
fn is_of_last_occurrence(facts: &StatusFacts<'_>, attempt: &EndFact) -> bool {
    attempt.occurrence >= last_number(facts) && !facts.is_behind
}

/// The number of the last occurrence of a one-time trigger: it may have recurred before a change.
fn last_number(facts: &StatusFacts<'_>) -> u32 {
    let held = facts.ledger.filter(|held| held.state.is_waiting());
    facts.outcomes.fired_before_change().max(held.map_or(0, |held| held.occurrence))
}

impl OutcomeFacts {
    /// How often it had fired before its newest change.
    fn fired_before_change(&self) -> u32 {
        self.last_change.map_or(0, |(executions, _)| executions)
    }

    /// When a command has fired the last occurrence: one before a change was another one.
    pub(super) fn called_at(&self) -> Option<Timestamp> {
        let (changed, changed_at) = self.last_change.unwrap_or_default();
        let call = self.last_call.filter(|(occurrence, _)| *occurrence >= changed);
        call.map(|(_, at)| at.max(changed_at))
    }
}

/// The last failed attempt of a one-time callback that is retried.
fn last_retry<'a>(facts: &StatusFacts<'a>) -> Option<&'a EndFact> {
    let last = facts.outcomes.attempt_end.as_ref();
    last.filter(|end| end.kind == EndKind::Retried && is_of_last_occurrence(facts, end))
}

/// The status of a recurring trigger after its last occurrence.
fn after_last_occurrence<'a>(facts: &StatusFacts<'a>) -> (Status, Option<&'a EndFact>) {
    let executions = facts.outcomes.last_occurrence.map(|(executions, _)| executions);
    match (executions, facts.outcomes.attempt_end.as_ref()) {
        (Some(0), _) => (Status::Expired, None),
        _ if !facts.is_callback => (Status::Fired, None),
        (Some(executions), Some(last)) if last.occurrence + 1 >= executions => {
            (last.kind.status().unwrap_or(Status::InFlight), Some(last))
        }
        _ => (Status::InFlight, None),
    }
}

/// When a fire without an outcome was made, as far as it can be known.
fn fired_at(facts: &StatusFacts<'_>) -> Timestamp {
    let OutcomeFacts { last_occurrence: ended, resumed_at: resumed, .. } = facts.outcomes;
    let changed = facts.outcomes.last_change.map_or(0, |(_, at)| at);
    let due = facts.fire_at.max(facts.created_at).max(changed);
    match (ended, facts.outcomes.called_at()) {
        (Some((_, at)), _) => *at,
        (None, Some(called)) => called,
        (None, None) => due.max(resumed.unwrap_or(0)),
    }
}

fn due_time(facts: &StatusFacts<'_>) -> Timestamp {
    match (facts.ledger, facts.outcomes.last_occurrence) {
        (Some(entry), _) if entry.state.is_waiting() && entry.has(facts.revision) => {
            entry.scheduled
        }
        (Some(entry), _) if entry.state.is_waiting() => facts.fire_at,
        (_, Some((_, at))) => at,
        _ => facts.fire_at,
    }
}

fn count_executions(facts: &StatusFacts<'_>, status: Status) -> u32 {
    let attempted = facts.outcomes.attempt_end.as_ref().map_or(0, |last| last.occurrence + 1);
    let attempted = attempted.max(facts.outcomes.fired_before_change());
    if !facts.recurs {
        let fired = matches!(status, Status::Fired | Status::InFlight | Status::Completed);
        return attempted.max(last_number(facts) + u32::from(fired));
    }
    match (facts.ledger, facts.outcomes.last_occurrence) {
        (Some(entry), _) => entry.occurrence.max(attempted),
        (None, Some((executions, _))) => executions,
        (None, None) => attempted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_OUTCOMES: OutcomeFacts = OutcomeFacts {
        attempt_end: None,
        stop: None,
        last_occurrence: None,
        last_call: None,
        resumed_at: None,
        last_change: None,
        pause_reason: None,
        last_outcome_at: 0,
    };

    /// A one-time trigger into a topic, registered at 10 and due at 50, that its owner has not
    /// read yet.
    fn topic_trigger(outcomes: &OutcomeFacts) -> StatusFacts<'_> {
        StatusFacts {
            is_callback: false,
            recurs: false,
            awaits: false,
            has_new_dependencies: false,
            always_in_ledger: false,
            created_at: 10,
            revision: 7,
            fire_at: 50,
            decided: false,
            is_behind: false,
            is_fired_through: false,
            ledger: None,
            outcomes,
        }
    }

    fn http(outcomes: &OutcomeFacts) -> StatusFacts<'_> {
        StatusFacts { is_callback: true, ..topic_trigger(outcomes) }
    }

    fn recurring(outcomes: &OutcomeFacts) -> StatusFacts<'_> {
        StatusFacts { recurs: true, always_in_ledger: true, ..topic_trigger(outcomes) }
    }

    fn fired<'a>(facts: StatusFacts<'a>) -> StatusFacts<'a> {
        StatusFacts { decided: true, is_fired_through: true, ..facts }
    }

    fn ledger_facts(state: LifecyclePhase) -> LedgerFacts {
        LedgerFacts {
            generation: 7,
            revision: 7,
            state,
            paused: false,
            awaits: false,
            recurs: false,
            scheduled: 50,
            occurrence: 0,
            counted_from: 0,
        }
    }

    fn end_fact(kind: EndKind, outcome_offset: Offset, occurrence: u32) -> Option<EndFact> {
        let (at, attempt, reason) = (90, 1, Some("why".to_owned()));
        Some(EndFact { kind, outcome_offset, at, occurrence, attempt, reason })
    }

    fn ended_attempt(kind: EndKind) -> OutcomeFacts {
        OutcomeFacts { attempt_end: end_fact(kind, 1, 0), ..NO_OUTCOMES }
    }

    fn stopped(kind: EndKind) -> OutcomeFacts {
        OutcomeFacts { stop: end_fact(kind, 2, 0), ..NO_OUTCOMES }
    }

    fn last_attempt(occurrence: u32) -> OutcomeFacts {
        OutcomeFacts { attempt_end: end_fact(EndKind::Failed, 3, occurrence), ..NO_OUTCOMES }
    }

    fn status(facts: StatusFacts<'_>) -> Status {
        status_of(&facts).status
    }

    #[test]
    fn a_trigger_is_pending_before_its_due_time() {
        assert_eq!(status(topic_trigger(&NO_OUTCOMES)), Status::Pending);
        assert_eq!(status(recurring(&NO_OUTCOMES)), Status::Scheduled);
        let waits =
            StatusFacts { awaits: true, always_in_ledger: true, ..topic_trigger(&NO_OUTCOMES) };
        assert_eq!(status(waits), Status::Waiting);
        let read = StatusFacts { decided: true, ..topic_trigger(&NO_OUTCOMES) };
        assert_eq!(status(read), Status::Pending);
        let passed = StatusFacts { is_fired_through: true, ..topic_trigger(&NO_OUTCOMES) };
        assert_eq!(status(passed), Status::Pending, "W is of no account before N");
    }

    #[test]
    fn status_follows_the_ledger_entry() {
        let (pending, queued) =
            (ledger_facts(LifecyclePhase::Pending), ledger_facts(LifecyclePhase::Queued));
        let paused = LedgerFacts { paused: true, ..ledger_facts(LifecyclePhase::Pending) };
        let waiting = LedgerFacts { awaits: true, ..ledger_facts(LifecyclePhase::Pending) };
        let series = LedgerFacts { recurs: true, ..ledger_facts(LifecyclePhase::Pending) };
        for (held, facts, expected) in [
            (&pending, topic_trigger(&NO_OUTCOMES), Status::Pending),
            (&pending, fired(topic_trigger(&NO_OUTCOMES)), Status::Pending), // its topic is away
            (&queued, topic_trigger(&NO_OUTCOMES), Status::Pending),
            (&paused, topic_trigger(&NO_OUTCOMES), Status::Paused),
            (&waiting, topic_trigger(&NO_OUTCOMES), Status::Waiting),
            (&series, recurring(&NO_OUTCOMES), Status::Scheduled),
            (&ledger_facts(LifecyclePhase::Open), http(&NO_OUTCOMES), Status::InFlight),
            (&ledger_facts(LifecyclePhase::Done), http(&NO_OUTCOMES), Status::Completed),
            (&ledger_facts(LifecyclePhase::Done), topic_trigger(&NO_OUTCOMES), Status::Fired),
            (&ledger_facts(LifecyclePhase::Failed), topic_trigger(&NO_OUTCOMES), Status::Failed),
        ] {
            assert_eq!(status(StatusFacts { ledger: Some(held), ..facts }), expected, "{held:?}");
        }
    }

    #[test]
    fn the_latest_pause_outcome_counts_before_the_ledger_is_read() {
        let paused = OutcomeFacts { pause_reason: Some("by a command".to_owned()), ..NO_OUTCOMES };
        let resumed = OutcomeFacts { resumed_at: Some(20), ..NO_OUTCOMES };
        let (running, stopped) = (
            ledger_facts(LifecyclePhase::Pending),
            LedgerFacts { paused: true, ..ledger_facts(LifecyclePhase::Pending) },
        );
        let with = |held, facts| status(StatusFacts { ledger: held, ..facts });
        assert_eq!(with(Some(&running), topic_trigger(&paused)), Status::Paused);
        assert_eq!(with(None, topic_trigger(&paused)), Status::Paused);
        assert_eq!(with(Some(&stopped), topic_trigger(&resumed)), Status::Pending);
        assert_eq!(
            with(Some(&stopped), topic_trigger(&NO_OUTCOMES)),
            Status::Paused,
            "the outcome is too old to be kept"
        );
        assert_eq!(
            with(None, fired(topic_trigger(&paused))),
            Status::Fired,
            "it was resumed later"
        );
        let decision = status_of(&topic_trigger(&paused));
        assert_eq!(decision.reason.as_deref(), Some("by a command"));
    }

    #[test]
    fn a_trigger_that_is_fired_through_and_not_in_the_ledger_has_fired() {
        assert_eq!(status(fired(topic_trigger(&NO_OUTCOMES))), Status::Fired);
        assert_eq!(status(fired(http(&NO_OUTCOMES))), Status::InFlight);
        let kept =
            StatusFacts { always_in_ledger: true, decided: true, ..topic_trigger(&NO_OUTCOMES) };
        assert_eq!(status(kept), Status::Fired, "the ledger would hold it");
        assert_eq!(status_of(&fired(topic_trigger(&NO_OUTCOMES))).settled_at, Some(50));
        let late = StatusFacts { created_at: 70, ..fired(topic_trigger(&NO_OUTCOMES)) };
        assert_eq!(status_of(&late).settled_at, Some(70));
    }

    #[test]
    fn status_follows_the_outcome() {
        for (outcomes, expected) in [
            (ended_attempt(EndKind::Delivered), Status::Completed),
            (ended_attempt(EndKind::Failed), Status::Failed),
            (ended_attempt(EndKind::Retried), Status::InFlight),
            (ended_attempt(EndKind::Withdrawn), Status::Cancelled),
            (stopped(EndKind::Cancelled), Status::Cancelled),
            (stopped(EndKind::Expired), Status::Expired),
            (stopped(EndKind::Unmet(OnFailure::Fail)), Status::Failed),
            (stopped(EndKind::Unmet(OnFailure::Skip)), Status::Cancelled),
        ] {
            let decision = status_of(&fired(http(&outcomes)));
            assert_eq!(decision.status, expected, "{outcomes:?}");
            let settled = (expected != Status::InFlight).then_some(90);
            assert_eq!((decision.settled_at, decision.reason.as_deref()), (settled, Some("why")));
        }
    }

    #[test]
    fn the_later_outcome_counts() {
        let mut outcomes = ended_attempt(EndKind::Delivered);
        outcomes.stop = end_fact(EndKind::Cancelled, 0, 0);
        assert_eq!(status(fired(http(&outcomes))), Status::Completed);
        outcomes.stop = end_fact(EndKind::Cancelled, 5, 0);
        assert_eq!(status(fired(http(&outcomes))), Status::Cancelled);
    }

    #[test]
    fn a_recurring_trigger_ends_like_its_last_occurrence() {
        let ended = |executions, outcomes: OutcomeFacts| OutcomeFacts {
            last_occurrence: Some((executions, 80)),
            ..outcomes
        };
        let last = |how, occurrence| OutcomeFacts {
            attempt_end: end_fact(how, 3, occurrence),
            ..NO_OUTCOMES
        };
        fn http(outcomes: &OutcomeFacts) -> StatusFacts<'_> {
            StatusFacts { is_callback: true, decided: true, ..recurring(outcomes) }
        }
        let failed_once = last(EndKind::Failed, 0);
        let series = LedgerFacts { recurs: true, ..ledger_facts(LifecyclePhase::Pending) };
        let goes_on = StatusFacts { ledger: Some(&series), ..http(&failed_once) };
        assert_eq!(status(goes_on), Status::Scheduled);
        for (outcomes, expected) in [
            (ended(2, NO_OUTCOMES), Status::InFlight),
            (ended(2, last(EndKind::Delivered, 0)), Status::InFlight),
            (ended(2, last(EndKind::Delivered, 1)), Status::Completed),
            (ended(2, last(EndKind::Failed, 1)), Status::Failed),
            (ended(2, last(EndKind::Retried, 1)), Status::InFlight),
            (ended(0, NO_OUTCOMES), Status::Expired),
            (stopped(EndKind::Cancelled), Status::Cancelled),
        ] {
            assert_eq!(status(http(&outcomes)), expected, "{outcomes:?}");
        }
        let remembered = LedgerFacts { recurs: true, ..ledger_facts(LifecyclePhase::Open) };
        let delivered = ended(2, last(EndKind::Delivered, 1));
        let facts = StatusFacts { ledger: Some(&remembered), ..http(&delivered) };
        assert_eq!(status(facts), Status::Completed);
        let into_topic = ended(2, NO_OUTCOMES);
        let decision = status_of(&StatusFacts { decided: true, ..recurring(&into_topic) });
        assert_eq!((decision.status, decision.executions), (Status::Fired, 2));
        assert_eq!((decision.settled_at, decision.fire_at), (Some(80), 80));
    }

    #[test]
    fn executions_are_counted_from_known_facts() {
        let retried = ended_attempt(EndKind::Retried);
        assert_eq!(status_of(&topic_trigger(&NO_OUTCOMES)).executions, 0);
        assert_eq!(
            status_of(&fired(topic_trigger(&NO_OUTCOMES))).executions,
            1,
            "which has no outcome"
        );
        assert_eq!(status_of(&fired(http(&retried))).executions, 1);
        let series =
            LedgerFacts { recurs: true, occurrence: 5, ..ledger_facts(LifecyclePhase::Pending) };
        let facts = StatusFacts { ledger: Some(&series), ..recurring(&NO_OUTCOMES) };
        assert_eq!(status_of(&facts).executions, 5);
        let ahead = last_attempt(6);
        assert_eq!(
            status_of(&StatusFacts { outcomes: &ahead, ..facts }).executions,
            7,
            "the ledger comes later"
        );
        assert_eq!(status_of(&recurring(&ahead)).executions, 7);
    }

    #[test]
    fn the_ledger_gives_the_due_time_of_a_pending_trigger() {
        let moved = LedgerFacts { scheduled: 70, ..ledger_facts(LifecyclePhase::Pending) };
        let done = LedgerFacts { scheduled: 70, ..ledger_facts(LifecyclePhase::Done) };
        let due = |held, facts| status_of(&StatusFacts { ledger: held, ..facts }).fire_at;
        assert_eq!(due(None, topic_trigger(&NO_OUTCOMES)), 50);
        assert_eq!(due(Some(&moved), topic_trigger(&NO_OUTCOMES)), 70);
        assert_eq!(due(Some(&done), topic_trigger(&NO_OUTCOMES)), 50);
    }

    #[test]
    fn fired_through_includes_its_own_position() {
        let w = TimelineKey::last_at(50);
        assert!(is_fired_through(&w, &w) && is_fired_through(&w, &TimelineKey::first_at(50)));
        assert!(!is_fired_through(&w, &TimelineKey::first_at(51)));
    }

    #[test]
    fn what_the_ledger_has_from_before_a_change_says_nothing_about_its_time() {
        let before = LedgerFacts { recurs: true, ..ledger_facts(LifecyclePhase::Pending) };
        let changed = StatusFacts { revision: 9, fire_at: 80, ..topic_trigger(&NO_OUTCOMES) };
        let decision = status_of(&StatusFacts { ledger: Some(&before), ..changed });
        assert_eq!((decision.status, decision.fire_at), (Status::Pending, 80));
        let after = LedgerFacts { revision: 9, scheduled: 90, recurs: true, ..before };
        let decision = status_of(&StatusFacts { ledger: Some(&after), ..changed });
        assert_eq!((decision.status, decision.fire_at), (Status::Scheduled, 90));
    }

    #[test]
    fn the_fire_time_is_the_time_of_the_call_or_resume() {
        let called = OutcomeFacts { last_call: Some((0, 20)), ..NO_OUTCOMES };
        let resumed = OutcomeFacts { resumed_at: Some(60), ..NO_OUTCOMES };
        assert_eq!(status_of(&fired(topic_trigger(&called))).settled_at, Some(20));
        assert_eq!(status_of(&fired(topic_trigger(&resumed))).settled_at, Some(60));
    }
}
