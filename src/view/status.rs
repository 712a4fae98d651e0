//! Where a trigger stands: one pure function of what the topics say of its current generation.
//!
//! Law: no order of reading, no clock and nothing that was concluded before plays a part. What is
//! concluded from something *not* being there (not in the ledger, not cancelled) is concluded only
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
//!      too late, never came ─► EXPIRED     └─ what it waited for failed ─► FAILED, CANCELLED
//! ```
//!
//! A recurring trigger is SCHEDULED while occurrences follow, whatever becomes of their callbacks;
//! behind the last one it stands where that one stands.

use serde::{Deserialize, Serialize};

use super::answer::Status;
use crate::model::course::{OnFailure, Standing};
use crate::model::entry::FireRow;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, Timestamp};

/// What the ledger holds of a trigger, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Held {
    pub(super) generation: Offset,
    pub(super) standing: Standing,
    pub(super) paused: bool,
    pub(super) awaits: bool,
    pub(super) recurs: bool,
    /// When the next occurrence is due, or the last one was.
    pub(super) scheduled: Timestamp,
    /// The number of the next occurrence, or of those that were.
    pub(super) occurrence: u32,
}

impl Held {
    pub(super) fn of(row: &FireRow) -> Self {
        let course = row.course.as_deref();
        Self {
            generation: row.id.generation,
            standing: course.map_or(Standing::Pending, |course| course.standing),
            paused: course.is_some_and(|course| course.paused),
            awaits: course.is_some_and(|course| course.awaits.is_some()),
            recurs: course.is_some_and(|course| course.series.is_some()),
            scheduled: row.scheduled,
            occurrence: row.id.occurrence,
        }
    }
}

/// What outcomes say of a generation, the last word of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Told {
    /// How an attempt ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempt: Option<Ending>,
    /// That it does not fire any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) off: Option<Ending>,
    /// How often it fired, when it came for the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<(u32, Timestamp)>,
    /// When it was called before its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) called: Option<Timestamp>,
    /// When it was resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resumed: Option<Timestamp>,
    /// Why it was paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paused: Option<String>,
    /// When anything was said last.
    pub(super) at: Timestamp,
}

/// One end, of an attempt or of all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ending {
    pub(super) how: How,
    /// The offset of the outcome: the later word counts.
    pub(super) said: Offset,
    pub(super) at: Timestamp,
    pub(super) occurrence: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum How {
    Delivered,
    Failed,
    /// An attempt failed, and another follows.
    Retried,
    Withdrawn,
    Cancelled,
    Expired,
    Unmet(OnFailure),
}

impl How {
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

/// Everything that decides where a generation stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// By its registration: it is a callback, it recurs, it waits for others, and the ledger holds
    /// it in any case until it is settled.
    pub(super) http: bool,
    pub(super) recurs: bool,
    pub(super) awaits: bool,
    pub(super) kept: bool,
    pub(super) created_at: Timestamp,
    pub(super) fire_at: Timestamp,
    /// N has passed its registration, and all that was written up to then is read.
    pub(super) decided: bool,
    /// W has passed its place on the timeline, by the same cursor.
    pub(super) passed: bool,
    /// What the ledger holds of this generation.
    pub(super) held: Option<&'a Held>,
    pub(super) told: &'a Told,
}

/// Where a trigger stands, since when if that is its end, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) status: Status,
    pub(super) settled_at: Option<Timestamp>,
    /// When it is due next, or was last.
    pub(super) fire_at: Timestamp,
    pub(super) executions: u32,
    pub(super) reason: Option<String>,
}

/// Where a place on the timeline is by the cursor's W.
pub(super) fn has_passed(w: &TimelineKey, place: &TimelineKey) -> bool {
    place <= w
}

/// Judges the facts.
pub(super) fn judge(facts: &Facts<'_>) -> Verdict {
    let (status, ending) = stand(facts);
    let settled_at =
        status.is_settled().then(|| ending.map_or_else(|| fired_at(facts), |ending| ending.at));
    let reason = match status {
        Status::Paused => facts.told.paused.clone(),
        _ => ending.and_then(|ending| ending.reason.clone()),
    };
    Verdict {
        status,
        settled_at,
        fire_at: due(facts),
        executions: executions(facts, status),
        reason,
    }
}

