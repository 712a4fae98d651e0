//! Cancelling a trigger, and the commands `{id}:pause`, `{id}:resume` and `{id}:fireNow`.
//!
//! Invariant: a response is the owner's outcome. If nothing was pending, it says what
//! happened to the trigger, for callers that may read it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use utoipa::{OpenApi, ToSchema};

use super::idempotent_create::idempotency_key;
use crate::callers::Caller;
use crate::client::Submission;
use crate::gateway::api::{Api, unknown_trigger};
use crate::gateway::auth::{Registrant, scope_of};
use crate::gateway::http::ErrorCode;
use crate::gateway::http::PathId;
use crate::gateway::http::Problem;
use crate::gateway::idempotency::IdempotencyKey;
use crate::model::Offset;
use crate::model::lifecycle::Command;
use crate::model::outcome::OutcomeKind;
use crate::model::time::format_time;
use crate::view::Status;

/// The available commands.
const COMMAND_HINT: &str = "POST /v1/triggers/{id} takes a command: write {id}:pause, \
                            {id}:resume or {id}:fireNow";

/// This generation does not fire any more.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Cancelled)]
pub(crate) struct CancelResponse {
    /// Always true; a cancel that was too late is a problem.
    cancelled: bool,
    #[schema(value_type = u64)]
    generation: Offset,
}

/// It does not fire until it is resumed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Paused)]
pub(crate) struct PauseResponse {
    trigger_id: String,
    paused: bool,
    #[schema(value_type = u64)]
    generation: Offset,
}

/// It continues.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Resumed)]
pub(crate) struct ResumeResponse {
    trigger_id: String,
    resumed: bool,
    #[schema(value_type = u64)]
    generation: Offset,
    /// When it is due; a time in the past is handled at once.
    #[schema(format = DateTime)]
    fire_at: String,
}

/// It fires at once.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Called)]
pub(crate) struct FireNowResponse {
    trigger_id: String,
    called: bool,
    #[schema(value_type = u64)]
    generation: Offset,
    /// The occurrence that fires.
    occurrence: u32,
}

/// The paths of the commands in the OpenAPI document: a router has no suffix after a parameter, so
/// one handler serves them all.
#[derive(Debug, OpenApi)]
#[openapi(paths(pause, resume, fire_now))]
pub(crate) struct CommandPaths;

/// Cancel a trigger.
///
/// A repetition fires nothing. It is answered 409 if the first one was in time, and cancels what
/// was registered under the id in between.
#[utoipa::path(
    delete, path = "/v1/triggers/{id}", tag = "triggers", operation_id = "cancelTrigger",
    params(("id" = String, Path, description = "The trigger's id")),
    responses(
        (status = 200, description = "Cancelled in time: it never fires", body = CancelResponse),
        (status = 202, description = "Written, and not answered in time",
            body = crate::gateway::api::Unanswered),
    )
)]
pub(crate) async fn cancel(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    PathId(id): PathId,
) -> Result<Response, Problem> {
    let submission = Submission::cancel(&id)?;
    let result = api.submit_command(submission, &caller).await?;
    match result.outcome_kind() {
        Some(OutcomeKind::Cancelled { generation }) => {
            let body = CancelResponse { cancelled: true, generation: *generation };
            Ok(Json(body).into_response())
        }
        Some(OutcomeKind::NotPending { fired, withdrawal }) => {
            let outcomes = withdrawal.then(|| api.names.outcomes());
            let problem = not_pending(&api, &caller, &id, *fired, outcomes).await;
            Err(problem
                .with("cancelled", json!(false))
                .with("withdrawalRequested", json!(withdrawal)))
        }
        _ => Ok(api.unanswered(&id, &result)),
    }
}

/// Pause a trigger: it stays registered and does not fire.
///
/// A repetition changes nothing, unless the trigger was resumed or replaced in between.
#[utoipa::path(
    post, path = "/v1/triggers/{id}:pause", tag = "triggers", operation_id = "pauseTrigger",
    params(("id" = String, Path, description = "The trigger's id")),
    responses(
        (status = 200, description = "Paused", body = PauseResponse),
        (status = 202, description = "Written, and not answered in time",
            body = crate::gateway::api::Unanswered),
    )
)]
async fn pause(api: Arc<Api>, caller: Arc<Caller>, id: String) -> Result<Response, Problem> {
    run_command(api, caller, id, Command::Pause, None).await
}

/// Resume a trigger that is paused.
///
/// A repetition changes nothing, unless the trigger was paused or replaced in between.
#[utoipa::path(
    post, path = "/v1/triggers/{id}:resume", tag = "triggers", operation_id = "resumeTrigger",
    params(("id" = String, Path, description = "The trigger's id")),
    responses(
        (status = 200, description = "It continues", body = ResumeResponse),
        (status = 202, description = "Written, and not answered in time",
            body = crate::gateway::api::Unanswered),
    )
)]
async fn resume(api: Arc<Api>, caller: Arc<Caller>, id: String) -> Result<Response, Problem> {
    run_command(api, caller, id, Command::Resume, None).await
}

