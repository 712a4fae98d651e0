//! A clock for tests, which stands still until it is moved.
//!
//! Invariant: a pause moves it, and nothing else but the test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::environment::Clock;
use crate::model::Timestamp;

/// What a clock shows. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct TestClock(Arc<Mutex<Shown>>);

#[derive(Debug, Default)]
struct Shown {
    /// In ms since the epoch.
    now: Timestamp,
    monotonic: Duration,
}

impl TestClock {
    /// Time passes.
    pub(super) fn advance(&self, by: Duration) {
        let mut shown = self.shown();
        shown.monotonic += by;
        shown.now += super::ms(by);
    }

    /// The clock is set.
    pub(super) fn set(&self, now: Timestamp) {
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
        self.shown().monotonic
    }

    fn pause(&self, length: Duration) {
        self.advance(length);
    }
}
