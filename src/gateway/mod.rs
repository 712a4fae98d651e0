//! The role that serves the HTTP API. A write is a record in `triggers`, and the response is the
//! outcome of the trigger's owner; a read is answered from the view, which is built from the
//! topics.
//!
//! ```text
//!  request ──► Submission ──► TriggerProducer ──► triggers ──► owner
//!     ▲                                                          │
//!     ├── response ◄── OutcomeAwaiter ◄──────────── outcomes ◄───┤
//!     └── response ◄── View ◄────────────────────────────────────┘
//! ```

mod api;
mod circuits;
mod dead_letters;
mod docs;
mod http;
mod idempotency;
mod json_body;
mod openapi;
mod rate_limiter;
mod routes;
mod schedules;
mod triggers;
mod unsettled;
mod write_positions;

pub mod auth;

#[cfg(test)]
mod simulation;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Router, middleware};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::callers::Callers;
use crate::client::{RegistrationValidator, TriggerClient};
use crate::config::{ConfigError, Settings};
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::error::ClientError;
use crate::view::{View, ViewError};

use auth::Authenticator;
use idempotency::InFlightRequests;
use write_positions::WritePositions;

/// After the shutdown, requests in progress may take as long as so many answers: a record's
/// acknowledgement, its outcome, and everything else.
const DRAIN_ANSWERS: u32 = 3;

/// Why the gateway could not start or had to stop: repair what it names and start again.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// The cluster cannot be reached, or refuses the connection.
    #[error("cannot read outcomes or write triggers: {0}")]
    Kafka(#[from] ClientError),
    /// The listener failed.
    #[error("the HTTP listener failed: {0}")]
    Http(#[from] io::Error),
    /// Correct the file of the callers.
    #[error(transparent)]
    Callers(#[from] ConfigError),
    /// Repair the system's certificates.
    #[error("cannot open the HTTP client for issuers' keys: {0}")]
    Client(#[from] reqwest::Error),
    /// The view could not be opened.
    #[error(transparent)]
    View(#[from] ViewError),
}

/// Serves the API and `probes` until `shutdown`. Requests in progress are answered as before, for a
/// while.
pub async fn run(
    settings: &Settings,
    listener: TcpListener,
    probes: Router,
    health: Arc<Health>,
    shutdown: CancellationToken,
) -> Result<(), GatewayError> {
    let timeout = settings.gateway.answer_timeout;
    let callers = Callers::watch(settings, Arc::clone(&health), shutdown.clone())?;
    if callers.current().is_open() {
        let address = listener.local_addr()?;
        tracing::warn!(%address, "no callers.file: every client may do everything");
    }
    // Outcomes and the view are read until the last request is answered.
    let readers = CancellationToken::new();
    let _ended_after_requests = readers.clone().drop_guard();
    let client = TriggerClient::open(settings, timeout, Arc::clone(&health), readers.clone())?;
    let view = View::open(settings, Arc::clone(&health), readers)?;
    let _detached = tokio::spawn(unsettled::run_monitor(view.clone(), shutdown.clone()));
    let api = Arc::new(api::Api {
        client,
        view,
        view_wait_max: api::VIEW_WAIT_MAX,
        write_positions: WritePositions::default(),
        in_flight: InFlightRequests::default(),
        dead_letter_actions: crate::dead_letters::DeadLetterActions::new(settings),
        settings: settings.clone(),
        health,
        names: Names::new(&settings.topics.prefix),
        validator: RegistrationValidator::new(),
        authenticator: Authenticator::open(settings, callers.clone())?,
        callers,
        guard: Guard::new(settings),
    });
    let (router, _description) = routes::routes();
    let router = router.with_state(api).layer(middleware::from_fn(rate_limiter::add_headers));
    let router = router.layer(middleware::from_fn(http::request_id::track_request)).merge(probes);
    Ok(serve(listener, router, shutdown, timeout.saturating_mul(DRAIN_ANSWERS)).await?)
}

/// Serves until `shutdown`, and finishes requests in progress within `drain_max`: a client that
/// does not send or read on must not keep the process.
async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    drain_max: Duration,
) -> io::Result<()> {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, service);
    let server = server.with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let drain_ends = async {
        shutdown.cancelled().await;
        let _elapsed = tokio::time::timeout(drain_max, std::future::pending::<()>()).await;
    };
    tokio::select! {
        served = server.into_future() => served,
        () = drain_ends => {
            tracing::warn!(?drain_max, "requests in progress are not finished; the gateway ends");
            Ok(())
        }
    }
}

/// The description of the API: OpenAPI 3.1, as JSON.
#[must_use]
pub fn openapi_json() -> String {
    let (_router, document) = routes::routes();
    format!("{document:#}")
}
