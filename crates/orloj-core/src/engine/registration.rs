//! A registration: schedule it, and write it to the ledger if it will outlive the replay tail.
//!
//! Invariant: whether it is ignored depends on state, so an ignored one leaves a skip mark.

use super::index_row::{IndexEntry, IndexEntryKind, IndexRow};
use super::state::CorruptRow;
use super::trigger_handler::{LiveEntry, OccurrenceResult, TriggerHandler};
use crate::model::entry::{Entry, FireRow, Row};
use crate::model::input::{Ack, CountPolicy, OnConflict, Registration};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::{
    Dependencies, ExecutedRequest, Lifecycle, PendingDependencies, Recurrence, Watcher,
};
use crate::model::outcome::OutcomeKind;
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Offset, Timestamp};

/// What a registration takes over from the one it replaces.
#[derive(Debug, Default)]
struct CarriedOver {
    watchers: Vec<Watcher>,
    executions: u32,
    failures: u32,
    executed: Vec<ExecutedRequest>,
}

impl TriggerHandler<'_> {
    pub(super) fn register(
        mut self,
        offset: Offset,
        timestamp: Timestamp,
        ack: Ack,
        new: Registration,
    ) -> Result<(), CorruptRow> {
        let live = self.live_entry();
        let (mut current, mut revision, mut carried_over) = (None, None, CarriedOver::default());
        let (key, mut is_repeated) = (ack.idempotency_key.clone(), false);
        if let Some(entry) = &live {
            let row = if entry.has_lifecycle { Some(self.read_row(entry)?) } else { None };
            is_repeated = key.as_ref().is_some_and(|key| has_executed(row.as_ref(), key));
            current = surviving_generation(entry, row.as_ref(), is_repeated);
            revision = Some(revision_of(entry, row.as_ref()));
            carried_over = carry_over_from(row, new.count);
        }
        let there = Existing { entry: live.as_ref(), revision, current, is_repeated };
        if let Some(why) = reason_to_ignore(&new, &there, &self.index_row) {
            self.state.mark_skipped(offset, self.output);
            self.emit_response(&ack, offset, new.id, why);
            return Ok(());
        }
        self.remove_live_entry(&new.id);
        if ack.wanted {
            let pending = live.filter(|entry| entry.kind == IndexEntryKind::Main);
            let replaced = pending.map(|entry| entry.generation);
            let kind = OutcomeKind::Accepted { generation: offset, fire_at: new.fire_at, replaced };
            self.emit_response(&ack, offset, new.id.clone(), kind);
        }
        let (priority, in_ledger) = (new.priority, new.in_ledger);
        let row = first_row(offset, timestamp, new);
        carried_over.executed.extend(key.map(|key| ExecutedRequest {
            key,
            generation: offset,
            occurrence: 0,
        }));
        if let Some(entry) = self.schedule_new(priority, row, carried_over, in_ledger) {
            // It may have fired before with this key, if an operator has reset the offset.
            self.index_row.entries.retain(|other| other.key != entry.key);
            self.index_row.entries.push(entry);
        }
        self.save();
        Ok(())
    }

    /// Schedules a new trigger; returns its entry unless it has ended already.
    fn schedule_new(
        &mut self,
        priority: u8,
        mut row: FireRow,
        carried_over: CarriedOver,
        in_ledger: bool,
    ) -> Option<IndexEntry> {
        let is_over = apply_carried_over(&mut row, carried_over);
        let (due, offset) = (row.scheduled, row.id.generation);
        let (priority, source) = (rank(priority), Source::Triggers);
        let key = TimelineKey { due, priority, source, offset };
        if is_over {
            let (generation, executions) = (row.id.generation, row.id.occurrence);
            let ended = OutcomeKind::Ended { generation, executions };
            self.emit_outcome(row.id.trigger.clone(), ended);
            let lifecycle = row.lifecycle.as_ref();
            if lifecycle.is_some_and(|lifecycle| lifecycle.retention().is_some()) {
                let live = LiveEntry { entry: IndexEntry::for_row(key, &row), row };
                self.complete_unfired(live, OccurrenceResult::Succeeded);
            }
            return None;
        }
        if row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.needs_ledger()) {
            let key = TimelineKey { due: self.due_of(&row), ..key };
            row.in_ledger = true;
            self.watch_dependencies(&row);
            let entry = IndexEntry::for_row(key, &row);
            self.state.schedule(Entry { key, row: Row::Fire(row) }, self.output);
            return Some(entry);
        }
        let late = key <= self.state.fired_through();
        let long = in_ledger || due > self.clock() + self.context.config.ledger_after;
        row.in_ledger = long && !late;
        let entry = IndexEntry::for_row(key, &row);
        if late {
            self.state.add_late(key, &Row::Fire(row));
        } else {
            if !long {
                self.state.extend_replay_horizon(due);
            }
            self.state.schedule(Entry { key, row: Row::Fire(row) }, self.output);
        }
        Some(entry)
    }

    /// Removes the trigger's pending occurrence, or what is remembered of it, from the timeline and
    /// from the ledger.
    pub(super) fn remove_live_entry(&mut self, id: &Text) -> Option<IndexEntry> {
        let state = &*self.state;
        let dropped = self.index_row.extract_if(|entry| state.is_live(entry));
        assert!(dropped.len() <= 1, "a trigger has one live entry");
        let entry = dropped.into_iter().next()?;
        self.state.remove_entry(entry.key);
        if entry.in_ledger {
            self.output.delete_ledger_entry(LedgerKey::Main(id.clone()));
        }
        Some(entry)
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
            counted_from: 0,
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

/// What a registration finds under its id.
struct Existing<'a> {
    entry: Option<&'a IndexEntry>,
    /// The record that defines it.
    revision: Option<Offset>,
    /// The generation that survives, with its due time.
    current: Option<(Offset, Timestamp)>,
    /// The registration was executed before, under its idempotency key.
    is_repeated: bool,
}

