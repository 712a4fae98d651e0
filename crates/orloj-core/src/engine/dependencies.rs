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

use super::index_row::IndexEntry;
use super::state::CorruptRow;
use super::trigger_handler::{LiveEntry, OccurrenceResult, TriggerHandler};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::{LifecyclePhase, OnFailure, PendingDependencies, Watcher};
use crate::model::limits::WATCHERS_MAX;
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{DependencySettled, Signal, Watch};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey};
use crate::model::{Offset, Timestamp};

impl TriggerHandler<'_> {
    /// Asks the owners of the triggers that a new one waits for to notify it.
    pub(super) fn watch_dependencies(&mut self, row: &FireRow) {
        let lifecycle = row.lifecycle.as_ref();
        let Some(dependencies) = lifecycle.and_then(|lifecycle| lifecycle.dependencies.as_ref())
        else {
            return;
        };
        for trigger in dependencies.remaining.clone() {
            let (id, until) = (&row.id, dependencies.until);
            let watcher = Watcher { trigger: id.trigger.clone(), generation: id.generation };
            let partition = self.context.partition_of(&trigger);
            let watch = Signal::Watch(Watch { trigger, watcher, until });
            self.output.send_signal(partition, watch);
        }
    }

    /// Another trigger waits for this one.
    pub(super) fn on_watch(mut self, offset: Offset, watch: Watch) -> Result<(), CorruptRow> {
        let Watch { trigger, watcher, until } = watch;
        let Some(entry) = self.live_entry() else {
            let row = Row::Watch { trigger, watchers: vec![watcher] };
            self.await_registration(offset, row, until);
            self.save();
            return Ok(());
        };
        match self.read_row(&entry)? {
            Row::Veto { .. } => {}
            Row::Watch { trigger, mut watchers } => {
                if !add_watcher(&mut watchers, &watcher) {
                    self.notify_watchers(&trigger, vec![watcher], false);
                }
                self.remove_entry(&entry);
                let until = until.max(entry.key.due);
                self.await_registration(entry.key.offset, Row::Watch { trigger, watchers }, until);
            }
            Row::Fire(row) => self.watch_registered(LiveEntry { entry, row }, watcher),
        }
        self.save();
        Ok(())
    }

    /// Adds a watcher to a registered trigger, or notifies it if that one has settled.
    fn watch_registered(&mut self, mut live: LiveEntry, watcher: Watcher) {
        let trigger = live.row.id.trigger.clone();
        let lifecycle = live.row.lifecycle_mut();
        match lifecycle.phase {
            LifecyclePhase::Done => self.notify_watchers(&trigger, vec![watcher], true),
            LifecyclePhase::Failed => self.notify_watchers(&trigger, vec![watcher], false),
            _ if !add_watcher(&mut lifecycle.watchers, &watcher) => {
                self.notify_watchers(&trigger, vec![watcher], false);
            }
            _ => {
                let due = live.entry.key.due.max(self.state.min_due());
                self.reschedule(live, due);
            }
        }
    }

    /// Stores the watchers of a trigger that is not registered yet.
    fn await_registration(&mut self, offset: Offset, row: Row, until: Timestamp) {
        let due = until.max(self.state.min_due());
        let key = TimelineKey { due, priority: u8::MAX, source: Source::Signals, offset };
        self.index_row.entries.push(IndexEntry::for_watch(key));
        self.state.schedule(Entry { key, row }, self.output);
    }

    /// A watched trigger was not registered in time; its watchers have timeouts of their own.
    pub(super) fn expire_watch(mut self, key: TimelineKey, trigger: Text) {
        let _watch = self.index_row.extract_if(|entry| entry.key == key);
        self.output.delete_ledger_entry(LedgerKey::Main(trigger));
        self.save();
    }

    /// A trigger that this one waits for has settled.
    pub(super) fn on_dependency_settled(
        mut self,
        settlement: DependencySettled,
    ) -> Result<(), CorruptRow> {
        let DependencySettled { watcher, dependency, ok } = settlement;
        let is_waiting =
            |entry: &IndexEntry| entry.has_lifecycle && entry.generation == watcher.generation;
        let Some(entry) = self.pending_entry().filter(is_waiting) else { return Ok(()) };
        let Row::Fire(mut row) = self.read_row(&entry)? else { return Ok(()) };
        let Some(dependencies) = row.lifecycle_mut().dependencies.as_deref_mut() else {
            return Ok(());
        };
        let before = dependencies.remaining.len();
        dependencies.remaining.retain(|id| *id != dependency);
        if dependencies.remaining.len() == before {
            return Ok(());
        }
        if !ok {
            dependencies.failed.get_or_insert(dependency);
        }
        let (failed, open) = (dependencies.failed.is_some(), !dependencies.remaining.is_empty());
        let ends = failed && dependencies.on_failure != OnFailure::Fire || !open;
        let live = LiveEntry { entry, row };
        if ends {
            self.finish_waiting(live);
        } else {
            let due = live.entry.key.due;
            self.reschedule(live, due);
        }
        self.save();
        Ok(())
    }

    /// A trigger stops waiting: all its dependencies have settled, or one of them failed, or its
    /// timeout has passed. It waits for its own time then, or ends.
    pub(super) fn finish_waiting(&mut self, mut live: LiveEntry) {
        let Some(dependencies) = live.row.lifecycle_mut().dependencies.take() else { return };
        let Some(reason) = reason_unmet(&dependencies) else {
            let due = self.due_of(&live.row);
            return self.reschedule(live, due);
        };
        let (generation, then) = (live.row.id.generation, dependencies.on_failure);
        let unmet = OutcomeKind::Unmet { generation, then, reason };
        self.emit_outcome(live.row.id.trigger.clone(), unmet);
        match then {
            OnFailure::Fire => {
                let due = self.due_of(&live.row);
                self.reschedule(live, due);
            }
            OnFailure::Skip => self.complete_unfired(live, OccurrenceResult::Succeeded),
            OnFailure::Fail => self.complete_unfired(live, OccurrenceResult::Failed),
        }
    }
}

