//! What all routes that register a trigger share: the checks, and the response.
//!
//! Invariant: nothing is written that fails a check, and the checks are the same for every route.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::trigger_body::LatePolicy;
use crate::callers::Caller;
use crate::client::{FireTime, NewTrigger, Submission};
use crate::gateway::api::{Api, id_taken, set_etag, set_location};
use crate::gateway::http::{ErrorCode, FieldError, Problem};
use crate::model::time::format_time;
use crate::model::{Offset, Timestamp};

/// The owner has registered it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Registered)]
pub(crate) struct RegisterResponse {
    trigger_id: String,
    /// When it fires for the first time.
    #[schema(format = DateTime)]
    fire_at: String,
    /// Which registration it is of.
    #[schema(value_type = u64)]
    generation: Offset,
    /// What defines the trigger now: its ETag. Absent if one was kept: GET it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    revision: Option<Offset>,
    /// The generation that it replaces, if one was pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    replaced: Option<Offset>,
    /// True if one was pending and onConflict is keep: then this is the pending one.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<bool>,
}

impl RegisterResponse {
    /// A registered trigger.
    pub(crate) fn of(id: &str, generation: Offset, fire_at: Timestamp) -> Self {
        let (trigger_id, fire_at) = (id.to_owned(), format_time(fire_at));
        let (revision, replaced, kept) = (Some(generation), None, None);
        Self { trigger_id, fire_at, generation, revision, replaced, kept }
    }

    /// A trigger that the record at `revision` has changed.
    pub(crate) fn changed(id: &str, generation: Offset, revision: Offset, due: Timestamp) -> Self {
        Self { revision: Some(revision), ..Self::of(id, generation, due) }
    }

    /// The pending trigger, which is kept.
    pub(crate) fn kept(id: &str, generation: Offset, fire_at: Timestamp) -> Self {
        Self { kept: Some(true), revision: None, ..Self::of(id, generation, fire_at) }
    }

    /// Adds the generation that it replaces, if one was pending.
    pub(crate) fn replacing(self, replaced: Option<Offset>) -> Self {
        Self { replaced, ..self }
    }

    /// The response, with the path of the trigger.
    pub(crate) fn response(self, status: StatusCode) -> Response {
        let (id, revision) = (self.trigger_id.clone(), self.revision);
        let mut response = (status, Json(self)).into_response();
        if let Some(revision) = revision {
            set_etag(&mut response, revision);
        }
        set_location(&mut response, &id);
        response
    }
}

/// The record of a registration, if it passes all checks.
pub(crate) async fn prepare(
    api: &Api,
    caller: &Caller,
    trigger: NewTrigger,
    late: LatePolicy,
) -> Result<Submission, Problem> {
    let (when, target) = (trigger.when, trigger.target.clone());
    let submission = Submission::register(trigger, api.rules())?;
    check_fire_time(when, late, api.view.now())?;
    api.check_target(&target, caller).await?;
    // Also if that trigger has settled: its history is still shown under the id.
    if api.belongs_to_other_caller(caller, &submission.id).await {
        return Err(id_taken(&submission.id));
    }
    api.check_pending_limit(caller, &submission.id).await?;
    Ok(submission)
}

/// Refuses a time that has passed, unless the request allows it.
fn check_fire_time(
    when: Option<FireTime>,
    late: LatePolicy,
    now: Timestamp,
) -> Result<(), Problem> {
    match when {
        Some(FireTime::At(at)) if at < now && late == LatePolicy::Refuse => {
            let reason = format!("{} has passed: it is {}", format_time(at), format_time(now));
            Err(Problem::at(ErrorCode::TimePassed, FieldError::of("fireAt", reason)))
        }
        _ => Ok(()),
    }
}

/// The owner has rejected the registration.
pub(crate) fn rejected(id: &str, reason: &str) -> Problem {
    Problem::of(ErrorCode::Rejected, reason).with("triggerId", json!(id))
}

/// Copies the trace of a request to its trigger, unless the trigger has one of its own.
pub(crate) fn copy_trace_headers(request: &HeaderMap, headers: &mut Vec<(String, Vec<u8>)>) {
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
        let check = |when, late| check_fire_time(when, late, 7);
        assert!(check(Some(FireTime::At(6)), LatePolicy::Refuse).is_err());
        assert_eq!(check(Some(FireTime::At(6)), LatePolicy::Fire), Ok(()));
        assert_eq!(check(Some(FireTime::At(7)), LatePolicy::Refuse), Ok(()));
        assert_eq!(check(Some(FireTime::After(0)), LatePolicy::Refuse), Ok(()));
        assert_eq!(check(None, LatePolicy::Refuse), Ok(()));
    }
}
