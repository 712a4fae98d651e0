//! Which records of the log the ledger contains: a bit for each, so that a replay need not even
//! read them. After millions of registrations in a few minutes they are nearly all of the log.
//!
//! Invariant: a bit is set only while the ledger, as far as it was read, contains what the record
//! at that offset has registered. A record without a bit is read, whatever the reason.

use std::ops::Range;

use crate::model::Offset;

/// 8 MiB of bits: at 10,000 registrations a second those of nearly two hours. What is older is
/// read, which costs time only.
const OFFSETS_MAX: Offset = 1 << 26;

/// A set of offsets within a range of the log.
#[derive(Clone, Default)]
pub struct OffsetBitmap {
    from: Offset,
    until: Offset,
    words: Vec<u64>,
}

impl std::fmt::Debug for OffsetBitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("within", &(self.from..self.until)).finish_non_exhaustive()
    }
}

impl OffsetBitmap {
    /// None yet, of those that lie in `log`; if it is very long, in its newest part.
    #[must_use]
    pub fn empty(log: Range<Offset>) -> Self {
        let Range { start, end: until } = log;
        let from = start.max(until.saturating_sub(OFFSETS_MAX));
        let words = usize::try_from(until.saturating_sub(from).div_ceil(64));
        // Memory that is only zero is not taken from the system before it is written to.
        Self { from, until, words: vec![0; words.expect("OFFSETS_MAX fits into memory")] }
    }

    /// The ledger holds what the record at `offset` has registered.
    pub fn insert(&mut self, offset: Offset) {
        if let Some((word, bit)) = self.bit_position(offset) {
            self.words[word] |= bit;
        }
    }

    /// The ledger does not hold it any more.
    pub fn remove(&mut self, offset: Offset) {
        if let Some((word, bit)) = self.bit_position(offset) {
            self.words[word] &= !bit;
        }
    }

    /// Whether the ledger holds what the record at `offset` has registered.
    #[must_use]
    pub fn contains(&self, offset: Offset) -> bool {
        self.bit_position(offset).is_some_and(|(word, bit)| self.words[word] & bit != 0)
    }

    fn bit_position(&self, offset: Offset) -> Option<(usize, u64)> {
        let within = (self.from..self.until).contains(&offset);
        let at = within.then(|| offset - self.from)?;
        Some((usize::try_from(at / 64).ok()?, 1 << (at % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_contained_from_insert_to_remove_and_no_other_is() {
        let mut bitmap = OffsetBitmap::empty(100..300);
        let inserted = [100, 163, 164, 299];
        for offset in inserted {
            bitmap.insert(offset);
        }
        let found =
            |held: &OffsetBitmap| (0..400).filter(|at| held.contains(*at)).collect::<Vec<_>>();
        assert_eq!(found(&bitmap), inserted);
        bitmap.remove(163);
        assert_eq!(found(&bitmap), [100, 164, 299]);
    }

    #[test]
    fn an_offset_outside_the_range_has_no_bit() {
        let mut bitmap = OffsetBitmap::empty(100..300);
        for offset in [0, 99, 300, Offset::MAX] {
            bitmap.insert(offset);
            bitmap.remove(offset);
            assert!(!bitmap.contains(offset), "{offset}");
        }
        assert!(!OffsetBitmap::default().contains(0));
    }

    #[test]
    fn a_very_long_log_is_covered_in_its_newest_part() {
        let mut bitmap = OffsetBitmap::empty(0..OFFSETS_MAX + 10);
        for offset in [9, 10, OFFSETS_MAX + 9] {
            bitmap.insert(offset);
        }
        assert_eq!([9, 10, OFFSETS_MAX + 9].map(|at| bitmap.contains(at)), [false, true, true]);
    }

    #[test]
    fn an_offset_that_is_inserted_or_removed_twice_is_so_once() {
        let mut bitmap = OffsetBitmap::empty(0..10);
        bitmap.insert(3);
        bitmap.insert(3);
        assert!(bitmap.contains(3));
        bitmap.remove(3);
        bitmap.remove(3);
        assert!(!bitmap.contains(3));
    }
}
