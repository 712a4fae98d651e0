//! Waiting for a condition, never for a time.

use std::sync::mpsc;
use std::time::Duration;

use orloj::clock;

/// Pause between two looks at the condition.
const POLL: Duration = Duration::from_millis(10);

/// Looks until `probe` finds what it looks for, and returns it. Panics after `deadline`, saying
/// `what` did not happen.
pub(crate) fn until<T>(what: &str, deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let begun = clock::monotonic();
    // Nobody sends: receiving is a pause that the test's own thread can afford.
    let (_quiet, pause) = mpsc::channel::<()>();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        let waited = clock::monotonic() - begun;
        assert!(waited < deadline, "after {waited:.1?} still waiting: {what}");
        let _ = pause.recv_timeout(POLL);
    }
}
