//! A registration: put it on the timeline, and in the ledger if it will outlive the replay tail.
//!
//! Invariant: whether it is ignored depends on state, so an ignored one leaves a skip mark.

use super::index_row::{IdHash, IndexEntry, IndexEntryKind, IndexRow};
use super::lifecycle::lifecycle_mut;
use super::partition::{CorruptRow, Partition};
use super::prefetch::Prefetched;
use super::step::Emit;
use crate::codec::row::RowBytes;
use crate::fault::{Mutation, is_active};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::input::{
    CountPolicy, OnConflict, Registration, Request, TriggerRecord, Unreadable,
};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::lifecycle::{Dependencies, Lifecycle, PendingDependencies, Recurrence, Watcher};
use crate::model::outcome::{Outcome, OutcomeKind};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Offset, Timestamp};

/// What a registration takes over from the one it replaces.
#[derive(Debug, Default)]
struct CarriedOver {
    watchers: Vec<Watcher>,
    executions: u32,
    failures: u32,
}

impl Partition {
    pub(super) fn ingest_trigger(
        &mut self,
        record: TriggerRecord,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let TriggerRecord { offset, timestamp, ack, request } = record;
        match request {
            Request::Register(new) => self.register(offset, timestamp, ack, new, prefetched)?,
            Request::Cancel { id, caller } => self.cancel(offset, ack, id, caller, prefetched)?,
            Request::Command { id, command, caller } => {
                self.command(offset, ack, id, (command, caller), prefetched)?;
            }
            Request::Forward(forward) => {
                self.mark_skipped(offset);
                self.draft.emits.push(Emit::Forward(forward));
            }
            Request::Batch(forwards) => {
                self.mark_skipped(offset);
                let forwards = forwards.into_iter().map(|one| Emit::Forward(Box::new(one)));
                self.draft.emits.extend(forwards);
            }
            Request::Unreadable(unreadable) => {
                if unreadable.may_become_readable {
                    self.mark_skipped(offset);
                }
                let topic = self.config.topics.triggers.clone();
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
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let hash = IdHash::of(&new.id);
        let mut index_row = self.index_row(hash, prefetched.index);
        let slot = self.live_entry(&index_row);
        let (mut current, mut carried_over) = (None, CarriedOver::default());
        if let Some(slot) = &slot {
            let row =
                if slot.has_lifecycle { Some(self.read_row(slot, prefetched)?) } else { None };
            current = surviving_generation(slot, row.as_ref());
            carried_over = carry_over_from(row, new.count);
        }
        if let Some(why) = reason_to_ignore(&new, slot.as_ref(), current, &index_row) {
            if !is_active(Mutation::IgnoredWithoutSkipMark) {
                self.mark_skipped(offset);
            }
            self.emit_response(ack, offset, new.id, why);
            return Ok(());
        }
        self.remove_live_entry(&new.id, &mut index_row);
        if ack {
            let pending = slot.filter(|slot| slot.kind == IndexEntryKind::Main);
            let replaced = pending.map(|slot| slot.generation);
            let verdict =
                OutcomeKind::Accepted { generation: offset, fire_at: new.fire_at, replaced };
            self.emit_response(true, offset, new.id.clone(), verdict);
        }
        let priority = new.priority;
        let row = first_row(offset, timestamp, new);
        if let Some(slot) = self.schedule_new(priority, row, carried_over) {
            // It may have stood there before, and fired: an operator has the log read again.
            index_row.entries.retain(|other| other.key != slot.key);
            index_row.entries.push(slot);
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }

    /// Puts a new trigger where it belongs, and says where that is.
    fn schedule_new(
        &mut self,
        priority: u8,
        mut row: FireRow,
        carried_over: CarriedOver,
    ) -> Option<IndexEntry> {
        if apply_carried_over(&mut row, carried_over) {
            let (trigger, generation) = (row.id.trigger, row.id.generation);
            let executions = row.id.occurrence;
            self.emit_outcome(trigger, OutcomeKind::Ended { generation, executions });
            return None;
        }
        let (due, offset) = (row.scheduled, row.id.generation);
        let (priority, source) = (rank(priority), Source::Triggers);
        let key = TimelineKey { due, priority, source, offset };
        if row.lifecycle.as_ref().is_some_and(|course| course.needs_ledger()) {
            let key = TimelineKey { due: self.due_of(&row), ..key };
            row.in_ledger = true;
            self.watch_dependencies(&row);
            let slot = IndexEntry::for_row(key, &row);
            self.schedule_entry(Entry { key, row: Row::Fire(row) });
            return Some(slot);
        }
        let late = key <= self.cursor.fired_through;
        let long = due > self.clock + self.config.ledger_after;
        row.in_ledger = long && !late && !is_active(Mutation::LongTriggerNotInLedger);
        let slot = IndexEntry::for_row(key, &row);
        if late {
            let row = self.encode(&Row::Fire(row));
            self.draft.late.push((key, row));
        } else {
            if !long {
                self.cursor.replay_horizon = self.cursor.replay_horizon.max(due);
            }
            self.schedule_entry(Entry { key, row: Row::Fire(row) });
        }
        Some(slot)
    }

    /// Puts an entry on the timeline, and into the ledger if its row says that it is held there.
    pub(super) fn schedule_entry(&mut self, entry: Entry) {
        let row = self.encode(&entry.row);
        self.put_row(entry.key, row);
        if let Some(key) = ledger_key(&entry.row) {
            let value = Some(Box::new(LedgerValue::Entry(entry)));
            self.draft.emits.push(Emit::Ledger { key, value });
        }
    }

    /// Takes the trigger's pending occurrence, or what is remembered of it, off the timeline and
    /// out of the ledger.
    pub(super) fn remove_live_entry(
        &mut self,
        id: &Text,
        index_row: &mut IndexRow,
    ) -> Option<IndexEntry> {
        let dropped = index_row.extract_if(|slot| self.is_live(slot));
        assert!(dropped.len() <= 1, "one entry of a trigger stands");
        let slot = dropped.into_iter().next()?;
        if slot.key > self.cursor.fired_through {
            self.delete_row(slot.key);
        } else {
            self.draft.late.retain(|(key, _)| *key != slot.key);
        }
        if slot.in_ledger {
            self.delete_ledger_entry(LedgerKey::Main(id.clone()));
        }
        Some(slot)
    }

    /// Whether the trigger's occurrence has not fired yet. What was due when it came is late, and
    /// pending until the next firing: its topic may be away, and then it has to wait on.
    pub(super) fn is_pending(&self, slot: &IndexEntry) -> bool {
        slot.kind == IndexEntryKind::Main
            && (slot.key > self.cursor.fired_through || self.is_late(slot))
    }

    /// Its offset alone does not tell: if an operator has the log read again, what has fired may
    /// stand at a later one.
    fn is_late(&self, slot: &IndexEntry) -> bool {
        let is_this = |(key, _): &(TimelineKey, RowBytes)| *key == slot.key;
        slot.generation >= self.next_offset_at_last_fire && self.draft.late.iter().any(is_this)
    }

    pub(super) fn delete_ledger_entry(&mut self, key: LedgerKey) {
        self.draft.emits.push(Emit::Ledger { key, value: None });
    }

    /// Answers a record that asked to be answered.
    pub(super) fn emit_response(
        &mut self,
        ack: bool,
        offset: Offset,
        trigger: Text,
        verdict: OutcomeKind,
    ) {
        if ack {
            let outcome = Outcome { trigger, answers: Some(offset), at: self.clock, kind: verdict };
            self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
        }
    }

    /// A record that says nothing we can do: to the dead letters, and always on the audit trail.
    pub(super) fn reject(&mut self, topic: Text, offset: Offset, record: Unreadable) {
        let Unreadable { id, reason, key, value, headers, .. } = record;
        if let Some(trigger) = id {
            self.emit_response(
                true,
                offset,
                trigger,
                OutcomeKind::Rejected { reason: reason.clone() },
            );
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
    if !new.needs_ledger() && new.expire_after.is_none() {
        return FireRow::first(new.id, generation, new.fire_at, new.definition); // nearly always
    }
    let series = new.schedule.and_then(|schedule| {
        let nominal = schedule.first(timestamp)?;
        let (granted, open, failures) = (0, None, 0);
        Some(Box::new(Recurrence {
            schedule: *schedule,
            due_before_jitter: nominal,
            catch_up_until: granted,
            open,
            failures,
        }))
    });
    let awaits = new.after.map(|after| {
        let Dependencies { ids: remaining, on_failure, timeout } = *after;
        let until = timestamp.saturating_add(timeout);
        Box::new(PendingDependencies { remaining, on_failure, until, failed: None })
    });
    let (expire_after, retain) = (new.expire_after, new.retain);
    let course = Lifecycle {
        expire_after,
        retain,
        recurrence: series,
        dependencies: awaits,
        ..Lifecycle::default()
    };
    let row = FireRow::first(new.id, generation, new.fire_at, new.definition);
    FireRow { lifecycle: course.boxed_unless_default(), ..row }
}

/// Why a registration is ignored for the sake of what stands there, if it is.
fn reason_to_ignore(
    new: &Registration,
    slot: Option<&IndexEntry>,
    current: Option<(Offset, Timestamp)>,
    index_row: &IndexRow,
) -> Option<OutcomeKind> {
    if let Some((generation, _)) = current
        && index_row.belongs_to_other_caller(slot, new.definition.caller.as_ref())
        && !is_active(Mutation::OtherCallerAllowed)
    {
        return Some(OutcomeKind::Taken { generation });
    }
    let pending = slot.filter(|slot| slot.kind == IndexEntryKind::Main);
    match (new.on_conflict, current) {
        (OnConflict::Keep, Some((generation, fire_at))) => {
            Some(OutcomeKind::Kept { generation, fire_at })
        }
        (OnConflict::Match(wanted), there) => match (pending, there) {
            (Some(slot), _) if slot.generation == wanted => None,
            (Some(_), Some((generation, fire_at))) => {
                Some(OutcomeKind::Kept { generation, fire_at })
            }
            _ => Some(OutcomeKind::NotPending { fired: None, withdrawal: false }),
        },
        (OnConflict::Keep, None) | (OnConflict::Replace, _) => None,
    }
}

/// What a registration that keeps finds: the generation that stays, and when it is due.
fn surviving_generation(slot: &IndexEntry, row: Option<&Row>) -> Option<(Offset, Timestamp)> {
    match row {
        None => Some((slot.generation, slot.key.due)),
        Some(Row::Fire(row)) => {
            let retained = row.lifecycle.as_ref().is_some_and(|course| course.retain.is_some());
            let stays = slot.kind == IndexEntryKind::Main || retained;
            stays.then_some((slot.generation, row.scheduled))
        }
        Some(Row::Watch { .. } | Row::Veto { .. }) => None,
    }
}

/// What is left to whoever replaces a trigger.
fn carry_over_from(row: Option<Row>, count: CountPolicy) -> CarriedOver {
    match row {
        Some(Row::Fire(FireRow { id, lifecycle: Some(course), .. })) => {
            let counted = course.recurrence.filter(|_| count == CountPolicy::Keep);
            let executions = counted.as_ref().map_or(0, |_| id.occurrence);
            let failures = counted.map_or(0, |series| series.failures);
            CarriedOver { watchers: course.watchers, executions, failures }
        }
        Some(Row::Watch { .. }) if is_active(Mutation::WatchersLost) => CarriedOver::default(),
        Some(Row::Watch { watchers, .. }) => CarriedOver { watchers, ..CarriedOver::default() },
        _ => CarriedOver::default(),
    }
}

/// Takes up what a predecessor left. Says whether that is the end: it has come as often as it may.
fn apply_carried_over(row: &mut FireRow, carried_over: CarriedOver) -> bool {
    let CarriedOver { watchers, executions, failures } = carried_over;
    if !watchers.is_empty() {
        lifecycle_mut(row).watchers = watchers;
    }
    let Some(series) =
        row.lifecycle.as_deref_mut().and_then(|course| course.recurrence.as_deref_mut())
    else {
        return false;
    };
    row.id.occurrence = executions;
    series.failures = failures;
    series.schedule.max_executions().is_some_and(|executions_max| executions >= executions_max)
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
