//! How many callbacks of a caller may begin in a second.
//!
//! Law: pure, time is an argument. A second's worth may begin at once: so in any time no more begin
//! than the rate allows for it and a second more, and whoever looks late has lost nothing of it.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// What may begin at once, in callbacks of that long.
const BURST: Duration = Duration::from_secs(1);

/// How far a caller has used its rate up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// When all that has begun is worked off, if it came evenly spaced; never more than [`BURST`]
    /// ahead. `None` where nothing has to be.
    worked_off: Option<Instant>,
}

impl Pace {
    /// Counts a callback that begins at `now`, or says when it may.
    pub fn admit(&mut self, per_second: NonZeroU32, now: Instant) -> Result<(), Instant> {
        let next = self.worked_off.map_or(now, |at| at.max(now)) + interval(per_second);
        if next > now + BURST {
            return Err(next - BURST);
        }
        self.worked_off = Some(next);
        Ok(())
    }

    /// The callback that was counted last has not begun after all.
    pub fn refund(&mut self, per_second: NonZeroU32) {
        self.worked_off = self.worked_off.map(|at| at - interval(per_second));
    }

    /// Until when what has begun counts. Nothing is lost if it is forgotten then.
    #[must_use]
    pub fn counts_until(&self) -> Option<Instant> {
        self.worked_off
    }

    /// Forgets what is worked off at `now`.
    pub fn rest(&mut self, now: Instant) {
        self.worked_off = self.worked_off.filter(|at| *at > now);
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
    fn a_seconds_worth_may_begin_at_once_and_then_one_an_interval() {
        let (mut pace, now) = (Pace::default(), clock::monotonic());
        assert!((0..4).all(|_| pace.admit(FOUR, now).is_ok()));
        assert_eq!(pace.admit(FOUR, now), Err(now + QUARTER));
        assert_eq!(pace.admit(FOUR, now + QUARTER), Ok(()));
        assert_eq!(pace.admit(FOUR, now + QUARTER), Err(now + 2 * QUARTER));
        let later = now + Duration::from_secs(60);
        assert!(
            (0..4).all(|_| pace.admit(FOUR, later).is_ok()) && pace.admit(FOUR, later).is_err()
        );
    }

    #[test]
    fn what_did_not_begin_does_not_count() {
        let (mut pace, now) = (Pace::default(), clock::monotonic());
        for _ in 0..100 {
            pace.admit(FOUR, now).unwrap();
            pace.refund(FOUR);
        }
        assert!((0..4).all(|_| pace.admit(FOUR, now).is_ok()) && pace.admit(FOUR, now).is_err());
    }

    #[test]
    fn what_is_worked_off_is_forgotten_and_not_before() {
        let (mut pace, now) = (Pace::default(), clock::monotonic());
        pace.admit(FOUR, now).unwrap();
        pace.rest(now);
        assert_eq!(pace.counts_until(), Some(now + QUARTER));
        pace.rest(now + QUARTER);
        assert_eq!(pace, Pace::default());
    }
}
