//! The course of a trigger: where it stands next, what is left of it when it has fired, and how its
//! end is made known.
//!
//! Law: whoever has a course that is kept is in the ledger, under one key, from the step that
//! decided it until it is settled; each change writes the whole entry again in its own step. A row
//! stands at one place: it is taken away before it is put again.
//!
//! ```text
//!  register ─► Pending ──due──► fires ─┬─► the next occurrence, Pending
//!     │           │ ▲                  ├─► Open ──settled──┐
//!     │         paused, queued         └───────────────────┴─► Done, Failed ──retain──► forgotten
//!     └─► awaits others ──settlements, timeout──► Pending, or its end
//! ```

use super::dispatch::partition_of;
use super::known::{IdHash, Known, Slot, SlotKind};
use super::partition::{CorruptRow, Fetched, Partition};
use super::register::fire_ledger_key;
use super::rows::Stored;
use super::step::Emit;
use crate::fault::{Bug, planted};
use crate::model::course::{Course, Standing, Watcher};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::ledger::LedgerKey;
use crate::model::outcome::{Outcome, Verdict};
use crate::model::signal::{Settled, Settlement, Signal};
use crate::model::text::Text;
use crate::model::timeline::{PARKED, TimelineKey};
use crate::model::{PartitionId, Timestamp};

impl Partition {
    /// The least time at which a row may be put: no step inserts at or below its own W.
    pub(super) fn least(&self) -> Timestamp {
        self.cursor.w.due + 1
    }

    /// When a row that is still to fire is due by what it says.
    pub(super) fn due_of(&self, row: &FireRow) -> Timestamp {
        let Some(course) = &row.course else { return row.scheduled.max(self.least()) };
        let due = match &course.awaits {
            _ if course.called => 0,
            _ if course.paused && !planted(Bug::PauseUnheeded) => PARKED,
            Some(awaits) => awaits.until,
            None => row.scheduled,
        };
        due.max(self.least())
    }

    /// Takes what stands at `slot` away and puts `row` at `due` instead, on the timeline and in the
    /// ledger.
    pub(super) fn stand(
        &mut self,
        known: &mut Known,
        slot: &Slot,
        mut row: FireRow,
        due: Timestamp,
    ) {
        self.lift(known, slot);
        let key = TimelineKey { due, ..slot.key };
        row.in_ledger = true;
        row.course = row.course.and_then(|course| course.some());
        known.slots.push(Slot::of(key, &row));
        self.schedule(Entry { key, row: Row::Fire(row) });
    }

    /// Takes the row at `slot` off the timeline; what the ledger holds of it is another's affair.
    pub(super) fn lift(&mut self, known: &mut Known, slot: &Slot) {
        let lifted = known.take(|other| other.key == slot.key && other.kind == slot.kind);
        for slot in lifted {
            if slot.key > self.cursor.w {
                self.delete(slot.key);
            } else {
                self.draft.late.retain(|(key, _)| *key != slot.key);
            }
        }
    }

    /// What is left of a trigger that will not fire again: it is open, remembered, or forgotten.
    /// `end`: how it came off; `None` if a worker will say.
    pub(super) fn rest(
        &mut self,
        known: &mut Known,
        slot: &Slot,
        mut row: FireRow,
        end: Option<bool>,
    ) {
        let mut course = row.course.take().unwrap_or_default();
        (course.series, course.awaits, course.paused) = (None, None, false);
        let early = if course.called { row.scheduled } else { 0 };
        let wanted = course.retain.is_some() || !course.watchers.is_empty();
        let until = match end {
            None if wanted || early > self.cursor.w.due => {
                course.standing = Standing::Open;
                early.max(self.clock + self.rules.open_ttl.max(1))
            }
            None => 0,
            Some(ok) => {
                course.standing = if ok { Standing::Done } else { Standing::Failed };
                self.tell(&row.id.trigger, std::mem::take(&mut course.watchers), ok);
                early.max(course.retain.map_or(0, |retain| self.clock.saturating_add(retain)))
            }
        };
        if until > self.cursor.w.due && !planted(Bug::CalledForgotten) {
            row.course = Some(course);
            self.stand(known, slot, row, until);
        } else {
            self.forget(known, slot, &row);
        }
    }

