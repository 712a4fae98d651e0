//! What the view answers: triggers, executions, dead letters and circuits as queries return them.
//!
//! Invariant: plain values. The gateway defines their JSON, except the names of a status, which are
//! the same everywhere; what decides a status is in `status`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::model::definition::Definition;
use crate::model::lifecycle::Dependencies;
use crate::model::outcome::CircuitState;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// The status of a trigger.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// It waits for its time.
    Pending,
    /// It recurs, and waits for the next time.
    Scheduled,
    /// It waits for other triggers.
    Waiting,
    /// It has fired, and its callback has not ended.
    InFlight,
    /// It has fired into a topic.
    Fired,
    /// Its callback was answered with success.
    Completed,
    /// It was given up; the dead letters or the reason have the details.
    Failed,
    /// It was cancelled in time, or a trigger it waited for made it unnecessary.
    Cancelled,
    /// It does not fire before it is resumed.
    Paused,
    /// It was not fired within its own limit, or had no occurrence.
    Expired,
}

impl Status {
    /// Every status, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Pending,
        Self::Scheduled,
        Self::Waiting,
        Self::InFlight,
        Self::Fired,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Paused,
        Self::Expired,
    ];

    /// Whether nothing of it will fire by itself any more, and how it ended is known.
    #[must_use]
    pub fn is_settled(self) -> bool {
        use Status::{Cancelled, Completed, Expired, Failed, Fired};
        matches!(self, Fired | Completed | Failed | Cancelled | Expired)
    }

    /// Its number in the database.
    pub(super) fn number(self) -> i64 {
        self as i64
    }

    pub(super) fn of_number(number: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// The status of one execution.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ExecutionStatus {
    /// The callback is in progress, as far as is known.
    InFlight,
    /// The record is in its topic.
    Fired,
    /// The callback was answered with success.
    Completed,
    /// It failed, and there is no further attempt.
    Failed,
    /// It failed, and another follows.
    Retrying,
    /// It was cancelled before its request was made.
    Withdrawn,
    /// It was skipped.
    Skipped,
}

impl ExecutionStatus {
    /// Every status, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::InFlight,
        Self::Fired,
        Self::Completed,
        Self::Failed,
        Self::Retrying,
        Self::Withdrawn,
        Self::Skipped,
    ];

    pub(super) fn number(self) -> i64 {
        self as i64
    }

    pub(super) fn of_number(number: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// A trigger with its current generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerView {
    /// The id the user knows it by.
    pub id: String,
    /// The offset of its registration.
    pub generation: Offset,
    /// The offset of the record that defines it now: its registration, or the newest change.
    pub revision: Offset,
    /// A newer change is known, and not yet what it has changed.
    pub is_behind: bool,
    /// The partition of its registration.
    pub partition: PartitionId,
    /// Who registered it, if anyone is named.
    pub caller: Option<String>,
    /// Its status.
    pub status: Status,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Target, payload, headers and retries.
    pub definition: Definition,
    /// Whether the payload is whole; a large one is cut in the view.
    pub payload_is_complete: bool,
    /// When it recurs, as JSON.
    pub schedule: Option<String>,
    /// What it was to wait for.
    pub after: Option<Dependencies>,
    /// How late it may fire, in ms; of a one-time trigger only.
    pub expire_after: Option<Millis>,
    /// How long it is retained after it has settled, in ms.
    pub retain: Option<Millis>,
    /// Higher fires first within a millisecond.
    pub priority: u8,
    /// When it is due next, or was due last, in ms since the epoch.
    pub fire_at: Option<Timestamp>,
    /// When it was registered, in ms since the epoch by the broker.
    pub created_at: Timestamp,
    /// When it settled, in ms since the epoch; of a fire into a topic when it was due.
    pub settled_at: Option<Timestamp>,
    /// How often it has fired, as far as the topics still contain it.
    pub executions: u32,
    /// How many of them were before `maxExecutions` began to count: a change may have reset it.
    pub counted_from: u32,
    /// The last attempt that is known.
    pub last_execution: Option<ExecutionView>,
    /// Why it has this status, for people.
    pub reason: Option<String>,
}

/// One attempt, or skipped occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionView {
    /// Of which generation.
    pub generation: Offset,
    /// Of which occurrence; counted from 0.
    pub occurrence: u32,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// What became of it.
    pub status: ExecutionStatus,
    /// When it was due, in ms since the epoch, where that is known.
    pub due: Option<Timestamp>,
    /// When it ended, in ms since the epoch.
    pub at: Timestamp,
    /// The HTTP status, if there was an answer.
    pub http_status: Option<u16>,
    /// Why, for people.
    pub reason: Option<String>,
    /// When the next attempt is due, in ms since the epoch.
    pub retry_at: Option<Timestamp>,
}

/// What was done about a dead letter.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LetterState {
    /// Nothing yet.
    Open,
    /// Requested another attempt.
    Replayed,
    /// Archived it.
    Archived,
}

impl LetterState {
    /// Every state, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Open, Self::Replayed, Self::Archived];

    pub(super) fn number(self) -> i64 {
        self as i64
    }

    pub(super) fn of_number(number: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterView {
    /// `<partition>-<offset>` of its place in the topic.
    pub id: String,
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// When it was given up, in ms since the epoch.
    pub at: Timestamp,
    /// Why, for people.
    pub reason: String,
    /// The trigger that it is about, where that is known.
    pub trigger: Option<String>,
    /// Who registered it, if anyone is named.
    pub caller: Option<String>,
    /// The host that was to be called.
    pub host: Option<String>,
    /// What a person has done about it.
    pub state: LetterState,
    /// How often it was replayed.
    pub replays: u32,
    /// How many attempts were made; `None` of a record that is no fire.
    pub attempts: Option<u32>,
    /// The HTTP status of the last attempt, if there was an answer.
    pub last_status: Option<u16>,
}

/// The circuit of a worker for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitView {
    /// The worker whose circuit it is.
    pub worker: String,
    /// Whose callbacks it is about.
    pub caller: Option<String>,
    /// The host, with its port if that is not the scheme's.
    pub host: String,
    /// What it is now.
    pub state: CircuitState,
    /// Why, for people.
    pub reason: String,
    /// Since when, in ms since the epoch.
    pub since: Timestamp,
    /// When the next probe is due, in ms since the epoch.
    pub probe_at: Option<Timestamp>,
}

/// A registration as it was accepted, whatever its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationView {
    /// When it was due first, in ms since the epoch.
    pub fire_at: Timestamp,
    /// What the request was that made it, if it had a key.
    pub fingerprint: Option<String>,
    /// Who registered it, if anyone is named.
    pub caller: Option<String>,
}

/// A callback that has not ended though its time is long past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// The trigger.
    pub trigger: TriggerView,
    /// When it should have been tried last, in ms since the epoch.
    pub since: Timestamp,
}
