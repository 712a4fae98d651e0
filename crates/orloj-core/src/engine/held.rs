//! Which records of the log the ledger holds: a bit for each, so that a replay need not so much as
//! read them. After millions of registrations in a few minutes they are nearly all of the log.
//!
//! Law: a bit is set only while the ledger, as far as it was read, holds what the record at that
//! offset has registered. A record without a bit is read, whatever the reason.

use std::ops::Range;

use crate::model::Offset;

/// 8 MiB of bits: at 10,000 registrations a second those of nearly two hours. What is older is
/// read, which costs time only.
const OFFSETS_MAX: Offset = 1 << 26;

/// A set of offsets within a range of the log.
#[derive(Clone, Default)]
pub struct Held {
    from: Offset,
    until: Offset,
    words: Vec<u64>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("within", &(self.from..self.until)).finish_non_exhaustive()
    }
}

impl Held {
    /// None yet, of those that lie in `log`; if it is very long, in its newest part.
    #[must_use]
    pub fn none_of(log: Range<Offset>) -> Self {
        let Range { start, end: until } = log;
        let from = start.max(until.saturating_sub(OFFSETS_MAX));
        let words = usize::try_from(until.saturating_sub(from).div_ceil(64));
        // Memory that is only zero is not taken from the system before it is written to.
        Self { from, until, words: vec![0; words.expect("OFFSETS_MAX fits into memory")] }
    }

    /// The ledger holds what the record at `offset` has registered.
    pub fn insert(&mut self, offset: Offset) {
        if let Some((word, bit)) = self.place(offset) {
            self.words[word] |= bit;
        }
    }

    /// The ledger does not hold it any more.
    pub fn remove(&mut self, offset: Offset) {
        if let Some((word, bit)) = self.place(offset) {
            self.words[word] &= !bit;
        }
    }

    /// Whether the ledger holds what the record at `offset` has registered.
    #[must_use]
    pub fn contains(&self, offset: Offset) -> bool {
        self.place(offset).is_some_and(|(word, bit)| self.words[word] & bit != 0)
    }

    fn place(&self, offset: Offset) -> Option<(usize, u64)> {
        let within = (self.from..self.until).contains(&offset);
        let at = within.then(|| offset - self.from)?;
        Some((usize::try_from(at / 64).ok()?, 1 << (at % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_is_there_until_it_is_removed_and_nothing_else_is() {
        let mut held = Held::none_of(100..300);
        let inserted = [100, 163, 164, 299];
        for offset in inserted {
            held.insert(offset);
        }
        let found = |held: &Held| (0..400).filter(|at| held.contains(*at)).collect::<Vec<_>>();
        assert_eq!(found(&held), inserted);
        held.remove(163);
        assert_eq!(found(&held), [100, 164, 299]);
    }

    #[test]
    fn what_lies_outside_the_log_has_no_bit() {
        let mut held = Held::none_of(100..300);
        for offset in [0, 99, 300, Offset::MAX] {
            held.insert(offset);
            held.remove(offset);
            assert!(!held.contains(offset), "{offset}");
        }
        assert!(!Held::default().contains(0));
    }

    #[test]
    fn of_a_very_long_log_it_knows_the_newest_part() {
        let mut held = Held::none_of(0..OFFSETS_MAX + 10);
        for offset in [9, 10, OFFSETS_MAX + 9] {
            held.insert(offset);
        }
        assert_eq!([9, 10, OFFSETS_MAX + 9].map(|at| held.contains(at)), [false, true, true]);
    }
}
