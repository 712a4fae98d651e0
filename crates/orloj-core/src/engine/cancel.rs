//! A cancel: nothing of the trigger fires from here on.
//!
//! Invariant: the owner's transaction is the one point where cancel and fire meet. A cancel that
//! finds nothing pending may meet a callback in flight: it leaves a veto, so that a retry reported
//! later for an older generation is refused, and publishes a withdrawal, so that workers do not
//! make callbacks that they have not started.

use smallvec::SmallVec;

use super::index_row::{IdHash, IndexEntry, IndexEntryKind, IndexRow, TriggerCaller};
use super::partition::{CorruptRow, Partition};
use super::prefetch::Prefetched;
use crate::fault::{Mutation, is_active};
use crate::model::Offset;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::fire::Withdrawal;
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::LifecyclePhase;
use crate::model::outcome::OutcomeKind;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};

impl Partition {
    pub(super) fn cancel(
        &mut self,
        offset: Offset,
        ack: bool,
        id: Text,
        caller: Option<Text>,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let hash = IdHash::of(&id);
        let mut index_row = self.index_row(hash, prefetched.index);
        let live = self.live_entry(&index_row);
        if index_row.belongs_to_other_caller(live.as_ref(), caller.as_ref())
            && !is_active(Mutation::OtherCallerAllowed)
        {
            // For this caller the trigger does not exist.
            self.mark_skipped(offset);
            self.emit_response(
                ack,
                offset,
                id,
                OutcomeKind::NotPending { fired: None, withdrawal: false },
            );
            return Ok(());
        }
        let is_known =
            index_row.entries.iter().any(|entry| entry.caller != TriggerCaller::NotATrigger);
        let fired = self.last_fired(&index_row);
        let row = match &live {
            Some(entry) if entry.has_lifecycle => Some(self.read_row(entry, prefetched)?),
            _ => None,
        };
        let recurs = row.as_ref().is_some_and(has_fired_before);
        let (main, remembered, row) = match (live, row) {
            (Some(entry), row) if entry.kind == IndexEntryKind::Remembered => {
                (None, Some(entry), row)
            }
            (Some(entry), Some(Row::Fire(row))) if is_retained(&row) => {
                self.complete_unfired(&mut index_row, &entry, row, false);
                (Some(entry), None, None)
            }
            (_, row) => (self.remove_live_entry(&id, &mut index_row), None, row),
        };
        let retries = self.remove_retries(&id, &mut index_row);
        let fired = self.complete_cancelled(&mut index_row, row, remembered, &retries).or(fired);
        let retry = retries.into_iter().next_back();
        // Only a fire that was sent to a worker can return as a retry. If the last generation is
        // known to have fired into a topic, none can. An earlier occurrence of a recurring one can.
        let none_pending = main.as_ref().is_none_or(|entry| recurs && entry.is_http);
        let in_flight =
            none_pending && (recurs || fired.as_ref().is_none_or(|entry| entry.is_http));
        // An unknown trigger may be another caller's, with a callback in progress.
        let in_flight = in_flight && (caller.is_none() || is_known);
        if in_flight && !is_active(Mutation::NoVeto) {
            self.insert_veto(offset, &id, &mut index_row);
        }
        match main.or(retry) {
            Some(IndexEntry { generation, .. }) => {
                self.emit_response(true, offset, id, OutcomeKind::Cancelled { generation });
            }
            None => {
                let fired = fired.map(|entry| entry.generation);
                let kind = OutcomeKind::NotPending { fired, withdrawal: in_flight };
                self.emit_response(ack, offset, id, kind);
            }
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }

    /// Notifies the watchers of a cancelled trigger that it failed. For one whose callback is in
    /// progress a worker reports the end, unless its retry was removed: then no worker will.
    /// Returns the entry of what is known to have fired.
    fn complete_cancelled(
        &mut self,
        index_row: &mut IndexRow,
        row: Option<Row>,
        remembered: Option<IndexEntry>,
        retries: &[IndexEntry],
    ) -> Option<IndexEntry> {
        let Some(Row::Fire(row)) = row else { return None };
        let standing = row.lifecycle.as_ref().map(|lifecycle| lifecycle.phase);
        match remembered {
            None => {
                let watchers = row.lifecycle.map_or_else(Vec::new, |lifecycle| lifecycle.watchers);
                self.notify_watchers(&row.id.trigger, watchers, false);
                None
            }
            Some(entry) => {
                // A retry of an older generation has no bearing on this one.
                let dropped = retries.iter().any(|retry| retry.generation == entry.generation);
                if standing == Some(LifecyclePhase::Open) && dropped {
                    self.complete(index_row, &entry, row, Some(false));
                }
                Some(entry)
            }
        }
    }

    /// Removes all pending retries from the timeline and the ledger; returns them.
    fn remove_retries(&mut self, id: &Text, index_row: &mut IndexRow) -> SmallVec<[IndexEntry; 1]> {
        let fired_through = self.cursor.fired_through;
        let pending = |s: &IndexEntry| {
            matches!(s.kind, IndexEntryKind::Retry { .. }) && s.key > fired_through
        };
        let dropped = index_row.extract_if(pending);
        for entry in &dropped {
            let IndexEntryKind::Retry { occurrence, .. } = entry.kind else { continue };
            self.delete_row(entry.key);
            let (trigger, generation) = (id.clone(), entry.generation);
            self.delete_ledger_entry(LedgerKey::Retry { trigger, generation, occurrence });
        }
        dropped
    }

    /// Stores the cancel for a while, in the ledger and as an entry that expires, and notifies the
    /// workers.
    fn insert_veto(&mut self, cancel: Offset, id: &Text, index_row: &mut IndexRow) {
        let fired_through = self.cursor.fired_through;
        for older in index_row
            .extract_if(|entry| entry.kind == IndexEntryKind::Veto && entry.key > fired_through)
        {
            self.delete_row(older.key);
        }
        // Never at or below W: the veto would end before it began.
        let due = self.clock.max(fired_through.due) + self.config.veto_ttl.max(1);
        let key = TimelineKey { due, priority: u8::MAX, source: Source::Triggers, offset: cancel };
        index_row.entries.push(IndexEntry::for_veto(key, cancel));
        self.schedule_entry(Entry { key, row: Row::Veto { trigger: id.clone(), cancel } });
        self.draft.withdrawals.push(Withdrawal { trigger: id.clone(), cancel });
    }
}

/// Whether it is retained once it has settled.
fn is_retained(row: &FireRow) -> bool {
    row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.retain.is_some())
}

/// Whether it is a recurring trigger that has fired, so that a callback may be in flight.
fn has_fired_before(row: &Row) -> bool {
    let Row::Fire(row) = row else { return false };
    let recurs = row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.recurrence.is_some());
    recurs && row.id.occurrence > 0
}
