//! The lifecycle of a trigger: what it needs beyond one time and one attempt. When it recurs,
//! which triggers it waits for, which wait for it, and whether it is paused.
//!
//! Invariant: nearly every trigger has none. One that [`needs_ledger`](Lifecycle::needs_ledger)
//! depends on more than its record's bytes and stays in the ledger from the step that decided it
//! until it is settled. It is stored as canonical JSON, without default values.

use serde::{Deserialize, Serialize};

use super::avro_long;
use super::limits::{EXECUTED_REQUESTS_MAX, KEY_RETENTION_MS};
use super::schedule::{Overlap, Schedule};
use super::text::Text;
use super::{Millis, Offset, Timestamp};

/// What a trigger has beyond one time and one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Lifecycle {
    /// Its phase.
    #[serde(skip_serializing_if = "LifecyclePhase::is_pending")]
    #[serde(rename = "standing")]
    pub phase: LifecyclePhase,
    /// Whether a worker must report how the callback ended. Of a retry only: for an occurrence it
    /// follows from the rest.
    #[serde(skip_serializing_if = "is_false")]
    #[serde(rename = "settles")]
    pub report_end: bool,
    /// A one-time trigger that is later than this, in ms, does not fire any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<Millis>,
    /// When it recurs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "series")]
    pub recurrence: Option<Box<Recurrence>>,
    /// The triggers it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "awaits")]
    pub dependencies: Option<Box<PendingDependencies>>,
    /// How long it is remembered once it is settled, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain: Option<Millis>,
    /// The triggers that wait for it, in the order of their requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watchers: Vec<Watcher>,
    /// A command has paused it, or too many failures have.
    #[serde(skip_serializing_if = "is_false")]
    pub paused: bool,
    /// A `fire-now` command: it fires whatever its time.
    #[serde(skip_serializing_if = "is_false")]
    #[serde(rename = "called")]
    pub fire_now_requested: bool,
    /// A command or a change has changed it, so that the ledger has it and not the log.
    #[serde(skip_serializing_if = "is_false")]
    #[serde(rename = "touched")]
    pub changed_by_command: bool,
    /// The offset of the newest change of its definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<Offset>,
    /// A change has said again what it waits for.
    #[serde(skip_serializing_if = "is_false")]
    pub dependencies_changed: bool,
    /// Earlier occurrences were callbacks, and a change has made it fire into a topic.
    #[serde(skip_serializing_if = "is_false")]
    pub was_callback: bool,
    /// When it was due before its first change, in ms since the epoch: until then a replay would
    /// take its registration for pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_due: Option<Timestamp>,
    /// It has ended without having fired, or without having fired again.
    #[serde(skip_serializing_if = "is_false")]
    pub ended_unfired: bool,
    /// The newest requests with an idempotency key that were executed, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub executed: Vec<ExecutedRequest>,
}

/// A request with an idempotency key that was executed: its repetition is answered the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecutedRequest {
    /// The key.
    pub key: Text,
    /// The generation that it has registered or fired.
    #[serde(with = "avro_long")]
    pub generation: Offset,
    /// The occurrence that it has fired; 0 of a registration.
    pub occurrence: u32,
}

/// The phase of an occurrence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LifecyclePhase {
    /// It waits for its time, or for others.
    #[default]
    Pending,
    /// It is due, and waits for the callback of the occurrence before.
    Queued,
    /// It has fired, and a worker will report how its callback ended.
    Open,
    /// It succeeded, and is retained.
    Done,
    /// It failed, and is retained.
    Failed,
}

impl LifecyclePhase {
    /// Whether it has not fired yet.
    #[must_use]
    pub fn is_waiting(self) -> bool {
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
pub struct Recurrence {
    /// Its schedule.
    pub schedule: Schedule,
    /// The next occurrence, in ms since the epoch, before its jitter.
    #[serde(rename = "nominal")]
    pub due_before_jitter: Timestamp,
    /// Occurrences up to here fire however late they are: their misfire rule was applied.
    #[serde(default, skip_serializing_if = "is_nothing")]
    #[serde(rename = "granted")]
    pub catch_up_until: Timestamp,
    /// The newest occurrence whose callback is in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<RunningCallback>,
    /// Failures in a row.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// Executions before this number do not count: a change has started the count again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub counted_from: u32,
}

impl Recurrence {
    /// Whether it may fire again after so many executions.
    #[must_use]
    pub fn has_executions_left(&self, executions: u32) -> bool {
        let counted = executions.saturating_sub(self.counted_from);
        self.schedule.max_executions().is_none_or(|most| counted < most)
    }
}

/// A callback in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunningCallback {
    /// Its occurrence.
    pub occurrence: u32,
    /// When it counts as failed if no result was reported, in ms since the epoch.
    pub until: Timestamp,
}

/// What a trigger waits for before it fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PendingDependencies {
    /// The triggers that have not settled yet.
    pub remaining: Vec<Text>,
    /// What happens to it if one of them fails, or does not settle in time.
    pub on_failure: OnFailure,
    /// When it stops waiting, in ms since the epoch.
    pub until: Timestamp,
    /// The first of them that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Text>,
}

