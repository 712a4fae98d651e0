//! The standing check: callbacks that have not ended an hour past their time.
//!
//! Invariant: nothing can get lost by design; if something does all the same, an operator hears of
//! it from us and not from a customer.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::model::Millis;
use crate::view::View;
use crate::{clock, telemetry};

/// How long past its time a callback may be, in ms: longer than the pauses of the usual retries.
pub(super) const OVERDUE_AFTER_MS: Millis = 3_600_000;
/// Between two looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Looks now and then, until `shutdown`.
pub(super) async fn run(view: View, shutdown: CancellationToken) {
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
                        "callbacks have not ended an hour past their time: are workers behind, \
                         or a pool without any? GET /v1/unsettled lists them, `orloj reconcile` \
                         has them made"
                    );
                }
                last = unsettled;
            }
            // The view's own health says why.
            Err(error) => tracing::debug!(%error, "the standing check has to wait"),
        }
    }
}
