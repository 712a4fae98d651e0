//! How far a local store is, and whether it may be resumed.
//!
//! Law: a store that cannot be of the log that has the committed cursor is wiped, never mended.

use super::cursor::{Cursor, lineage};
use crate::model::Offset;
use crate::model::timeline::TimelineKey;

/// A valid local store, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Records of `triggers` below this are applied.
    pub applied: Offset,
    /// Steps up to this one are applied.
    pub step: u64,
    /// Ledger records below this offset are applied, or were written by steps up to `step`.
    pub ledger_position: Offset,
    /// W when it was last written.
    pub w: TimelineKey,
}

impl Local {
    /// Whether it can be of the log that has this cursor: nothing in it is ahead of it, or was
    /// decided before an operator had all of it decided anew.
    #[must_use]
    pub fn agrees_with(&self, cursor: &Cursor, ledger_end: Offset) -> bool {
        self.applied <= cursor.triggers
            && self.step <= cursor.step
            && lineage(self.step) == lineage(cursor.step)
            && self.ledger_position <= ledger_end
    }
}
