//! What retention has deleted although it was needed.
//!
//! Invariant: it excuses what is about the triggers of deleted commands, and never a second fire or
//! an early one.

use super::ObservedRun;
use crate::audit::report::Finding;
use crate::audit::{AcknowledgedCommand, CommandKind, Violation};
use crate::simulation::cluster::partition_of;
use crate::simulation::run::SimulationRun;

impl ObservedRun {
    /// Whether a finding is explained by commands that were deleted although they were needed: it
    /// is about their trigger, and about what was registered last before the first of them, or
    /// later; or one of them may have stopped what fired.
    pub(super) fn was_deleted(&self, run: &SimulationRun, finding: &Finding) -> bool {
        let deleted = &run.deleted[partition_of(finding.trigger.as_bytes())].triggers;
        let Some(commands) = self.commands.get(&finding.trigger) else { return false };
        let was_deleted =
            |command: &&AcknowledgedCommand| deleted.iter().any(|it| it.contains(&command.offset));
        let deleted = || commands.iter().filter(was_deleted).map(|command| command.offset);
        let Some(first) = deleted().min() else { return false };
        let registers = |kind: &CommandKind| {
            matches!(kind, CommandKind::Register { .. } | CommandKind::Keep { .. })
        };
        let before = commands.iter().filter(|it| it.offset < first && registers(&it.kind));
        let from = before.map(|command| command.offset).max().unwrap_or(0);
        let is_later = finding.generation.max(finding.command_offset) >= from;
        match finding.violation {
            Violation::Duplicate | Violation::Early => false,
            Violation::NotStopped => is_later || deleted().any(|it| it >= finding.generation),
            _ => is_later,
        }
    }
}
