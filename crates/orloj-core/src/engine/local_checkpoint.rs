//! How far a local store is, and whether it may be resumed.
//!
//! Invariant: a store that does not belong to the log of the committed cursor is wiped.

use super::cursor::{Cursor, epoch};
use crate::model::Offset;
use crate::model::timeline::TimelineKey;

/// A valid local store, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalCheckpoint {
    /// Records of `triggers` below this are applied.
    pub applied_until: Offset,
    /// Steps up to this one are applied.
    pub step: u64,
    /// Ledger records below this offset are applied, or were written by steps up to `step`.
    pub ledger_position: Offset,
    /// W when it was last written.
    pub fired_through: TimelineKey,
}

impl LocalCheckpoint {
    /// Whether it can be of the log that has this cursor: nothing in it is ahead of the cursor, or
    /// was decided in an earlier epoch.
    #[must_use]
    pub fn agrees_with(&self, cursor: &Cursor, ledger_end: Offset) -> bool {
        self.applied_until <= cursor.next_offset
            && self.step <= cursor.step
            && epoch(self.step) == epoch(cursor.step)
            && self.ledger_position <= ledger_end
    }
}
