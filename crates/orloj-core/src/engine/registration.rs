//! A registration: schedule it, and write it to the ledger if it will outlive the replay tail.
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
        let entry = self.live_entry(&index_row);
        let (mut current, mut carried_over) = (None, CarriedOver::default());
        if let Some(entry) = &entry {
            let row =
                if entry.has_lifecycle { Some(self.read_row(entry, prefetched)?) } else { None };
            current = surviving_generation(entry, row.as_ref());
            carried_over = carry_over_from(row, new.count);
        }
        if let Some(why) = reason_to_ignore(&new, entry.as_ref(), current, &index_row) {
            if !is_active(Mutation::IgnoredWithoutSkipMark) {
                self.mark_skipped(offset);
            }
            self.emit_response(ack, offset, new.id, why);
            return Ok(());
        }
        self.remove_live_entry(&new.id, &mut index_row);
        if ack {
            let pending = entry.filter(|entry| entry.kind == IndexEntryKind::Main);
            let replaced = pending.map(|entry| entry.generation);
            let kind = OutcomeKind::Accepted { generation: offset, fire_at: new.fire_at, replaced };
            self.emit_response(true, offset, new.id.clone(), kind);
        }
        let priority = new.priority;
        let row = first_row(offset, timestamp, new);
        if let Some(entry) = self.schedule_new(priority, row, carried_over) {
            // It may have fired before with this key, if an operator has reset the offset.
            index_row.entries.retain(|other| other.key != entry.key);
            index_row.entries.push(entry);
        }
        self.put_index_row(hash, index_row, prefetched.index);
        Ok(())
    }

    /// Schedules a new trigger; returns its entry unless it has ended already.
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
        if row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.needs_ledger()) {
            let key = TimelineKey { due: self.due_of(&row), ..key };
            row.in_ledger = true;
            self.watch_dependencies(&row);
            let entry = IndexEntry::for_row(key, &row);
            self.schedule_entry(Entry { key, row: Row::Fire(row) });
            return Some(entry);
        }
        let late = key <= self.cursor.fired_through;
        let long = due > self.clock + self.config.ledger_after;
        row.in_ledger = long && !late && !is_active(Mutation::LongTriggerNotInLedger);
        let entry = IndexEntry::for_row(key, &row);
        if late {
            let row = self.encode(&Row::Fire(row));
            self.draft.late.push((key, row));
        } else {
            if !long {
                self.cursor.replay_horizon = self.cursor.replay_horizon.max(due);
            }
            self.schedule_entry(Entry { key, row: Row::Fire(row) });
        }
        Some(entry)
    }

    /// Puts an entry on the timeline, and into the ledger if its row says so.
    pub(super) fn schedule_entry(&mut self, entry: Entry) {
        let row = self.encode(&entry.row);
        self.put_row(entry.key, row);
        if let Some(key) = ledger_key(&entry.row) {
            let value = Some(Box::new(LedgerValue::Entry(entry)));
            self.draft.emits.push(Emit::Ledger { key, value });
        }
    }

    /// Removes the trigger's pending occurrence, or what is remembered of it, from the timeline and
    /// from the ledger.
    pub(super) fn remove_live_entry(
        &mut self,
        id: &Text,
        index_row: &mut IndexRow,
    ) -> Option<IndexEntry> {
        let dropped = index_row.extract_if(|entry| self.is_live(entry));
        assert!(dropped.len() <= 1, "a trigger has one live entry");
        let entry = dropped.into_iter().next()?;
        if entry.key > self.cursor.fired_through {
            self.delete_row(entry.key);
        } else {
            self.draft.late.retain(|(key, _)| *key != entry.key);
        }
        if entry.in_ledger {
            self.delete_ledger_entry(LedgerKey::Main(id.clone()));
        }
        Some(entry)
    }

    /// Whether the trigger's occurrence has not fired yet. One that was due when it was ingested is
    /// late, and pending until the next firing: its topic may be unavailable, and then it waits.
    pub(super) fn is_pending(&self, entry: &IndexEntry) -> bool {
        entry.kind == IndexEntryKind::Main
            && (entry.key > self.cursor.fired_through || self.is_late(entry))
    }

    /// The offset alone does not decide it: after an operator has reset the offset, a fired entry
    /// may have a later one.
    fn is_late(&self, entry: &IndexEntry) -> bool {
        let is_this = |(key, _): &(TimelineKey, RowBytes)| *key == entry.key;
        entry.generation >= self.next_offset_at_last_fire && self.draft.late.iter().any(is_this)
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
        kind: OutcomeKind,
    ) {
        if ack {
            let outcome = Outcome { trigger, answers: Some(offset), at: self.clock, kind };
            self.draft.emits.push(Emit::Outcome(Box::new(outcome)));
        }
    }

    /// A record that cannot be executed: a dead letter, and always an outcome.
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

