//! What an outcome answers to the command it belongs to.
//!
//! Invariant: every kind of outcome is named here, so that a new one does not compile without a
//! decision here.

use orloj_core::model::outcome::{Outcome, OutcomeKind};

use super::OwnerAnswer;

/// Which command an outcome answers, and how.
pub(crate) fn answer(outcome: &Outcome) -> Option<(u64, OwnerAnswer)> {
    let answer = match outcome.kind {
        OutcomeKind::Cancelled { generation }
        | OutcomeKind::Accepted { replaced: Some(generation), .. } => {
            OwnerAnswer::Stopped(generation)
        }
        OutcomeKind::NotPending { .. } | OutcomeKind::Accepted { replaced: None, .. } => {
            OwnerAnswer::NothingPending
        }
        OutcomeKind::Kept { generation, .. } | OutcomeKind::Taken { generation } => {
            OwnerAnswer::Kept(generation)
        }
        OutcomeKind::Rejected { .. }
        | OutcomeKind::Delivered { .. }
        | OutcomeKind::Failed { .. }
        | OutcomeKind::Withdrawn { .. }
        | OutcomeKind::Paused { .. }
        | OutcomeKind::Resumed { .. }
        | OutcomeKind::Called { .. }
        | OutcomeKind::Skipped { .. }
        | OutcomeKind::Ended { .. }
        | OutcomeKind::Expired { .. }
        | OutcomeKind::Unmet { .. }
        | OutcomeKind::Changed { .. }
        | OutcomeKind::Circuit(_) => OwnerAnswer::Rejected,
    };
    Some((outcome.answers?, answer))
}
