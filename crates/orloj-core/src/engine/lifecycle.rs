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

use super::dispatch::murmur2_partition;
use super::index_row::{IdHash, IndexEntry, IndexEntryKind, IndexRow};
use super::partition::{CorruptRow, IndexRows, Partition};
use super::prefetch::Prefetched;
use super::registration::fire_ledger_key;
use super::step::Emit;
use crate::fault::{Mutation, is_active};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::{Lifecycle, LifecyclePhase, Watcher};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::signal::{CallbackEnded, DependencySettled, Signal};
use crate::model::text::Text;
use crate::model::timeline::{PARKED, TimelineKey};
use crate::model::{PartitionId, Timestamp};

impl Partition {
    /// The earliest time at which a row may be put: no step inserts at or below its own W.
    pub(super) fn min_due(&self) -> Timestamp {
        self.cursor.fired_through.due + 1
    }

    /// When the occurrence of a pending row is due.
    pub(super) fn due_of(&self, row: &FireRow) -> Timestamp {
        let Some(lifecycle) = &row.lifecycle else { return row.scheduled.max(self.min_due()) };
        let due = match &lifecycle.dependencies {
            _ if lifecycle.fire_now_requested => 0,
            _ if lifecycle.paused && !is_active(Mutation::PauseIgnored) => PARKED,
            Some(dependencies) => dependencies.until,
            None => row.scheduled,
        };
        due.max(self.min_due())
    }

    /// Replaces the row of `entry` by `row`, due at `due`, on the timeline and in the ledger.
    pub(super) fn reschedule(
        &mut self,
        index_row: &mut IndexRow,
        entry: &IndexEntry,
        mut row: FireRow,
        due: Timestamp,
    ) {
        self.remove_entry(index_row, entry);
        let key = TimelineKey { due, ..entry.key };
        row.in_ledger = true;
        row.lifecycle = row.lifecycle.and_then(|lifecycle| lifecycle.boxed_unless_default());
        index_row.entries.push(IndexEntry::for_row(key, &row));
        self.schedule_entry(Entry { key, row: Row::Fire(row) });
    }

    /// Removes the row of `entry` from the timeline, but not from the ledger.
    pub(super) fn remove_entry(&mut self, index_row: &mut IndexRow, entry: &IndexEntry) {
        let lifted =
            index_row.extract_if(|other| other.key == entry.key && other.kind == entry.kind);
        for entry in lifted {
            if entry.key > self.cursor.fired_through {
                self.delete_row(entry.key);
            } else {
                self.draft.late.retain(|(key, _)| *key != entry.key);
            }
        }
    }

    /// A trigger will not fire again: it waits for its callback, is retained, or is deleted. `end`:
    /// its result; `None` if a worker will report it.
    pub(super) fn complete(
        &mut self,
        index_row: &mut IndexRow,
        entry: &IndexEntry,
        mut row: FireRow,
        end: Option<bool>,
    ) {
        let mut lifecycle = row.lifecycle.take().unwrap_or_default();
        (lifecycle.recurrence, lifecycle.dependencies, lifecycle.paused) = (None, None, false);
        let early = if lifecycle.fire_now_requested { row.scheduled } else { 0 };
        let wanted = lifecycle.retain.is_some() || !lifecycle.watchers.is_empty();
        let until = match end {
            None if wanted || early > self.cursor.fired_through.due => {
                lifecycle.phase = LifecyclePhase::Open;
                early.max(self.clock + self.config.callback_result_timeout.max(1))
            }
            None => 0,
            Some(ok) => {
                lifecycle.phase = if ok { LifecyclePhase::Done } else { LifecyclePhase::Failed };
                self.notify_watchers(&row.id.trigger, std::mem::take(&mut lifecycle.watchers), ok);
                early.max(lifecycle.retain.map_or(0, |retain| self.clock.saturating_add(retain)))
            }
        };
        if until > self.cursor.fired_through.due && !is_active(Mutation::EarlyFireForgotten) {
            row.lifecycle = Some(lifecycle);
            self.reschedule(index_row, entry, row, until);
        } else {
            self.forget(index_row, entry, &row);
        }
    }

    /// A trigger is settled; the index remembers for a while that it has fired.
    fn forget(&mut self, index_row: &mut IndexRow, entry: &IndexEntry, row: &FireRow) {
        self.remove_entry(index_row, entry);
        if row.in_ledger {
            self.delete_ledger_entry(fire_ledger_key(&row.id));
        }
        let (kind, in_ledger, has_lifecycle) = (IndexEntryKind::Main, false, false);
        let key = entry.key.min(self.cursor.fired_through);
        index_row.entries.push(IndexEntry { key, kind, in_ledger, has_lifecycle, ..*entry });
    }