/// The first row of a trigger, from its record alone: a replay makes the same.
pub(super) fn first_row(generation: Offset, timestamp: Timestamp, new: Registration) -> FireRow {
    if !new.needs_ledger() && new.expire_after.is_none() {
        return FireRow::first(new.id, generation, new.fire_at, new.definition); // nearly always
    }
    let recurrence = new.schedule.and_then(|schedule| {
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
    let dependencies = new.after.map(|after| {
        let Dependencies { ids: remaining, on_failure, timeout } = *after;
        let until = timestamp.saturating_add(timeout);
        Box::new(PendingDependencies { remaining, on_failure, until, failed: None })
    });
    let (expire_after, retain) = (new.expire_after, new.retain);
    let lifecycle =
        Lifecycle { expire_after, retain, recurrence, dependencies, ..Lifecycle::default() };
    let row = FireRow::first(new.id, generation, new.fire_at, new.definition);
    FireRow { lifecycle: lifecycle.boxed_unless_default(), ..row }
}

/// Why a registration is ignored because of the live entry, if it is.
fn reason_to_ignore(
    new: &Registration,
    entry: Option<&IndexEntry>,
    current: Option<(Offset, Timestamp)>,
    index_row: &IndexRow,
) -> Option<OutcomeKind> {
    if let Some((generation, _)) = current
        && index_row.belongs_to_other_caller(entry, new.definition.caller.as_ref())
        && !is_active(Mutation::OtherCallerAllowed)
    {
        return Some(OutcomeKind::Taken { generation });
    }
    let pending = entry.filter(|entry| entry.kind == IndexEntryKind::Main);
    match (new.on_conflict, current) {
        (OnConflict::Keep, Some((generation, fire_at))) => {
            Some(OutcomeKind::Kept { generation, fire_at })
        }
        (OnConflict::Match(wanted), there) => match (pending, there) {
            (Some(entry), _) if entry.generation == wanted => None,
            (Some(_), Some((generation, fire_at))) => {
                Some(OutcomeKind::Kept { generation, fire_at })
            }
            _ => Some(OutcomeKind::NotPending { fired: None, withdrawal: false }),
        },
        (OnConflict::Keep, None) | (OnConflict::Replace, _) => None,
    }
}

/// The generation that a registration with `keep` finds, and when it is due.
fn surviving_generation(entry: &IndexEntry, row: Option<&Row>) -> Option<(Offset, Timestamp)> {
    match row {
        None => Some((entry.generation, entry.key.due)),
        Some(Row::Fire(row)) => {
            let retained =
                row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.retain.is_some());
            let stays = entry.kind == IndexEntryKind::Main || retained;
            stays.then_some((entry.generation, row.scheduled))
        }
        Some(Row::Watch { .. } | Row::Veto { .. }) => None,
    }
}

/// What the replacement of a trigger takes over.
fn carry_over_from(row: Option<Row>, count: CountPolicy) -> CarriedOver {
    match row {
        Some(Row::Fire(FireRow { id, lifecycle: Some(lifecycle), .. })) => {
            let counted = lifecycle.recurrence.filter(|_| count == CountPolicy::Keep);
            let executions = counted.as_ref().map_or(0, |_| id.occurrence);
            let failures = counted.map_or(0, |recurrence| recurrence.failures);
            CarriedOver { watchers: lifecycle.watchers, executions, failures }
        }
        Some(Row::Watch { .. }) if is_active(Mutation::WatchersLost) => CarriedOver::default(),
        Some(Row::Watch { watchers, .. }) => CarriedOver { watchers, ..CarriedOver::default() },
        _ => CarriedOver::default(),
    }
}

/// Applies what is carried over. Returns whether the trigger has ended: it has no execution left.
fn apply_carried_over(row: &mut FireRow, carried_over: CarriedOver) -> bool {
    let CarriedOver { watchers, executions, failures } = carried_over;
    if !watchers.is_empty() {
        lifecycle_mut(row).watchers = watchers;
    }
    let Some(recurrence) =
        row.lifecycle.as_deref_mut().and_then(|lifecycle| lifecycle.recurrence.as_deref_mut())
    else {
        return false;
    };
    row.id.occurrence = executions;
    recurrence.failures = failures;
    recurrence.schedule.max_executions().is_some_and(|executions_max| executions >= executions_max)
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
