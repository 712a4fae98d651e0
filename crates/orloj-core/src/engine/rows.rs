//! Rows that a decision needs to see again before their time: those of triggers with a course, and
//! of whatever a command or another trigger is about.
//!
//! Law: which rows are wanted is asked before a batch is ingested, and the shell reads them. What
//! is newer than the store is found in the overlay first.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::known::{IdHash, Known, Slot, SlotKind};
use super::partition::{CorruptRow, Fetched, Input, Partition};
use crate::codec::row::{self, RowBytes, RowError};
use crate::model::entry::Row;
use crate::model::input::{Request, TriggerRecord};
use crate::model::signal::Signal;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;

/// Rows read from the store, by where they stand.
pub type Rows = HashMap<TimelineKey, RowBytes, FixedState>;

/// What the shell has read from the store for a batch of inputs.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Index rows: see [`Partition::needs`].
    pub index: &'a Fetched,
    /// Rows: see [`Partition::rows_wanted`].
    pub rows: &'a Rows,
}

/// Of which rows an input needs to know more than that they are there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Those with a course.
    Course,
    /// Whatever stands there.
    Any,
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
    pub fn rows_wanted(&self, inputs: &[Input], fetched: &Fetched) -> Vec<TimelineKey> {
        let of_course = |known: &Known| known.slots.iter().any(|slot| slot.course);
        let some_courses = self.overlay.has_courses() || fetched.values().any(of_course);
        let mut wanted = Vec::new();
        for input in inputs {
            // Most inputs are about plain triggers: where there are no others, nobody looks.
            let asks = some_courses || needs(input) == Needs::Any;
            let Some(id) = trigger_of(input).filter(|_| asks) else { continue };
            let hash = IdHash::of(id);
            let Some(known) = self.overlay.get(hash).or_else(|| fetched.get(&hash)) else {
                continue;
            };
            let needs = needs(input);
            let slots = known.slots.iter().filter(|slot| {
                self.stands(slot)
                    && slot.key > self.cursor.w
                    && (slot.course || needs == Needs::Any)
            });
            wanted.extend(slots.map(|slot| slot.key));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Whether a trigger's occurrence still waits there, or something is remembered of it.
    pub(super) fn stands(&self, slot: &Slot) -> bool {
        let past = slot.kind == SlotKind::Past && slot.key > self.cursor.w;
        past || self.is_pending(slot)
    }

    /// The slot of a trigger's occurrence that has not fired yet.
    pub(super) fn pending_slot(&self, known: &Known) -> Option<Slot> {
        known.slots.iter().find(|slot| self.is_pending(slot)).cloned()
    }

    /// The one slot of a trigger that [`stands`](Self::stands).
    pub(super) fn standing_slot(&self, known: &Known) -> Option<Slot> {
        known.slots.iter().find(|slot| self.stands(slot)).cloned()
    }

    /// The row that stands at a slot.
    pub(super) fn row(&mut self, slot: &Slot, stored: Stored<'_>) -> Result<Row, CorruptRow> {
        let key = slot.key;
        let late = self.draft.late.iter().find(|(at, _)| *at == key).map(|(_, row)| row.clone());
        let found =
            late.or_else(|| self.overlay.row(key)).or_else(|| stored.rows.get(&key).cloned());
        let bytes = found.ok_or(CorruptRow { key, reason: RowError::Corrupt })?;
        row::decode(&bytes).map_err(|reason| CorruptRow { key, reason })
    }
}

fn needs(input: &Input) -> Needs {
    match input {
        Input::Trigger(TriggerRecord { request: Request::Command { .. }, .. }) => Needs::Any,
        Input::Signal(record) if matches!(record.signal, Ok(Signal::Watch(_))) => Needs::Any,
        _ => Needs::Course,
    }
}
