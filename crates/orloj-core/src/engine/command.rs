//! Commands: pause, resume, fire-now.
//!
//! Invariant: what a command has touched is in the ledger from its step on, so that a replay need
//! not know of commands. One that is fired before its time is remembered until then, or a replay
//! would take its registration for pending.

use super::index_row::{IdHash, IndexEntry, IndexRow};
use super::lifecycle::lifecycle_mut;
use super::partition::{CorruptRow, Partition};
use super::prefetch::Prefetched;
use crate::fault::{Mutation, is_active};
use crate::model::Offset;
use crate::model::entry::{FireRow, Row};
use crate::model::lifecycle::{Command, LifecyclePhase};
use crate::model::outcome::OutcomeKind;
use crate::model::text::Text;

impl Partition {
    pub(super) fn command(
        &mut self,
        offset: Offset,
        ack: bool,
        id: Text,
        (command, caller): (Command, Option<Text>),
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        let hash = IdHash::of(&id);
        let mut index_row = self.index_row(hash, prefetched.index);
        let live = self.live_entry(&index_row);
        if index_row.belongs_to_other_caller(live.as_ref(), caller.as_ref())
            && !is_active(Mutation::OtherCallerAllowed)
        {
            self.emit_response(
                ack,
                offset,
                id,
                OutcomeKind::NotPending { fired: None, withdrawal: false },
            );
            return Ok(());
        }
        let Some(slot) = self.pending_entry(&index_row) else {
            let fired = self.last_fired(&index_row).map(|slot| slot.generation);
            let verdict = OutcomeKind::NotPending { fired, withdrawal: false };
            self.emit_response(ack, offset, id, verdict);
            return Ok(());
        };
        let Row::Fire(mut row) = self.read_row(&slot, prefetched)? else { return Ok(()) };
        let changed = apply_command(&mut row, command);
        let verdict = verdict_of(&row, command);
        self.emit_response(ack || changed, offset, id, verdict);
        if changed {
            lifecycle_mut(&mut row).changed_by_command = true;
            let due = self.due_of(&row);
            self.reschedule(&mut index_row, &slot, row, due);
            self.put_index_row(hash, index_row, prefetched.index);
        }
        Ok(())
    }

    /// What is known to have fired last.
    pub(super) fn last_fired(&self, index_row: &IndexRow) -> Option<IndexEntry> {
        let fired = index_row.fired_main(self.cursor.fired_through);
        fired.filter(|slot| slot.generation >= self.index_complete_from).cloned()
    }
}

/// Does to a pending trigger what it is told to; says whether that changes anything.
fn apply_command(row: &mut FireRow, command: Command) -> bool {
    let course = lifecycle_mut(row);
    match command {
        Command::Pause => !std::mem::replace(&mut course.paused, true),
        Command::Resume if !course.paused => false,
        Command::Resume => {
            course.paused = false;
            let mut series = course.recurrence.as_deref_mut();
            if let Some(series) = &mut series {
                series.failures = 0; // those of what ran on while it was paused do not count
            }
            let open = series.and_then(|series| series.open);
            if course.phase == LifecyclePhase::Queued && open.is_none() {
                course.phase = LifecyclePhase::Pending;
            }
            true
        }
        Command::FireNow => {
            course.dependencies = None;
            !std::mem::replace(&mut course.fire_now_requested, true)
        }
    }
}

fn verdict_of(row: &FireRow, command: Command) -> OutcomeKind {
    let generation = row.id.generation;
    match command {
        Command::Pause => OutcomeKind::Paused { generation, reason: "by a command".to_owned() },
        Command::Resume => OutcomeKind::Resumed { generation, fire_at: row.scheduled },
        Command::FireNow => OutcomeKind::Called { generation, occurrence: row.id.occurrence },
    }
}
