//! `/v1/circuits` and `/v1/unsettled`: which hosts workers do not call, and callbacks that have not
//! settled long after their time.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::api::{Api, view_error, view_response};
use super::auth::{Operator, Viewer, scope_of};
use super::field_types::TimestampField;
use super::overdue_monitor::OVERDUE_AFTER_MS;
use super::parameters::{Query, QueryFields};
use super::problem::Problem;
use super::resource::{CircuitResource, OverdueTrigger};
use super::triggers::{page_items, read_page};
use crate::clock;
use crate::model::time::format_time;

/// Every known circuit.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CircuitList {
    items: Vec<CircuitResource>,
    /// The list is complete up to then.
    #[schema(format = DateTime)]
    as_of: String,
}

/// A page of overdue triggers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct UnsettledList {
    items: Vec<OverdueTrigger>,
    /// The token of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    /// The list is complete up to then.
    #[schema(format = DateTime)]
    as_of: String,
}

/// Which overdue triggers.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UnsettledQuery {
    /// Due before then; an hour ago if not given.
    #[param(value_type = Option<TimestampField>)]
    before: Option<TimestampField>,
    /// How many at most; 50 if not given.
    #[param(minimum = 1, maximum = 1000)]
    page_size: Option<u32>,
    /// The nextPageToken of the page before.
    page_token: Option<String>,
}

impl QueryFields for UnsettledQuery {
    const NUMBERS: &'static [&'static str] = &["page_size", "before"];
}

/// List the circuits of your callbacks: which hosts workers leave alone.
#[utoipa::path(
    get, path = "/v1/circuits", tag = "operation", operation_id = "listCircuits",
    responses((status = 200, description = "All of them", body = CircuitList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
) -> Result<Response, Problem> {
    let freshness = api.wait_for_view().await;
    let circuits = api.view.circuits(&scope_of(&caller)).await.map_err(view_error)?;
    let items = circuits.into_iter().map(CircuitResource::from).collect();
    Ok(view_response(&freshness, CircuitList { items, as_of: format_time(freshness.as_of) }))
}

/// List callbacks that have not settled though their time is long past. For operators.
#[utoipa::path(
    get, path = "/v1/unsettled", tag = "operation", operation_id = "listUnsettled",
    params(UnsettledQuery),
    responses((status = 200, description = "A page", body = UnsettledList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn unsettled(
    State(api): State<Arc<Api>>,
    Operator(_caller): Operator,
    Query(query): Query<UnsettledQuery>,
) -> Result<Response, Problem> {
    let page = read_page(query.page_size, query.page_token.as_deref())?;
    let hour_ago = || clock::now_ms().saturating_sub(OVERDUE_AFTER_MS);
    let before = query.before.map_or_else(hour_ago, |TimestampField(at)| at);
    let freshness = api.wait_for_view().await;
    let (items, next_page_token) =
        page_items(api.view.overdue(before, &page).await.map_err(view_error)?);
    let as_of = format_time(freshness.as_of);
    Ok(view_response(&freshness, UnsettledList { items, next_page_token, as_of }))
}
