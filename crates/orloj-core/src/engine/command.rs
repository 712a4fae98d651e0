//! Commands: pause, resume, fire-now.
//!
//! Invariant: a trigger that a command has changed is in the ledger from that step on, so that a
//! replay can ignore commands. One that is fired early is remembered until its time, or a replay
//! would take its registration for pending. A fire-now with an idempotency key is executed once.

use super::index_row::IndexEntry;
use super::state::CorruptRow;
use super::trigger_handler::{LiveEntry, TriggerHandler};
use crate::model::Offset;
use crate::model::entry::{FireRow, Row};
use crate::model::input::Ack;
use crate::model::lifecycle::{Command, ExecutedRequest, LifecyclePhase};
use crate::model::outcome::OutcomeKind;
use crate::model::text::Text;

impl TriggerHandler<'_> {
    pub(super) fn command(
        mut self,
        offset: Offset,
        ack: Ack,
        id: Text,
        (command, caller): (Command, Option<Text>),
    ) -> Result<(), CorruptRow> {
        let live = self.live_entry();
        if self.index_row.belongs_to_other_caller(live.as_ref(), caller.as_ref()) {
            let unknown = OutcomeKind::NotPending { fired: None, withdrawal: false };
            self.emit_response(&ack, offset, id, unknown);
            return Ok(());
        }
        let key = ack.idempotency_key.clone().filter(|_| command == Command::FireNow);
        if let (Some(key), Some(entry)) = (&key, &live)
            && let Some(kind) = self.earlier_call(entry, key)?
        {
            self.emit_response(&ack, offset, id, kind);
            return Ok(());
        }
        let Some(entry) = self.pending_entry() else {
            let fired = self.state.last_fired(&self.index_row).map(|entry| entry.generation);
            let kind = OutcomeKind::NotPending { fired, withdrawal: false };
            self.emit_response(&ack, offset, id, kind);
            return Ok(());
        };
        let Row::Fire(mut row) = self.read_row(&entry)? else { return Ok(()) };
        let changed = apply_command(&mut row, command) || key.is_some();
        let kind = outcome_of(&row, command);
        if let Some(key) = key {
            let (generation, occurrence) = (row.id.generation, row.id.occurrence);
            let request = ExecutedRequest { key, generation, occurrence };
            row.lifecycle_mut().remember_request(request);
        }
        let ack = if changed { ack.always() } else { ack };
        self.emit_response(&ack, offset, id, kind);
        if changed {
            row.lifecycle_mut().changed_by_command = true;
            let due = self.due_of(&row);
            self.reschedule(LiveEntry { entry, row }, due);
            self.save();
        }
        Ok(())
    }

    /// What was answered to a `fire-now` with this key, if it was executed.
    fn earlier_call(
        &mut self,
        entry: &IndexEntry,
        key: &Text,
    ) -> Result<Option<OutcomeKind>, CorruptRow> {
        if !entry.has_lifecycle {
            return Ok(None);
        }
        let Row::Fire(row) = self.read_row(entry)? else { return Ok(None) };
        let lifecycle = row.lifecycle.as_deref();
        let executed = lifecycle.and_then(|lifecycle| lifecycle.executed_request(key));
        Ok(executed.map(|request| OutcomeKind::Called {
            generation: request.generation,
            occurrence: request.occurrence,
        }))
    }
}

/// Executes a command on a pending trigger; returns whether that changes anything.
fn apply_command(row: &mut FireRow, command: Command) -> bool {
    let lifecycle = row.lifecycle_mut();
    match command {
        Command::Pause => !std::mem::replace(&mut lifecycle.paused, true),
        Command::Resume if !lifecycle.paused => false,
        Command::Resume => {
            lifecycle.paused = false;
            let mut recurrence = lifecycle.recurrence.as_deref_mut();
            if let Some(recurrence) = &mut recurrence {
                recurrence.failures = 0; // those while it was paused do not count
            }
            let open = recurrence.and_then(|recurrence| recurrence.open);
            if lifecycle.phase == LifecyclePhase::Queued && open.is_none() {
                lifecycle.phase = LifecyclePhase::Pending;
            }
            true
        }
        Command::FireNow => {
            lifecycle.dependencies = None;
            !std::mem::replace(&mut lifecycle.fire_now_requested, true)
        }
    }
}

fn outcome_of(row: &FireRow, command: Command) -> OutcomeKind {
    let generation = row.id.generation;
    match command {
        Command::Pause => OutcomeKind::Paused { generation, reason: "by a command".to_owned() },
        Command::Resume => OutcomeKind::Resumed { generation, fire_at: row.scheduled },
        Command::FireNow => OutcomeKind::Called { generation, occurrence: row.id.occurrence },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::registration::first_row;
    use crate::engine::tests::scenario::recurring;
    use crate::model::lifecycle::RunningCallback;

    #[test]
    fn a_resumed_occurrence_is_queued_only_behind_a_callback_in_progress() {
        let open = RunningCallback { occurrence: 1, until: 9_000 };
        for (open, phase) in [(Some(open), LifecyclePhase::Queued), (None, LifecyclePhase::Pending)]
        {
            let new = recurring("a", true, 1_000, r#"{"every":"PT1S","overlap":"queue"}"#);
            let mut row = first_row(0, 1_000, new);
            let lifecycle = row.lifecycle_mut();
            (lifecycle.phase, lifecycle.paused) = (LifecyclePhase::Queued, true);
            lifecycle.recurrence.as_mut().unwrap().open = open;
            assert!(apply_command(&mut row, Command::Resume));
            let lifecycle = row.lifecycle_mut();
            assert_eq!((lifecycle.phase, lifecycle.paused), (phase, false));
        }
    }
}
