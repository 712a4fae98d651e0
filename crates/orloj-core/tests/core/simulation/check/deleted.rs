//! What retention has deleted although it was needed, and what an unclean election has taken away.
//!
//! Invariant: it excuses what is about the triggers of those commands. What was deleted excuses no
//! second fire, and neither excuses an early one, unless the log was cut and two registrations of
//! the trigger had the same offset.

use super::ObservedRun;
use crate::audit::report::Finding;
use crate::audit::{AcknowledgedCommand, CommandKind, Violation};
use crate::simulation::cluster::{PARTITIONS, partition_of};
use crate::simulation::replay::CutLog;
use crate::simulation::run::SimulationRun;

/// Whether a finding is about a trigger of which an unclean election has taken away a record, or
/// whose record is at the offset of another one that was.
pub(super) fn was_cut(run: &SimulationRun, finding: &Finding) -> bool {
    let trigger = finding.trigger.as_str();
    let states = &run.cluster.broker.transaction_states;
    let is_concerned = |p: usize| {
        let CutLog { ranges, triggers, .. } = &run.cut[p];
        // A copy without an original has no trigger's name.
        let is_copy = finding.violation == Violation::Unexpected && trigger.is_empty();
        let is_lost = triggers.contains(trigger) || is_copy && !triggers.is_empty();
        let mut records = run.cluster.broker.triggers[p].committed(states);
        is_lost
            || !ranges.is_empty()
                && records.any(|(offset, _, raw)| {
                    raw.key == trigger.as_bytes() && ranges.iter().any(|it| it.contains(&offset))
                })
    };
    // It fired by another registration of its own that was at the same offset.
    let may_be_another =
        |cut: &CutLog| cut.ranges.iter().any(|range| range.contains(&finding.generation));
    let excuses_early = finding.violation != Violation::Early || run.cut.iter().any(may_be_another);
    excuses_early && (0..PARTITIONS).any(is_concerned)
}

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
