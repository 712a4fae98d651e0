//! Rows that a decision must read before they are due: those of triggers with a lifecycle, and
//! those that a command or another trigger refers to.
//!
//! Invariant: the shell asks which rows are needed before a batch is ingested, and reads them. Rows
//! in the write buffer are newer than the store and are used first.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::index_row::{IdHash, IndexEntry, IndexEntryKind, IndexRow};
use super::partition::{CorruptRow, IndexRows, Input, Partition};
use crate::codec::row::{self, RowBytes, RowError};
use crate::model::entry::Row;
use crate::model::input::{Request, TriggerRecord};
use crate::model::signal::Signal;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;

/// Rows read from the store, by their keys.
pub type TimelineRows = HashMap<TimelineKey, RowBytes, FixedState>;

/// What the shell has read from the store for a batch of inputs.
#[derive(Clone, Copy, Debug)]
pub struct Prefetched<'a> {
    /// Index rows: see [`Partition::needs`].
    pub index: &'a IndexRows,
    /// Rows: see [`Partition::rows_to_prefetch`].
    pub rows: &'a TimelineRows,
}

/// Which rows of its trigger an input needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowsNeeded {
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
        Input::TriggersEnd(_) => None,
    }
}

impl Partition {
    /// The rows of the store that [`ingest`](Self::ingest) must be handed with these inputs.
    /// `fetched` has the index rows of their triggers.
    #[must_use]
    pub fn rows_to_prefetch(&self, inputs: &[Input], fetched: &IndexRows) -> Vec<TimelineKey> {
        let has_lifecycle =
            |index_row: &IndexRow| index_row.entries.iter().any(|entry| entry.has_lifecycle);
        let some_lifecycles =
            self.write_buffer.has_lifecycles() || fetched.values().any(has_lifecycle);
        let mut wanted = Vec::new();
        for input in inputs {
            // Most inputs are about plain triggers, which need no rows.
            let is_relevant = some_lifecycles || rows_needed(input) == RowsNeeded::All;
            let Some(id) = trigger_of(input).filter(|_| is_relevant) else { continue };
            let hash = IdHash::of(id);
            let Some(index_row) = self.write_buffer.index_row(hash).or_else(|| fetched.get(&hash))
            else {
                continue;
            };
            let needed = rows_needed(input);
            let entries = index_row.entries.iter().filter(|entry| {
                self.is_live(entry)
                    && entry.key > self.cursor.fired_through
                    && (entry.has_lifecycle || needed == RowsNeeded::All)
            });
            wanted.extend(entries.map(|entry| entry.key));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Whether it is a pending occurrence of the trigger, or what is remembered of one.
    pub(super) fn is_live(&self, entry: &IndexEntry) -> bool {
        let is_remembered =
            entry.kind == IndexEntryKind::Remembered && entry.key > self.cursor.fired_through;
        is_remembered || self.is_pending(entry)
    }

    /// The entry of the trigger's occurrence that has not fired yet.
    pub(super) fn pending_entry(&self, index_row: &IndexRow) -> Option<IndexEntry> {
        index_row.entries.iter().find(|entry| self.is_pending(entry)).cloned()
    }

    /// The one entry of a trigger that [`is_live`](Self::is_live).
    pub(super) fn live_entry(&self, index_row: &IndexRow) -> Option<IndexEntry> {
        index_row.entries.iter().find(|entry| self.is_live(entry)).cloned()
    }

    /// The row of an entry.
    pub(super) fn read_row(
        &mut self,
        entry: &IndexEntry,
        prefetched: Prefetched<'_>,
    ) -> Result<Row, CorruptRow> {
        let key = entry.key;
        let late = self.draft.late.iter().find(|(at, _)| *at == key).map(|(_, row)| row.clone());
        let found = late
            .or_else(|| self.write_buffer.row(key))
            .or_else(|| prefetched.rows.get(&key).cloned());
        let bytes = found.ok_or(CorruptRow { key, reason: RowError::Corrupt })?;
        row::decode(&bytes).map_err(|reason| CorruptRow { key, reason })
    }
}

fn rows_needed(input: &Input) -> RowsNeeded {
    match input {
        Input::Trigger(TriggerRecord { request: Request::Command { .. }, .. }) => RowsNeeded::All,
        Input::Signal(record) if matches!(record.signal, Ok(Signal::Watch(_))) => RowsNeeded::All,
        _ => RowsNeeded::WithLifecycle,
    }
}
