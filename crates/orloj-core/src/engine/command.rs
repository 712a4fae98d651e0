//! Commands: pause, resume, fire-now.
//!
//! Law: what a command has touched is in the ledger from its step on, so that a replay need not
//! know of commands. One that is fired before its time is remembered until then, or a replay would
//! take its registration for pending.

use super::course::course_of;
use super::known::{IdHash, Known, Slot};
use super::partition::{CorruptRow, Partition};
use super::rows::Stored;
use crate::fault::{Bug, planted};
use crate::model::Offset;
use crate::model::course::{Command, Standing};
use crate::model::entry::{FireRow, Row};
use crate::model::outcome::Verdict;
use crate::model::text::Text;

impl Partition {
    pub(super) fn command(
        &mut self,
        offset: Offset,
        ack: bool,
        id: Text,
        (command, caller): (Command, Option<Text>),
        stored: Stored<'_>,
    ) -> Result<(), CorruptRow> {
        let hash = IdHash::of(&id);
        let mut known = self.known(hash, stored.index);
        let standing = self.standing_slot(&known);
        if known.is_foreign(standing.as_ref(), caller.as_ref()) && !planted(Bug::ForeignTouched) {
            self.answer(ack, offset, id, Verdict::NotPending { fired: None, withdrawal: false });
            return Ok(());
        }
        let Some(slot) = self.pending_slot(&known) else {
            let fired = self.last_fired(&known).map(|slot| slot.generation);
            let verdict = Verdict::NotPending { fired, withdrawal: false };
            self.answer(ack, offset, id, verdict);
            return Ok(());
        };
        let Row::Fire(mut row) = self.row(&slot, stored)? else { return Ok(()) };
        let changed = obey(&mut row, command);
        let verdict = verdict(&row, command);
        self.answer(ack || changed, offset, id, verdict);
        if changed {
            course_of(&mut row).touched = true;
            let due = self.due_of(&row);
            self.stand(&mut known, &slot, row, due);
            self.know(hash, known, stored.index);
        }
        Ok(())
    }

    /// What is known to have fired last.
    pub(super) fn last_fired(&self, known: &Known) -> Option<Slot> {
        let fired = known.fired_main(self.cursor.w);
        fired.filter(|slot| slot.generation >= self.seen_from).cloned()
    }
}

/// Does to a pending trigger what it is told to; says whether that changes anything.
fn obey(row: &mut FireRow, command: Command) -> bool {
    let course = course_of(row);
    match command {
        Command::Pause => !std::mem::replace(&mut course.paused, true),
        Command::Resume if !course.paused => false,
        Command::Resume => {
            course.paused = false;
            let mut series = course.series.as_deref_mut();
            if let Some(series) = &mut series {
                series.failures = 0; // those of what ran on while it was paused do not count
            }
            let open = series.and_then(|series| series.open);
            if course.standing == Standing::Queued && open.is_none() {
                course.standing = Standing::Pending;
            }
            true
        }
        Command::FireNow => {
            course.awaits = None;
            !std::mem::replace(&mut course.called, true)
        }
    }
}

fn verdict(row: &FireRow, command: Command) -> Verdict {
    let generation = row.id.generation;
    match command {
        Command::Pause => Verdict::Paused { generation, reason: "by a command".to_owned() },
        Command::Resume => Verdict::Resumed { generation, fire_at: row.scheduled },
        Command::FireNow => Verdict::Called { generation, occurrence: row.id.occurrence },
    }
}