    /// A trigger is settled for good; the index remembers for a while that it has fired.
    fn forget(&mut self, known: &mut Known, slot: &Slot, row: &FireRow) {
        self.lift(known, slot);
        if row.in_ledger {
            self.settle(fire_ledger_key(&row.id));
        }
        let (kind, in_ledger, course) = (SlotKind::Main, false, false);
        let key = slot.key.min(self.cursor.w);
        known.slots.push(Slot { key, kind, in_ledger, course, ..*slot });
    }

    /// What is left of a trigger that ends without having fired.
    pub(super) fn end_unfired(&mut self, known: &mut Known, slot: &Slot, row: FireRow, ok: bool) {
        self.rest(known, slot, row, Some(ok));
        let w = self.cursor.w;
        let _never = known
            .take(|s| s.kind == SlotKind::Main && s.key <= w && s.generation == slot.generation);
    }

    /// What was remembered until now, or waited for a word from a worker for too long.
    pub(super) fn forget_or_give_up(&mut self, known: &mut Known, slot: &Slot, row: FireRow) {
        let standing = row.course.as_ref().map(|course| course.standing);
        if standing == Some(Standing::Open) {
            self.rest(known, slot, row, Some(false));
        } else {
            self.forget(known, slot, &row);
        }
    }

    /// Nobody has registered what others wait for; they know when to stop.
    pub(super) fn forget_watch(&mut self, key: TimelineKey, trigger: Text, fetched: &Fetched) {
        let hash = IdHash::of(&trigger);
        let mut known = self.known(hash, fetched);
        let _watch = known.take(|slot| slot.key == key);
        self.settle(LedgerKey::Main(trigger));
        self.know(hash, known, fetched);
    }

    /// Tells those who wait for a trigger what became of it.
    pub(super) fn tell(&mut self, of: &Text, watchers: Vec<Watcher>, ok: bool) {
        for watcher in watchers {
            let partition = self.partition_of(&watcher.trigger);
            let settlement = Settlement { watcher, of: of.clone(), ok };
            self.send_signal(partition, Signal::Settlement(settlement));
        }
    }

    pub(super) fn send_signal(&mut self, partition: PartitionId, signal: Signal) {
        self.draft.emits.push(Emit::Signal { partition, signal: Box::new(signal) });
    }

    /// Where the owner of a trigger reads. If any partition may be right, the usual one is.
    pub(super) fn partition_of(&self, trigger: &Text) -> PartitionId {
        let (key, partitions) = (trigger.bytes(), self.rules.partitions);
        let right = self.rules.partitioner.partition(key, partitions);
        right.unwrap_or_else(|| partition_of(key, partitions))
    }

    /// A line of the audit trail that nobody asked for.
    pub(super) fn note(&mut self, trigger: Text, verdict: Verdict) {
        let outcome = Outcome { trigger, answers: None, at: self.clock, verdict };
        self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
    }

    /// A worker, or the owner itself, says how a callback ended.
    pub(super) fn settled(
        &mut self,
        settled: Settled,
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let Settled { id, ok } = settled;
        let hash = IdHash::of(&id.trigger);
        let mut known = self.known(hash, stored.index);
        let slot = self.standing_slot(&known);
        let Some(slot) = slot.filter(|slot| slot.course && slot.generation == id.generation) else {
            return Ok(());
        };
        let Row::Fire(mut row) = self.row(&slot, stored)? else { return Ok(()) };
        let course = row.course.as_deref();
        match course.map(|course| (course.standing, course.series.is_some())) {
            Some((Standing::Open, _)) => self.rest(&mut known, &slot, row, Some(ok)),
            Some((Standing::Pending | Standing::Queued, true)) => {
                self.occurrence_ended(&mut known, &slot, row, id.occurrence, ok);
            }
            Some((Standing::Failed, _)) if ok => {
                // Its dead letter was replayed: for as long as it is remembered it has come off.
                course_of(&mut row).standing = Standing::Done;
                self.stand(&mut known, &slot, row, slot.key.due);
            }
            _ => return Ok(()),
        }
        self.know(hash, known, stored.index);
        Ok(())
    }
}

/// The course of a row, to be changed; from now on it has one.
pub(super) fn course_of(row: &mut FireRow) -> &mut Course {
    row.course.get_or_insert_default()
}