    /// A trigger ends without having fired.
    pub(super) fn complete_unfired(
        &mut self,
        index_row: &mut IndexRow,
        entry: &IndexEntry,
        row: FireRow,
        ok: bool,
    ) {
        self.complete(index_row, entry, row, Some(ok));
        let fired_through = self.cursor.fired_through;
        let _never = index_row.extract_if(|s| {
            s.kind == IndexEntryKind::Main
                && s.key <= fired_through
                && s.generation == entry.generation
        });
    }

    /// The retention of a trigger has ended, or a worker's report did not arrive in time.
    pub(super) fn expire_lifecycle(
        &mut self,
        index_row: &mut IndexRow,
        entry: &IndexEntry,
        row: FireRow,
    ) {
        let standing = row.lifecycle.as_ref().map(|lifecycle| lifecycle.phase);
        if standing == Some(LifecyclePhase::Open) {
            self.complete(index_row, entry, row, Some(false));
        } else {
            self.forget(index_row, entry, &row);
        }
    }

    /// A watched trigger was not registered in time; its watchers have timeouts of their own.
    pub(super) fn expire_watch(&mut self, key: TimelineKey, trigger: Text, fetched: &IndexRows) {
        let hash = IdHash::of(&trigger);
        let mut index_row = self.index_row(hash, fetched);
        let _watch = index_row.extract_if(|entry| entry.key == key);
        self.delete_ledger_entry(LedgerKey::Main(trigger));
        self.put_index_row(hash, index_row, fetched);
    }

    /// Reports the result of a trigger to its watchers.
    pub(super) fn notify_watchers(&mut self, of: &Text, watchers: Vec<Watcher>, ok: bool) {
        for watcher in watchers {
            let partition = self.partition_of(&watcher.trigger);
            let settlement = DependencySettled { watcher, dependency: of.clone(), ok };
            self.send_signal(partition, Signal::DependencySettled(settlement));
        }
    }

    pub(super) fn send_signal(&mut self, partition: PartitionId, signal: Signal) {
        self.draft.emits.push(Emit::Signal { partition, signal: Box::new(signal) });
    }

    /// The partition of a trigger. If the partitioner allows any, the one of Java's default.
    pub(super) fn partition_of(&self, trigger: &Text) -> PartitionId {
        let (key, partitions) = (trigger.bytes(), self.config.partitions);
        let right = self.config.partitioner.partition(key, partitions);
        right.unwrap_or_else(|| murmur2_partition(key, partitions))
    }

    /// An outcome that is not a response to a record.
    pub(super) fn emit_outcome(&mut self, trigger: Text, kind: OutcomeKind) {
        let outcome = Outcome { trigger, answers: None, at: self.clock, kind };
        self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
    }

    /// A worker, or the owner itself, reports how a callback ended.
    pub(super) fn on_callback_ended(
        &mut self,
        settled: CallbackEnded,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let CallbackEnded { id, ok } = settled;
        let hash = IdHash::of(&id.trigger);
        let mut index_row = self.index_row(hash, prefetched.index);
        let entry = self.live_entry(&index_row);
        let Some(entry) =
            entry.filter(|entry| entry.has_lifecycle && entry.generation == id.generation)
        else {
            return Ok(());
        };
        let Row::Fire(mut row) = self.read_row(&entry, prefetched)? else { return Ok(()) };
        let lifecycle = row.lifecycle.as_deref();
        match lifecycle.map(|lifecycle| (lifecycle.phase, lifecycle.recurrence.is_some())) {
            Some((LifecyclePhase::Open, _)) => self.complete(&mut index_row, &entry, row, Some(ok)),
            Some((LifecyclePhase::Pending | LifecyclePhase::Queued, true)) => {
                self.on_occurrence_ended(&mut index_row, &entry, row, id.occurrence, ok);
            }
            Some((LifecyclePhase::Failed, _)) if ok => {
                // Its dead letter was replayed successfully while the result is retained.
                lifecycle_mut(&mut row).phase = LifecyclePhase::Done;
                self.reschedule(&mut index_row, &entry, row, entry.key.due);
            }
            _ => return Ok(()),
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }
}

/// The lifecycle of a row, to be changed; created if there is none.
pub(super) fn lifecycle_mut(row: &mut FireRow) -> &mut Lifecycle {
    row.lifecycle.get_or_insert_default()
}
