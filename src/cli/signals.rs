//! Being asked to stop: SIGTERM and SIGINT.
//!
//! Invariant: readiness goes first, so that nobody sends more work; then everything is told to end.
//! A second signal does not wait.

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
        eprintln!("asked twice: ending at once");
        std::process::exit(1);
    });
    Ok(())
}
