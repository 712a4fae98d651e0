//! Waits for what roles say at `/readyz`.
//!
//! Invariant: a wait is for a condition, and ends after its deadline. That nothing happens is no
//! event to wait for: it is watched for a while.

use std::time::Duration;

use crate::process::OrlojProcess;
use crate::wait::{until, within};

const DEADLINE: Duration = Duration::from_secs(60);
/// For so long a role is watched that must stay ready: that nothing happens is no event to wait
/// for. Each role looks at what it reports at least once a second.
const WATCHED: Duration = Duration::from_secs(2);

/// Whether a role that is not ready gave this answer.
pub(crate) fn is_refusal(answer: &str) -> bool {
    answer.split(' ').nth(1) == Some("503")
}

/// Waits until the role says that it is not ready, and why.
pub(crate) fn wait_for_refusal(role: &OrlojProcess, reason: &str) {
    until(&format!("a role that is not ready: {reason:?}"), DEADLINE, || {
        let answer = role.readiness();
        (is_refusal(&answer) && answer.contains(reason)).then_some(())
    });
}

/// Watches them for a while, in which none may say that it is not ready.
pub(crate) fn assert_stay_ready(roles: &[&OrlojProcess]) {
    let refusal = within(WATCHED, || {
        roles.iter().map(|role| role.readiness()).find(|answer| is_refusal(answer))
    });
    assert_eq!(refusal, None);
    until("all of them to be ready", DEADLINE, || {
        roles.iter().all(|role| role.is_ready()).then_some(())
    });
}

/// Waits until a first notifier leads: it is notified of what is written from then on. It is ready
/// a moment sooner. It looks for the ends of the dead letters first.
pub(crate) fn wait_until_leading(notifier: &OrlojProcess) {
    until("the notifier to lead", DEADLINE, || {
        let log = notifier.log_text();
        let mut ends = log.lines().filter(|line| line.contains("reading from the end"));
        ends.any(|line| line.contains(".outcomes")).then_some(())
    });
}
