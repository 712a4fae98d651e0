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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cursor::next_epoch_base;

    #[test]
    fn a_store_ahead_of_the_cursor_or_of_another_epoch_does_not_agree_with_it() {
        let cursor = Cursor { step: 7, ..Cursor::initial(5, 0) };
        let fired_through = TimelineKey::MIN;
        let equal =
            LocalCheckpoint { applied_until: 5, step: 7, ledger_position: 9, fired_through };
        assert!(equal.agrees_with(&cursor, 9), "it is exactly as far");
        let behind =
            LocalCheckpoint { applied_until: 4, step: 6, ledger_position: 8, fired_through };
        assert!(behind.agrees_with(&cursor, 9));
        assert!(!LocalCheckpoint { applied_until: 6, ..equal }.agrees_with(&cursor, 9));
        assert!(!LocalCheckpoint { step: 8, ..equal }.agrees_with(&cursor, 9));
        assert!(!equal.agrees_with(&cursor, 8), "the ledger is shorter");
        let later = Cursor { step: next_epoch_base(7), ..cursor };
        assert!(!equal.agrees_with(&later, 9), "an epoch has started since");
    }
}
