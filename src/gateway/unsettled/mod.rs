//! `/v1/unsettled`: callbacks that have not settled long after their time.

mod monitor;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::api::{Api, view_response};
use super::auth::Operator;
use super::http::field_types::TimestampField;
use super::http::{ListItem, ListResponse, Problem, Query, QueryFields, read_page};
use super::triggers::resource::Trigger;
use crate::clock;
use crate::model::time::format_time;
use crate::view::Overdue;

use monitor::OVERDUE_AFTER_MS;
pub(super) use monitor::run_monitor;

// An alias, because the OpenAPI macros do not take generic types.
type UnsettledList = ListResponse<OverdueTrigger>;

/// Which overdue triggers.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UnsettledQuery {
    /// Their last attempt was due before then; an hour ago if not given.
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

/// A trigger that has not settled long after its time.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Unsettled)]
pub(super) struct OverdueTrigger {
    trigger: Trigger,
    /// When its last attempt was due.
    #[schema(format = DateTime)]
    since: String,
}

/// List callbacks that have not ended long after their last attempt was due. For operators.
///
/// Those of triggers that fire once, and the last ones of schedules: earlier ones are not checked.
#[utoipa::path(
    get, path = "/v1/unsettled", tag = "operation", operation_id = "listUnsettled",
    params(UnsettledQuery),
    responses((status = 200, description = "A page", body = UnsettledList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Operator(_caller): Operator,
    Query(query): Query<UnsettledQuery>,
) -> Result<Response, Problem> {
    let page = read_page(query.page_size, query.page_token.as_deref())?;
    let hour_ago = || clock::now_ms().saturating_sub(OVERDUE_AFTER_MS);
    let before = query.before.map_or_else(hour_ago, |TimestampField(at)| at);
    let freshness = api.fresh_view().await?;
    let listing = api.view.overdue(before, &page).await?;
    Ok(view_response(&freshness, UnsettledList::page(listing, &freshness)))
}

impl ListItem for OverdueTrigger {
    const LIST_NAME: &'static str = "UnsettledList";
}

impl From<Overdue> for OverdueTrigger {
    fn from(overdue: Overdue) -> Self {
        Self { trigger: overdue.trigger.into(), since: format_time(overdue.since) }
    }
}
