//! Triggers that wait for others: watches and settlements between owners.
//!
//! Invariant: a watch is stored by the owner of the watched trigger, in its entry, or in an entry
//! of its own until that trigger is registered; when it settles, all watchers are notified in the
//! same transaction. A waiting trigger has a timeout of its own: none waits for ever, and no
//! message is needed for that.
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
    /// Asks the owners of the triggers that a new one waits for to notify it.
    pub(super) fn watch_dependencies(&mut self, row: &FireRow) {
        let dependencies =
            row.lifecycle.as_ref().and_then(|lifecycle| lifecycle.dependencies.as_ref());
        let Some(dependencies) = dependencies else { return };
        for trigger in dependencies.remaining.clone() {
            let (id, until) = (&row.id, dependencies.until);
            let watcher = Watcher { trigger: id.trigger.clone(), generation: id.generation };
            let partition = self.partition_of(&trigger);
            self.send_signal(partition, Signal::Watch(Watch { trigger, watcher, until }));
        }
    }

    /// Another trigger waits for one that we own.
    pub(super) fn on_watch(
        &mut self,
        offset: Offset,
        watch: Watch,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let Watch { trigger, watcher, until } = watch;
        let hash = IdHash::of(&trigger);
        let mut index_row = self.index_row(hash, prefetched.index);
        let Some(entry) = self.live_entry(&index_row) else {
            self.await_registration(
                &mut index_row,
                offset,
                Row::Watch { trigger, watchers: vec![watcher] },
                until,
            );
            self.put_index_row(hash, index_row, prefetched.index);
            return Ok(());
        };
        match self.read_row(&entry, prefetched)? {
            Row::Veto { .. } => {}
            Row::Watch { trigger, mut watchers } => {
                if !add_watcher(&mut watchers, &watcher) {
                    self.notify_watchers(&trigger, vec![watcher], false);
                }
                self.remove_entry(&mut index_row, &entry);
                let until = until.max(entry.key.due);
                self.await_registration(
                    &mut index_row,
                    entry.key.offset,
                    Row::Watch { trigger, watchers },
                    until,
                );
            }
            Row::Fire(mut row) => {
                let trigger = row.id.trigger.clone();
                let lifecycle = lifecycle_mut(&mut row);
                match lifecycle.phase {
                    LifecyclePhase::Done => self.notify_watchers(&trigger, vec![watcher], true),
                    LifecyclePhase::Failed => self.notify_watchers(&trigger, vec![watcher], false),
                    _ if !add_watcher(&mut lifecycle.watchers, &watcher) => {
                        self.notify_watchers(&trigger, vec![watcher], false);
                    }
                    _ => {
                        let due = entry.key.due.max(self.min_due());
                        self.reschedule(&mut index_row, &entry, row, due);
                    }
                }
            }
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }

    /// Stores the watchers of a trigger that is not registered yet.
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

    /// A trigger that one of ours waits for has settled.
    pub(super) fn on_dependency_settled(
        &mut self,
        settlement: DependencySettled,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let DependencySettled { watcher, dependency: of, ok } = settlement;
        let hash = IdHash::of(&watcher.trigger);
        let mut index_row = self.index_row(hash, prefetched.index);
        let is_waiting =
            |entry: &IndexEntry| entry.has_lifecycle && entry.generation == watcher.generation;
        let Some(entry) = self.pending_entry(&index_row).filter(is_waiting) else { return Ok(()) };
        let Row::Fire(mut row) = self.read_row(&entry, prefetched)? else { return Ok(()) };
        let Some(dependencies) = lifecycle_mut(&mut row).dependencies.as_deref_mut() else {
            return Ok(());
        };
        let before = dependencies.remaining.len();
        dependencies.remaining.retain(|id| *id != of);
        if dependencies.remaining.len() == before {
            return Ok(());
        }
        if !ok && !is_active(Mutation::DependencyFailureIgnored) {
            dependencies.failed.get_or_insert(of);
        }
        let (failed, open) = (dependencies.failed.is_some(), !dependencies.remaining.is_empty());
        if failed && dependencies.on_failure != OnFailure::Fire || !open {
            self.finish_waiting(&mut index_row, &entry, row);
        } else {
            self.reschedule(&mut index_row, &entry, row, entry.key.due);
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }

    /// A trigger stops waiting: all its dependencies have settled, or one of them failed, or its
    /// timeout has passed. It waits for its own time then, or ends.
    pub(super) fn finish_waiting(
        &mut self,
        index_row: &mut IndexRow,
        entry: &IndexEntry,
        mut row: FireRow,
    ) {
        let Some(dependencies) = lifecycle_mut(&mut row).dependencies.take() else { return };
        let reason = match (&dependencies.failed, dependencies.remaining.first()) {
            (Some(failed), _) => Some(format!("{failed} failed")),
            (None, Some(first)) => {
                let others = match dependencies.remaining.len() - 1 {
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
            return self.reschedule(index_row, entry, row, due);
        };
        let (generation, then) = (row.id.generation, dependencies.on_failure);
        self.emit_outcome(row.id.trigger.clone(), OutcomeKind::Unmet { generation, then, reason });
        match then {
            OnFailure::Fire => {
                let due = self.due_of(&row);
                self.reschedule(index_row, entry, row, due);
            }
            OnFailure::Skip => self.complete_unfired(index_row, entry, row, true),
            OnFailure::Fail => self.complete_unfired(index_row, entry, row, false),
        }
    }
}

/// Adds a watcher, once; returns false if there is no room.
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
