//! The periodic check for callbacks that have not settled an hour after their time.
//!
//! Invariant: by design nothing is lost; if it happens, a metric and the log report it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::model::Millis;
use crate::view::View;
use crate::{clock, telemetry};

/// How long after its time a callback may settle, in ms: longer than the pauses of usual retries.
pub(crate) const OVERDUE_AFTER_MS: Millis = 3_600_000;
/// Pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Checks until `shutdown`.
pub(crate) async fn run_monitor(view: View, shutdown: CancellationToken) {
    let mut interval = tokio::time::interval(CHECK_INTERVAL);
    let mut last = 0;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = interval.tick() => {}
        }
        let (before, mut unsettled) = (clock::now_ms().saturating_sub(OVERDUE_AFTER_MS), 0_u32);
        match view.for_each_overdue(before, |_one| unsettled += 1).await {
            Ok(()) => {
                metrics::gauge!(telemetry::UNSETTLED).set(unsettled);
                if unsettled > last {
                    tracing::warn!(
                        unsettled,
                        "callbacks have not settled an hour after their time: do workers lag, \
                         or has a pool no worker? GET /v1/unsettled lists them, `orloj \
                         reconcile` sends them again"
                    );
                }
                last = unsettled;
            }
            // The view's own health reports the reason.
            Err(error) => tracing::debug!(%error, "cannot check for overdue callbacks"),
        }
    }
}
