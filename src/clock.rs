//! The time: the only file that reads a clock.
//!
//! Invariant: everything else takes the time as an argument, so that tests and the simulator can
//! move it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::environment::Clock;

/// Milliseconds since the Unix epoch. May go back when the system's clock is set.
#[must_use]
pub fn now_ms() -> u64 {
    whole_ms(since_epoch())
}

fn whole_ms(since_epoch: Duration) -> u64 {
    // A clock beyond the year 500 million was never set.
    crate::fault::set_clock(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

/// How long it is until `time` (ms since the epoch), to the microsecond; zero if it has passed.
#[must_use]
pub fn until(time: u64) -> Duration {
    // One reading: between two the millisecond may change.
    let now = since_epoch();
    let since_last_ms = Duration::from_nanos(u64::from(now.subsec_nanos() % 1_000_000));
    Duration::from_millis(time.saturating_sub(whole_ms(now))).saturating_sub(since_last_ms)
}

/// How long ago `time` (ms since the epoch) was, to the microsecond; zero if it is in the future.
#[must_use]
pub fn since(time: u64) -> Duration {
    since_epoch().saturating_sub(Duration::from_millis(time))
}

/// A clock before 1970 was never set.
#[expect(clippy::disallowed_methods, reason = "this is where the time enters")]
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A clock that never goes back, for measuring and for deadlines.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is where the time enters")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The clock of the system.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Its monotonic time counts from now on.
    #[must_use]
    pub fn start() -> Self {
        Self { started: monotonic() }
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        now_ms()
    }

    fn until(&self, time: u64) -> Duration {
        until(time)
    }

    fn monotonic(&self) -> Duration {
        monotonic().duration_since(self.started)
    }

    fn pause(&self, length: Duration) {
        std::thread::sleep(length);
    }
}
