//! The low-water mark L: from which offset of `triggers` an owner without local state replays.
//!
//! Law: S is the latest due time of any entry that is not in the ledger. So once W has passed an
//! S that was sampled together with N, everything below that N is decided or in the ledger.

use std::collections::VecDeque;

use crate::model::{Millis, Offset, Timestamp};

/// Samples kept at most; with one every few seconds this spans far more than `ledger.after`.
/// When full, the newest is replaced: L then stands a little longer, which is safe.
const SAMPLES_MAX: usize = 4_096;

/// Pairs (S, N) of committed steps, oldest first.
#[derive(Clone, Debug)]
pub struct LowWater {
    samples: VecDeque<(Timestamp, Offset)>,
    sampled_at: Timestamp,
    interval: Millis,
}

impl LowWater {
    /// A new owner's first sample is what it inherits.
    #[must_use]
    pub fn new(horizon: Timestamp, triggers: Offset, interval: Millis) -> Self {
        Self { samples: VecDeque::from([(horizon, triggers)]), sampled_at: 0, interval }
    }

    /// Takes a sample of a step about to be committed, if the last one is old enough.
    pub fn sample(&mut self, now: Timestamp, horizon: Timestamp, triggers: Offset) {
        let newest = self.samples.back();
        if newest == Some(&(horizon, triggers)) || now < self.sampled_at + self.interval {
            return;
        }
        if self.samples.len() == SAMPLES_MAX {
            let _replaced = self.samples.pop_back();
        }
        self.samples.push_back((horizon, triggers));
        self.sampled_at = now;
    }

    /// L when W stands at `w_due`: the N of the newest sample whose S is strictly below it.
    pub fn passed(&mut self, w_due: Timestamp) -> Option<Offset> {
        let mut low_water = None;
        while let Some(&(horizon, triggers)) = self.samples.front() {
            if horizon >= w_due {
                break;
            }
            low_water = Some(triggers);
            let _passed = self.samples.pop_front();
        }
        low_water
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_water_follows_samples_that_w_has_passed() {
        let mut low_water = LowWater::new(100, 7, 10);
        low_water.sample(50, 150, 20);
        low_water.sample(55, 155, 25); // too soon after the last one
        low_water.sample(60, 160, 30);
        assert_eq!(low_water.passed(100), None, "strictly below");
        assert_eq!(low_water.passed(101), Some(7));
        assert_eq!(low_water.passed(161), Some(30));
        assert_eq!(low_water.passed(999), None, "nothing newer");
    }
}
