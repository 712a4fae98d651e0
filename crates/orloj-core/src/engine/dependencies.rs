//! Triggers that wait for others: watches and settlements between owners.
//!
//! Invariant: a watch is kept where the watched trigger lives, in its entry, or in one of its own
//! until somebody registers it; what settles it tells all who wait, in the same transaction.
//! Whoever waits knows by itself when to stop: nothing waits for ever, and no message is needed for
//! that.
//!
//! ```text
//!  b: after [a] ──Watch──► owner of a        a settles ──Settlement──► owner of b
//! ```

use super::index_row::{IdHash, IndexEntry, IndexRow};
use super::lifecycle::lifecycle_mut;
use super::partition::{CorruptRow, Partition};
use super::prefetch::Prefetched;
use crate::fault::{Mutation, is_active};
use crate::model::Offset;
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::lifecycle::{LifecyclePhase, OnFailure, Watcher};
use crate::model::limits::WATCHERS_MAX;
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{DependencySettled, Signal, Watch};
use crate::model::timeline::{Source, TimelineKey};

impl Partition {
    /// Asks the owners of those that a new trigger waits for to tell it.
    pub(super) fn watch_dependencies(&mut self, row: &FireRow) {
        let awaits = row.lifecycle.as_ref().and_then(|course| course.dependencies.as_ref());
        let Some(awaits) = awaits else { return };
        for trigger in awaits.remaining.clone() {
            let (id, until) = (&row.id, awaits.until);
            let watcher = Watcher { trigger: id.trigger.clone(), generation: id.generation };
            let partition = self.partition_of(&trigger);
            self.send_signal(partition, Signal::Watch(Watch { trigger, watcher, until }));
        }
    }

    /// Somebody waits for a trigger that we own.
    pub(super) fn on_watch(
        &mut self,
        offset: Offset,
        watch: Watch,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let Watch { trigger, watcher, until } = watch;
        let hash = IdHash::of(&trigger);
        let mut index_row = self.index_row(hash, prefetched.index);
        let Some(slot) = self.live_entry(&index_row) else {
            self.await_registration(
                &mut index_row,
                offset,
                Row::Watch { trigger, watchers: vec![watcher] },
                until,
            );
            self.put_index_row(hash, index_row, prefetched.index);
            return Ok(());
        };
        match self.read_row(&slot, prefetched)? {
            Row::Veto { .. } => {}
            Row::Watch { trigger, mut watchers } => {
                if !add_watcher(&mut watchers, &watcher) {
                    self.notify_watchers(&trigger, vec![watcher], false);
                }
                self.remove_entry(&mut index_row, &slot);
                let until = until.max(slot.key.due);
                self.await_registration(
                    &mut index_row,
                    slot.key.offset,
                    Row::Watch { trigger, watchers },
                    until,
                );
            }
            Row::Fire(mut row) => {
                let trigger = row.id.trigger.clone();
                let course = lifecycle_mut(&mut row);
                match course.phase {
                    LifecyclePhase::Done => self.notify_watchers(&trigger, vec![watcher], true),
                    LifecyclePhase::Failed => self.notify_watchers(&trigger, vec![watcher], false),
                    _ if !add_watcher(&mut course.watchers, &watcher) => {
                        self.notify_watchers(&trigger, vec![watcher], false);
                    }
                    _ => {
                        let due = slot.key.due.max(self.min_due());
                        self.reschedule(&mut index_row, &slot, row, due);
                    }
                }
            }
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }

    /// Remembers who waits for a trigger that nobody has registered yet.
    fn await_registration(
        &mut self,
        index_row: &mut IndexRow,
        offset: Offset,
        row: Row,
        until: u64,
    ) {
        let due = until.max(self.min_due());
        let key = TimelineKey { due, priority: u8::MAX, source: Source::Signals, offset };
        index_row.entries.push(IndexEntry::for_watch(key));
        self.schedule_entry(Entry { key, row });
    }

    /// One of those that a trigger of ours waits for has settled.
    pub(super) fn on_dependency_settled(
        &mut self,
        settlement: DependencySettled,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let DependencySettled { watcher, dependency: of, ok } = settlement;
        let hash = IdHash::of(&watcher.trigger);
        let mut index_row = self.index_row(hash, prefetched.index);
        let is_waiting =
            |slot: &IndexEntry| slot.has_lifecycle && slot.generation == watcher.generation;
        let Some(slot) = self.pending_entry(&index_row).filter(is_waiting) else { return Ok(()) };
        let Row::Fire(mut row) = self.read_row(&slot, prefetched)? else { return Ok(()) };
        let Some(awaits) = lifecycle_mut(&mut row).dependencies.as_deref_mut() else {
            return Ok(());
        };
        let before = awaits.remaining.len();
        awaits.remaining.retain(|id| *id != of);
        if awaits.remaining.len() == before {
            return Ok(());
        }
        if !ok && !is_active(Mutation::DependencyFailureIgnored) {
            awaits.failed.get_or_insert(of);
        }
        let (failed, open) = (awaits.failed.is_some(), !awaits.remaining.is_empty());
        if failed && awaits.on_failure != OnFailure::Fire || !open {
            self.finish_waiting(&mut index_row, &slot, row);
        } else {
            self.reschedule(&mut index_row, &slot, row, slot.key.due);
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }

    /// A trigger waits no longer: all it waited for have settled, or one of them failed, or time is
    /// up. It goes on to its own time, or ends here.
    pub(super) fn finish_waiting(
        &mut self,
        index_row: &mut IndexRow,
        slot: &IndexEntry,
        mut row: FireRow,
    ) {
        let Some(awaits) = lifecycle_mut(&mut row).dependencies.take() else { return };
        let reason = match (&awaits.failed, awaits.remaining.first()) {
            (Some(failed), _) => Some(format!("{failed} failed")),
            (None, Some(first)) => {
                let others = match awaits.remaining.len() - 1 {
                    0 => String::new(),
                    others => format!(", nor have {others} others"),
                };
                Some(format!(
                    "{first} has not settled in time{others}: is it registered, and does it wait \
                     for this one?"
                ))
            }
            (None, None) => None,
        };
        let Some(reason) = reason else {
            let due = self.due_of(&row);
            return self.reschedule(index_row, slot, row, due);
        };
        let (generation, then) = (row.id.generation, awaits.on_failure);
        self.emit_outcome(row.id.trigger.clone(), OutcomeKind::Unmet { generation, then, reason });
        match then {
            OnFailure::Fire => {
                let due = self.due_of(&row);
                self.reschedule(index_row, slot, row, due);
            }
            OnFailure::Skip => self.complete_unfired(index_row, slot, row, true),
            OnFailure::Fail => self.complete_unfired(index_row, slot, row, false),
        }
    }
}

/// Adds one who waits, once; says whether there is room.
fn add_watcher(watchers: &mut Vec<Watcher>, watcher: &Watcher) -> bool {
    if watchers.contains(watcher) {
        return true;
    }
    let room = watchers.len() < WATCHERS_MAX;
    if room {
        watchers.push(watcher.clone());
    }
    room
}
