//! What a record of an input topic says, read from its bytes alone, so that a replay reads it
//! the same. Policy and state belong to the engine and the worker, not to the reader.

use bytes::Bytes;

use super::definition::{Definition, Header, Target};
use super::lifecycle::{Command, Dependencies};
use super::schedule::Schedule;
use super::signal::Signal;
use super::text::Text;
pub use super::timeline::PRIORITY_DEFAULT;
use super::{Millis, Offset, PartitionId, Timestamp};

/// A record of `triggers`, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerRecord {
    /// Its offset.
    pub offset: Offset,
    /// The broker's timestamp, in ms since the epoch (of the first appearance, if forwarded).
    pub timestamp: Timestamp,
    /// What it says of its answer, and of its repetition.
    pub ack: Ack,
    /// What it says.
    pub request: Request,
}

/// What a record says of its answer, and of its repetition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Whether `orloj-ack: true` asked for an outcome.
    pub wanted: bool,
    /// `orloj-request`: what its writer recognises the outcome by.
    pub request: Option<Text>,
    /// `orloj-idempotency-key`: a registration or a `fire-now` is executed once with it.
    pub idempotency_key: Option<Text>,
}

impl Ack {
    /// The same of a record that is answered whether it asked for that or not.
    #[must_use]
    pub fn always(self) -> Self {
        Self { wanted: true, ..self }
    }
}

impl From<bool> for Ack {
    fn from(wanted: bool) -> Self {
        Self { wanted, ..Self::default() }
    }
}

impl TriggerRecord {
    /// The id of the trigger that it is about, if it is known.
    #[must_use]
    pub fn trigger(&self) -> Option<&Text> {
        match &self.request {
            Request::Register(registration) => Some(&registration.id),
            Request::Change(change) => Some(&change.new.id),
            Request::Cancel { id, .. } | Request::Command { id, .. } => Some(id),
            Request::Batch(_) | Request::Forward(_) | Request::Unreadable(_) => None,
        }
    }

    /// About how many bytes of memory it takes up.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let content = match &self.request {
            Request::Register(registration) => registration.content_bytes(),
            Request::Change(change) => change.new.content_bytes(),
            Request::Cancel { .. } | Request::Command { .. } => 0,
            Request::Batch(forwards) => forwards.iter().map(Forward::content_bytes).sum(),
            Request::Forward(forward) => forward.content_bytes(),
            Request::Unreadable(unreadable) => unreadable.content_bytes(),
        };
        size_of::<Self>() + content
    }
}

/// What a record of `triggers` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly every record is a registration")]
pub enum Request {
    /// Register or replace.
    Register(Registration),
    /// Change the pending trigger of this id: it stays the same trigger.
    Change(Box<Change>),
    /// Cancel whatever is pending under this id.
    Cancel {
        /// The trigger.
        id: Text,
        /// In whose name: then nothing of others is touched.
        caller: Option<Text>,
    },
    /// Execute a command on the pending trigger of this id.
    Command {
        /// The trigger.
        id: Text,
        /// What.
        command: Command,
        /// In whose name: then nothing of others is touched.
        caller: Option<Text>,
    },
    /// Several registrations in one record: each goes to its own partition as a record.
    Batch(Vec<Forward>),
    /// Another partition is the right one: write it there, once, and ignore it here.
    Forward(Box<Forward>),
    /// Unreadable, or out of range: a dead letter.
    Unreadable(Box<Unreadable>),
}

/// A trigger as its registration defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The id the user knows it by.
    pub id: Text,
    /// When it is due, in ms since the epoch; a relative delay is already added to the record's
    /// broker timestamp. Of a recurring one the first time, moved by its jitter.
    pub fire_at: Timestamp,
    /// When it is due again, if it recurs: anchored, so that the rest follows from it alone.
    pub schedule: Option<Box<Schedule>>,
    /// How much later than its time it may fire, in ms; of a one-time trigger only.
    pub expire_after: Option<Millis>,
    /// The triggers that must settle before it fires.
    pub after: Option<Box<Dependencies>>,
    /// How long it is remembered once it is settled, in ms.
    pub retain: Option<Millis>,
    /// Whether its executions are counted on from those of the one it replaces.
    pub count: CountPolicy,
    /// Higher fires first within a millisecond; 127 unless the trigger says otherwise.
    pub priority: u8,
    /// What to do if the id is already pending.
    pub on_conflict: OnConflict,
    /// Target, payload and policies.
    pub definition: Definition,
    /// The ledger holds it however soon it is due: to read it again takes more than its record, a
    /// schema from a registry.
    pub in_ledger: bool,
}

