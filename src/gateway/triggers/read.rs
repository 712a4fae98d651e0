//! `GET /v1/triggers`, one of them, and its executions.
//!
//! Invariant: a caller sees its own triggers only, and every response says up to when it is
//! complete.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::resource::{Execution, Trigger};
use crate::gateway::api::{Api, set_etag, unknown_trigger, view_response};
use crate::gateway::auth::{Viewer, scope_of};
use crate::gateway::http::field_types::TimestampField;
use crate::gateway::http::{
    ListResponse, PathId, Problem, Query, QueryFields, invalid_parameter, read_page,
};
use crate::view::{ExecutionStatus, Page, Status, TriggerFilter};

// Aliases, because the OpenAPI macros do not take generic types.
type TriggerList = ListResponse<Trigger>;
type ExecutionList = ListResponse<Execution>;

/// Conditions that must all hold.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TriggerQuery {
    /// One of these; can be repeated.
    status: Option<Vec<Status>>,
    /// Registered by this caller.
    caller: Option<String>,
    /// To this host, or into this topic.
    target: Option<String>,
    /// Due then or later. The one that is due last is first, unless `label` or `q` is given.
    #[param(value_type = Option<TimestampField>)]
    from: Option<TimestampField>,
    /// Due before then. The order is as with `from`.
    #[param(value_type = Option<TimestampField>)]
    until: Option<TimestampField>,
    /// With this label, as key=value; can be repeated: with all of them.
    #[param(pattern = "^[a-z0-9._-]{1,63}=.+$")]
    label: Option<Vec<String>>,
    /// Words of its id, name, labels or target.
    q: Option<String>,
    /// How many at most; 50 if not given.
    #[param(minimum = 1, maximum = 1000)]
    page_size: Option<u32>,
    /// The nextPageToken of the page before.
    page_token: Option<String>,
}

/// Which executions.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExecutionQuery {
    /// Of this status.
    status: Option<ExecutionStatus>,
    /// How many at most; 50 if not given.
    #[param(minimum = 1, maximum = 1000)]
    page_size: Option<u32>,
    /// The nextPageToken of the page before.
    page_token: Option<String>,
}

impl QueryFields for TriggerQuery {
    const LISTS: &'static [&'static str] = &["status", "label"];
    const NUMBERS: &'static [&'static str] = &["page_size", "from", "until"];
}

impl QueryFields for ExecutionQuery {}

/// List triggers, the newest first.
#[utoipa::path(
    get, path = "/v1/triggers", tag = "triggers", operation_id = "listTriggers",
    params(TriggerQuery),
    responses((status = 200, description = "A page", body = TriggerList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    Query(query): Query<TriggerQuery>,
) -> Result<Response, Problem> {
    let (filter, page) = query.read()?;
    let freshness = api.fresh_view().await?;
    let listing = api.view.triggers(&scope_of(&caller), &filter, &page).await?;
    Ok(view_response(&freshness, TriggerList::page(listing, &freshness)))
}

/// Look at a trigger.
#[utoipa::path(
    get, path = "/v1/triggers/{id}", tag = "triggers", operation_id = "getTrigger",
    params(("id" = String, Path, description = "The trigger's id")),
    responses((status = 200, description = "The trigger", body = Trigger,
        headers(("ETag" = String, description = "The revision, for If-Match"),
            ("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    PathId(id): PathId,
) -> Result<Response, Problem> {
    let (trigger, freshness) = api.find_trigger(&caller, &id).await?;
    let revision = trigger.revision;
    let mut response =
        view_response(&freshness, Trigger::from(trigger).with_as_of(freshness.as_of));
    set_etag(&mut response, revision);
    Ok(response)
}

/// List the executions of a trigger: every attempt, the newest first.
#[utoipa::path(
    get, path = "/v1/triggers/{id}/executions", tag = "triggers", operation_id = "listExecutions",
    params(("id" = String, Path, description = "The trigger's id"), ExecutionQuery),
    responses((status = 200, description = "A page", body = ExecutionList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(crate) async fn executions(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    PathId(id): PathId,
    Query(query): Query<ExecutionQuery>,
) -> Result<Response, Problem> {
    let page = read_page(query.page_size, query.page_token.as_deref())?;
    let freshness = api.fresh_view_of(&id).await?;
    let found = api.view.executions(&scope_of(&caller), &id, query.status, &page).await;
    let listing = found?.ok_or_else(|| unknown_trigger(&id))?;
    Ok(view_response(&freshness, ExecutionList::page(listing, &freshness)))
}

impl TriggerQuery {
    fn read(self) -> Result<(TriggerFilter, Page), Problem> {
        let page = read_page(self.page_size, self.page_token.as_deref())?;
        let label = |text: String| match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => {
                let detail = format!("label: write key=value, not {text:?}");
                Err(invalid_parameter(&detail).with("parameter", json!("label")))
            }
        };
        let labels = self.label.unwrap_or_default().into_iter().map(label);
        let filter = TriggerFilter {
            statuses: self.status.unwrap_or_default(),
            caller: self.caller,
            target: self.target,
            from: self.from.map(|TimestampField(at)| at),
            until: self.until.map(|TimestampField(at)| at),
            labels: labels.collect::<Result<_, _>>()?,
            text: self.q.filter(|text| !text.trim().is_empty()),
        };
        Ok((filter, page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_of_triggers_is_a_filter() {
        let query = TriggerQuery {
            status: Some(vec![Status::Pending]),
            label: Some(vec!["team=a=b".to_owned()]),
            from: Some(TimestampField(7)),
            until: Some(TimestampField(9)),
            caller: Some("billing".to_owned()),
            target: Some("kitchen".to_owned()),
            q: Some(" ".to_owned()),
            ..TriggerQuery::default()
        };
        let (filter, page) = query.read().unwrap();
        let expected = TriggerFilter {
            statuses: vec![Status::Pending],
            labels: vec![("team".to_owned(), "a=b".to_owned())],
            from: Some(7),
            until: Some(9),
            caller: Some("billing".to_owned()),
            target: Some("kitchen".to_owned()),
            text: None,
        };
        assert_eq!((filter, page), (expected, Page::default()));
        let query = |label: &str, page_size, token: &str| TriggerQuery {
            label: Some(vec![label.to_owned()]),
            page_size,
            page_token: (!token.is_empty()).then(|| token.to_owned()),
            ..TriggerQuery::default()
        };
        assert!(query("a=b", Some(1_000), "").read().is_ok());
        assert!(query("a", None, "").read().is_err() && query("=b", None, "").read().is_err());
        assert!(query("a=b", Some(0), "").read().is_err());
        assert!(query("a=b", Some(1_001), "").read().is_err());
        assert!(query("a=b", None, "nonsense").read().is_err());
    }
}
