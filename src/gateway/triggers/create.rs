//! `POST /v1/triggers`: registering a trigger.
//!
//! Invariant: a registration is refused before it is written, or answered with its outcome.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::idempotent_create::{IdempotentCreate, OptionalKey};
use super::registration::{RegisterResponse, copy_trace_headers, prepare, rejected};
use super::trigger_body::TriggerBody;
use crate::gateway::api::{Api, id_taken};
use crate::gateway::auth::Registrant;
use crate::gateway::http::Problem;
use crate::gateway::json_body::JsonBody;
use crate::model::outcome::OutcomeKind;

/// Register a trigger, or replace the one that is pending under its id.
///
/// A repetition without an Idempotency-Key registers again: if the first one has fired already, it
/// fires a second time, and without a triggerId it is another trigger.
#[utoipa::path(
    post, path = "/v1/triggers", tag = "triggers", operation_id = "createTrigger",
    params(("Idempotency-Key" = Option<String>, Header,
        min_length = 1, max_length = 255, pattern = "^[!-~]([ -~]*[!-~])?$",
        description = "The id is derived from it: requests with the same key and body create one \
            trigger and get the same response, until 24 hours after the trigger has settled")),
    request_body = TriggerBody,
    responses(
        (status = 201, description = "Registered", body = RegisterResponse,
            headers(("ETag" = String, description = "The revision"),
                ("Location" = String, description = "The path of the trigger"))),
        (status = 200, description = "One was pending, and is kept", body = RegisterResponse),
        (status = 202, description = "Written, and not answered in time",
            body = crate::gateway::api::Unanswered,
            headers(("Location" = String, description = "The path of the trigger"))),
    )
)]
pub(crate) async fn register(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    OptionalKey(key): OptionalKey,
    headers: HeaderMap,
    json: JsonBody<TriggerBody>,
) -> Result<Response, Problem> {
    let body = json.parse()?;
    if let Some(key) = key {
        let (api, caller, bytes) = (&*api, &*caller, json.bytes());
        return IdempotentCreate { api, caller, key, bytes, headers }.create(body).await;
    }
    let late = body.late.unwrap_or_default();
    let mut trigger = body.into_trigger(caller.limits.payload.bytes())?;
    copy_trace_headers(&headers, &mut trigger.headers);
    let submission = prepare(&api, &caller, trigger, late).await?;
    let id = submission.id.clone();
    let result = api.submit(submission, &caller).await?;
    match result.outcome_kind() {
        Some(OutcomeKind::Accepted { generation, fire_at, replaced }) => {
            let registered = RegisterResponse::of(&id, *generation, *fire_at);
            Ok(registered.replacing(*replaced).response(StatusCode::CREATED))
        }
        Some(OutcomeKind::Kept { generation, fire_at }) => {
            let existing = RegisterResponse::kept(&id, *generation, *fire_at);
            Ok(existing.response(StatusCode::OK))
        }
        Some(OutcomeKind::Taken { .. }) => Err(id_taken(&id)),
        Some(OutcomeKind::Rejected { reason }) => Err(rejected(&id, reason)),
        _ => Ok(api.unanswered(&id, &result)),
    }
}