impl Registration {
    /// A trigger with one time and no other policy than the defaults. `fire_at` in ms since the
    /// epoch.
    #[must_use]
    pub fn one_time(id: &str, fire_at: Timestamp, definition: Definition) -> Self {
        Self {
            id: id.into(),
            fire_at,
            schedule: None,
            expire_after: None,
            after: None,
            retain: None,
            count: CountPolicy::Reset,
            priority: PRIORITY_DEFAULT,
            on_conflict: OnConflict::Replace,
            definition,
            in_ledger: false,
        }
    }
}

/// Another definition of a pending trigger, which keeps its generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What it is from then on, but for what is not among `parts`. With
    /// [`OnConflict::Match`] it is changed only if that record defines it now.
    pub new: Registration,
    /// Which parts of it change that the owner knows better than who writes the change.
    pub parts: ChangedParts,
}

/// Parts of a trigger that are as the owner has them, unless a change names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedParts {
    /// When it is due, once or again, and the count of its executions.
    pub time: bool,
    /// What it waits for.
    pub after: bool,
    /// What is delivered.
    pub payload: bool,
    /// The key of the record that it fires.
    pub key: bool,
}

impl ChangedParts {
    /// Makes of a definition what a change says, but for the parts that it does not name. The
    /// trigger stays its caller's.
    pub fn apply_to(self, definition: &mut Definition, mut new: Definition) {
        if !self.payload {
            new.payload = definition.payload.take();
        }
        if let (false, Target::Topic(before), Target::Topic(now)) =
            (self.key, &mut definition.target, &mut new.target)
        {
            now.key = before.key.take();
        }
        new.caller = definition.caller.take();
        *definition = new;
    }
}

/// What a registration does to a pending one of the same id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnConflict {
    /// The newer definition wins.
    #[default]
    Replace,
    /// The pending one stays, and the registration is ignored.
    Keep,
    /// The newer definition wins if the pending one was defined by the record at this offset, else
    /// the registration is ignored: it was written with that one in mind.
    Match(Offset),
}

/// Where the count of executions begins if a registration replaces a recurring trigger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountPolicy {
    /// At zero.
    #[default]
    Reset,
    /// At the count of the replaced trigger.
    Keep,
}

impl Registration {
    /// The bytes of its payload, its headers, and the ids of those it waits for.
    fn content_bytes(&self) -> usize {
        let ids = self.after.iter().flat_map(|after| &after.ids);
        self.definition.content_bytes() + ids.map(|id| id.bytes().len()).sum::<usize>()
    }

    /// Whether the ledger holds it in any case: it depends on more than its record's bytes.
    #[must_use]
    pub fn needs_ledger(&self) -> bool {
        self.schedule.is_some() || self.after.is_some() || self.retain.is_some() || self.in_ledger
    }
}

/// A record whose key was partitioned by another hash than the one the topic is owned by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The partition it belongs to.
    pub partition: PartitionId,
    /// Its key.
    pub key: Bytes,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers, and the mark that keeps it from being forwarded twice.
    pub headers: Vec<Header>,
}

impl Forward {
    /// The bytes of its key, its value and its headers.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        let value = self.value.as_ref().map_or(0, Bytes::len);
        self.key.len() + value + Header::bytes_of(&self.headers)
    }
}

/// A record that cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The id, if that much could be read.
    pub id: Option<Text>,
    /// Why; names the field, the value and the way out.
    pub reason: String,
    /// The reason may be temporary: an unknown Avro schema id. The engine then leaves a skip
    /// mark, because a replay might read it differently.
    pub may_become_readable: bool,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its value.
    pub value: Option<Bytes>,
    /// Its headers.
    pub headers: Vec<Header>,
}

impl Unreadable {
    /// The bytes of its key, its value, its headers, and the reason.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        let parts = [&self.key, &self.value].into_iter().flatten();
        self.reason.len() + parts.map(Bytes::len).sum::<usize>() + Header::bytes_of(&self.headers)
    }
}

/// A record of `signals`, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalRecord {
    /// Its offset.
    pub offset: Offset,
    /// What it says, or why it cannot be read.
    pub signal: Result<Signal, Box<Unreadable>>,
}
