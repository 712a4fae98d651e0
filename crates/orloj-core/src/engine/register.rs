//! A registration: put it on the timeline, and in the ledger if it will outlive the replay tail.
//!
//! Law: whether it is ignored depends on state, so an ignored one leaves a skip mark.

use super::course::course_of;
use super::known::{IdHash, Known, Slot, SlotKind};
use super::partition::{CorruptRow, Partition};
use super::rows::Stored;
use super::step::Emit;
use crate::codec::row::RowBytes;
use crate::fault::{Bug, planted};
use crate::model::course::{After, Awaits, Course, Series, Watcher};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::input::{Count, OnConflict, Registration, Request, TriggerRecord, Unreadable};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::outcome::{Outcome, Verdict};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Offset, Timestamp};

/// What a registration takes over from the one it replaces.
#[derive(Debug, Default)]
struct Heritage {
    watchers: Vec<Watcher>,
    executions: u32,
    failures: u32,
}

impl Partition {
    pub(super) fn ingest_trigger(
        &mut self,
        record: TriggerRecord,
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let TriggerRecord { offset, timestamp, ack, request } = record;
        match request {
            Request::Register(new) => self.register(offset, timestamp, ack, new, stored)?,
            Request::Cancel { id, caller } => self.cancel(offset, ack, id, caller, stored)?,
            Request::Command { id, command, caller } => {
                self.command(offset, ack, id, (command, caller), stored)?;
            }
            Request::Forward(forward) => {
                self.skip(offset);
                self.draft.emits.push(Emit::Forward(forward));
            }
            Request::Batch(forwards) => {
                self.skip(offset);
                let forwards = forwards.into_iter().map(|one| Emit::Forward(Box::new(one)));
                self.draft.emits.extend(forwards);
            }
            Request::Unreadable(unreadable) => {
                if unreadable.may_pass {
                    self.skip(offset);
                }
                let topic = self.rules.topics.triggers.clone();
                self.reject(topic, offset, *unreadable);
            }
        }
        Ok(())
    }

    fn register(
        &mut self,
        offset: Offset,
        timestamp: Timestamp,
        ack: bool,
        new: Registration,
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let hash = IdHash::of(&new.id);
        let mut known = self.known(hash, stored.index);
        let slot = self.standing_slot(&known);
        let (mut there, mut heritage) = (None, Heritage::default());
        if let Some(slot) = &slot {
            let row = if slot.course { Some(self.row(slot, stored)?) } else { None };
            there = stays(slot, row.as_ref());
            heritage = bequeath(row, new.count);
        }
        if let Some(why) = ignored(&new, slot.as_ref(), there, &known) {
            if !planted(Bug::KeepUnmarked) {
                self.skip(offset);
            }
            self.answer(ack, offset, new.id, why);
            return Ok(());
        }
        self.drop_standing(&new.id, &mut known);
        if ack {
            let pending = slot.filter(|slot| slot.kind == SlotKind::Main);
            let replaced = pending.map(|slot| slot.generation);
            let verdict = Verdict::Accepted { generation: offset, fire_at: new.fire_at, replaced };
            self.answer(true, offset, new.id.clone(), verdict);
        }
        let priority = new.priority;
        let row = first_row(offset, timestamp, new);
        if let Some(slot) = self.place(priority, row, heritage) {
            // It may have stood there before, and fired: an operator has the log read again.
            known.slots.retain(|other| other.key != slot.key);
            known.slots.push(slot);
        }
        self.know(hash, known, stored.index);
        Ok(())
    }

    /// Puts a new trigger where it belongs, and says where that is.
    fn place(&mut self, priority: u8, mut row: FireRow, heritage: Heritage) -> Option<Slot> {
        if inherit(&mut row, heritage) {
            let (trigger, generation) = (row.id.trigger, row.id.generation);
            let executions = row.id.occurrence;
            self.note(trigger, Verdict::Ended { generation, executions });
            return None;
        }
        let (due, offset) = (row.scheduled, row.id.generation);
        let (priority, source) = (rank(priority), Source::Triggers);
        let key = TimelineKey { due, priority, source, offset };
        if row.course.as_ref().is_some_and(|course| course.is_kept()) {
            let key = TimelineKey { due: self.due_of(&row), ..key };
            row.in_ledger = true;
            self.watch_others(&row);
            let slot = Slot::of(key, &row);
            self.schedule(Entry { key, row: Row::Fire(row) });
            return Some(slot);
        }
        let late = key <= self.cursor.w;
        let long = due > self.clock + self.rules.ledger_after;
        row.in_ledger = long && !late && !planted(Bug::LongOutOfLedger);
        let slot = Slot::of(key, &row);
        if late {
            let row = self.encode(&Row::Fire(row));
            self.draft.late.push((key, row));
        } else {
            if !long {
                self.cursor.horizon = self.cursor.horizon.max(due);
            }
            self.schedule(Entry { key, row: Row::Fire(row) });
        }
        Some(slot)
    }

