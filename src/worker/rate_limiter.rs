//! How many callbacks of a caller may start in a second.
//!
//! Invariant: pure, time is an argument. A second's worth may start at once: so in any time no more
//! start than the rate allows for it and a second more, and whoever looks late has lost nothing of
//! it.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// What may start at once, in callbacks of that long.
const BURST: Duration = Duration::from_secs(1);

/// How far a caller has used its rate up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallerRateLimiter {
    /// When all that has started is worked off, if it came evenly spaced; never more than [`BURST`]
    /// ahead. `None` where nothing has to be.
    theoretical_arrival: Option<Instant>,
}

impl CallerRateLimiter {
    /// Counts a callback that starts at `now`, or says when it may.
    pub fn admit(&mut self, per_second: NonZeroU32, now: Instant) -> Result<(), Instant> {
        let next = self.theoretical_arrival.map_or(now, |at| at.max(now)) + interval(per_second);
        if next > now + BURST {
            return Err(next - BURST);
        }
        self.theoretical_arrival = Some(next);
        Ok(())
    }

    /// The callback that was counted last has not started after all.
    pub fn refund(&mut self, per_second: NonZeroU32) {
        self.theoretical_arrival = self.theoretical_arrival.map(|at| at - interval(per_second));
    }

    /// Until when what has started counts. Nothing is lost if it is forgotten then.
    #[must_use]
    pub fn expires_at(&self) -> Option<Instant> {
        self.theoretical_arrival
    }

    /// Forgets what is worked off at `now`.
    pub fn expire(&mut self, now: Instant) {
        self.theoretical_arrival = self.theoretical_arrival.filter(|at| *at > now);
    }
}

/// Between two callbacks that come evenly spaced.
fn interval(per_second: NonZeroU32) -> Duration {
    Duration::from_secs(1) / per_second.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const FOUR: NonZeroU32 = NonZeroU32::new(4).unwrap();
    const QUARTER: Duration = Duration::from_millis(250);

    #[test]
    fn one_second_of_the_rate_may_start_at_once_and_then_one_each_interval() {
        let (mut limiter, now) = (CallerRateLimiter::default(), clock::monotonic());
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
    fn a_refunded_callback_does_not_count() {
        let (mut limiter, now) = (CallerRateLimiter::default(), clock::monotonic());
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
        let (mut limiter, now) = (CallerRateLimiter::default(), clock::monotonic());
        limiter.admit(FOUR, now).unwrap();
        limiter.expire(now);
        assert_eq!(limiter.expires_at(), Some(now + QUARTER));
        limiter.expire(now + QUARTER);
        assert_eq!(limiter, CallerRateLimiter::default());
    }
}
