//! Explains the answers to requests: each must follow from one order of what the log has, which is
//! the order of its records, with each fire between two of them.
//!
//! Invariant: it knows nothing of the program, neither how a gateway decides nor how an owner does.
//! The log gives the order, so an answer is compared with it; no order is searched for.
//!
//! ```text
//!  records, decisions, fires ─► TriggerOrder: the state after each record ┐
//!  requests and answers ─► claims: which record is of which request ──────┴─► findings
//! ```

mod answers;
mod claims;
mod order;
pub(crate) mod reading;
pub(crate) mod requests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub(crate) use order::TriggerOrder;

/// A time, or a duration: ms on a real broker, steps in a simulation.
pub(crate) type Time = u64;

/// What the topics have, by the trigger's id.
pub(crate) type TriggerLogs = BTreeMap<String, TriggerLog>;

/// What the topics have about one trigger.
#[derive(Clone, Debug, Default)]
pub(crate) struct TriggerLog {
    /// The records of its partition of `triggers`, in order.
    pub(crate) records: Vec<LoggedRecord>,
    pub(crate) fires: Vec<LoggedFire>,
}

/// A record of `triggers`, and what its owner decided.
#[derive(Clone, Debug)]
pub(crate) struct LoggedRecord {
    pub(crate) offset: u64,
    /// When it was written.
    pub(crate) appended: Time,
    /// What a registration or a change names the trigger; else empty.
    pub(crate) name: String,
    pub(crate) kind: RecordKind,
    /// With the same one a registration or a `fire-now` of this trigger is executed once.
    pub(crate) key: Option<String>,
    /// In the order of `outcomes`: there must be one.
    pub(crate) decisions: Vec<Decision>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// `keep`: only if nothing is pending or remembered. `retain`: remembered to the end of the
    /// run.
    Register {
        keep: bool,
        retain: bool,
    },
    /// Only if the record at this offset defines the trigger.
    Change {
        wanted: Option<u64>,
    },
    Cancel,
    Command(CommandWord),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandWord {
    Pause,
    Resume,
    FireNow,
}

/// What an owner decided about a record. Times are in ms since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Accepted {
        generation: u64,
        fire_at: u64,
        replaced: Option<u64>,
    },
    Kept {
        generation: u64,
        fire_at: u64,
    },
    Changed {
        generation: u64,
        revision: u64,
        fire_at: u64,
    },
    Cancelled {
        generation: u64,
    },
    Paused {
        generation: u64,
    },
    Resumed {
        generation: u64,
        fire_at: u64,
    },
    Called {
        generation: u64,
    },
    NotPending {
        fired: Option<u64>,
    },
    /// Anything else: no request of a run asks for what is refused.
    Refused,
}

/// A record of a target topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedFire {
    pub(crate) generation: u64,
    /// When a reader could see it.
    pub(crate) visible: Time,
}

/// A request of a client, with its answer.
#[derive(Clone, Debug)]
pub(crate) struct SentRequest {
    /// The process that it was sent to: another number after each restart.
    pub(crate) gateway: usize,
    pub(crate) started: Time,
    pub(crate) trigger: String,
    pub(crate) operation: Operation,
    /// With the time when the client had it; `None` if the client has none.
    pub(crate) answer: Option<(Time, Answer)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// With `key` the trigger's id follows from an `Idempotency-Key`.
    Create {
        name: String,
        key: bool,
    },
    Get,
    /// `if_match`: the revision that the client has seen.
    Patch {
        name: String,
        if_match: Option<u64>,
    },
    Cancel,
    Command(CommandWord),
    /// `:fireNow` with an `Idempotency-Key`.
    FireOnce,
    /// One registration of a batch; `key`: the batch has an `Idempotency-Key`.
    BatchItem {
        name: String,
        key: bool,
    },
}

/// An answer, as far as it says something about the trigger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Of a problem.
    pub(crate) code: String,
    pub(crate) generation: Option<u64>,
    pub(crate) revision: Option<u64>,
    /// In ms since the epoch.
    pub(crate) fire_at: Option<u64>,
    /// Up to when it is complete, in ms since the epoch.
    pub(crate) as_of: Option<u64>,
    pub(crate) replaced: Option<u64>,
    /// The generation that has fired, as a problem says.
    pub(crate) fired: Option<u64>,
    pub(crate) name: Option<String>,
    pub(crate) shown: Option<ShownStatus>,
    /// A problem says that nothing was written.
    pub(crate) not_written: bool,
}

/// The status of a trigger that fires once, into a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShownStatus {
    Pending,
    Paused,
    Fired,
    Cancelled,
}

/// What no order explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inexplicable {
    pub(crate) trigger: String,
    pub(crate) why: String,
}

impl fmt::Display for Inexplicable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.trigger, self.why)
    }
}

/// How exact the times of a run are, and when it ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunTimes {
    /// By how much the times of two processes may differ.
    pub(crate) slack: Time,
    /// What is due by then, in ms since the epoch, has fired.
    pub(crate) due_by: u64,
}

/// Everything in the log and in the answers that no order explains.
pub(crate) fn explain(
    logs: &TriggerLogs,
    requests: &[SentRequest],
    times: RunTimes,
) -> Vec<Inexplicable> {
    let mut by_trigger = BTreeMap::<&str, Vec<&SentRequest>>::new();
    for request in requests {
        by_trigger.entry(&request.trigger).or_default().push(request);
    }
    let nothing = TriggerLog::default();
    let mut found = Vec::new();
    let ids = logs.keys().map(String::as_str).chain(by_trigger.keys().copied());
    let ids: std::collections::BTreeSet<_> = ids.collect();
    for id in ids {
        let log = logs.get(id).unwrap_or(&nothing);
        let requests = by_trigger.get(id).map_or(&[][..], Vec::as_slice);
        let mut why = Vec::new();
        let order = TriggerOrder::of(log, times.due_by, &mut why);
        answers::check(&order, requests, times.slack, &mut why);
        let trigger = id.to_owned();
        found.extend(why.into_iter().map(|why| Inexplicable { trigger: trigger.clone(), why }));
    }
    found
}
