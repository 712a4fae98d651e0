//! What the outcomes of a generation say, each merged into those before.
//!
//! Invariant: outcomes are merged in the order of their offsets, each once.

use super::status::{EndFact, EndKind, OutcomeFacts};
use crate::model::Offset;
use crate::model::lifecycle::OnFailure;
use crate::model::outcome::{Outcome, OutcomeKind};

/// Merges an outcome into those before.
pub(super) fn merge_outcome(
    outcomes: &mut OutcomeFacts,
    outcome_offset: Offset,
    outcome: &Outcome,
) {
    let at = outcome.at;
    outcomes.last_outcome_at = outcomes.last_outcome_at.max(at);
    let ending = |kind, (occurrence, attempt), reason| {
        Some(EndFact { kind, outcome_offset, at, occurrence, attempt, reason })
    };
    let stopped = |kind, reason| ending(kind, (0, 0), reason);
    // Callbacks of a recurring trigger may end in any order: the last occurrence counts.
    let last = outcomes.attempt_end.as_ref();
    let newest = last.map_or(0, |last| last.occurrence);
    let delivered = last.filter(|last| last.kind == EndKind::Delivered);
    let delivered = delivered.map(|last| (last.occurrence, last.attempt));
    // A worker that does not know what became of an attempt says that it has failed.
    let is_delivered = |occurrence, attempt| {
        delivered.is_some_and(|(number, last)| number == occurrence && attempt <= last)
    };
    match &outcome.kind {
        OutcomeKind::Delivered { occurrence, attempt, .. } if *occurrence >= newest => {
            let number = (*occurrence, *attempt);
            outcomes.attempt_end = ending(EndKind::Delivered, number, None);
        }
        OutcomeKind::Failed { occurrence, attempt, reason, retry_at, .. }
            if *occurrence >= newest && !is_delivered(*occurrence, *attempt) =>
        {
            let kind = if retry_at.is_some() { EndKind::Retried } else { EndKind::Failed };
            let number = (*occurrence, *attempt);
            outcomes.attempt_end = ending(kind, number, Some(reason.clone()));
        }
        OutcomeKind::Withdrawn { occurrence, attempt, .. } if *occurrence >= newest => {
            let number = (*occurrence, *attempt);
            outcomes.attempt_end = ending(EndKind::Withdrawn, number, None);
        }
        OutcomeKind::Cancelled { .. } => outcomes.stop = stopped(EndKind::Cancelled, None),
        OutcomeKind::Expired { .. } => outcomes.stop = stopped(EndKind::Expired, None),
        OutcomeKind::Unmet { then, reason, .. } if *then != OnFailure::Fire => {
            outcomes.stop = stopped(EndKind::Unmet(*then), Some(reason.clone()));
        }
        OutcomeKind::Ended { executions, .. } => outcomes.last_occurrence = Some((*executions, at)),
        OutcomeKind::Called { occurrence, .. } if !is_answered_again(outcomes, *occurrence) => {
            outcomes.last_call = Some((*occurrence, at));
        }
        OutcomeKind::Resumed { .. } => {
            (outcomes.resumed_at, outcomes.pause_reason) = (Some(at), None)
        }
        OutcomeKind::Paused { reason, .. } => outcomes.pause_reason = Some(reason.clone()),
        OutcomeKind::Changed { executions, .. } => {
            let attempted = outcomes.attempt_end.as_ref().map_or(0, |last| last.occurrence + 1);
            outcomes.last_change = Some((executions.unwrap_or(attempted), at));
        }
        _ => {}
    }
}

/// Whether it is known that this occurrence, or a later one, was called since the last change: a
/// request that is repeated is answered with the same occurrence, at the time of the answer.
fn is_answered_again(outcomes: &OutcomeFacts, occurrence: u32) -> bool {
    let changed_at = outcomes.last_change.map_or(0, |(_, at)| at);
    outcomes.last_call.is_some_and(|(called, at)| called >= occurrence && at >= changed_at)
}