/// Fire a trigger at once: a one-time trigger instead of at its time, a recurring one once more.
///
/// A repetition without an Idempotency-Key fires a recurring trigger again.
#[utoipa::path(
    post, path = "/v1/triggers/{id}:fireNow", tag = "triggers", operation_id = "fireTriggerNow",
    params(
        ("id" = String, Path, description = "The trigger's id"),
        ("Idempotency-Key" = Option<String>, Header,
            min_length = 1, max_length = 255, pattern = "^[!-~]([ -~]*[!-~])?$",
            description = "Of requests with the same key one fires, and the others get the same \
                response; a trigger remembers the newest 16 keys")),
    responses(
        (status = 200, description = "It fires", body = FireNowResponse),
        (status = 202, description = "Written, and not answered in time",
            body = crate::gateway::api::Unanswered),
    )
)]
async fn fire_now(
    api: Arc<Api>,
    caller: Arc<Caller>,
    id: String,
    key: Option<IdempotencyKey>,
) -> Result<Response, Problem> {
    let key = key.map(|key| key.fire_now_key(&caller.id, &id));
    run_command(api, caller, id, Command::FireNow, key).await
}

/// `POST /v1/triggers/{id}:pause` and the like.
pub(crate) async fn command(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    PathId(path): PathId,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (id, verb) = path.rsplit_once(':').unwrap_or((&path, ""));
    let id = id.to_owned();
    match verb {
        "pause" => pause(api, caller, id).await,
        "resume" => resume(api, caller, id).await,
        "fireNow" => fire_now(api, caller, id, idempotency_key(&headers)?).await,
        _ => Err(Problem::of(ErrorCode::NoSuchRoute, COMMAND_HINT)),
    }
}

async fn run_command(
    api: Arc<Api>,
    caller: Arc<Caller>,
    id: String,
    command: Command,
    key: Option<String>,
) -> Result<Response, Problem> {
    let submission = Submission::command(&id, command)?;
    let _guard = key.as_ref().map(|key| api.in_flight.begin(key)).transpose()?;
    let submission = match &key {
        Some(key) => submission.with_idempotency_key(key),
        None => submission,
    };
    let result = api.submit_command(submission, &caller).await?;
    match result.outcome_kind() {
        Some(OutcomeKind::Paused { generation, .. }) => {
            let body = PauseResponse { trigger_id: id, paused: true, generation: *generation };
            Ok(Json(body).into_response())
        }
        Some(OutcomeKind::Resumed { generation, fire_at }) => {
            let (generation, fire_at) = (*generation, format_time(*fire_at));
            let body = ResumeResponse { trigger_id: id, resumed: true, generation, fire_at };
            Ok(Json(body).into_response())
        }
        Some(OutcomeKind::Called { generation, occurrence }) => {
            api.write_positions.observe_call(result.record.partition, api.view.now());
            let (generation, occurrence) = (*generation, *occurrence);
            let body = FireNowResponse { trigger_id: id, called: true, generation, occurrence };
            Ok(Json(body).into_response())
        }
        Some(OutcomeKind::NotPending { fired, .. }) => {
            Err(not_pending(&api, &caller, &id, *fired, None).await)
        }
        _ => Ok(api.unanswered(&id, &result)),
    }
}

/// The problem if nothing was pending: 404 if the trigger is unknown, else how it ended.
/// `outcomes`: the topic with the result of the withdrawal, if one is requested.
pub(crate) async fn not_pending(
    api: &Api,
    caller: &Caller,
    id: &str,
    fired: Option<Offset>,
    outcomes: Option<String>,
) -> Problem {
    let freshness = api.wait_for_id(id).await;
    let found = api.view.trigger(&scope_of(caller), id).await;
    let is_unknown = freshness.reached && matches!(found, Ok(None));
    // A cancel of an unknown trigger also requests a withdrawal, which has no effect.
    if fired.is_none() && is_unknown {
        return unknown_trigger(id);
    }
    // The owner's outcome is true, even if the view cannot be read.
    let known = found.ok().flatten().filter(|_| freshness.reached);
    // That it has fired may not be read yet: what waits by the view does not by its owner.
    let is_end = |status: &Status| status.is_settled() || *status == Status::InFlight;
    let status = known.map(|trigger| trigger.status).filter(is_end);
    let detail = match (fired, status) {
        // The owner knows that it has ended, and the view knows how.
        (_, Some(Status::Cancelled)) => format!("{id} was cancelled before"),
        (Some(generation), _) => format!("{id} has fired: generation {generation}"),
        (None, Some(status)) if status.is_settled() => {
            format!("{id} has settled: it is {status:?}")
        }
        (None, _) => {
            format!("nothing is pending under {id}: fired, cancelled, or never registered")
        }
    };
    let detail = match outcomes {
        Some(outcomes) => format!(
            "{detail}; withdrawal requested: a callback in flight, if there is one, is not tried \
             again, and records of {outcomes} with the key {id} say how it ends: Withdrawn if \
             its request was not started, else Delivered or Failed"
        ),
        None => detail,
    };
    let problem = Problem::of(ErrorCode::NotPending, detail).with("fired", json!(fired));
    match status {
        Some(status) => problem.with("triggerStatus", json!(status)),
        None => problem,
    }
}