    /// Puts an entry on the timeline, and into the ledger if its row says that it is held there.
    pub(super) fn schedule(&mut self, entry: Entry) {
        let row = self.encode(&entry.row);
        self.put(entry.key, row);
        if let Some(key) = ledger_key(&entry.row) {
            let value = Some(Box::new(LedgerValue::Entry(entry)));
            self.draft.emits.push(Emit::Ledger { key, value });
        }
    }

    /// Takes the trigger's pending occurrence, or what is remembered of it, off the timeline and
    /// out of the ledger.
    pub(super) fn drop_standing(&mut self, id: &Text, known: &mut Known) -> Option<Slot> {
        let dropped = known.take(|slot| self.stands(slot));
        assert!(dropped.len() <= 1, "one entry of a trigger stands");
        let slot = dropped.into_iter().next()?;
        if slot.key > self.cursor.w {
            self.delete(slot.key);
        } else {
            self.draft.late.retain(|(key, _)| *key != slot.key);
        }
        if slot.in_ledger {
            self.settle(LedgerKey::Main(id.clone()));
        }
        Some(slot)
    }

    /// Whether the trigger's occurrence has not fired yet. What was due when it came is late, and
    /// pending until the next firing: its topic may be away, and then it has to wait on.
    pub(super) fn is_pending(&self, slot: &Slot) -> bool {
        slot.kind == SlotKind::Main && (slot.key > self.cursor.w || self.is_late(slot))
    }

    /// Its offset alone does not tell: if an operator has the log read again, what has fired may
    /// stand at a later one.
    fn is_late(&self, slot: &Slot) -> bool {
        let is_this = |(key, _): &(TimelineKey, RowBytes)| *key == slot.key;
        slot.generation >= self.fired_from && self.draft.late.iter().any(is_this)
    }

    pub(super) fn settle(&mut self, key: LedgerKey) {
        self.draft.emits.push(Emit::Ledger { key, value: None });
    }

    /// Answers a record that asked to be answered.
    pub(super) fn answer(&mut self, ack: bool, offset: Offset, trigger: Text, verdict: Verdict) {
        if ack {
            let outcome = Outcome { trigger, answers: Some(offset), at: self.clock, verdict };
            self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
        }
    }

    /// A record that says nothing we can do: to the dead letters, and always on the audit trail.
    pub(super) fn reject(&mut self, topic: Text, offset: Offset, record: Unreadable) {
        let Unreadable { id, reason, key, value, headers, .. } = record;
        if let Some(trigger) = id {
            self.answer(true, offset, trigger, Verdict::Rejected { reason: reason.clone() });
        }
        let letter = DeadLetter {
            origin: Origin { topic, partition: self.id, offset },
            reason,
            at: self.clock,
            content: Content::Record { key, value, headers },
        };
        self.draft.emits.push(Emit::DeadLetter(Box::new(letter)));
    }
}

/// The first row of a trigger, by its record alone: a replay makes the same.
pub(super) fn first_row(generation: Offset, timestamp: Timestamp, new: Registration) -> FireRow {
    if !new.is_kept() && new.expire_after.is_none() {
        return FireRow::first(new.id, generation, new.fire_at, new.definition); // nearly always
    }
    let series = new.schedule.and_then(|schedule| {
        let nominal = schedule.first(timestamp)?;
        let (granted, open, failures) = (0, None, 0);
        Some(Box::new(Series { schedule: *schedule, nominal, granted, open, failures }))
    });
    let awaits = new.after.map(|after| {
        let After { ids: remaining, on_failure, timeout } = *after;
        let until = timestamp.saturating_add(timeout);
        Box::new(Awaits { remaining, on_failure, until, failed: None })
    });
    let (expire_after, retain) = (new.expire_after, new.retain);
    let course = Course { expire_after, retain, series, awaits, ..Course::default() };
    let row = FireRow::first(new.id, generation, new.fire_at, new.definition);
    FireRow { course: course.some(), ..row }
}

