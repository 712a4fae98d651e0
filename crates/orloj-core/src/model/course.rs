//! The course of a trigger: what it needs beyond one time and one attempt. When it comes again,
//! what it waits for, who waits for it, and whether a person has stopped it.
//!
//! Law: nearly every trigger has none. One that [`is_kept`](Course::is_kept) depends on more than
//! its record's bytes and stays in the ledger from the step that decided it until it is settled.
//! It travels as canonical JSON, without what is as usual.

use serde::{Deserialize, Serialize};

use super::long;
use super::schedule::{Overlap, Schedule};
use super::text::Text;
use super::{Millis, Offset, Timestamp};

/// Beyond one time and one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Course {
    /// What has become of it.
    #[serde(skip_serializing_if = "Standing::is_pending")]
    pub standing: Standing,
    /// Whether a worker shall say how the callback ended. Of a retry only: for an occurrence it
    /// follows from the rest.
    #[serde(skip_serializing_if = "is_false")]
    pub settles: bool,
    /// Later than this after its time, in ms, a one-time trigger is not fired any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<Millis>,
    /// When it comes again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Box<Series>>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaits: Option<Box<Awaits>>,
    /// How long it is remembered once it is settled, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain: Option<Millis>,
    /// Who waits for it, in the order they came.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watchers: Vec<Watcher>,
    /// A command has stopped it, or too many failures have.
    #[serde(skip_serializing_if = "is_false")]
    pub paused: bool,
    /// `fire-now` has called it, whatever its time.
    #[serde(skip_serializing_if = "is_false")]
    pub called: bool,
    /// A command has touched it, so that the ledger has it and not the log.
    #[serde(skip_serializing_if = "is_false")]
    pub touched: bool,
}

/// What has become of an occurrence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// It waits for its time, or for others.
    #[default]
    Pending,
    /// Its time has come; it waits for the callback of the occurrence before.
    Queued,
    /// It has fired, and a worker will say how its callback ended.
    Open,
    /// It was delivered; remembered.
    Done,
    /// It came to nothing; remembered.
    Failed,
}

impl Standing {
    /// Whether it is still to fire.
    #[must_use]
    pub fn is_ahead(self) -> bool {
        matches!(self, Self::Pending | Self::Queued)
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_pending(&self) -> bool {
        *self == Self::Pending
    }
}

/// The occurrences of a recurring trigger, from the next one on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Series {
    /// When it comes.
    pub schedule: Schedule,
    /// The next occurrence, in ms since the epoch, before its jitter.
    pub nominal: Timestamp,
    /// Occurrences up to here fire however late they are: what was missed is decided.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub granted: Timestamp,
    /// The newest occurrence whose callback is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
    /// Failures in a row.
    #[serde(default, skip_serializing_if = "no_failures")]
    pub failures: u32,
}

/// A callback under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Open {
    /// Its occurrence.
    pub occurrence: u32,
    /// When it is given up if nobody says how it ended, in ms since the epoch.
    pub until: Timestamp,
}

/// What a trigger waits for before it fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Awaits {
    /// The triggers that have not settled yet.
    pub remaining: Vec<Text>,
    /// What becomes of it if one of them fails, or does not settle in time.
    pub on_failure: OnFailure,
    /// It waits no longer, in ms since the epoch.
    pub until: Timestamp,
    /// The first of them that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Text>,
}

/// What becomes of a trigger if what it waits for does not come about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// It fires all the same, once all have settled.
    Fire,
    /// It does not fire; whoever waits for it goes on.
    Skip,
    /// It does not fire, and whoever waits for it learns that it failed.
    #[default]
    Fail,
}

/// What a registration says of triggers that must settle first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// Those triggers, each once.
    pub ids: Vec<Text>,
    /// What if one fails.
    pub on_failure: OnFailure,
    /// How long they have, from the record's broker timestamp, in ms.
    pub timeout: Millis,
}

/// A trigger that waits for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Watcher {
    /// Which one.
    pub trigger: Text,
    /// Its generation.
    #[serde(with = "long")]
    pub generation: Offset,
}

/// What a person or program asks of a trigger that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Do not fire before it is resumed.
    Pause,
    /// Go on.
    Resume,
    /// Fire once, at once.
    FireNow,
}

impl Course {
    /// Whether the ledger holds it in any case.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        let Self { series, awaits, retain, watchers, paused, called, touched, standing, .. } = self;
        let more = series.is_some() || awaits.is_some() || retain.is_some();
        let acted = *paused || *called || *touched || *standing != Standing::Pending;
        more || acted || !watchers.is_empty()
    }

    /// Whether a worker shall say how a callback of it ends.
    #[must_use]
    pub fn wants_end(&self) -> bool {
        let of_series = self.series.as_ref().is_some_and(|series| {
            let schedule = &series.schedule;
            schedule.overlap() != Overlap::Allow || schedule.pause_after().is_some()
        });
        // What was called before its time must be remembered until then; so is how it ended.
        let remembered = self.retain.is_some() || self.called && self.series.is_none();
        self.settles || of_series || remembered || !self.watchers.is_empty()
    }

    /// The course, if there is anything to it.
    #[must_use]
    pub fn some(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_nothing(granted: &Timestamp) -> bool {
    *granted == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn no_failures(failures: &u32) -> bool {
    *failures == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_usual_is_not_said() {
        let course = Course { expire_after: Some(5), ..Course::default() };
        assert_eq!(serde_json::to_string(&course).unwrap(), r#"{"expireAfter":5}"#);
        assert!(!course.is_kept() && course.some().is_some());
        assert_eq!(Course::default().some(), None);
        let unknown = serde_json::from_str::<Course>(r#"{"expireAfter":5,"weather":"fine"}"#);
        assert!(unknown.is_err(), "a newer Orloj's is not half understood");
    }

    #[test]
    fn what_depends_on_more_than_its_record_is_kept() {
        let watcher = Watcher { trigger: "b".into(), generation: 3 };
        for course in [
            Course { retain: Some(1), ..Course::default() },
            Course { paused: true, ..Course::default() },
            Course { called: true, ..Course::default() },
            Course { touched: true, ..Course::default() },
            Course { watchers: vec![watcher], ..Course::default() },
            Course { standing: Standing::Open, ..Course::default() },
        ] {
            assert!(course.is_kept(), "{course:?}");
        }
    }
}