/// Why the dependencies are not met, if they are not.
fn reason_unmet(dependencies: &PendingDependencies) -> Option<String> {
    match (&dependencies.failed, dependencies.remaining.first()) {
        (Some(failed), _) => Some(format!("{failed} failed")),
        (None, Some(first)) => {
            let others = match dependencies.remaining.len() - 1 {
                0 => String::new(),
                others => format!(", nor have {others} others"),
            };
            Some(format!(
                "{first} has not settled in time{others}: is it registered, and does it wait for \
                 this one?"
            ))
        }
        (None, None) => None,
    }
}

/// Adds a watcher, once: its newest generation. Returns false if there is no room.
fn add_watcher(watchers: &mut Vec<Watcher>, watcher: &Watcher) -> bool {
    if let Some(known) = watchers.iter_mut().find(|it| it.trigger == watcher.trigger) {
        known.generation = known.generation.max(watcher.generation);
        return true;
    }
    let room = watchers.len() < WATCHERS_MAX;
    if room {
        watchers.push(watcher.clone());
    }
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watcher(trigger: &str, generation: Offset) -> Watcher {
        Watcher { trigger: trigger.into(), generation }
    }

    fn watchers(count: usize) -> Vec<Watcher> {
        (0..count).map(|n| watcher(&n.to_string(), 0)).collect()
    }

    #[test]
    fn a_trigger_has_up_to_so_many_watchers_each_once() {
        for (before, has_room) in [(WATCHERS_MAX - 1, true), (WATCHERS_MAX, false)] {
            let mut watchers = watchers(before);
            assert!(add_watcher(&mut watchers, &watcher("0", 0)), "it is one of them");
            assert_eq!(watchers.len(), before);
            assert_eq!(add_watcher(&mut watchers, &watcher("new", 0)), has_room);
            assert_eq!(watchers.len(), WATCHERS_MAX);
        }
    }

    /// Its earlier generations are replaced: nothing that settles concerns them.
    #[test]
    fn a_watcher_that_is_registered_again_and_again_is_one() {
        let mut watchers = watchers(WATCHERS_MAX);
        for generation in 1..=2 * WATCHERS_MAX as Offset {
            assert!(add_watcher(&mut watchers, &watcher("5", generation)));
        }
        assert!(add_watcher(&mut watchers, &watcher("5", 7)), "it is late");
        assert_eq!(watchers[5], watcher("5", 2 * WATCHERS_MAX as Offset));
        assert_eq!(watchers.len(), WATCHERS_MAX);
    }
}
