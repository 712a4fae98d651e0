//! Rows that a decision needs to see again before their time: those of triggers with a course, and
//! of whatever a command or another trigger is about.
//!
//! Invariant: which rows are wanted is asked before a batch is ingested, and the shell reads them.
//! What is newer than the store is found in the overlay first.

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

/// Rows read from the store, by where they stand.
pub type TimelineRows = HashMap<TimelineKey, RowBytes, FixedState>;

/// What the shell has read from the store for a batch of inputs.
#[derive(Clone, Copy, Debug)]
pub struct Prefetched<'a> {
    /// Index rows: see [`Partition::needs`].
    pub index: &'a IndexRows,
    /// Rows: see [`Partition::rows_to_prefetch`].
    pub rows: &'a TimelineRows,
}

/// Of which rows an input needs to know more than that they are there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowsNeeded {
    /// Those with a course.
    WithLifecycle,
    /// Whatever stands there.
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
            |index_row: &IndexRow| index_row.entries.iter().any(|slot| slot.has_lifecycle);
        let some_lifecycles =
            self.write_buffer.has_lifecycles() || fetched.values().any(has_lifecycle);
        let mut wanted = Vec::new();
        for input in inputs {
            // Most inputs are about plain triggers: where there are no others, nobody looks.
            let is_relevant = some_lifecycles || rows_needed(input) == RowsNeeded::All;
            let Some(id) = trigger_of(input).filter(|_| is_relevant) else { continue };
            let hash = IdHash::of(id);
            let Some(index_row) = self.write_buffer.index_row(hash).or_else(|| fetched.get(&hash))
            else {
                continue;
            };
            let needed = rows_needed(input);
            let slots = index_row.entries.iter().filter(|slot| {
                self.is_live(slot)
                    && slot.key > self.cursor.fired_through
                    && (slot.has_lifecycle || needed == RowsNeeded::All)
            });
            wanted.extend(slots.map(|slot| slot.key));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Whether a trigger's occurrence still waits there, or something is remembered of it.
    pub(super) fn is_live(&self, slot: &IndexEntry) -> bool {
        let is_remembered =
            slot.kind == IndexEntryKind::Remembered && slot.key > self.cursor.fired_through;
        is_remembered || self.is_pending(slot)
    }

    /// The slot of a trigger's occurrence that has not fired yet.
    pub(super) fn pending_entry(&self, index_row: &IndexRow) -> Option<IndexEntry> {
        index_row.entries.iter().find(|slot| self.is_pending(slot)).cloned()
    }

    /// The one slot of a trigger that [`is_live`](Self::is_live).
    pub(super) fn live_entry(&self, index_row: &IndexRow) -> Option<IndexEntry> {
        index_row.entries.iter().find(|slot| self.is_live(slot)).cloned()
    }

    /// The row that stands at a slot.
    pub(super) fn read_row(
        &mut self,
        slot: &IndexEntry,
        prefetched: Prefetched<'_>,
    ) -> Result<Row, CorruptRow> {
        let key = slot.key;
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
