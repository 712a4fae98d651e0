//! The rate at which missed occurrences fire.
//!
//! Invariant: the times that are given to two of them are at least a fixed time apart, whatever
//! their triggers. One fires at its time or a little later. Those that are later fire at the rate,
//! too: so none waits for ever, however far the watermark is behind the clock or moves at a time,
//! and in any second no more fire than the rate allows in two.

use crate::model::{Millis, Timestamp};

/// How much later than its time a missed occurrence may fire whatever else fires, in ms: a turn of
/// the loop, and a commit that makes room for it.
const LATE_MAX: Millis = 500;
/// So much of what was not used before counts, in µs. With [`LATE_MAX`] and what is due in a second
/// it is what the rate allows in two.
const CREDIT_US: u64 = 500_000;

/// Limits the rate at which missed occurrences fire; one for all triggers of a partition. That of
/// the late ones is held as by the generic cell rate algorithm (ITU-T I.371). Times are those of
/// the clock, in µs since the epoch.
#[derive(Debug, Default)]
pub(super) struct CatchUpLimiter {
    /// The next free time to wait for.
    next_us: u64,
    /// When the next late one would fire if all fired at the rate; `None` before the first one.
    fires_at_us: Option<u64>,
}

impl CatchUpLimiter {
    /// Whether an occurrence that was given the time `at` is not late at `now`, both in ms since
    /// the epoch.
    pub(super) fn is_in_time(at: Timestamp, now: Timestamp) -> bool {
        now <= at.saturating_add(LATE_MAX)
    }

    /// Whether an occurrence that is late may fire at `now` (ms since the epoch). If so, it counts.
    pub(super) fn try_fire(&mut self, now: Timestamp, rate: u32) -> bool {
        let now_us = now.saturating_mul(1_000);
        let earliest = now_us.saturating_sub(CREDIT_US);
        let fires_at_us = self.fires_at_us.map_or(now_us, |at_us| at_us.max(earliest));
        let may_fire = fires_at_us <= now_us;
        if may_fire {
            self.fires_at_us = Some(fires_at_us + interval_us(rate));
        }
        may_fire
    }

    /// The next time at which a missed occurrence should fire, in ms since the epoch, and after
    /// `now`.
    pub(super) fn next_time(&mut self, now: Timestamp, rate: u32) -> Timestamp {
        let after_now_us = (now + 1).saturating_mul(1_000);
        let at_us = self.next_us.max(self.fires_at_us.unwrap_or(0)).max(after_now_us);
        self.next_us = at_us + interval_us(rate);
        at_us / 1_000
    }
}

fn interval_us(rate: u32) -> u64 {
    1_000_000 / u64::from(rate.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = 1_000_000;

    #[test]
    fn an_occurrence_is_in_time_until_half_a_second_after_its_time() {
        assert!(CatchUpLimiter::is_in_time(NOW, NOW + 500));
        assert!(!CatchUpLimiter::is_in_time(NOW, NOW + 501));
    }

    #[test]
    fn the_times_that_are_given_are_after_now_and_an_interval_apart() {
        let mut limiter = CatchUpLimiter::default();
        let mut times = |now| -> Vec<_> { (0..3).map(|_| limiter.next_time(now, 10)).collect() };
        assert_eq!(times(NOW), [NOW + 1, NOW + 101, NOW + 201]);
        assert_eq!(times(NOW), [NOW + 301, NOW + 401, NOW + 501]);
        assert_eq!(times(NOW + 5_000), [NOW + 5_001, NOW + 5_101, NOW + 5_201]);
    }

    #[test]
    fn late_ones_fire_an_interval_apart() {
        let mut limiter = CatchUpLimiter::default();
        let fires = [0, 0, 99, 100, 100, 199, 200].map(|ms| limiter.try_fire(NOW + ms, 10));
        assert_eq!(fires, [true, false, false, true, false, false, true]);
        assert_eq!(limiter.next_time(NOW + 200, 10), NOW + 300, "behind those that fired late");
    }

    #[test]
    fn of_the_time_that_was_not_used_half_a_second_counts() {
        let mut limiter = CatchUpLimiter::default();
        assert!(limiter.try_fire(NOW, 10));
        let fired = (0..20).filter(|_| limiter.try_fire(NOW + 60_000, 10)).count();
        assert_eq!(fired, 6, "those of half a second, and the one that is due");
    }
}
