//! The rate at which missed occurrences fire.
//!
//! Invariant: two of them are at least a fixed time apart, whatever their triggers.

use crate::model::Timestamp;

/// Limits the rate at which missed occurrences fire; one for all triggers of a partition.
#[derive(Debug, Default)]
pub(super) struct CatchUpLimiter {
    /// The next free time, in µs since the epoch.
    next_us: u64,
}

impl CatchUpLimiter {
    /// The next time at which a missed occurrence may fire, in ms since the epoch.
    pub(super) fn acquire(&mut self, now: Timestamp, rate: u32) -> Timestamp {
        let at_us = self.next_us.max(now.saturating_mul(1_000));
        self.next_us = at_us + 1_000_000 / u64::from(rate.max(1));
        at_us / 1_000
    }
}
