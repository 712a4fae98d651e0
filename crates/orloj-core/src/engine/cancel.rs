//! A cancel: nothing of the trigger fires from here on.
//!
//! Invariant: the owner's transaction is the one point where cancel and fire meet. A cancel that
//! finds nothing pending may meet a callback in flight: it leaves a veto, so that a retry reported
//! later for an older generation is refused, and publishes a withdrawal, so that workers do not
//! make callbacks that they have not started.

use smallvec::SmallVec;

use super::index_row::{IndexEntry, IndexEntryKind, TriggerCaller};
use super::state::CorruptRow;
use super::trigger_handler::{LiveEntry, OccurrenceResult, TriggerHandler};
use crate::model::Offset;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::fire::Withdrawal;
use crate::model::input::Ack;
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::LifecyclePhase;
use crate::model::outcome::OutcomeKind;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

impl TriggerHandler<'_> {
    pub(super) fn cancel(
        mut self,
        offset: Offset,
        ack: Ack,
        id: Text,
        caller: Option<Text>,
    ) -> Result<(), CorruptRow> {
        let live = self.live_entry();
        if self.index_row.belongs_to_other_caller(live.as_ref(), caller.as_ref()) {
            // For this caller the trigger does not exist.
            self.state.mark_skipped(offset, self.output);
            let unknown = OutcomeKind::NotPending { fired: None, withdrawal: false };
            self.emit_response(&ack, offset, id, unknown);
            return Ok(());
        }
        let is_trigger = |entry: &IndexEntry| entry.caller != TriggerCaller::NotATrigger;
        let is_known = self.index_row.entries.iter().any(is_trigger);
        let fired = self.state.last_fired(&self.index_row);
        let row = match &live {
            Some(entry) if entry.has_lifecycle => Some(self.read_row(entry)?),
            _ => None,
        };
        let recurs = row.as_ref().is_some_and(has_fired_before);
        let (main, remembered, row) = match (live, row) {
            (Some(entry), row) if entry.kind == IndexEntryKind::Remembered => {
                (None, Some(entry), row)
            }
            (Some(entry), Some(Row::Fire(row))) if is_retained(&row) => {
                let live = LiveEntry { entry: entry.clone(), row };
                self.complete_unfired(live, OccurrenceResult::Failed);
                (Some(entry), None, None)
            }
            (_, row) => (self.remove_live_entry(&id), None, row),
        };
        let retries = self.remove_retries(&id);
        let never_fired = has_never_fired(row.as_ref(), remembered.as_ref());
        let ended = self.complete_cancelled(row, remembered, &retries).or_else(|| fired.clone());
        let retry = retries.into_iter().next_back();
        // Only a fire that was sent to a worker can return as a retry. If the last generation is
        // known to have fired into a topic, none can. An earlier occurrence of a recurring one can.
        let none_pending = main.as_ref().is_none_or(|entry| recurs && entry.is_http);
        let in_flight =
            none_pending && (recurs || ended.as_ref().is_none_or(|entry| entry.is_http));
        // An unknown trigger may be another caller's, with a callback in progress.
        let in_flight = in_flight && (caller.is_none() || is_known);
        if in_flight {
            self.insert_veto(offset, &id);
        }
        match main.or(retry) {
            Some(IndexEntry { generation, .. }) => {
                let kind = OutcomeKind::Cancelled { generation };
                self.emit_response(&ack.always(), offset, id, kind);
            }
            None => {
                let fired = if never_fired { fired } else { ended };
                let fired = fired.map(|entry| entry.generation);
                let kind = OutcomeKind::NotPending { fired, withdrawal: in_flight };
                self.emit_response(&ack, offset, id, kind);
            }
        }
        self.save();
        Ok(())
    }

    /// Notifies the watchers of a cancelled trigger that it failed. For one whose callback is in
    /// progress a worker reports the end, unless its retry was removed: then no worker will.
    /// Returns the entry of what is known to have ended.
    fn complete_cancelled(
        &mut self,
        row: Option<Row>,
        remembered: Option<IndexEntry>,
        retries: &[IndexEntry],
    ) -> Option<IndexEntry> {
        let Some(Row::Fire(row)) = row else { return None };
        let phase = row.lifecycle.as_ref().map(|lifecycle| lifecycle.phase);
        match remembered {
            None => {
                let watchers = row.lifecycle.map_or_else(Vec::new, |lifecycle| lifecycle.watchers);
                self.notify_watchers(&row.id.trigger, watchers, false);
                None
            }
            Some(entry) => {
                // A retry of an older generation has no bearing on this one.
                let dropped = retries.iter().any(|retry| retry.generation == entry.generation);
                if phase == Some(LifecyclePhase::Open) && dropped {
                    let live = LiveEntry { entry: entry.clone(), row };
                    self.complete(live, OccurrenceResult::Failed);
                }
                Some(entry)
            }
        }
    }

    /// Removes all pending retries from the timeline and the ledger; returns them. One that is late
    /// is pending until it fires: the cancel may have been parked since before it was due.
    fn remove_retries(&mut self, id: &Text) -> SmallVec<[IndexEntry; 1]> {
        let state = &*self.state;
        let dropped = self.index_row.extract_if(|entry| state.is_pending_retry(entry));
        for entry in &dropped {
            let IndexEntryKind::Retry { occurrence, .. } = entry.kind else { continue };
            self.state.remove_entry(entry.key);
            if entry.in_ledger {
                let (trigger, generation) = (id.clone(), entry.generation);
                let key = LedgerKey::Retry { trigger, generation, occurrence };
                self.output.delete_ledger_entry(key);
            }
        }
        dropped
    }

    /// Stores the cancel for a while, in the ledger and as an entry that expires, and notifies the
    /// workers.
    fn insert_veto(&mut self, cancel: Offset, id: &Text) {
        let fired_through = self.state.fired_through();
        let is_older =
            |entry: &IndexEntry| entry.kind == IndexEntryKind::Veto && entry.key > fired_through;
        for older in self.index_row.extract_if(is_older) {
            self.state.delete_row(older.key);
        }
        // Never at or below W: the veto would end before it began.
        let due = self.clock().max(fired_through.due) + self.context.config.veto_ttl.max(1);
        let key = TimelineKey { due, priority: u8::MAX, source: Source::Triggers, offset: cancel };
        self.index_row.entries.push(IndexEntry::for_veto(key, cancel));
        let veto = Row::Veto { trigger: id.clone(), cancel };
        self.state.schedule(Entry { key, row: veto }, self.output);
        self.output.add_withdrawal(Withdrawal { trigger: id.clone(), cancel });
    }
}

/// Whether it is retained once it has settled.
fn is_retained(row: &FireRow) -> bool {
    row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.retention().is_some())
}

/// Whether a trigger that is remembered has ended without having fired at all.
fn has_never_fired(row: Option<&Row>, remembered: Option<&IndexEntry>) -> bool {
    let (Some(Row::Fire(row)), Some(_)) = (row, remembered) else { return false };
    let ended_unfired = row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.ended_unfired);
    ended_unfired && row.id.occurrence == 0
}

/// Whether it recurs, or did before a change, and has fired: a callback may be in flight.
fn has_fired_before(row: &Row) -> bool {
    matches!(row, Row::Fire(row) if row.id.occurrence > 0)
}
