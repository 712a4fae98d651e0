//! A signal: a message from a worker, another owner or a dead letter's replay to the owner of a
//! trigger. Keyed by the id of the trigger whose owner it is for.

use super::Timestamp;
use super::attempt::History;
use super::definition::Definition;
use super::fire::Fire;
use super::fire_id::FireId;
use super::lifecycle::Watcher;
use super::text::Text;

/// A message to an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Fire this again later.
    Retry(RetryRequest),
    /// A callback has ended, successfully or not; it will not be retried automatically.
    CallbackEnded(CallbackEnded),
    /// Notify another trigger when this one has settled.
    Watch(Watch),
    /// A trigger that this one waits for has settled.
    DependencySettled(DependencySettled),
}

impl Signal {
    /// The trigger whose owner it is for.
    #[must_use]
    pub fn trigger(&self) -> &Text {
        match self {
            Self::Retry(request) => &request.id.trigger,
            Self::CallbackEnded(ended) => &ended.id.trigger,
            Self::Watch(watch) => &watch.trigger,
            Self::DependencySettled(settlement) => &settlement.watcher.trigger,
        }
    }
}

/// How a callback ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallbackEnded {
    /// The last attempt of it.
    pub id: FireId,
    /// Whether it was delivered.
    pub ok: bool,
}

/// One trigger waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The one that is waited for.
    pub trigger: Text,
    /// The one that waits.
    pub watcher: Watcher,
    /// When it stops waiting, in ms since the epoch.
    pub until: Timestamp,
}

/// The result of a trigger that another one waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencySettled {
    /// The one that waits.
    pub watcher: Watcher,
    /// The one that has settled.
    pub dependency: Text,
    /// Whether it succeeded: fired into its topic, delivered, or skipped as requested.
    pub ok: bool,
}

/// An attempt that the owner's timeline holds until it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryRequest {
    /// The attempt to make: its `attempt` is one more than the failed one's, or, where the fire
    /// was only deferred, the same with one more deferral.
    pub id: FireId,
    /// When, in ms since the epoch. A time at or below the owner's cursor fires at once.
    pub due: Timestamp,
    /// When the occurrence was first due.
    pub scheduled: Timestamp,
    /// Why the last attempt failed, for people.
    pub reason: String,
    /// What to do.
    pub definition: Definition,
    /// The attempts so far.
    pub history: Option<Box<History>>,
    /// Whether its end must be reported to the owner.
    pub report_end: bool,
    /// The trigger's priority, 0 to 255.
    pub priority: u8,
}

impl RetryRequest {
    /// The attempt after the last one of `fire`, due at `due`, which would not be made
    /// automatically. Its retry policy starts again. An attempt that was never made (its pool or
    /// topic was unavailable) is sent back like one that was deferred: it has the same number. Each
    /// replay is a different request (`replays` is how many were made before), and a repeated
    /// request for one replay is the same one.
    #[must_use]
    pub fn replay(fire: Fire, earlier_replays: u32, due: Timestamp) -> Self {
        let Fire { id, scheduled, definition, history, report_end, priority, .. } = fire;
        let was_attempted =
            history.as_ref().is_some_and(|history| history.last_number() >= id.attempt);
        let id = if was_attempted {
            FireId { attempt: id.attempt + 1, deferral: earlier_replays, ..id }
        } else {
            FireId { deferral: id.deferral + 1 + earlier_replays, ..id }
        };
        let before = id.attempt - 1;
        let history = history.map(|mut history| {
            history.attempts_before_replay = before;
            history
        });
        let reason = "replayed by hand".to_owned();
        Self { id, due, scheduled, reason, definition, history, report_end, priority }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::attempt::Attempt;
    use crate::model::definition::{HttpTarget, Target};

    fn fire(attempt: u32, made: u32) -> Fire {
        let id = FireId { trigger: "a".into(), generation: 7, occurrence: 2, attempt, deferral: 1 };
        let history = (1..=made).fold(None, |history, number| {
            let attempt = Attempt {
                number,
                at: 1,
                worker: "w".into(),
                status: Some(500),
                error: None,
                duration_ms: 1,
                excerpt: None,
            };
            History::with_attempt(history, attempt)
        });
        let definition = Definition {
            target: Target::from(HttpTarget::post("http://h/")),
            payload: None,
            headers: Vec::new(),
            retry: None,
            caller: None,
        };
        let (report_end, priority) = (false, 127);
        Fire { id, scheduled: 1, fired: 2, definition, history, report_end, priority }
    }

    #[test]
    fn a_replay_is_the_next_attempt_and_the_policy_starts_again() {
        let replay = RetryRequest::replay(fire(3, 3), 0, 9);
        assert_eq!((replay.id.attempt, replay.id.deferral, replay.due), (4, 0, 9));
        let history = replay.history.unwrap();
        assert_eq!((history.attempts_before_replay, history.attempts.len()), (3, 3));
        let twice = RetryRequest::replay(fire(3, 3), 1, 9);
        assert!(twice.id > replay.id, "the owner takes it for a different one");
    }

    #[test]
    fn a_replay_keeps_the_priority_of_its_fire_and_reports_its_end() {
        for (made, report_end, priority) in [(3, true, 255), (3, false, 0), (2, true, 1)] {
            let fire = Fire { report_end, priority, ..fire(3, made) };
            let replay = RetryRequest::replay(fire, 0, 9);
            assert_eq!((replay.report_end, replay.priority), (report_end, priority));
        }
    }

    #[test]
    fn an_attempt_that_was_never_made_keeps_its_number() {
        let first = RetryRequest::replay(fire(1, 0), 0, 9);
        assert_eq!((first.id.attempt, first.id.deferral, first.history), (1, 2, None));
        let third = RetryRequest::replay(fire(3, 2), 0, 9);
        assert_eq!((third.id.attempt, third.id.deferral), (3, 2));
        assert_eq!(third.history.unwrap().attempts_before_replay, 2);
    }
}
