//! The health of a process: `/livez`, `/readyz` and `/metrics`.
//!
//! Invariant: a role is ready when it has registered its parts and each of them is ready; before
//! that, and as soon as one is not, the reasons are the answer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Pause between two clean-ups of the histograms, which would grow without scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Pause between two checks of a caller that waits for readiness.
const READY_POLL: Duration = Duration::from_millis(20);

/// The health of one role.
#[derive(Debug)]
pub struct Health {
    role: &'static str,
    parts: Mutex<BTreeMap<&'static str, PartState>>,
}

/// The state of one part of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PartState {
    Ready,
    ReadyWithRemark(String),
    NotReady(String),
}

impl Health {
    /// A role that is not ready, because no part of it has reported yet.
    #[must_use]
    pub fn new(role: &'static str) -> Arc<Self> {
        Arc::new(Self { role, parts: Mutex::default() })
    }

    /// A part is ready.
    pub fn ready(&self, part: &'static str) {
        self.set(part, PartState::Ready);
    }

    /// A part is ready, with a remark for the operator.
    pub fn ready_with_remark(&self, part: &'static str, remark: impl Into<String>) {
        self.set(part, PartState::ReadyWithRemark(remark.into()));
    }

    /// A part is not ready; `reason` is for people.
    pub fn not_ready(&self, part: &'static str, reason: impl Into<String>) {
        self.set(part, PartState::NotReady(reason.into()));
    }

    /// Whether every part is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.reasons().is_empty()
    }

    /// Why the role is not ready, a line each; empty when it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.is_empty() {
            return vec![format!("{}: starting", self.role)];
        }
        let line = |(part, state): (&&str, &PartState)| match state {
            PartState::NotReady(reason) => Some(format!("{} {part}: {reason}", self.role)),
            PartState::Ready | PartState::ReadyWithRemark(_) => None,
        };
        parts.iter().filter_map(line).collect()
    }

    /// Returns when every part is ready.
    pub async fn wait_until_ready(&self) {
        let mut interval = tokio::time::interval(READY_POLL);
        while !self.is_ready() {
            interval.tick().await;
        }
    }

    /// The state of every part, a line each.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        for (part, state) in parts.iter() {
            let (state, remark) = match state {
                PartState::Ready => ("ready", ""),
                PartState::ReadyWithRemark(remark) => ("ready, but ", remark.as_str()),
                PartState::NotReady(reason) => ("", reason.as_str()),
            };
            let _infallible = writeln!(text, "{} {part}: {state}{remark}", self.role);
        }
        text
    }

    fn set(&self, part: &'static str, state: PartState) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.get(part) == Some(&state) {
            return;
        }
        let role = self.role;
        match (&state, parts.get(part)) {
            (PartState::Ready, _) => tracing::info!(role, part, "ready"),
            (PartState::ReadyWithRemark(remark), _) => tracing::warn!(role, part, %remark, "ready"),
            (PartState::NotReady(reason), None) => {
                tracing::info!(role, part, %reason, "not ready yet");
            }
            (PartState::NotReady(reason), _) => tracing::warn!(role, part, %reason, "not ready"),
        }
        parts.insert(part, state);
    }
}

/// One part of a role, reported from a loop whose turns are short. Nothing else reports this part.
#[derive(Debug)]
pub(crate) struct PartReporter {
    health: Arc<Health>,
    part: &'static str,
    /// What was reported last.
    reported: Option<PartState>,
}

impl PartReporter {
    /// A part of which nothing was reported.
    pub(crate) fn new(health: Arc<Health>, part: &'static str) -> Self {
        Self { health, part, reported: None }
    }

    /// Reports why the part is not ready, or that it is, if that has changed.
    pub(crate) fn report(&mut self, reason: Option<String>) {
        let state = reason.map_or(PartState::Ready, PartState::NotReady);
        if self.reported.as_ref() != Some(&state) {
            self.health.set(self.part, state.clone());
            self.reported = Some(state);
        }
    }
}

/// The three routes, for one process with these roles.
pub fn routes(roles: Vec<Arc<Health>>, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readiness).with_state(roles))
        .route("/metrics", get(scrape).with_state(metrics))
}

/// Serves the three routes until `shutdown`, for a role that has no other HTTP interface.
pub async fn serve(
    listener: TcpListener,
    health: Arc<Health>,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let router = routes(vec![health], metrics);
    axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await
}

/// Keeps the recorded metrics bounded until `shutdown`.
pub async fn upkeep(metrics: PrometheusHandle, shutdown: CancellationToken) {
    let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
    while shutdown.run_until_cancelled(interval.tick()).await.is_some() {
        metrics.run_upkeep();
    }
}

async fn readiness(
    State(roles): State<Vec<Arc<Health>>>,
    RawQuery(query): RawQuery,
) -> impl IntoResponse {
    let reasons: Vec<_> = roles.iter().flat_map(|health| health.reasons()).collect();
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose = query.is_some_and(|query| query.split('&').any(|name| name == "verbose"));
    let text = match (verbose, reasons.is_empty()) {
        (true, _) => roles.iter().map(|health| health.describe()).collect(),
        (false, true) => "ready\n".to_owned(),
        (false, false) => reasons.join("\n") + "\n",
    };
    (status, text)
}

async fn scrape(State(metrics): State<PrometheusHandle>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get_readiness(health: &Arc<Health>, query: &str) -> (StatusCode, String) {
        let query = RawQuery((!query.is_empty()).then(|| query.to_owned()));
        let response = readiness(State(vec![Arc::clone(health)]), query).await.into_response();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_role_is_ready_when_each_part_said_so() {
        let health = Health::new("scheduler");
        let away = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(get_readiness(&health, "").await, (away, "scheduler: starting\n".to_owned()));

        health.ready("kafka");
        health.not_ready("partitions", "restoring 3 of 8");
        let text = "scheduler partitions: restoring 3 of 8\n";
        assert_eq!(get_readiness(&health, "").await, (away, text.to_owned()));

        health.ready("partitions");
        assert_eq!(get_readiness(&health, "").await, (StatusCode::OK, "ready\n".to_owned()));
        let text = "scheduler kafka: ready\nscheduler partitions: ready\n";
        assert_eq!(get_readiness(&health, "verbose").await, (StatusCode::OK, text.to_owned()));

        health.ready_with_remark("kafka", "slow");
        assert_eq!(get_readiness(&health, "").await, (StatusCode::OK, "ready\n".to_owned()));
        assert!(
            get_readiness(&health, "verbose")
                .await
                .1
                .starts_with("scheduler kafka: ready, but slow")
        );

        health.not_ready("kafka", "no broker answers");
        assert_eq!(get_readiness(&health, "").await.1, "scheduler kafka: no broker answers\n");
    }

    #[test]
    fn a_part_is_reported_when_it_has_changed_and_only_then() {
        let health = Health::new("gateway");
        let mut part = PartReporter::new(Arc::clone(&health), "outcomes");
        assert!(!health.is_ready(), "nothing was reported");
        for reason in [None, Some("away"), Some("denied"), None] {
            let expected: Vec<_> =
                reason.iter().map(|reason| format!("gateway outcomes: {reason}")).collect();
            part.report(reason.map(str::to_owned));
            assert_eq!(health.reasons(), expected);
            // What a second report would replace.
            health.not_ready("outcomes", "another report");
            part.report(reason.map(str::to_owned));
            assert_eq!(health.reasons(), ["gateway outcomes: another report"]);
        }
    }
}
