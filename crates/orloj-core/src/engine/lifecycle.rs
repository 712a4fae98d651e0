//! The lifecycle of a trigger: when it is due next, what is retained of it when it has fired, and
//! how its end is reported.
//!
//! Invariant: a trigger with a stored lifecycle is in the ledger, under one key, from the step that
//! decided it until it is settled; each change writes the whole entry again in its own step. A
//! trigger has one row: it is removed before it is put again.
//!
//! ```text
//!  register ─► Pending ──due──► fires ─┬─► the next occurrence, Pending
//!     │           │ ▲                  ├─► Open ──settled──┐
//!     │         paused, queued         └───────────────────┴─► Done, Failed ──retain──► forgotten
//!     └─► waits for others ──settled, timeout──► Pending, or its end
//! ```

use super::index_row::{IndexEntry, IndexEntryKind};
use super::state::CorruptRow;
use super::trigger_handler::{LiveEntry, OccurrenceResult, TriggerHandler};
use crate::model::Timestamp;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::LifecyclePhase;
use crate::model::signal::CallbackEnded;
use crate::model::timeline::{PAUSED, TimelineKey};

impl TriggerHandler<'_> {
    /// When the occurrence of a pending row is due.
    pub(super) fn due_of(&self, row: &FireRow) -> Timestamp {
        let min_due = self.state.min_due();
        let Some(lifecycle) = &row.lifecycle else { return row.scheduled.max(min_due) };
        let due = match &lifecycle.dependencies {
            _ if lifecycle.fire_now_requested => 0,
            _ if lifecycle.paused => PAUSED,
            Some(dependencies) => dependencies.until,
            None => row.scheduled,
        };
        due.max(min_due)
    }

    /// Replaces the row of a live entry, due at `due`, on the timeline and in the ledger.
    pub(super) fn reschedule(&mut self, live: LiveEntry, due: Timestamp) {
        let LiveEntry { entry, mut row } = live;
        self.remove_entry(&entry);
        let key = TimelineKey { due, ..entry.key };
        row.in_ledger = true;
        row.lifecycle = row.lifecycle.and_then(|lifecycle| lifecycle.boxed_unless_default());
        self.index_row.entries.push(IndexEntry::for_row(key, &row));
        self.state.schedule(Entry { key, row: Row::Fire(row) }, self.output);
    }

    /// Removes the row of `entry` from the timeline, but not from the ledger.
    pub(super) fn remove_entry(&mut self, entry: &IndexEntry) {
        let is_this = |other: &IndexEntry| other.key == entry.key && other.kind == entry.kind;
        for removed in self.index_row.extract_if(is_this) {
            self.state.remove_entry(removed.key);
        }
    }

    /// A trigger will not fire again: it waits for its callback, is retained, or is deleted.
    pub(super) fn complete(&mut self, live: LiveEntry, result: OccurrenceResult) {
        let LiveEntry { entry, mut row } = live;
        let fired_through = self.state.fired_through();
        let mut lifecycle = row.lifecycle.take().unwrap_or_default();
        (lifecycle.recurrence, lifecycle.dependencies, lifecycle.paused) = (None, None, false);
        let early = if lifecycle.fire_now_requested { row.scheduled } else { 0 };
        // A change of its priority has changed its key: one ms later no key of that time is later.
        let early = early.max(lifecycle.first_due.map_or(0, |due| due.saturating_add(1)));
        // By its whole key: W may be at an entry of the same millisecond.
        let is_undecided = |due| TimelineKey { due, ..entry.key } > fired_through;
        let retention = lifecycle.retention();
        let wanted = retention.is_some() || !lifecycle.watchers.is_empty();
        let until = match result {
            OccurrenceResult::Pending if wanted || is_undecided(early) => {
                lifecycle.phase = LifecyclePhase::Open;
                early.max(self.clock() + self.context.config.callback_result_timeout.max(1))
            }
            OccurrenceResult::Pending => 0,
            OccurrenceResult::Succeeded | OccurrenceResult::Failed => {
                let ok = result == OccurrenceResult::Succeeded;
                lifecycle.phase = if ok { LifecyclePhase::Done } else { LifecyclePhase::Failed };
                self.notify_watchers(&row.id.trigger, std::mem::take(&mut lifecycle.watchers), ok);
                early.max(retention.map_or(0, |retain| self.clock().saturating_add(retain)))
            }
        };
        if is_undecided(until) {
            row.lifecycle = Some(lifecycle);
            self.reschedule(LiveEntry { entry, row }, until);
        } else {
            self.forget(&entry, &row);
        }
    }

    /// A trigger is settled; the index remembers for a while that it has fired.
    fn forget(&mut self, entry: &IndexEntry, row: &FireRow) {
        self.remove_entry(entry);
        if row.in_ledger {
            self.output.delete_ledger_entry(LedgerKey::of_fire(&row.id));
        }
        let (kind, in_ledger, has_lifecycle) = (IndexEntryKind::Main, false, false);
        let key = entry.key.min(self.state.fired_through());
        let fired = IndexEntry { key, kind, in_ledger, has_lifecycle, ..*entry };
        self.index_row.entries.push(fired);
    }

    /// A trigger ends without having fired.
    pub(super) fn complete_unfired(&mut self, mut live: LiveEntry, result: OccurrenceResult) {
        let generation = live.entry.generation;
        live.row.lifecycle_mut().ended_unfired = true;
        self.complete(live, result);
        let fired_through = self.state.fired_through();
        let _never_fired = self.index_row.extract_if(|entry| {
            entry.kind == IndexEntryKind::Main
                && entry.key <= fired_through
                && entry.generation == generation
        });
    }

    /// The retention of a trigger has ended, or a worker's report did not arrive in time.
    pub(super) fn expire_lifecycle(&mut self, live: LiveEntry) {
        let phase = live.row.lifecycle.as_ref().map(|lifecycle| lifecycle.phase);
        if phase == Some(LifecyclePhase::Open) {
            self.complete(live, OccurrenceResult::Failed);
        } else {
            self.forget(&live.entry, &live.row);
        }
    }

    /// A worker, or the owner itself, reports how a callback ended.
    pub(super) fn on_callback_ended(mut self, ended: CallbackEnded) -> Result<(), CorruptRow> {
        let CallbackEnded { id, ok } = ended;
        let is_this = |entry: &IndexEntry| entry.has_lifecycle && entry.generation == id.generation;
        let Some(entry) = self.live_entry().filter(is_this) else { return Ok(()) };
        let Row::Fire(mut row) = self.read_row(&entry)? else { return Ok(()) };
        let lifecycle = row.lifecycle.as_deref();
        match lifecycle.map(|lifecycle| (lifecycle.phase, lifecycle.recurrence.is_some())) {
            Some((LifecyclePhase::Open, _)) => self.complete(LiveEntry { entry, row }, ok.into()),
            Some((LifecyclePhase::Pending | LifecyclePhase::Queued, true)) => {
                self.on_occurrence_ended(LiveEntry { entry, row }, id.occurrence, ok);
            }
            Some((LifecyclePhase::Failed, _)) if ok => {
                // Its dead letter was replayed successfully while the result is retained.
                row.lifecycle_mut().phase = LifecyclePhase::Done;
                let due = entry.key.due;
                self.reschedule(LiveEntry { entry, row }, due);
            }
            _ => return Ok(()),
        }
        self.save();
        Ok(())
    }
}