/// Why a registration is ignored for the sake of what stands there, if it is.
fn ignored(
    new: &Registration,
    slot: Option<&Slot>,
    there: Option<(Offset, Timestamp)>,
    known: &Known,
) -> Option<Verdict> {
    if let Some((generation, _)) = there
        && known.is_foreign(slot, new.definition.caller.as_ref())
        && !planted(Bug::ForeignTouched)
    {
        return Some(Verdict::Taken { generation });
    }
    let pending = slot.filter(|slot| slot.kind == SlotKind::Main);
    match (new.on_conflict, there) {
        (OnConflict::Keep, Some((generation, fire_at))) => {
            Some(Verdict::Kept { generation, fire_at })
        }
        (OnConflict::Match(wanted), there) => match (pending, there) {
            (Some(slot), _) if slot.generation == wanted => None,
            (Some(_), Some((generation, fire_at))) => Some(Verdict::Kept { generation, fire_at }),
            _ => Some(Verdict::NotPending { fired: None, withdrawal: false }),
        },
        (OnConflict::Keep, None) | (OnConflict::Replace, _) => None,
    }
}

/// What a registration that keeps finds: the generation that stays, and when it is due.
fn stays(slot: &Slot, row: Option<&Row>) -> Option<(Offset, Timestamp)> {
    match row {
        None => Some((slot.generation, slot.key.due)),
        Some(Row::Fire(row)) => {
            let retained = row.course.as_ref().is_some_and(|course| course.retain.is_some());
            let stays = slot.kind == SlotKind::Main || retained;
            stays.then_some((slot.generation, row.scheduled))
        }
        Some(Row::Watch { .. } | Row::Veto { .. }) => None,
    }
}

/// What is left to whoever replaces a trigger.
fn bequeath(row: Option<Row>, count: Count) -> Heritage {
    match row {
        Some(Row::Fire(FireRow { id, course: Some(course), .. })) => {
            let counted = course.series.filter(|_| count == Count::Keep);
            let executions = counted.as_ref().map_or(0, |_| id.occurrence);
            let failures = counted.map_or(0, |series| series.failures);
            Heritage { watchers: course.watchers, executions, failures }
        }
        Some(Row::Watch { .. }) if planted(Bug::WatchLost) => Heritage::default(),
        Some(Row::Watch { watchers, .. }) => Heritage { watchers, ..Heritage::default() },
        _ => Heritage::default(),
    }
}

/// Takes up what a predecessor left. Says whether that is the end: it has come as often as it may.
fn inherit(row: &mut FireRow, heritage: Heritage) -> bool {
    let Heritage { watchers, executions, failures } = heritage;
    if !watchers.is_empty() {
        course_of(row).watchers = watchers;
    }
    let Some(series) = row.course.as_deref_mut().and_then(|course| course.series.as_deref_mut())
    else {
        return false;
    };
    row.id.occurrence = executions;
    series.failures = failures;
    series.schedule.max_executions().is_some_and(|most| executions >= most)
}

/// Under which key the ledger holds a row, if it does.
pub(super) fn ledger_key(row: &Row) -> Option<LedgerKey> {
    match row {
        Row::Veto { trigger, .. } => Some(LedgerKey::Veto(trigger.clone())),
        Row::Watch { trigger, .. } => Some(LedgerKey::Main(trigger.clone())),
        Row::Fire(row) if !row.in_ledger => None,
        Row::Fire(row) => Some(fire_ledger_key(&row.id)),
    }
}

/// Under which key the ledger holds an occurrence, or a retry of one.
pub(super) fn fire_ledger_key(id: &FireId) -> LedgerKey {
    if id.attempt == 1 && id.deferral == 0 {
        LedgerKey::Main(id.trigger.clone())
    } else {
        LedgerKey::Retry {
            trigger: id.trigger.clone(),
            generation: id.generation,
            occurrence: id.occurrence,
        }
    }
}
