//! The rate at which missed occurrences fire.
//!
//! Invariant: the times that are given to two of them are at least a fixed time apart, whatever
//! their triggers, and one fires when the watermark is at its time or a little later, or is given
//! another time. So no more than two seconds' worth fire while the watermark advances by a second.

use crate::model::{Millis, Timestamp};

/// How much later than its time a missed occurrence may fire, in ms: a turn of the loop, and a
/// commit that makes room for it. Longer, and what waited for these would fire at once.
const LATE_MAX: Millis = 1_000;

/// Limits the rate at which missed occurrences fire; one for all triggers of a partition.
#[derive(Debug, Default)]
pub(super) struct CatchUpLimiter {
    /// The next free time, in µs since the epoch.
    next_us: u64,
}

impl CatchUpLimiter {
    /// Whether an occurrence that was given the time `at` may still fire when the watermark is at
    /// `watermark`, both in ms since the epoch.
    pub(super) fn is_in_time(at: Timestamp, watermark: Timestamp) -> bool {
        watermark <= at.saturating_add(LATE_MAX)
    }

    /// The next time at which a missed occurrence may fire, in ms since the epoch.
    pub(super) fn acquire(&mut self, watermark: Timestamp, rate: u32) -> Timestamp {
        let at_us = self.next_us.max(watermark.saturating_mul(1_000));
        self.next_us = at_us + 1_000_000 / u64::from(rate.max(1));
        at_us / 1_000
    }
}
