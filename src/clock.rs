//! The time: the only file that reads a clock.
//!
//! Law: everything else takes the time as an argument, so that tests and the simulator can move it.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch. May go back when the system's clock is set.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is where the time enters")]
pub fn now_ms() -> u64 {
    // A clock before 1970 or beyond the year 500 million is one that nobody has set.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    crate::fault::set_back(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

/// A clock that never goes back, for measuring and for deadlines.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is where the time enters")]
pub fn monotonic() -> Instant {
    Instant::now()
}
