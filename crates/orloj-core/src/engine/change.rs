//! A change: a pending trigger gets another definition and stays the same trigger.
//!
//! Invariant: what a change does not name is as the owner has it: its time, what it waits for, a
//! callback in progress, whether it is paused, and who waits for it. It keeps its generation, so
//! that what was written about it is still about it. A changed trigger is in the ledger from that
//! step on, so that a replay can ignore changes. It is remembered until the time of its
//! registration is over, or a replay would take that for pending: its key has another time, or
//! another priority.

use super::index_row::IndexEntry;
use super::registration::first_row;
use super::state::CorruptRow;
use super::trigger_handler::{LiveEntry, OccurrenceResult, TriggerHandler};
use crate::model::entry::{FireRow, Row};
use crate::model::input::{Ack, Change, ChangedParts, CountPolicy, OnConflict};
use crate::model::lifecycle::{LifecyclePhase, Recurrence};
use crate::model::outcome::OutcomeKind;
use crate::model::timeline::{TimelineKey, rank};
use crate::model::{Offset, Timestamp};

impl TriggerHandler<'_> {
    pub(super) fn change(
        mut self,
        offset: Offset,
        timestamp: Timestamp,
        ack: Ack,
        change: Change,
    ) -> Result<(), CorruptRow> {
        let Change { new, parts } = change;
        let (id, count) = (new.id.clone(), new.count);
        let live = self.live_entry();
        if self.index_row.belongs_to_other_caller(live.as_ref(), new.definition.caller.as_ref()) {
            // For this caller the trigger does not exist.
            let unknown = OutcomeKind::NotPending { fired: None, withdrawal: false };
            self.emit_response(&ack, offset, id, unknown);
            return Ok(());
        }
        let Some(entry) = self.pending_entry() else {
            let fired = self.state.last_fired(&self.index_row).map(|entry| entry.generation);
            let kind = OutcomeKind::NotPending { fired, withdrawal: false };
            self.emit_response(&ack, offset, id, kind);
            return Ok(());
        };
        let Row::Fire(mut row) = self.read_row(&entry)? else { return Ok(()) };
        let revision = row.revision();
        if matches!(new.on_conflict, OnConflict::Match(wanted) if wanted != revision) {
            let kind = OutcomeKind::Kept { generation: revision, fire_at: row.scheduled };
            self.emit_response(&ack, offset, id, kind);
            return Ok(());
        }
        let priority = rank(new.priority);
        let new = first_row(row.id.generation, timestamp, new);
        let has_next = apply_change(&mut row, offset, new, (count, parts));
        let (generation, fire_at) = (row.id.generation, row.scheduled);
        let executions = Some(row.id.occurrence);
        let kind = OutcomeKind::Changed { generation, revision: offset, fire_at, executions };
        self.emit_response(&ack.always(), offset, id, kind);
        if parts.after {
            self.watch_dependencies(&row);
        }
        // Its key has the priority that it had.
        self.remove_entry(&entry);
        let entry = IndexEntry { key: TimelineKey { priority, ..entry.key }, ..entry };
        self.schedule_changed(LiveEntry { entry, row }, has_next);
        self.save();
        Ok(())
    }

    /// It waits for its time, or has ended: it has no execution left, or no further occurrence.
    fn schedule_changed(&mut self, live: LiveEntry, has_next: bool) {
        let (generation, executions) = (live.row.id.generation, live.row.id.occurrence);
        let lifecycle = live.row.lifecycle.as_ref();
        let recurrence = lifecycle.and_then(|lifecycle| lifecycle.recurrence.as_deref());
        let is_over =
            |recurrence: &&Recurrence| !has_next || !recurrence.has_executions_left(executions);
        match recurrence.filter(is_over) {
            Some(recurrence) => {
                let result = match (&recurrence.open, recurrence.failures) {
                    (Some(_), _) => OccurrenceResult::Pending,
                    (None, 0) => OccurrenceResult::Succeeded,
                    (None, _) => OccurrenceResult::Failed,
                };
                let ended = OutcomeKind::Ended { generation, executions };
                self.emit_outcome(live.row.id.trigger.clone(), ended);
                self.complete(live, result);
            }
            None => {
                let due = self.due_of(&live.row);
                self.reschedule(live, due);
            }
        }
    }
}

/// Applies a change, the record at this offset, to a pending row; `new` is the row that it would be
/// as a registration. Returns whether it has a time from then on.
fn apply_change(
    row: &mut FireRow,
    revision: Offset,
    mut new: FireRow,
    (count, parts): (CountPolicy, ChangedParts),
) -> bool {
    let has_next = skip_decided(row, &mut new);
    let was_callback = row.definition.target.is_http();
    parts.apply_to(&mut row.definition, new.definition);
    let (due_before, executions) = (row.scheduled, row.id.occurrence);
    let changed = new.lifecycle.map(|lifecycle| *lifecycle).unwrap_or_default();
    let lifecycle = row.lifecycle_mut();
    (lifecycle.expire_after, lifecycle.retain) = (changed.expire_after, changed.retain);
    (lifecycle.changed_by_command, lifecycle.revision) = (true, Some(revision));
    lifecycle.was_callback |= was_callback && executions > 0;
    if parts.after && !lifecycle.fire_now_requested {
        lifecycle.dependencies = changed.dependencies;
        lifecycle.dependencies_changed = true;
    }
    if lifecycle.recurrence.is_none() {
        let _first = lifecycle.first_due.get_or_insert(due_before);
    }
    if parts.time {
        let before = lifecycle.recurrence.take();
        lifecycle.recurrence = change_recurrence(before, changed.recurrence, count, executions);
        lifecycle.phase = LifecyclePhase::Pending;
    }
    if lifecycle.recurrence.is_some() {
        lifecycle.expire_after = None; // a schedule says what happens to what is late
    }
    if parts.time {
        row.scheduled = new.scheduled;
    }
    has_next || !parts.time
}

/// The first occurrence of a new schedule is none that was decided by the one before: the record
/// may be older than the owner's last decision. Returns whether there is one.
fn skip_decided(before: &FireRow, new: &mut FireRow) -> bool {
    let Some(before) =
        before.lifecycle.as_deref().and_then(|lifecycle| lifecycle.recurrence.as_deref())
    else {
        return true;
    };
    let Some(recurrence) =
        new.lifecycle.as_deref_mut().and_then(|lifecycle| lifecycle.recurrence.as_deref_mut())
    else {
        return true;
    };
    let was_decided = |at: &Timestamp| {
        *at < before.due_before_jitter && before.schedule.next(at.saturating_sub(1)) == Some(*at)
    };
    let mut first = Some(recurrence.due_before_jitter);
    while let Some(decided) = first.filter(was_decided) {
        first = recurrence.schedule.next(decided);
    }
    let Some(first) = first else { return false };
    recurrence.due_before_jitter = first;
    new.scheduled = recurrence.schedule.jittered(new.id.trigger.as_str(), first);
    true
}

/// The recurrence by a new schedule: a callback in progress is still one of the trigger's.
fn change_recurrence(
    before: Option<Box<Recurrence>>,
    new: Option<Box<Recurrence>>,
    count: CountPolicy,
    executions: u32,
) -> Option<Box<Recurrence>> {
    let mut new = new?;
    match (count, &before) {
        (CountPolicy::Reset, _) => new.counted_from = executions,
        (CountPolicy::Keep, Some(before)) => {
            (new.counted_from, new.failures) = (before.counted_from, before.failures);
        }
        (CountPolicy::Keep, None) => {}
    }
    new.open = before.and_then(|before| before.open);
    Some(new)
}
