//! What an outcome says to whoever wrote the command that it answers.
//!
//! Invariant: every kind of outcome is named here, so that a new one does not compile unjudged.

use orloj_core::model::outcome::{Outcome, Verdict};

use super::Answer;

/// Which command an outcome answers, and how.
pub(crate) fn answer(outcome: &Outcome) -> Option<(u64, Answer)> {
    let answer = match outcome.verdict {
        Verdict::Cancelled { generation }
        | Verdict::Accepted { replaced: Some(generation), .. } => Answer::Stopped(generation),
        Verdict::NotPending { .. } | Verdict::Accepted { replaced: None, .. } => {
            Answer::NothingPending
        }
        Verdict::Kept { generation, .. } | Verdict::Taken { generation } => {
            Answer::Kept(generation)
        }
        Verdict::Rejected { .. }
        | Verdict::Delivered { .. }
        | Verdict::Failed { .. }
        | Verdict::Withdrawn { .. }
        | Verdict::Paused { .. }
        | Verdict::Resumed { .. }
        | Verdict::Called { .. }
        | Verdict::Skipped { .. }
        | Verdict::Ended { .. }
        | Verdict::Expired { .. }
        | Verdict::Unmet { .. }
        | Verdict::Circuit(_) => Answer::Rejected,
    };
    Some((outcome.answers?, answer))
}
