//! `/v1/triggers`: registering triggers, and reading them.
//!
//! Invariant: a registration is refused before it is written, or answered with its outcome.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::api::{
    Api, id_taken, set_etag, set_location, unknown_trigger, view_error, view_lagging, view_response,
};
use super::auth::{Registrant, Viewer, scope_of};
use super::body;
use super::error_code::ErrorCode;
use super::field_types::TimestampField;
use super::idempotent_create::{self, IdempotentCreate};
use super::parameters::{PathId, Query, QueryFields, invalid_parameter};
use super::problem::{FieldError, Problem};
use super::request::{LatePolicy, TriggerBody, read_body};
use super::resource::{Execution, Trigger};
use crate::callers::Caller;
use crate::client::{FireTime, NewTrigger, Submission};
use crate::clock;
use crate::model::limits;
use crate::model::outcome::OutcomeKind;
use crate::model::time::format_time;
use crate::model::{Offset, Timestamp};
use crate::view::{self, ExecutionStatus, Listing, Page, Status, TriggerFilter};

/// Bytes of a body besides its payload: an id, a URL, headers, and their JSON.
const BODY_OVERHEAD: u64 = 4 * limits::HEADER_BYTES_MAX as u64;

/// The owner has registered it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Registered)]
pub(super) struct RegisterResponse {
    trigger_id: String,
    /// When it fires for the first time.
    #[schema(format = DateTime)]
    fire_at: String,
    /// What defines the trigger now: its ETag.
    #[schema(value_type = u64)]
    generation: Offset,
    /// The generation that it replaces, if one was pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    replaced: Option<Offset>,
    /// True if one was pending and onConflict is keep: then this is the pending one.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<bool>,
}

/// A page of triggers, the newest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TriggerList {
    items: Vec<Trigger>,
    /// The token of the next page; absent at the end. A short page that has one is not the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    /// The list is complete up to then.
    #[schema(format = DateTime)]
    as_of: String,
}

/// A page of the executions of a trigger, the newest first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExecutionList {
    items: Vec<Execution>,
    /// The token of the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    /// The list is complete up to then.
    #[schema(format = DateTime)]
    as_of: String,
}

/// Conditions that must all hold.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TriggerQuery {
    /// One of these; can be repeated.
    status: Option<Vec<Status>>,
    /// Registered by this caller.
    caller: Option<String>,
    /// To this host, or into this topic.
    target: Option<String>,
    /// Due then or later.
    #[param(value_type = Option<TimestampField>)]
    from: Option<TimestampField>,
    /// Due before then.
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
pub(super) struct ExecutionQuery {
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

/// Register a trigger, or replace the one that is pending under its id.
#[utoipa::path(
    post, path = "/v1/triggers", tag = "triggers", operation_id = "createTrigger",
    params(("Idempotency-Key" = Option<String>, Header,
        min_length = 1, max_length = 255, pattern = "^[!-~]([ -~]*[!-~])?$",
        description = "The id is derived from it: requests with the same key and body create one \
            trigger and get the same response, until 24 hours after the trigger has settled")),
    request_body = TriggerBody,
    responses(
        (status = 201, description = "Registered", body = RegisterResponse,
            headers(("ETag" = String, description = "The generation"),
                ("Location" = String, description = "The path of the trigger"))),
        (status = 200, description = "One was pending, and is kept", body = RegisterResponse),
        (status = 202, description = "Written, and not answered in time",
            body = super::api::Unanswered,
            headers(("Location" = String, description = "The path of the trigger"))),
    )
)]
pub(super) async fn register(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    request: Request,
) -> Result<Response, Problem> {
    let request_headers = request.headers().clone();
    let payload_max = caller.limits.payload.bytes();
    let key = idempotent_create::idempotency_key(&request_headers)?;
    let bytes = body::read_bytes(request, body_max(payload_max)).await?;
    let body = read_body(&bytes)?;
    if let Some(key) = key {
        let (api, caller, bytes) = (&*api, &*caller, &*bytes);
        let headers = request_headers;
        return IdempotentCreate { api, caller, key, bytes, headers }.create(body).await;
    }
    let late = body.late.unwrap_or_default();
    let mut trigger = body.into_trigger(payload_max)?;
    copy_trace_headers(&request_headers, &mut trigger.headers);
    let submission = prepare(&api, &caller, trigger, late).await?;
    let id = submission.id.clone();
    let receipt = api.submit(submission, &caller).await?;
    match receipt.outcome_kind() {
        Some(OutcomeKind::Accepted { generation, fire_at, replaced }) => {
            let registered = RegisterResponse::of(&id, *generation, *fire_at);
            Ok(RegisterResponse { replaced: *replaced, ..registered }.response(StatusCode::CREATED))
        }
        Some(OutcomeKind::Kept { generation, fire_at }) => {
            let registered = RegisterResponse::of(&id, *generation, *fire_at);
            Ok(RegisterResponse { kept: Some(true), ..registered }.response(StatusCode::OK))
        }
        Some(OutcomeKind::Taken { .. }) => Err(id_taken(&id)),
        Some(OutcomeKind::Rejected { reason }) => Err(rejected(&id, reason)),
        _ => Ok(api.unanswered(&id, &receipt)),
    }
}