fn stand<'a>(facts: &Facts<'a>) -> (Status, Option<&'a Ending>) {
    if let Some((status, ending)) = ended(facts) {
        return (status, Some(ending));
    }
    match facts.held {
        Some(held) => match held.standing {
            Standing::Pending | Standing::Queued if is_paused(facts) => (Status::Paused, None),
            Standing::Pending | Standing::Queued => (ahead(held.recurs, held.awaits), None),
            Standing::Open if facts.recurs => last_one(facts),
            Standing::Open => (Status::InFlight, retried(facts)),
            Standing::Done if facts.http => (Status::Completed, None),
            Standing::Done => (Status::Fired, None),
            Standing::Failed => (Status::Failed, None),
        },
        None if !facts.decided && is_paused(facts) => (Status::Paused, None),
        None if !facts.decided || !(facts.kept || facts.passed) => {
            (ahead(facts.recurs, facts.awaits), None)
        }
        None if facts.recurs => last_one(facts),
        None if facts.http => (Status::InFlight, retried(facts)),
        None => (Status::Fired, None),
    }
}

/// Whether it is paused: by the last word about that, which is known before the ledger is read; the
/// ledger tells where that word is too old to be kept.
fn is_paused(facts: &Facts<'_>) -> bool {
    match facts.told {
        Told { paused: Some(_), .. } => true,
        Told { resumed: Some(_), .. } => false,
        _ => facts.held.is_some_and(|held| held.paused),
    }
}

fn ahead(recurs: bool, awaits: bool) -> Status {
    match (awaits, recurs) {
        (true, _) => Status::Waiting,
        (false, true) => Status::Scheduled,
        (false, false) => Status::Pending,
    }
}

/// What was said about the end of it as a whole.
fn ended<'a>(facts: &Facts<'a>) -> Option<(Status, &'a Ending)> {
    let Told { attempt, off, .. } = facts.told;
    let off = off.as_ref();
    let last = match attempt.as_ref() {
        // What becomes of one occurrence is not the end of the others.
        _ if facts.recurs => off,
        attempt => match (attempt, off) {
            (Some(attempt), Some(off)) if attempt.said < off.said => Some(off),
            (Some(attempt), _) => Some(attempt),
            (None, off) => off,
        },
    }?;
    Some((last.how.status()?, last))
}

/// Why an attempt that is repeated failed last.
fn retried<'a>(facts: &Facts<'a>) -> Option<&'a Ending> {
    facts.told.attempt.as_ref().filter(|ending| ending.how == How::Retried)
}

/// A recurring trigger behind its last occurrence.
fn last_one<'a>(facts: &Facts<'a>) -> (Status, Option<&'a Ending>) {
    let executions = facts.told.ended.map(|(executions, _)| executions);
    match (executions, facts.told.attempt.as_ref()) {
        (Some(0), _) => (Status::Expired, None),
        _ if !facts.http => (Status::Fired, None),
        (Some(executions), Some(last)) if last.occurrence + 1 >= executions => {
            (last.how.status().unwrap_or(Status::InFlight), Some(last))
        }
        _ => (Status::InFlight, None),
    }
}

/// When a fire that nobody speaks of was made, as far as it can be known.
fn fired_at(facts: &Facts<'_>) -> Timestamp {
    let Told { ended, called, resumed, .. } = facts.told;
    let due = facts.fire_at.max(facts.created_at);
    match (ended, called) {
        (Some((_, at)), _) => *at,
        (None, Some(called)) => *called,
        (None, None) => due.max(resumed.unwrap_or(0)),
    }
}

fn due(facts: &Facts<'_>) -> Timestamp {
    match (facts.held, facts.told.ended) {
        (Some(held), _) if held.standing.is_ahead() => held.scheduled,
        (_, Some((_, at))) => at,
        _ => facts.fire_at,
    }
}

