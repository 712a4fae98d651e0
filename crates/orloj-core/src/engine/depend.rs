//! Triggers that wait for others: watches and settlements between owners.
//!
//! Law: a watch is kept where the watched trigger lives, in its entry, or in one of its own until
//! somebody registers it; what settles it tells all who wait, in the same transaction. Whoever
//! waits knows by itself when to stop: nothing waits for ever, and no message is needed for that.
//!
//! ```text
//!  b: after [a] ──Watch──► owner of a        a settles ──Settlement──► owner of b
//! ```

use super::course::course_of;
use super::known::{IdHash, Known, Slot};
use super::partition::{CorruptRow, Partition};
use super::rows::Stored;
use crate::fault::{Bug, planted};
use crate::model::Offset;
use crate::model::course::{OnFailure, Standing, Watcher};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::limits::WATCHERS_MAX;
use crate::model::outcome::Verdict;
use crate::model::signal::{Settlement, Signal, Watch};
use crate::model::timeline::{Source, TimelineKey};

impl Partition {
    /// Asks the owners of those that a new trigger waits for to tell it.
    pub(super) fn watch_others(&mut self, row: &FireRow) {
        let awaits = row.course.as_ref().and_then(|course| course.awaits.as_ref());
        let Some(awaits) = awaits else { return };
        for trigger in awaits.remaining.clone() {
            let (id, until) = (&row.id, awaits.until);
            let watcher = Watcher { trigger: id.trigger.clone(), generation: id.generation };
            let partition = self.partition_of(&trigger);
            self.send_signal(partition, Signal::Watch(Watch { trigger, watcher, until }));
        }
    }

    /// Somebody waits for a trigger that we own.
    pub(super) fn watched(
        &mut self,
        offset: Offset,
        watch: Watch,
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let Watch { trigger, watcher, until } = watch;
        let hash = IdHash::of(&trigger);
        let mut known = self.known(hash, stored.index);
        let Some(slot) = self.standing_slot(&known) else {
            self.expect(&mut known, offset, Row::Watch { trigger, watchers: vec![watcher] }, until);
            self.know(hash, known, stored.index);
            return Ok(());
        };
        match self.row(&slot, stored)? {
            Row::Veto { .. } => {}
            Row::Watch { trigger, mut watchers } => {
                if !add(&mut watchers, &watcher) {
                    self.tell(&trigger, vec![watcher], false);
                }
                self.lift(&mut known, &slot);
                let until = until.max(slot.key.due);
                self.expect(&mut known, slot.key.offset, Row::Watch { trigger, watchers }, until);
            }
            Row::Fire(mut row) => {
                let trigger = row.id.trigger.clone();
                let course = course_of(&mut row);
                match course.standing {
                    Standing::Done => self.tell(&trigger, vec![watcher], true),
                    Standing::Failed => self.tell(&trigger, vec![watcher], false),
                    _ if !add(&mut course.watchers, &watcher) => {
                        self.tell(&trigger, vec![watcher], false);
                    }
                    _ => {
                        let due = slot.key.due.max(self.least());
                        self.stand(&mut known, &slot, row, due);
                    }
                }
            }
        }
        self.know(hash, known, stored.index);
        Ok(())
    }

    /// Remembers who waits for a trigger that nobody has registered yet.
    fn expect(&mut self, known: &mut Known, offset: Offset, row: Row, until: u64) {
        let due = until.max(self.least());
        let key = TimelineKey { due, priority: u8::MAX, source: Source::Signals, offset };
        known.slots.push(Slot::of_watch(key));
        self.schedule(Entry { key, row });
    }

    /// One of those that a trigger of ours waits for has settled.
    pub(super) fn settlement(
        &mut self,
        settlement: Settlement,
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let Settlement { watcher, of, ok } = settlement;
        let hash = IdHash::of(&watcher.trigger);
        let mut known = self.known(hash, stored.index);
        let waits = |slot: &Slot| slot.course && slot.generation == watcher.generation;
        let Some(slot) = self.pending_slot(&known).filter(waits) else { return Ok(()) };
        let Row::Fire(mut row) = self.row(&slot, stored)? else { return Ok(()) };
        let Some(awaits) = course_of(&mut row).awaits.as_deref_mut() else { return Ok(()) };
        let before = awaits.remaining.len();
        awaits.remaining.retain(|id| *id != of);
        if awaits.remaining.len() == before {
            return Ok(());
        }
        if !ok && !planted(Bug::FailureUnheard) {
            awaits.failed.get_or_insert(of);
        }
        let (failed, open) = (awaits.failed.is_some(), !awaits.remaining.is_empty());
        if failed && awaits.on_failure != OnFailure::Fire || !open {
            self.go_on(&mut known, &slot, row);
        } else {
            self.stand(&mut known, &slot, row, slot.key.due);
        }
        self.know(hash, known, stored.index);
        Ok(())
    }

    /// A trigger waits no longer: all it waited for have settled, or one of them failed, or time is
    /// up. It goes on to its own time, or ends here.
    pub(super) fn go_on(&mut self, known: &mut Known, slot: &Slot, mut row: FireRow) {
        let Some(awaits) = course_of(&mut row).awaits.take() else { return };
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
            return self.stand(known, slot, row, due);
        };
        let (generation, then) = (row.id.generation, awaits.on_failure);
        self.note(row.id.trigger.clone(), Verdict::Unmet { generation, then, reason });
        match then {
            OnFailure::Fire => {
                let due = self.due_of(&row);
                self.stand(known, slot, row, due);
            }
            OnFailure::Skip => self.end_unfired(known, slot, row, true),
            OnFailure::Fail => self.end_unfired(known, slot, row, false),
        }
    }
}

/// Adds one who waits, once; says whether there is room.
fn add(watchers: &mut Vec<Watcher>, watcher: &Watcher) -> bool {
    if watchers.contains(watcher) {
        return true;
    }
    let room = watchers.len() < WATCHERS_MAX;
    if room {
        watchers.push(watcher.clone());
    }
    room
}