/// Why a registration is ignored because of what exists, if it is.
fn reason_to_ignore(
    new: &Registration,
    existing: &Existing<'_>,
    index_row: &IndexRow,
) -> Option<OutcomeKind> {
    let Existing { entry, revision, current, is_repeated } = *existing;
    if let Some((generation, _)) = current
        && index_row.belongs_to_other_caller(entry, new.definition.caller.as_ref())
    {
        return Some(OutcomeKind::Taken { generation });
    }
    let pending = entry.filter(|entry| entry.kind == IndexEntryKind::Main);
    let on_conflict = if is_repeated { OnConflict::Keep } else { new.on_conflict };
    match (on_conflict, current) {
        (OnConflict::Keep, Some((generation, fire_at))) => {
            Some(OutcomeKind::Kept { generation, fire_at })
        }
        (OnConflict::Match(wanted), there) => match (pending.and(revision), there) {
            (Some(revision), _) if revision == wanted => None,
            (Some(generation), Some((_, fire_at))) => {
                Some(OutcomeKind::Kept { generation, fire_at })
            }
            _ => Some(OutcomeKind::NotPending { fired: None, withdrawal: false }),
        },
        (OnConflict::Keep, None) | (OnConflict::Replace, _) => None,
    }
}

/// The offset of the record that defines what is live.
fn revision_of(entry: &IndexEntry, row: Option<&Row>) -> Offset {
    match row {
        Some(Row::Fire(row)) => row.revision(),
        Some(Row::Watch { .. } | Row::Veto { .. }) | None => entry.generation,
    }
}

/// Whether the request with this key was executed.
fn has_executed(row: Option<&Row>, key: &Text) -> bool {
    let Some(Row::Fire(FireRow { lifecycle: Some(lifecycle), .. })) = row else { return false };
    lifecycle.executed_request(key).is_some()
}

/// The generation that a registration with `keep` finds, and when it is due. A repeated one finds
/// also what is remembered for its key alone.
fn surviving_generation(
    entry: &IndexEntry,
    row: Option<&Row>,
    is_repeated: bool,
) -> Option<(Offset, Timestamp)> {
    match row {
        None => Some((entry.generation, entry.key.due)),
        Some(Row::Fire(row)) => {
            let retained =
                row.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.retain.is_some());
            let stays = entry.kind == IndexEntryKind::Main || retained || is_repeated;
            stays.then_some((entry.generation, row.scheduled))
        }
        Some(Row::Watch { .. } | Row::Veto { .. }) => None,
    }
}

/// What the replacement of a trigger takes over.
fn carry_over_from(row: Option<Row>, count: CountPolicy) -> CarriedOver {
    match row {
        Some(Row::Fire(FireRow { id, lifecycle: Some(lifecycle), .. })) => {
            let counted = lifecycle.recurrence.as_ref().filter(|_| count == CountPolicy::Keep);
            let executions = counted
                .as_ref()
                .map_or(0, |recurrence| id.occurrence.saturating_sub(recurrence.counted_from));
            let failures = counted.map_or(0, |recurrence| recurrence.failures);
            let Lifecycle { watchers, executed, .. } = *lifecycle;
            CarriedOver { watchers, executions, failures, executed }
        }
        Some(Row::Watch { watchers, .. }) => CarriedOver { watchers, ..CarriedOver::default() },
        _ => CarriedOver::default(),
    }
}

/// Applies what is carried over. Returns whether the trigger has ended: it has no execution left.
fn apply_carried_over(row: &mut FireRow, carried_over: CarriedOver) -> bool {
    let CarriedOver { watchers, executions, failures, executed } = carried_over;
    for request in executed {
        row.lifecycle_mut().remember_request(request);
    }
    if !watchers.is_empty() {
        row.lifecycle_mut().watchers = watchers;
    }
    let Some(recurrence) =
        row.lifecycle.as_deref_mut().and_then(|lifecycle| lifecycle.recurrence.as_deref_mut())
    else {
        return false;
    };
    row.id.occurrence = executions;
    recurrence.failures = failures;
    !recurrence.has_executions_left(executions)
}
