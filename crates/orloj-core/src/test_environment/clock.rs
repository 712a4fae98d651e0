//! A clock for tests, which stands still until it is moved.
//!
//! Invariant: a pause moves it, and nothing else but the test; a look at it does if a test says so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::environment::Clock;
use crate::model::Timestamp;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// What a clock shows. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestClock(Arc<Mutex<Shown>>);

#[derive(Debug, Default)]
struct Shown {
    /// In ms since the epoch.
    now: Timestamp,
    monotonic: Duration,
    /// How much time passes between two looks at the monotonic clock.
    between_looks: Duration,
}

impl TestClock {
    /// From now on so much time passes between two looks at the monotonic clock.
    pub(crate) fn set_between_looks(&self, time: Duration) {
        self.shown().between_looks = time;
    }

    /// Time passes.
    pub(crate) fn advance(&self, by: Duration) {
        let mut shown = self.shown();
        shown.monotonic += by;
        shown.now += crate::model::time::whole_ms(by);
    }

    /// The clock is set.
    pub(crate) fn set(&self, now: Timestamp) {
        self.shown().now = now;
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for TestClock {
    fn now_ms(&self) -> Timestamp {
        self.shown().now
    }

    fn until(&self, time: Timestamp) -> Duration {
        Duration::from_millis(time.saturating_sub(self.now_ms()))
    }

    fn monotonic(&self) -> Duration {
        let mut shown = self.shown();
        let now = shown.monotonic;
        shown.monotonic = now + shown.between_looks;
        now
    }

    fn pause(&self, length: Duration) {
        self.advance(length);
    }
}
