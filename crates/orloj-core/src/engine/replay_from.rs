//! The low-water mark L: from which offset of `triggers` an owner without local state replays.
//!
//! Invariant: S is the latest due time of any entry that is not in the ledger. So once W has passed
//! an S that was sampled together with N, everything below that N is decided or in the ledger.

use std::collections::VecDeque;

use crate::model::{Millis, Offset, Timestamp};

/// Samples kept at most; with one every few seconds this spans far more than `ledger.after`.
/// When full, the newest is replaced: L then advances a little later, which is safe.
const SAMPLES_MAX: usize = 4_096;

/// Pairs (S, N) of committed steps, oldest first.
#[derive(Clone, Debug)]
pub struct ReplayFromTracker {
    samples: VecDeque<(Timestamp, Offset)>,
    /// The N of the newest sample that W has passed.
    reached: Offset,
    sampled_at: Timestamp,
    interval: Millis,
}

impl ReplayFromTracker {
    /// A new owner's first sample is what it inherits.
    #[must_use]
    pub fn new(replay_horizon: Timestamp, next_offset: Offset, interval: Millis) -> Self {
        let samples = VecDeque::from([(replay_horizon, next_offset)]);
        Self { samples, reached: 0, sampled_at: 0, interval }
    }

    /// Takes a sample of a step about to be committed, if the last one is old enough.
    pub fn sample(&mut self, now: Timestamp, replay_horizon: Timestamp, next_offset: Offset) {
        let newest = self.samples.back();
        if newest == Some(&(replay_horizon, next_offset)) || now < self.sampled_at + self.interval {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            let _replaced = self.samples.pop_back();
        }
        self.samples.push_back((replay_horizon, next_offset));
        self.sampled_at = now;
    }

    /// L when W is at `fired_through_due`: the N of the newest sample whose S is strictly below it,
    /// and that is not above `decided_until`; 0 if there was none yet.
    pub fn advance_to(&mut self, fired_through_due: Timestamp, decided_until: Offset) -> Offset {
        while let Some(&(horizon, triggers)) = self.samples.front() {
            if horizon >= fired_through_due || triggers > decided_until {
                break;
            }
            self.reached = triggers;
            let _passed = self.samples.pop_front();
        }
        self.reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_from_follows_the_samples_that_fired_through_has_passed() {
        let mut tracker = ReplayFromTracker::new(100, 7, 10);
        tracker.sample(50, 150, 20);
        tracker.sample(55, 155, 25); // too soon after the last one
        tracker.sample(60, 160, 30);
        assert_eq!(tracker.advance_to(100, 30), 0, "strictly below");
        assert_eq!(tracker.advance_to(101, 30), 7);
        assert_eq!(tracker.advance_to(161, 29), 20, "a record at 29 is parked");
        assert_eq!(tracker.advance_to(161, 30), 30);
        assert_eq!(tracker.advance_to(999, 30), 30, "nothing newer");
    }

    #[test]
    fn a_sample_is_taken_only_if_something_has_changed_and_the_newest_gives_way() {
        let mut tracker = ReplayFromTracker::new(100, 7, 10);
        tracker.sample(50, 100, 7);
        tracker.sample(55, 101, 7); // the one before was no new sample
        assert_eq!(tracker.samples, [(100, 7), (101, 7)]);
        for n in 2..SAMPLES_MAX as u64 + 9 {
            tracker.sample(100 * n, 100 + n, 7 + n);
        }
        assert_eq!(tracker.samples.len(), SAMPLES_MAX);
        assert_eq!(tracker.samples.front(), Some(&(100, 7)));
        let newest = SAMPLES_MAX as u64 + 8;
        assert_eq!(tracker.samples.back(), Some(&(100 + newest, 7 + newest)));
    }
}