/// List triggers, the newest first.
#[utoipa::path(
    get, path = "/v1/triggers", tag = "triggers", operation_id = "listTriggers",
    params(TriggerQuery),
    responses((status = 200, description = "A page", body = TriggerList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    Query(query): Query<TriggerQuery>,
) -> Result<Response, Problem> {
    let (filter, page) = query.read()?;
    let freshness = api.wait_for_view().await;
    let listing =
        api.view.triggers(&scope_of(&caller), &filter, &page).await.map_err(view_error)?;
    let (items, next_page_token) = page_items(listing);
    let as_of = format_time(freshness.as_of);
    Ok(view_response(&freshness, TriggerList { items, next_page_token, as_of }))
}

/// Look at a trigger.
#[utoipa::path(
    get, path = "/v1/triggers/{id}", tag = "triggers", operation_id = "getTrigger",
    params(("id" = String, Path, description = "The trigger's id")),
    responses((status = 200, description = "The trigger", body = Trigger,
        headers(("ETag" = String, description = "The generation, for If-Match"),
            ("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn get(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    PathId(id): PathId,
) -> Result<Response, Problem> {
    let (trigger, freshness) = api.find_trigger(&caller, &id).await?;
    let generation = trigger.generation;
    let mut response =
        view_response(&freshness, Trigger::from(trigger).with_as_of(freshness.as_of));
    set_etag(&mut response, generation);
    Ok(response)
}

/// List the executions of a trigger: every attempt, the newest first.
#[utoipa::path(
    get, path = "/v1/triggers/{id}/executions", tag = "triggers", operation_id = "listExecutions",
    params(("id" = String, Path, description = "The trigger's id"), ExecutionQuery),
    responses((status = 200, description = "A page", body = ExecutionList,
        headers(("Orloj-View-As-Of" = String, description = "Up to when it is complete"))))
)]
pub(super) async fn executions(
    State(api): State<Arc<Api>>,
    Viewer(caller): Viewer,
    PathId(id): PathId,
    Query(query): Query<ExecutionQuery>,
) -> Result<Response, Problem> {
    let page = read_page(query.page_size, query.page_token.as_deref())?;
    let freshness = api.wait_for_view().await;
    let found = api.view.executions(&scope_of(&caller), &id, query.status, &page).await;
    let Some(listing) = found.map_err(view_error)? else {
        let unknown = freshness.reached.then(|| unknown_trigger(&id));
        return Err(unknown.unwrap_or_else(|| view_lagging(&freshness)));
    };
    let (items, next_page_token) = page_items(listing);
    let as_of = format_time(freshness.as_of);
    Ok(view_response(&freshness, ExecutionList { items, next_page_token, as_of }))
}

impl RegisterResponse {
    pub(super) fn of(id: &str, generation: Offset, fire_at: Timestamp) -> Self {
        let (trigger_id, fire_at) = (id.to_owned(), format_time(fire_at));
        Self { trigger_id, fire_at, generation, replaced: None, kept: None }
    }

    /// The response, with the path of the trigger.
    pub(super) fn response(self, status: StatusCode) -> Response {
        let (id, generation) = (self.trigger_id.clone(), self.generation);
        let mut response = (status, Json(self)).into_response();
        set_etag(&mut response, generation);
        set_location(&mut response, &id);
        response
    }
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

/// The page that a query requests.
pub(super) fn read_page(size: Option<u32>, token: Option<&str>) -> Result<Page, Problem> {
    let named = |name: &str, reason: String| {
        invalid_parameter(&format!("{name}: {reason}")).with("parameter", json!(name))
    };
    if let Some(size) = size.filter(|size| !(1..=view::PAGE_MAX).contains(size)) {
        return Err(named("page_size", format!("write 1 to {}, not {size}", view::PAGE_MAX)));
    }
    let token = token.map(str::parse).transpose();
    let token = token.map_err(|error: view::InvalidPageToken| view_error(error.into()))?;
    Ok(Page { size: size.unwrap_or(view::PAGE_DEFAULT), token })
}

/// The items of a page as resources, and the token of the next page.
pub(super) fn page_items<V, T: From<V>>(listing: Listing<V>) -> (Vec<T>, Option<String>) {
    let items = listing.items.into_iter().map(T::from).collect();
    (items, listing.next.map(|token| token.to_string()))
}

/// The largest body with one payload, in bytes.
pub(super) fn body_max(payload_max: u64) -> u64 {
    payload_max.min(limits::PAYLOAD_BYTES_MAX as u64) + BODY_OVERHEAD
}

/// The record of a registration, if it passes all checks.
pub(super) async fn prepare(
    api: &Api,
    caller: &Caller,
    trigger: NewTrigger,
    late: LatePolicy,
) -> Result<Submission, Problem> {
    let (when, target) = (trigger.when, trigger.target.clone());
    let submission = Submission::register(trigger, api.rules())?;
    check_fire_time(when, late)?;
    api.check_target(&target, caller).await?;
    // Also if that trigger has settled: its history is still shown under the id.
    if api.belongs_to_other_caller(caller, &submission.id).await {
        return Err(id_taken(&submission.id));
    }
    api.check_pending_limit(caller, &submission.id).await?;
    Ok(submission)
}

/// Refuses a time that has passed, unless the request allows it.
fn check_fire_time(when: Option<FireTime>, late: LatePolicy) -> Result<(), Problem> {
    let now = clock::now_ms();
    match when {
        Some(FireTime::At(at)) if at < now && late == LatePolicy::Refuse => {
            let reason = format!("{} has passed: it is {}", format_time(at), format_time(now));
            Err(Problem::at(ErrorCode::TimePassed, FieldError::of("fireAt", reason)))
        }
        _ => Ok(()),
    }
}

/// The owner has rejected the registration.
pub(super) fn rejected(id: &str, reason: &str) -> Problem {
    Problem::of(ErrorCode::Rejected, reason).with("triggerId", json!(id))
}

/// Copies the trace of a request to its trigger, unless the trigger has one of its own.
pub(super) fn copy_trace_headers(request: &HeaderMap, headers: &mut Vec<(String, Vec<u8>)>) {
    let is_traced = |(name, _): &(String, _)| name.eq_ignore_ascii_case("traceparent");
    if headers.iter().any(is_traced) || !request.contains_key("traceparent") {
        return;
    }
    for name in ["traceparent", "tracestate"] {
        let value = request.get(name).map(|value| value.as_bytes().to_vec());
        headers.extend(value.map(|value| (name.to_owned(), value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_of_a_request_goes_with_its_trigger() {
        let mut request = HeaderMap::new();
        let mut carried = Vec::new();
        request.insert("tracestate", "a=1".parse().unwrap());
        copy_trace_headers(&request, &mut carried);
        assert_eq!(carried, [], "a state of no trace");

        request.insert("traceparent", "00-1".parse().unwrap());
        copy_trace_headers(&request, &mut carried);
        let expected = [("traceparent", "00-1"), ("tracestate", "a=1")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(carried, expected);

        let own = [("Traceparent".to_owned(), b"00-2".to_vec())];
        carried = own.to_vec();
        copy_trace_headers(&request, &mut carried);
        assert_eq!(carried, own);
    }

    #[test]
    fn a_time_that_has_passed_is_refused_unless_it_may_be_late() {
        assert!(check_fire_time(Some(FireTime::At(1)), LatePolicy::Refuse).is_err());
        assert_eq!(check_fire_time(Some(FireTime::At(1)), LatePolicy::Fire), Ok(()));
        assert_eq!(check_fire_time(Some(FireTime::At(u64::MAX)), LatePolicy::Refuse), Ok(()));
        assert_eq!(check_fire_time(Some(FireTime::After(0)), LatePolicy::Refuse), Ok(()));
        assert_eq!(check_fire_time(None, LatePolicy::Refuse), Ok(()));
    }

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
