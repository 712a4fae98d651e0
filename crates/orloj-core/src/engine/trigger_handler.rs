//! One trigger while a decision about it is made: its index row and everything the decision may
//! change.
//!
//! Invariant: the index row is read once and stored once, by [`TriggerHandler::save`]; a decision
//! that does not save has changed no entry of the trigger.

use super::config::PartitionContext;
use super::draft::StepDraft;
use super::index_row::{IdHash, IndexEntry, IndexRow};
use super::prefetch::Prefetched;
use super::state::{CorruptRow, EngineState};
use crate::model::entry::{FireRow, Row};
use crate::model::input::Ack;
use crate::model::lifecycle::Watcher;
use crate::model::outcome::OutcomeKind;
use crate::model::text::Text;
use crate::model::{Offset, Timestamp};

/// One trigger while a decision about it is made.
pub(super) struct TriggerHandler<'p> {
    pub(super) context: &'p PartitionContext,
    pub(super) state: &'p mut EngineState,
    pub(super) output: &'p mut StepDraft,
    pub(super) index_row: IndexRow,
    prefetched: Prefetched<'p>,
    hash: IdHash,
}

/// An entry of the trigger with its row.
#[derive(Debug)]
pub(super) struct LiveEntry {
    pub(super) entry: IndexEntry,
    pub(super) row: FireRow,
}

/// The result of an occurrence that has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OccurrenceResult {
    /// It was delivered, or skipped as requested.
    Succeeded,
    /// It was not delivered, and is not retried.
    Failed,
    /// A worker will report it.
    Pending,
}

impl From<bool> for OccurrenceResult {
    fn from(ok: bool) -> Self {
        if ok { Self::Succeeded } else { Self::Failed }
    }
}

impl<'p> TriggerHandler<'p> {
    pub(super) fn new(
        context: &'p PartitionContext,
        state: &'p mut EngineState,
        output: &'p mut StepDraft,
        prefetched: Prefetched<'p>,
        id: &Text,
    ) -> Self {
        let hash = IdHash::of(id);
        let index_row = state.index_row(hash, prefetched.index);
        Self { context, state, output, index_row, prefetched, hash }
    }

    /// Stores the index row.
    pub(super) fn save(self) {
        self.state.put_index_row(self.hash, self.index_row, self.prefetched.index);
    }

    /// The entry of the trigger's occurrence that has not fired yet.
    pub(super) fn pending_entry(&self) -> Option<IndexEntry> {
        self.index_row.entries.iter().find(|entry| self.state.is_pending(entry)).cloned()
    }

    /// The one entry of the trigger that [`is_live`](EngineState::is_live).
    pub(super) fn live_entry(&self) -> Option<IndexEntry> {
        self.index_row.entries.iter().find(|entry| self.state.is_live(entry)).cloned()
    }

    /// The row of an entry.
    pub(super) fn read_row(&mut self, entry: &IndexEntry) -> Result<Row, CorruptRow> {
        self.state.read_row(entry, self.prefetched.rows)
    }

    pub(super) fn clock(&self) -> Timestamp {
        self.context.clock
    }

    pub(super) fn emit_outcome(&mut self, trigger: Text, kind: OutcomeKind) {
        self.output.emit_outcome(self.context, trigger, kind);
    }

    pub(super) fn emit_response(
        &mut self,
        ack: &Ack,
        offset: Offset,
        trigger: Text,
        kind: OutcomeKind,
    ) {
        self.output.emit_response(self.context, (ack, offset), trigger, kind);
    }

    pub(super) fn notify_watchers(&mut self, of: &Text, watchers: Vec<Watcher>, ok: bool) {
        self.output.notify_watchers(self.context, of, watchers, ok);
    }
}
