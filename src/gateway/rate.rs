//! How many requests a caller may make.
//!
//! Law: a second's worth may come at once, and what is over it is told when to come back. Memory
//! is an entry a caller that the file knows.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What may come at once, in requests of that long.
const BURST: Duration = Duration::from_secs(1);

/// When each caller's requests so far are worked off, if they came evenly spaced.
#[derive(Debug, Default)]
pub(super) struct Rates {
    worked_off: Mutex<HashMap<String, Instant>>,
}

impl Rates {
    /// Counts a request of `caller` at `now`, or says how long it is too early.
    pub(super) fn admit(
        &self,
        caller: &str,
        per_second: NonZeroU32,
        now: Instant,
    ) -> Result<(), Duration> {
        let mut worked_off = self.worked_off.lock().unwrap_or_else(PoisonError::into_inner);
        let until = worked_off.get(caller).map_or(now, |until| (*until).max(now));
        let next = until + Duration::from_secs(1) / per_second.get();
        let too_early = next.saturating_duration_since(now + BURST);
        if !too_early.is_zero() {
            return Err(too_early);
        }
        let _before = worked_off.insert(caller.to_owned(), next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_seconds_worth_may_come_at_once_and_no_more() {
        let (rates, now) = (Rates::default(), clock::monotonic());
        let four = NonZeroU32::new(4).unwrap();
        let admit = |caller, at| rates.admit(caller, four, at);
        assert!((0..4).all(|_| admit("a", now).is_ok()));
        assert_eq!(admit("a", now), Err(Duration::from_millis(250)));
        assert_eq!(admit("b", now), Ok(()));

        let later = now + Duration::from_millis(250);
        assert_eq!((admit("a", later), admit("a", later).is_ok()), (Ok(()), false));
        let much_later = now + Duration::from_secs(60);
        assert!((0..4).all(|_| admit("a", much_later).is_ok()));
        assert!(admit("a", much_later).is_err());
    }
}
