//! Signals that stop the process: SIGTERM and SIGINT.
//!
//! Invariant: the process is first marked as not ready, so that no more work is sent to it; then
//! everything is asked to end. A second signal ends the process at once.

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::health::Health;

/// Cancels `shutdown` at the first signal and ends the process at the second.
pub(super) fn watch(
    roles: Vec<Arc<Health>>,
    shutdown: CancellationToken,
) -> Result<(), std::io::Error> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let _detached = tokio::spawn(async move {
        next().await;
        for health in roles {
            health.not_ready("process", "shutting down");
        }
        shutdown.cancel();
        next().await;
        eprintln!("second signal: exiting at once");
        std::process::exit(1);
    });
    Ok(())
}
