//! An outcome: what happened to a trigger, or to a worker's circuit, for people and machines that
//! want to know. The audit trail, and the answer to a record that carried `orloj-ack`.

use serde::{Deserialize, Serialize};

use super::lifecycle::OnFailure;
use super::text::Text;
use super::{Offset, Timestamp};

/// What the key of a circuit's outcomes begins with; caller and host follow the worker's name.
pub const CIRCUIT_KEY_PREFIX: &str = "~circuit|";

/// One line of the audit trail, keyed by trigger id, or by [`Circuit::key`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The trigger; of a circuit, its key.
    pub trigger: Text,
    /// The offset in `triggers` of the record this answers, if it answers one.
    pub answers: Option<Offset>,
    /// What that record had as `orloj-request`.
    pub request: Option<Text>,
    /// When the owner or worker decided, in ms since the epoch by its clock.
    pub at: Timestamp,
    /// What happened.
    pub kind: OutcomeKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutcomeKind {
    /// Registered, and pending until `fire_at` (or fired at once if that is past).
    Accepted {
        /// The generation it is known by.
        generation: Offset,
        /// When it is due, in ms since the epoch.
        fire_at: Timestamp,
        /// The pending generation that it replaced, if any.
        replaced: Option<Offset>,
    },
    /// Not registered or changed: `onConflict: keep` found one pending, or `orloj-if-generation`
    /// one that another record defines.
    Kept {
        /// The generation that stays, or the change that has defined it since.
        generation: Offset,
        /// When that one is due, in ms since the epoch.
        fire_at: Timestamp,
    },
    /// The cancel was in time: nothing of this generation fires any more.
    Cancelled {
        /// The generation that was cancelled.
        generation: Offset,
    },
    /// The cancel found nothing pending: fired already, cancelled already, never registered, or
    /// another caller's. A registration that was to replace a certain generation found none.
    NotPending {
        /// The latest generation known to have fired, where that is known.
        fired: Option<Offset>,
        /// Whether a withdrawal is requested, because a callback may be in flight: its request is
        /// not made if it has not started yet, and is not retried.
        withdrawal: bool,
    },
    /// Refused; the dead letters hold the record.
    Rejected {
        /// Why, for people.
        reason: String,
    },
    /// A callback was answered with success.
    Delivered {
        /// The generation.
        generation: Offset,
        /// The occurrence.
        occurrence: u32,
        /// The attempt that succeeded, from 1.
        attempt: u32,
        /// The HTTP status.
        status: u16,
    },
    /// A callback's attempt failed; another follows at `retry_at`, or the dead letters hold it.
    Failed {
        /// The generation.
        generation: Offset,
        /// The occurrence.
        occurrence: u32,
        /// The attempt that failed, from 1.
        attempt: u32,
        /// The HTTP status, if there was an answer.
        status: Option<u16>,
        /// Why, for people.
        reason: String,
        /// When the next attempt is due, in ms since the epoch; `None` after the last.
        retry_at: Option<Timestamp>,
    },
    /// A worker's circuit has changed its state.
    Circuit(Circuit),
    /// A cancel arrived after the fire and before its request, which will not be made.
    Withdrawn {
        /// The generation.
        generation: Offset,
        /// The occurrence.
        occurrence: u32,
        /// The attempt that was not made, from 1; those before it were.
        attempt: u32,
    },
    /// A command, or too many failures in a row, stopped it: nothing fires before it is resumed.
    Paused {
        /// The generation.
        generation: Offset,
        /// Why, for people.
        reason: String,
    },
    /// It is resumed.
    Resumed {
        /// The generation.
        generation: Offset,
        /// When it is due, in ms since the epoch; if that is past, it is decided now.
        fire_at: Timestamp,
    },
    /// A `fire-now` command: it fires at once.
    Called {
        /// The generation.
        generation: Offset,
        /// The occurrence that fires.
        occurrence: u32,
    },
    /// Occurrences of a recurring trigger, or a one-time trigger, that do not fire.
    Skipped {
        /// The generation.
        generation: Offset,
        /// How many; 10,000 stands for more.
        occurrences: u32,
        /// When the first of them was due, in ms since the epoch.
        from: Timestamp,
        /// When the last of them was due, in ms since the epoch.
        until: Timestamp,
        /// Why, for people.
        reason: String,
    },
    /// A recurring trigger has fired for the last time.
    Ended {
        /// The generation.
        generation: Offset,
        /// How often it fired.
        executions: u32,
    },
    /// A one-time trigger was not fired within its `expireAfter`.
    Expired {
        /// The generation.
        generation: Offset,
        /// When it was due, in ms since the epoch.
        fire_at: Timestamp,
    },
    /// What it waited for failed, or did not settle in time.
    Unmet {
        /// The generation.
        generation: Offset,
        /// What happens to it.
        then: OnFailure,
        /// Why, for people.
        reason: String,
    },
    /// Not registered: another caller's trigger has this id.
    Taken {
        /// The generation that stays.
        generation: Offset,
    },
    /// Its definition is another one from now on.
    Changed {
        /// The generation, which stays.
        generation: Offset,
        /// The offset of the change: what defines it now.
        revision: Offset,
        /// When it is due, in ms since the epoch.
        fire_at: Timestamp,
        /// How often it had fired until then: the number of its next occurrence. `None`: an earlier
        /// version wrote it.
        executions: Option<u32>,
    },
}

/// The state of a worker's circuit for a host since the outcome's time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Circuit {
    /// Whose circuit it is: the worker's transactional id.
    pub worker: Text,
    /// The caller whose callbacks it is about; `None` for triggers that name no caller.
    pub caller: Option<Text>,
    /// The host, with its port if that is not the scheme's.
    pub host: Text,
    /// Its state.
    pub state: CircuitState,
    /// Why, for people.
    pub reason: String,
    /// When the host is called again, in ms since the epoch, while the circuit is open.
    #[serde(with = "super::avro_long::option")]
    pub probe_at: Option<Timestamp>,
}

/// Whether a worker calls the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CircuitState {
    /// Calls are made.
    Closed,
    /// No calls are made for a while.
    Open,
    /// A few probes find out whether it has recovered.
    HalfOpen,
}

impl Circuit {
    /// The key of its outcomes, so that they are in one partition, in order.
    #[must_use]
    pub fn key(&self) -> Text {
        let caller = self.caller.as_ref().map_or("", Text::as_str);
        format!("{CIRCUIT_KEY_PREFIX}{}|{caller}|{}", self.worker, self.host).into()
    }
}
