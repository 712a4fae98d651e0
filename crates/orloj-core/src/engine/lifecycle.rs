//! The course of a trigger: where it stands next, what is left of it when it has fired, and how its
//! end is made known.
//!
//! Invariant: whoever has a course that is kept is in the ledger, under one key, from the step that
//! decided it until it is settled; each change writes the whole entry again in its own step. A row
//! stands at one place: it is taken away before it is put again.
//!
//! ```text
//!  register ─► Pending ──due──► fires ─┬─► the next occurrence, Pending
//!     │           │ ▲                  ├─► Open ──settled──┐
//!     │         paused, queued         └───────────────────┴─► Done, Failed ──retain──► forgotten
//!     └─► awaits others ──settlements, timeout──► Pending, or its end
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
    /// The least time at which a row may be put: no step inserts at or below its own W.
    pub(super) fn min_due(&self) -> Timestamp {
        self.cursor.fired_through.due + 1
    }

    /// When a row that is still to fire is due by what it says.
    pub(super) fn due_of(&self, row: &FireRow) -> Timestamp {
        let Some(course) = &row.lifecycle else { return row.scheduled.max(self.min_due()) };
        let due = match &course.dependencies {
            _ if course.fire_now_requested => 0,
            _ if course.paused && !is_active(Mutation::PauseIgnored) => PARKED,
            Some(awaits) => awaits.until,
            None => row.scheduled,
        };
        due.max(self.min_due())
    }

    /// Takes what stands at `slot` away and puts `row` at `due` instead, on the timeline and in the
    /// ledger.
    pub(super) fn reschedule(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        mut row: FireRow,
        due: Timestamp,
    ) {
        self.remove_entry(index_row, slot);
        let key = TimelineKey { due, ..slot.key };
        row.in_ledger = true;
        row.lifecycle = row.lifecycle.and_then(|course| course.boxed_unless_default());
        index_row.entries.push(IndexEntry::for_row(key, &row));
        self.schedule_entry(Entry { key, row: Row::Fire(row) });
    }

    /// Takes the row at `slot` off the timeline; what the ledger holds of it is another's affair.
    pub(super) fn remove_entry(&mut self, index_row: &mut IndexRow, slot: &IndexEntry) {
        let lifted = index_row.extract_if(|other| other.key == slot.key && other.kind == slot.kind);
        for slot in lifted {
            if slot.key > self.cursor.fired_through {
                self.delete_row(slot.key);
            } else {
                self.draft.late.retain(|(key, _)| *key != slot.key);
            }
        }
    }

    /// What is left of a trigger that will not fire again: it is open, remembered, or forgotten.
    /// `end`: how it came off; `None` if a worker will say.
    pub(super) fn complete(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        mut row: FireRow,
        end: Option<bool>,
    ) {
        let mut course = row.lifecycle.take().unwrap_or_default();
        (course.recurrence, course.dependencies, course.paused) = (None, None, false);
        let early = if course.fire_now_requested { row.scheduled } else { 0 };
        let wanted = course.retain.is_some() || !course.watchers.is_empty();
        let until = match end {
            None if wanted || early > self.cursor.fired_through.due => {
                course.phase = LifecyclePhase::Open;
                early.max(self.clock + self.config.callback_result_timeout.max(1))
            }
            None => 0,
            Some(ok) => {
                course.phase = if ok { LifecyclePhase::Done } else { LifecyclePhase::Failed };
                self.notify_watchers(&row.id.trigger, std::mem::take(&mut course.watchers), ok);
                early.max(course.retain.map_or(0, |retain| self.clock.saturating_add(retain)))
            }
        };
        if until > self.cursor.fired_through.due && !is_active(Mutation::EarlyFireForgotten) {
            row.lifecycle = Some(course);
            self.reschedule(index_row, slot, row, until);
        } else {
            self.forget(index_row, slot, &row);
        }
    }

    /// A trigger is settled for good; the index remembers for a while that it has fired.
    fn forget(&mut self, index_row: &mut IndexRow, slot: &IndexEntry, row: &FireRow) {
        self.remove_entry(index_row, slot);
        if row.in_ledger {
            self.delete_ledger_entry(fire_ledger_key(&row.id));
        }
        let (kind, in_ledger, has_lifecycle) = (IndexEntryKind::Main, false, false);
        let key = slot.key.min(self.cursor.fired_through);
        index_row.entries.push(IndexEntry { key, kind, in_ledger, has_lifecycle, ..*slot });
    }

    /// What is left of a trigger that ends without having fired.
    pub(super) fn complete_unfired(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        row: FireRow,
        ok: bool,
    ) {
        self.complete(index_row, slot, row, Some(ok));
        let fired_through = self.cursor.fired_through;
        let _never = index_row.extract_if(|s| {
            s.kind == IndexEntryKind::Main
                && s.key <= fired_through
                && s.generation == slot.generation
        });
    }

    /// What was remembered until now, or waited for a word from a worker for too long.
    pub(super) fn expire_lifecycle(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        row: FireRow,
    ) {
        let standing = row.lifecycle.as_ref().map(|course| course.phase);
        if standing == Some(LifecyclePhase::Open) {
            self.complete(index_row, slot, row, Some(false));
        } else {
            self.forget(index_row, slot, &row);
        }
    }

    /// Nobody has registered what others wait for; they know when to stop.
    pub(super) fn expire_watch(&mut self, key: TimelineKey, trigger: Text, fetched: &IndexRows) {
        let hash = IdHash::of(&trigger);
        let mut index_row = self.index_row(hash, fetched);
        let _watch = index_row.extract_if(|slot| slot.key == key);
        self.delete_ledger_entry(LedgerKey::Main(trigger));
        self.put_index_row(hash, index_row, fetched);
    }

    /// Tells those who wait for a trigger what became of it.
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

    /// Where the owner of a trigger reads. If any partition may be right, the usual one is.
    pub(super) fn partition_of(&self, trigger: &Text) -> PartitionId {
        let (key, partitions) = (trigger.bytes(), self.config.partitions);
        let right = self.config.partitioner.partition(key, partitions);
        right.unwrap_or_else(|| murmur2_partition(key, partitions))
    }

    /// A line of the audit trail that nobody asked for.
    pub(super) fn emit_outcome(&mut self, trigger: Text, verdict: OutcomeKind) {
        let outcome = Outcome { trigger, answers: None, at: self.clock, kind: verdict };
        self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
    }

    /// A worker, or the owner itself, says how a callback ended.
    pub(super) fn on_callback_ended(
        &mut self,
        settled: CallbackEnded,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let CallbackEnded { id, ok } = settled;
        let hash = IdHash::of(&id.trigger);
        let mut index_row = self.index_row(hash, prefetched.index);
        let slot = self.live_entry(&index_row);
        let Some(slot) = slot.filter(|slot| slot.has_lifecycle && slot.generation == id.generation)
        else {
            return Ok(());
        };
        let Row::Fire(mut row) = self.read_row(&slot, prefetched)? else { return Ok(()) };
        let course = row.lifecycle.as_deref();
        match course.map(|course| (course.phase, course.recurrence.is_some())) {
            Some((LifecyclePhase::Open, _)) => self.complete(&mut index_row, &slot, row, Some(ok)),
            Some((LifecyclePhase::Pending | LifecyclePhase::Queued, true)) => {
                self.on_occurrence_ended(&mut index_row, &slot, row, id.occurrence, ok);
            }
            Some((LifecyclePhase::Failed, _)) if ok => {
                // Its dead letter was replayed: for as long as it is remembered it has come off.
                lifecycle_mut(&mut row).phase = LifecyclePhase::Done;
                self.reschedule(&mut index_row, &slot, row, slot.key.due);
            }
            _ => return Ok(()),
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }
}

/// The course of a row, to be changed; from now on it has one.
pub(super) fn lifecycle_mut(row: &mut FireRow) -> &mut Lifecycle {
    row.lifecycle.get_or_insert_default()
}