fn executions(facts: &Facts<'_>, status: Status) -> u32 {
    let attempted = facts.told.attempt.as_ref().map_or(0, |last| last.occurrence + 1);
    if !facts.recurs {
        let fired = matches!(status, Status::Fired | Status::InFlight | Status::Completed);
        return u32::from(fired).max(attempted);
    }
    match (facts.held, facts.told.ended) {
        (Some(held), _) => held.occurrence.max(attempted),
        (None, Some((executions, _))) => executions,
        (None, None) => attempted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Told = Told {
        attempt: None,
        off: None,
        ended: None,
        called: None,
        resumed: None,
        paused: None,
        at: 0,
    };

    /// A one-time trigger into a topic, registered at 10 and due at 50, that its owner has not
    /// read yet.
    fn plain(told: &Told) -> Facts<'_> {
        Facts {
            http: false,
            recurs: false,
            awaits: false,
            kept: false,
            created_at: 10,
            fire_at: 50,
            decided: false,
            passed: false,
            held: None,
            told,
        }
    }

    fn http(told: &Told) -> Facts<'_> {
        Facts { http: true, ..plain(told) }
    }

    fn recurring(told: &Told) -> Facts<'_> {
        Facts { recurs: true, kept: true, ..plain(told) }
    }

    fn fired<'a>(facts: Facts<'a>) -> Facts<'a> {
        Facts { decided: true, passed: true, ..facts }
    }

    fn held(standing: Standing) -> Held {
        Held {
            generation: 7,
            standing,
            paused: false,
            awaits: false,
            recurs: false,
            scheduled: 50,
            occurrence: 0,
        }
    }

    fn ending(how: How, said: Offset, occurrence: u32) -> Option<Ending> {
        Some(Ending { how, said, at: 90, occurrence, reason: Some("why".to_owned()) })
    }

    fn attempt(how: How) -> Told {
        Told { attempt: ending(how, 1, 0), ..NOTHING }
    }

    fn off(how: How) -> Told {
        Told { off: ending(how, 2, 0), ..NOTHING }
    }

    fn last_attempt(occurrence: u32) -> Told {
        Told { attempt: ending(How::Failed, 3, occurrence), ..NOTHING }
    }

    fn status(facts: Facts<'_>) -> Status {
        judge(&facts).status
    }

    #[test]
    fn before_its_time_it_waits() {
        assert_eq!(status(plain(&NOTHING)), Status::Pending);
        assert_eq!(status(recurring(&NOTHING)), Status::Scheduled);
        let waits = Facts { awaits: true, kept: true, ..plain(&NOTHING) };
        assert_eq!(status(waits), Status::Waiting);
        let read = Facts { decided: true, ..plain(&NOTHING) };
        assert_eq!(status(read), Status::Pending);
        let passed = Facts { passed: true, ..plain(&NOTHING) };
        assert_eq!(status(passed), Status::Pending, "W is of no account before N");
    }

    #[test]
    fn the_ledger_says_where_it_stands() {
        let (pending, queued) = (held(Standing::Pending), held(Standing::Queued));
        let paused = Held { paused: true, ..held(Standing::Pending) };
        let waiting = Held { awaits: true, ..held(Standing::Pending) };
        let series = Held { recurs: true, ..held(Standing::Pending) };
        for (held, facts, expected) in [
            (&pending, plain(&NOTHING), Status::Pending),
            (&pending, fired(plain(&NOTHING)), Status::Pending), // its topic is away
            (&queued, plain(&NOTHING), Status::Pending),
            (&paused, plain(&NOTHING), Status::Paused),
            (&waiting, plain(&NOTHING), Status::Waiting),
            (&series, recurring(&NOTHING), Status::Scheduled),
            (&held(Standing::Open), http(&NOTHING), Status::InFlight),
            (&held(Standing::Done), http(&NOTHING), Status::Completed),
            (&held(Standing::Done), plain(&NOTHING), Status::Fired),
            (&held(Standing::Failed), plain(&NOTHING), Status::Failed),
        ] {
            assert_eq!(status(Facts { held: Some(held), ..facts }), expected, "{held:?}");
        }
    }

    #[test]
    fn the_last_word_about_a_pause_is_believed_before_the_ledger_is_read() {
        let paused = Told { paused: Some("by a command".to_owned()), ..NOTHING };
        let resumed = Told { resumed: Some(20), ..NOTHING };
        let (running, stopped) =
            (held(Standing::Pending), Held { paused: true, ..held(Standing::Pending) });
        let with = |held, facts| status(Facts { held, ..facts });
        assert_eq!(with(Some(&running), plain(&paused)), Status::Paused);
        assert_eq!(with(None, plain(&paused)), Status::Paused);
        assert_eq!(with(Some(&stopped), plain(&resumed)), Status::Pending);
        assert_eq!(with(Some(&stopped), plain(&NOTHING)), Status::Paused, "it was said long ago");
        assert_eq!(with(None, fired(plain(&paused))), Status::Fired, "it was resumed meanwhile");
        let verdict = judge(&plain(&paused));
        assert_eq!(verdict.reason.as_deref(), Some("by a command"));
    }

    #[test]
    fn what_w_has_passed_and_the_ledger_does_not_hold_has_fired() {
        assert_eq!(status(fired(plain(&NOTHING))), Status::Fired);
        assert_eq!(status(fired(http(&NOTHING))), Status::InFlight);
        let kept = Facts { kept: true, decided: true, ..plain(&NOTHING) };
        assert_eq!(status(kept), Status::Fired, "the ledger would hold it");
        assert_eq!(judge(&fired(plain(&NOTHING))).settled_at, Some(50));
        let late = Facts { created_at: 70, ..fired(plain(&NOTHING)) };
        assert_eq!(judge(&late).settled_at, Some(70));
    }

    #[test]
    fn outcomes_say_how_it_ended() {
        for (told, expected) in [
            (attempt(How::Delivered), Status::Completed),
            (attempt(How::Failed), Status::Failed),
            (attempt(How::Retried), Status::InFlight),
            (attempt(How::Withdrawn), Status::Cancelled),
            (off(How::Cancelled), Status::Cancelled),
            (off(How::Expired), Status::Expired),
            (off(How::Unmet(OnFailure::Fail)), Status::Failed),
            (off(How::Unmet(OnFailure::Skip)), Status::Cancelled),
        ] {
            let verdict = judge(&fired(http(&told)));
            assert_eq!(verdict.status, expected, "{told:?}");
            let settled = (expected != Status::InFlight).then_some(90);
            assert_eq!((verdict.settled_at, verdict.reason.as_deref()), (settled, Some("why")));
        }
    }

    #[test]
    fn the_later_word_counts() {
        let mut told = attempt(How::Delivered);
        told.off = ending(How::Cancelled, 0, 0);
        assert_eq!(status(fired(http(&told))), Status::Completed);
        told.off = ending(How::Cancelled, 5, 0);
        assert_eq!(status(fired(http(&told))), Status::Cancelled);
    }

    #[test]
    fn a_recurring_one_ends_as_its_last_occurrence_does() {
        let ended = |executions, told: Told| Told { ended: Some((executions, 80)), ..told };
        let last = |how, occurrence| Told { attempt: ending(how, 3, occurrence), ..NOTHING };
        fn http(told: &Told) -> Facts<'_> {
            Facts { http: true, decided: true, ..recurring(told) }
        }
        let failed_once = last(How::Failed, 0);
        let series = Held { recurs: true, ..held(Standing::Pending) };
        let goes_on = Facts { held: Some(&series), ..http(&failed_once) };
        assert_eq!(status(goes_on), Status::Scheduled);
        for (told, expected) in [
            (ended(2, NOTHING), Status::InFlight),
            (ended(2, last(How::Delivered, 0)), Status::InFlight),
            (ended(2, last(How::Delivered, 1)), Status::Completed),
            (ended(2, last(How::Failed, 1)), Status::Failed),
            (ended(2, last(How::Retried, 1)), Status::InFlight),
            (ended(0, NOTHING), Status::Expired),
            (off(How::Cancelled), Status::Cancelled),
        ] {
            assert_eq!(status(http(&told)), expected, "{told:?}");
        }
        let remembered = Held { recurs: true, ..held(Standing::Open) };
        let delivered = ended(2, last(How::Delivered, 1));
        let facts = Facts { held: Some(&remembered), ..http(&delivered) };
        assert_eq!(status(facts), Status::Completed);
        let into_topic = ended(2, NOTHING);
        let verdict = judge(&Facts { decided: true, ..recurring(&into_topic) });
        assert_eq!((verdict.status, verdict.executions), (Status::Fired, 2));
        assert_eq!((verdict.settled_at, verdict.fire_at), (Some(80), 80));
    }

    #[test]
    fn executions_are_counted_as_far_as_they_are_known() {
        let retried = attempt(How::Retried);
        assert_eq!(judge(&plain(&NOTHING)).executions, 0);
        assert_eq!(judge(&fired(plain(&NOTHING))).executions, 1, "of which nobody speaks");
        assert_eq!(judge(&fired(http(&retried))).executions, 1);
        let series = Held { recurs: true, occurrence: 5, ..held(Standing::Pending) };
        let facts = Facts { held: Some(&series), ..recurring(&NOTHING) };
        assert_eq!(judge(&facts).executions, 5);
        let ahead = last_attempt(6);
        assert_eq!(judge(&Facts { told: &ahead, ..facts }).executions, 7, "the ledger comes later");
        assert_eq!(judge(&recurring(&ahead)).executions, 7);
    }

    #[test]
    fn it_is_due_when_the_ledger_says_while_it_is_ahead() {
        let moved = Held { scheduled: 70, ..held(Standing::Pending) };
        let done = Held { scheduled: 70, ..held(Standing::Done) };
        let due = |held, facts| judge(&Facts { held, ..facts }).fire_at;
        assert_eq!(due(None, plain(&NOTHING)), 50);
        assert_eq!(due(Some(&moved), plain(&NOTHING)), 70);
        assert_eq!(due(Some(&done), plain(&NOTHING)), 50);
    }

    #[test]
    fn w_has_passed_its_own_place() {
        let w = TimelineKey::last_of(50);
        assert!(has_passed(&w, &w) && has_passed(&w, &TimelineKey::first_of(50)));
        assert!(!has_passed(&w, &TimelineKey::first_of(51)));
    }

    #[test]
    fn what_is_called_or_resumed_fired_then() {
        let called = Told { called: Some(20), ..NOTHING };
        let resumed = Told { resumed: Some(60), ..NOTHING };
        assert_eq!(judge(&fired(plain(&called))).settled_at, Some(20));
        assert_eq!(judge(&fired(plain(&resumed))).settled_at, Some(60));
    }
}