/// What happens to a trigger if one that it waits for fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnFailure {
    /// It fires all the same, once all have settled.
    Fire,
    /// It does not fire, and counts as successful for the triggers that wait for it.
    Skip,
    /// It does not fire, and counts as failed for the triggers that wait for it.
    #[default]
    Fail,
}

/// What a registration says of triggers that must settle first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependencies {
    /// Those triggers, each once.
    pub ids: Vec<Text>,
    /// What happens if one fails.
    pub on_failure: OnFailure,
    /// How long it waits, from the record's broker timestamp, in ms.
    pub timeout: Millis,
}

/// A trigger that waits for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Watcher {
    /// Which one.
    pub trigger: Text,
    /// Its generation.
    #[serde(with = "avro_long")]
    pub generation: Offset,
}

/// A command to a pending trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Do not fire before it is resumed.
    Pause,
    /// Fire again when due.
    Resume,
    /// Fire once, at once.
    FireNow,
}

impl Lifecycle {
    /// Whether it is held in the ledger however soon it is due.
    #[must_use]
    pub fn needs_ledger(&self) -> bool {
        let Self {
            recurrence,
            dependencies,
            retain,
            watchers,
            paused,
            fire_now_requested,
            changed_by_command,
            phase,
            executed,
            ..
        } = self;
        let is_extended = recurrence.is_some() || dependencies.is_some() || retain.is_some();
        let was_commanded = *paused
            || *fire_now_requested
            || *changed_by_command
            || *phase != LifecyclePhase::Pending;
        is_extended || was_commanded || !watchers.is_empty() || !executed.is_empty()
    }

    /// Whether a worker must report how a callback of it ends.
    #[must_use]
    pub fn reports_end(&self) -> bool {
        let recurrence_needs_it = self.recurrence.as_ref().is_some_and(|recurrence| {
            let schedule = &recurrence.schedule;
            schedule.overlap() != Overlap::Allow || schedule.pause_after().is_some()
        });
        // What was fired early by a command is retained until its time, and so is its result.
        let is_retained =
            self.retention().is_some() || self.fire_now_requested && self.recurrence.is_none();
        self.report_end || recurrence_needs_it || is_retained || !self.watchers.is_empty()
    }

    /// How long it is remembered once it is settled, in ms: as it was registered, and as long as
    /// the key of a request that was executed.
    #[must_use]
    pub fn retention(&self) -> Option<Millis> {
        let for_keys = (!self.executed.is_empty()).then_some(KEY_RETENTION_MS);
        self.retain.max(for_keys)
    }

    /// The request with this key, if it was executed.
    #[must_use]
    pub fn executed_request(&self, key: &Text) -> Option<&ExecutedRequest> {
        self.executed.iter().find(|request| request.key == *key)
    }

    /// Remembers a request that is executed.
    pub fn remember_request(&mut self, request: ExecutedRequest) {
        if self.executed.len() >= EXECUTED_REQUESTS_MAX {
            let _oldest = self.executed.remove(0);
        }
        self.executed.push(request);
    }

    /// The lifecycle, unless all of it is default.
    #[must_use]
    pub fn boxed_unless_default(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_nothing(time: &Timestamp) -> bool {
    *time == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_fields_are_not_written() {
        let lifecycle = Lifecycle { expire_after: Some(5), ..Lifecycle::default() };
        assert_eq!(serde_json::to_string(&lifecycle).unwrap(), r#"{"expireAfter":5}"#);
        assert!(!lifecycle.needs_ledger() && lifecycle.boxed_unless_default().is_some());
        assert_eq!(Lifecycle::default().boxed_unless_default(), None);
        let unknown = serde_json::from_str::<Lifecycle>(r#"{"expireAfter":5,"weather":"fine"}"#);
        assert!(unknown.is_err(), "one of a newer version is not read in part");
    }

    #[test]
    fn a_lifecycle_that_depends_on_more_than_its_record_needs_the_ledger() {
        let watcher = Watcher { trigger: "b".into(), generation: 3 };
        for lifecycle in [
            Lifecycle { retain: Some(1), ..Lifecycle::default() },
            Lifecycle { paused: true, ..Lifecycle::default() },
            Lifecycle { fire_now_requested: true, ..Lifecycle::default() },
            Lifecycle { changed_by_command: true, ..Lifecycle::default() },
            Lifecycle { watchers: vec![watcher], ..Lifecycle::default() },
            Lifecycle { phase: LifecyclePhase::Open, ..Lifecycle::default() },
        ] {
            assert!(lifecycle.needs_ledger(), "{lifecycle:?}");
        }
    }
}
