//! Waiting for a condition, never for a time.

use std::sync::mpsc;
use std::time::Duration;

use orloj::clock;

/// Pause between two looks at the condition.
const POLL: Duration = Duration::from_millis(10);

/// Looks until `probe` finds what it looks for, and returns it. Panics after `deadline`, saying
/// `what` did not happen.
pub(crate) fn until<T>(what: &str, deadline: Duration, probe: impl FnMut() -> Option<T>) -> T {
    within(deadline, probe).unwrap_or_else(|| panic!("after {deadline:.1?} still waiting: {what}"))
}

/// Looks until `probe` finds what it looks for, and returns it; `None` after `deadline`.
pub(crate) fn within<T>(deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let started = clock::monotonic();
    // The channel has no sender: receiving is a pause.
    let (_quiet, pause) = mpsc::channel::<()>();
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if clock::monotonic() - started >= deadline {
            return None;
        }
        let _ = pause.recv_timeout(POLL);
    }
}
