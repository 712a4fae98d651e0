//! `/v1/circuits`: which hosts workers do not call.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::api::{Api, view_response};
use super::auth::{Viewer, scope_of};
use super::http::{ListItem, ListResponse, Problem};
use crate::model::outcome::CircuitState;
use crate::model::time::format_time;
use crate::view::CircuitView;

// An alias, because the OpenAPI macros do not take generic types.
type CircuitList = ListResponse<CircuitResource>;

/// List the circuits of your callbacks: which hosts workers do not call.
#[utoipa::path(
    get, path = "/v1/circuits", tag = "operation", operation_id = "listCircuits",
    responses((status = 200, description = "All of them", body = CircuitList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
) -> Result<Response, Problem> {
    let freshness = api.fresh_view().await?;
    let circuits = api.view.circuits(&scope_of(&caller)).await?;
    Ok(view_response(&freshness, CircuitList::all(circuits, &freshness)))
}

/// The circuit of a worker for a host.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Circuit)]
pub(super) struct CircuitResource {
    worker: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    host: String,
    state: CircuitResourceState,
    reason: String,
    #[schema(format = DateTime)]
    since: String,
    /// When the host is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    probe_at: Option<String>,
}

/// Whether a host is called: always, never, or for a limited trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schema(as = CircuitState)]
pub(super) enum CircuitResourceState {
    Closed,
    Open,
    HalfOpen,
}

impl ListItem for CircuitResource {
    const LIST_NAME: &'static str = "CircuitList";
    const HAS_PAGES: bool = false;
}

impl From<CircuitView> for CircuitResource {
    fn from(view: CircuitView) -> Self {
        let state = match view.state {
            CircuitState::Closed => CircuitResourceState::Closed,
            CircuitState::Open => CircuitResourceState::Open,
            CircuitState::HalfOpen => CircuitResourceState::HalfOpen,
        };
        Self {
            worker: view.worker,
            caller: view.caller,
            host: view.host,
            state,
            reason: view.reason,
            since: format_time(view.since),
            probe_at: view.probe_at.map(format_time),
        }
    }
}
