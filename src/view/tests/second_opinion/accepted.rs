//! Which registrations their owner has accepted.
//!
//! Invariant: what says so in the records counts; then that an ignored one leaves a mark, for as
//! long as marks can be read; and then the times of what was registered before.

use super::{RecordsRead, Registered};
use crate::model::input::OnConflict;
use crate::model::ledger::LedgerKey;
use crate::model::outcome::OutcomeKind;
use crate::model::{Millis, Offset, Timestamp};

/// How long a mark can be read: `docs/operations/deployment.md` has tombstones kept for 7 days, and
/// a view reads within one.
const MARKS_READABLE: Millis = 6 * 86_400_000;

impl RecordsRead {
    /// The registrations of one id that were accepted.
    pub(super) fn accepted<'a>(&self, all: &[Registered<'a>]) -> Vec<Registered<'a>> {
        let mut accepted: Vec<Registered<'a>> = Vec::new();
        for one in all {
            if self.is_accepted(one, accepted.last()) {
                accepted.push(*one);
            }
        }
        accepted
    }

    fn is_accepted(&self, one: &Registered<'_>, before: Option<&Registered<'_>>) -> bool {
        let offset = one.generation;
        let is_named =
            self.outcomes.iter().any(|(_, outcome)| subject(&outcome.kind) == Some(offset));
        if is_named || self.entries(offset).next().is_some() {
            return true;
        }
        if self.is_refused(offset) {
            return false;
        }
        if one.new.on_conflict == OnConflict::Replace || self.would_have_a_mark(one) {
            return true;
        }
        let Some(before) = before else { return one.new.on_conflict == OnConflict::Keep };
        let (until, retain) = (self.pending_until(before), self.retain_of(before));
        match one.new.on_conflict {
            OnConflict::Match(wanted) => {
                self.revision_of(before) == wanted && until > one.created_at
            }
            _ => until.saturating_add(retain) <= one.created_at,
        }
    }

    /// Whether a refusal answers it, or it has a mark, or had one.
    fn is_refused(&self, offset: Offset) -> bool {
        let refuses = |kind: &OutcomeKind| {
            matches!(
                kind,
                OutcomeKind::Kept { .. }
                    | OutcomeKind::Taken { .. }
                    | OutcomeKind::Rejected { .. }
                    | OutcomeKind::NotPending { .. }
            )
        };
        let mut outcomes = self.outcomes.iter().map(|(_, outcome)| outcome);
        let is_marked = self.ledger.iter().any(|record| record.key == LedgerKey::Skip(offset));
        is_marked
            || outcomes.any(|outcome| outcome.answers == Some(offset) && refuses(&outcome.kind))
    }

    /// Whether its mark, if it had one, was still in the ledger when a cursor had passed it.
    fn would_have_a_mark(&self, one: &Registered<'_>) -> bool {
        let passed = self.cursors.iter().find(|cursor| cursor.next_offset > one.generation);
        let cursor = passed.expect("the last cursor has passed everything");
        let readable_from = cursor.fired_through.due.saturating_sub(MARKS_READABLE);
        one.generation >= cursor.replay_from || one.created_at > readable_from
    }

    /// Until when it was pending, by what is known.
    fn pending_until(&self, one: &Registered<'_>) -> Timestamp {
        let known = self.lifecycle(one);
        let ended = known.stopped().map(|stop| stop.at).or_else(|| known.ended().map(|(_, at)| at));
        match (ended, known.called_at()) {
            (Some(at), _) => at,
            (None, _) if known.defined.schedule.is_some() => Timestamp::MAX,
            (None, Some(called_at)) => called_at,
            (None, None) if known.pause_reason().is_some() => Timestamp::MAX,
            (None, None) => known.certainly_pending_until(),
        }
    }

    fn retain_of(&self, one: &Registered<'_>) -> Millis {
        self.defined(one).retain.unwrap_or(0)
    }

    fn revision_of(&self, one: &Registered<'_>) -> Offset {
        self.defined(one).revision
    }
}

/// The generation that an outcome is about. The refusals are about a record.
pub(super) fn subject(kind: &OutcomeKind) -> Option<Offset> {
    match kind {
        OutcomeKind::Accepted { generation, .. }
        | OutcomeKind::Cancelled { generation }
        | OutcomeKind::Delivered { generation, .. }
        | OutcomeKind::Failed { generation, .. }
        | OutcomeKind::Withdrawn { generation, .. }
        | OutcomeKind::Paused { generation, .. }
        | OutcomeKind::Resumed { generation, .. }
        | OutcomeKind::Called { generation, .. }
        | OutcomeKind::Skipped { generation, .. }
        | OutcomeKind::Ended { generation, .. }
        | OutcomeKind::Expired { generation, .. }
        | OutcomeKind::Unmet { generation, .. }
        | OutcomeKind::Changed { generation, .. } => Some(*generation),
        OutcomeKind::Kept { .. }
        | OutcomeKind::Taken { .. }
        | OutcomeKind::NotPending { .. }
        | OutcomeKind::Rejected { .. }
        | OutcomeKind::Circuit(_) => None,
    }
}
