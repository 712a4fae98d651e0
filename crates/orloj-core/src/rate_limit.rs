//! The generic cell rate algorithm (GCRA): a limit in units per second, with a burst of one second.
//!
//! Invariant: pure, time is an argument: that of a monotonic clock. The whole state is the
//! *theoretical arrival time*: when all units so far would have arrived if they were evenly spaced;
//! it is never more than [`BURST`] ahead. So in any period no more units pass than the rate allows
//! for it and one second more.

use std::num::NonZeroU32;
use std::time::Duration;

/// How far the theoretical arrival time may be ahead: one second of the rate may pass at once.
pub const BURST: Duration = Duration::from_secs(1);

/// The state of one limit, and its changes in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimiter {
    /// `None` if no unit counts against the limit.
    theoretical_arrival: Option<Duration>,
}

impl RateLimiter {
    /// Counts a unit at `now`, or returns when it may pass.
    pub fn admit(&mut self, per_second: NonZeroU32, now: Duration) -> Result<(), Duration> {
        let next = try_acquire(self.theoretical_arrival, per_second, now);
        self.theoretical_arrival = Some(next.map_err(|retry_after| now + retry_after)?);
        Ok(())
    }

    /// The unit that was counted last does not count.
    pub fn refund(&mut self, per_second: NonZeroU32) {
        self.theoretical_arrival = self.theoretical_arrival.map(|at| at - interval(per_second));
    }

    /// Until when units count against the limit. The state can be dropped then.
    #[must_use]
    pub fn expires_at(&self) -> Option<Duration> {
        self.theoretical_arrival
    }

    /// Drops the state if it has expired at `now`.
    pub fn expire(&mut self, now: Duration) {
        self.theoretical_arrival = self.theoretical_arrival.filter(|at| *at > now);
    }
}

/// The theoretical arrival time after one more unit at `now`, where `arrival` is the one before;
/// or how long to wait before that unit may pass.
pub fn try_acquire(
    arrival: Option<Duration>,
    per_second: NonZeroU32,
    now: Duration,
) -> Result<Duration, Duration> {
    let next = arrival.map_or(now, |at| at.max(now)) + interval(per_second);
    let retry_after = next.saturating_sub(now + BURST);
    if retry_after.is_zero() { Ok(next) } else { Err(retry_after) }
}

/// How many more units may pass at `now`.
#[must_use]
pub fn remaining(arrival: Duration, per_second: NonZeroU32, now: Duration) -> u32 {
    let left = BURST.saturating_sub(arrival.saturating_sub(now)).as_nanos();
    let units = left.checked_div(interval(per_second).as_nanos()).unwrap_or(u128::MAX);
    u32::try_from(units).unwrap_or(u32::MAX).min(per_second.get())
}

/// Between two units that are evenly spaced.
fn interval(per_second: NonZeroU32) -> Duration {
    BURST / per_second.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();
    const QUARTER: Duration = Duration::from_millis(250);
    const NOW: Duration = Duration::from_secs(1_000);

    #[test]
    fn one_second_of_the_rate_passes_at_once_and_then_one_unit_each_interval() {
        let (mut limiter, now) = (RateLimiter::default(), NOW);
        assert!((0..4).all(|_| limiter.admit(FOUR, now).is_ok()));
        assert_eq!(limiter.admit(FOUR, now), Err(now + QUARTER));
        assert_eq!(limiter.admit(FOUR, now + QUARTER), Ok(()));
        assert_eq!(limiter.admit(FOUR, now + QUARTER), Err(now + 2 * QUARTER));
        let later = now + Duration::from_secs(60);
        assert!(
            (0..4).all(|_| limiter.admit(FOUR, later).is_ok())
                && limiter.admit(FOUR, later).is_err()
        );
    }

    #[test]
    fn a_refunded_unit_does_not_count() {
        let (mut limiter, now) = (RateLimiter::default(), NOW);
        for _ in 0..100 {
            limiter.admit(FOUR, now).unwrap();
            limiter.refund(FOUR);
        }
        assert!(
            (0..4).all(|_| limiter.admit(FOUR, now).is_ok()) && limiter.admit(FOUR, now).is_err()
        );
    }

    #[test]
    fn the_state_expires_at_the_theoretical_arrival_and_not_before() {
        let (mut limiter, now) = (RateLimiter::default(), NOW);
        limiter.admit(FOUR, now).unwrap();
        limiter.expire(now);
        assert_eq!(limiter.expires_at(), Some(now + QUARTER));
        limiter.expire(now + QUARTER);
        assert_eq!(limiter, RateLimiter::default());
    }

    #[test]
    fn what_remains_is_what_may_pass_now() {
        let now = NOW;
        for (ahead, units) in [(0, 4), (1, 3), (250, 3), (251, 2), (1_000, 0), (5_000, 0)] {
            let arrival = now + Duration::from_millis(ahead);
            assert_eq!(remaining(arrival, FOUR, now), units, "{ahead} ms ahead");
        }
        assert_eq!(remaining(now, NonZeroU32::MAX, now), u32::MAX);
    }
}
