//! The watermark: up to when entries may fire, so that a cancel in time is always found in time.
//!
//! Invariant: an entry fires only if it is due no later than the broker timestamp of the last
//! record ingested, or than `grace` after a moment whose input is proven to be ingested. So a
//! cancel written at least `grace` before the due time is never too late, however far we lag.

use std::collections::VecDeque;

use crate::model::{Millis, Offset, Timestamp};

/// Ends kept at most. When full the newest is dropped: the watermark then advances a little later,
/// which is safe.
const ENDS_MAX: usize = 256;

/// How far `triggers` has been read.
#[derive(Clone, Debug)]
pub struct Watermark {
    grace: Millis,
    /// Everything below this offset has been read.
    read_until: Offset,
    /// The broker timestamp of the last record ingested.
    last_timestamp: Timestamp,
    /// Everything written before this time has been read.
    proven_at: Option<Timestamp>,
    /// Ends that are not reached yet, with when they were looked up; oldest first.
    ends: VecDeque<(Offset, Timestamp)>,
}

impl Watermark {
    /// Nothing is proven yet.
    #[must_use]
    pub fn new(read_until: Offset, last_timestamp: Timestamp, grace: Millis) -> Self {
        Self { grace, read_until, last_timestamp, proven_at: None, ends: VecDeque::new() }
    }

    /// A record was ingested.
    pub fn on_record(&mut self, offset: Offset, timestamp: Timestamp) {
        self.last_timestamp = self.last_timestamp.max(timestamp);
        self.read_up_to(offset + 1);
    }

    /// Everything below `end` has been read.
    pub fn read_up_to(&mut self, end: Offset) {
        self.read_until = self.read_until.max(end);
        while let Some((end, at)) = self.ends.front().copied() {
            if end > self.read_until {
                break;
            }
            self.proven_at = self.proven_at.max(Some(at));
            let _reached = self.ends.pop_front();
        }
    }

    /// What is at `offset` and after it is read again: it may be other than what was read before,
    /// and the ends that were not reached may not come any more.
    pub fn read_again_from(&mut self, offset: Offset) {
        self.read_until = self.read_until.min(offset);
        self.ends.clear();
    }

    /// Whether the log was longer when it was asked for before than `end`.
    #[must_use]
    pub fn was_longer(&self, end: Offset) -> bool {
        self.ends.back().is_some_and(|(last, _)| end < *last)
    }

    /// At `at` the log ended at `end` (exclusive).
    pub fn on_end_offset(&mut self, end: Offset, at: Timestamp) {
        if self.ends.len() < ENDS_MAX {
            self.ends.push_back((end, at));
        }
        self.read_up_to(self.read_until);
    }

    /// Everything below this offset has been read.
    #[must_use]
    pub fn read_until(&self) -> Offset {
        self.read_until
    }

    /// Whether an end is known that has not been reached.
    #[must_use]
    pub fn has_unread_input(&self) -> bool {
        !self.ends.is_empty()
    }

    /// The watermark when the clock says `clock`, in ms since the epoch.
    #[must_use]
    pub fn at(&self, clock: Timestamp) -> Timestamp {
        let proven = self.proven_at.map_or(0, |at| at.saturating_add(self.grace));
        clock.min(self.last_timestamp.max(proven))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_is_never_ahead_of_the_proven_input_or_the_clock() {
        let mut watermark = Watermark::new(10, 500, 100);
        assert_eq!(watermark.at(9_000), 500, "nothing is proven yet");
        watermark.on_end_offset(12, 1_000);
        watermark.on_end_offset(13, 1_050);
        watermark.on_record(10, 600);
        assert_eq!(watermark.at(9_000), 600);
        watermark.on_record(11, 610);
        assert_eq!(watermark.at(9_000), 1_100, "the first end is reached");
        assert_eq!(watermark.at(1_070), 1_070, "never ahead of the clock");
        assert!(watermark.has_unread_input());
        watermark.read_up_to(13);
        assert_eq!(watermark.at(9_000), 1_150);
        assert!(!watermark.has_unread_input());
    }

    #[test]
    fn a_log_was_longer_if_its_last_known_end_is_greater() {
        let mut watermark = Watermark::new(10, 500, 100);
        assert!(!watermark.was_longer(0), "no end is known");
        watermark.on_end_offset(12, 1_000);
        assert_eq!([11, 12, 13].map(|end| watermark.was_longer(end)), [true, false, false]);
    }

    #[test]
    fn what_is_read_again_proves_nothing_of_ends_that_were_not_reached() {
        let mut watermark = Watermark::new(10, 500, 100);
        watermark.on_end_offset(12, 1_000);
        watermark.read_again_from(8);
        assert_eq!((watermark.read_until(), watermark.has_unread_input()), (8, false));
        watermark.read_up_to(12);
        assert_eq!(watermark.at(9_000), 500);
    }

    #[test]
    fn no_more_ends_are_kept_than_the_limit() {
        let mut watermark = Watermark::new(10, 500, 100);
        for at in 0..=ENDS_MAX as Timestamp {
            watermark.on_end_offset(11 + at, 1_000 + at);
        }
        assert_eq!(watermark.ends.len(), ENDS_MAX);
        assert_eq!(watermark.ends.back(), Some(&(266, 1_255)), "the newest is dropped");
    }
}
