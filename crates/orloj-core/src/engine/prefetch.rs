//! Inputs of a partition, and the rows that the shell reads from the store before they are
//! ingested: those of triggers with a lifecycle, and those that a command or another trigger refers
//! to.
//!
//! Invariant: the shell asks which rows are needed before a batch is ingested, and reads them. Rows
//! in the write buffer are newer than the store and are used first.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::index_row::{IdMap, IndexRow};
use super::parked_schemas::ParkedSchemas;
use crate::codec::row::RowBytes;
use crate::model::input::{Request, SignalRecord, TriggerRecord};
use crate::model::signal::Signal;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, Timestamp};

/// Index rows read from the store for the ids of a batch.
pub type IndexRows = IdMap<IndexRow>;

/// An input, in the order of its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A record of `triggers`.
    Trigger(TriggerRecord),
    /// A record of `signals`.
    Signal(SignalRecord),
    /// The reader has reached the end of `triggers` at this offset (exclusive): between the last
    /// record and the end are only markers and aborted records.
    TriggersEnd(Offset),
    /// Retention has deleted `triggers` below this offset: go on there.
    TriggersDeleted(Offset),
    /// Retention has deleted `signals` below this offset: go on there.
    SignalsDeleted(Offset),
    /// A record of `triggers` that cannot be read now.
    Parked(ParkedRecord),
    /// Parked records were read, and ingested before this.
    Unparked {
        /// Their triggers of which no other record is parked.
        ids: Vec<Text>,
        /// Which records are still parked.
        schemas: ParkedSchemas,
    },
}

impl Input {
    /// About how many bytes of memory it takes up.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Trigger(record) => record.memory_bytes(),
            _ => size_of::<Self>(),
        }
    }
}

/// A record of `triggers` that is parked: see [`ParkedSchemas`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedRecord {
    /// Its offset.
    pub offset: Offset,
    /// The broker's timestamp, in ms since the epoch.
    pub timestamp: Timestamp,
    /// The trigger that it is about.
    pub id: Text,
    /// Which records are parked, including this one.
    pub schemas: ParkedSchemas,
}

/// Rows read from the store, by their keys.
pub type TimelineRows = HashMap<TimelineKey, RowBytes, FixedState>;

/// What the shell has read from the store for a batch of inputs.
#[derive(Clone, Copy, Debug)]
pub struct Prefetched<'a> {
    /// Index rows, of the ids that `Partition::needs_index_row` named.
    pub index: &'a IndexRows,
    /// Rows, of the keys that `Partition::rows_to_prefetch` named.
    pub rows: &'a TimelineRows,
}

/// Which rows of its trigger an input needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowsNeeded {
    /// Rows with a lifecycle.
    WithLifecycle,
    /// Every row.
    All,
}

/// The trigger that an input is about.
#[must_use]
pub fn trigger_of(input: &Input) -> Option<&Text> {
    match input {
        Input::Trigger(record) => record.trigger(),
        Input::Signal(record) => record.signal.as_ref().ok().map(Signal::trigger),
        Input::TriggersEnd(_)
        | Input::TriggersDeleted(_)
        | Input::SignalsDeleted(_)
        | Input::Parked(_)
        | Input::Unparked { .. } => None,
    }
}

pub(super) fn rows_needed(input: &Input) -> RowsNeeded {
    match input {
        Input::Trigger(TriggerRecord {
            request: Request::Command { .. } | Request::Change(_),
            ..
        }) => RowsNeeded::All,
        Input::Signal(record) if matches!(record.signal, Ok(Signal::Watch(_))) => RowsNeeded::All,
        _ => RowsNeeded::WithLifecycle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::harness::definition;
    use crate::model::entry::FireId;
    use crate::model::input::{Change, ChangedParts, Registration};
    use crate::model::lifecycle::{Command, Watcher};
    use crate::model::signal::{CallbackEnded, Watch};

    fn request(request: Request) -> Input {
        Input::Trigger(TriggerRecord { offset: 0, timestamp: 0, ack: false.into(), request })
    }

    fn signal(signal: Signal) -> Input {
        Input::Signal(SignalRecord { offset: 0, signal: Ok(signal) })
    }

    #[test]
    fn commands_changes_and_watches_need_every_row_of_their_trigger() {
        let a = || Text::from("a");
        let id = FireId { trigger: a(), generation: 0, occurrence: 0, attempt: 1, deferral: 0 };
        let watcher = Watcher { trigger: "b".into(), generation: 1 };
        let command = Command::Pause;
        let new = Registration::one_time("a", 9, definition(true));
        let change = Change { new, parts: ChangedParts::default() };
        let inputs = [
            (request(Request::Command { id: a(), command, caller: None }), true),
            (request(Request::Change(Box::new(change))), true),
            (signal(Signal::Watch(Watch { trigger: a(), watcher, until: 9 })), true),
            (signal(Signal::CallbackEnded(CallbackEnded { id, ok: true })), false),
            (request(Request::Cancel { id: a(), caller: None }), false),
            (request(Request::Register(Registration::one_time("a", 9, definition(true)))), false),
        ];
        for (input, needs_all) in inputs {
            assert_eq!(trigger_of(&input), Some(&a()), "{input:?}");
            assert_eq!(rows_needed(&input) == RowsNeeded::All, needs_all, "{input:?}");
        }
        assert_eq!(trigger_of(&Input::TriggersEnd(1)), None);
    }
}
