//! `PATCH /v1/triggers/{id}`: a JSON merge patch (RFC 7396) of what was registered, which is
//! written as a change of the trigger.
//!
//! Invariant: a field that the patch does not name stays byte for byte as it was registered. Its
//! state stays too: the owner has it, and accepts the change only if the trigger still has the
//! revision that was patched.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use utoipa::openapi::{RefOr, Schema};

use super::commands::not_pending;
use super::patched_trigger::{Patched, WRITABLE, apply_patch};
use super::registration::{RegisterResponse, prepare, rejected};
use super::trigger_body::TriggerBody;
use crate::callers::{Caller, CallerLimits};
use crate::client::SubmitResult;
use crate::gateway::api::{Api, id_taken, set_etag, view_lagging};
use crate::gateway::auth::Registrant;
use crate::gateway::http::{ErrorCode, IfMatch, PathId, Problem};
use crate::gateway::json_body::{JsonBody, RequestBody};
use crate::model::Offset;
use crate::model::outcome::OutcomeKind;
use crate::view::FINGERPRINT_HEADER;

/// How often a patch without a condition is applied to a trigger that others change meanwhile.
const PLANS_MAX: usize = 3;

/// Change a trigger that has not settled: a JSON merge patch of what can be registered.
///
/// A repetition fires nothing a second time. It applies the patch again, so that delaySeconds
/// counts from then; with If-Match it is answered 412 if the first one was done.
#[utoipa::path(
    patch, path = "/v1/triggers/{id}", tag = "triggers", operation_id = "updateTrigger",
    params(
        ("id" = String, Path, description = "The trigger's id"),
        ("If-Match" = Option<String>, Header,
            pattern = r#"^(\*|([0-9]+|"[0-9]+")( *, *([0-9]+|"[0-9]+"))*)$"#,
            example = json!("\"41\""),
            description = "The ETag of the trigger that is to be changed; the newest if not given"),
    ),
    request_body(
        content = TriggerPatch, content_type = "application/merge-patch+json",
        description = "Fields of a registration; null takes one away"
    ),
    responses(
        (status = 200, description = "Changed", body = RegisterResponse,
            headers(("ETag" = String, description = "The new revision"))),
        (status = 202, description = "Written, and not answered in time",
            body = crate::gateway::api::Unanswered),
    )
)]
pub(crate) async fn patch(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    PathId(id): PathId,
    IfMatch(expected): IfMatch,
    patch: JsonBody<TriggerPatch>,
) -> Result<Response, Problem> {
    for _ in 0..PLANS_MAX {
        let planned = plan(&api, &caller, &id, expected.as_deref(), patch.bytes()).await?;
        let result = write(&api, &id, planned).await?;
        match result.outcome_kind() {
            // Another gateway has changed it: the next plan waits for that, because the view must
            // have this outcome. Only with If-Match it is refused.
            Some(OutcomeKind::Kept { .. }) if expected.is_none() => {}
            outcome => return respond(&api, &caller, &id, (&result, outcome)).await,
        }
    }
    Err(Problem::unavailable(format!("others change {id} all the time")))
}

/// Applies the patch to the trigger as it was when the request arrived, or later.
async fn plan(
    api: &Api,
    caller: &Caller,
    id: &str,
    expected: Option<&[Offset]>,
    patch: &[u8],
) -> Result<PlannedPatch, Problem> {
    let started = api.view.now();
    match PlannedPatch::of(api, caller, id, expected, patch).await {
        // What refuses it may be older than what another gateway has answered before.
        Err(problem) if problem.is_of_state() => {
            let freshness = api.wait_for_id_until(id, started).await;
            if !freshness.reached {
                return Err(view_lagging(&freshness));
            }
            PlannedPatch::of(api, caller, id, expected, patch).await
        }
        planned => planned,
    }
}

/// Writes the change, and awaits its outcome.
async fn write(api: &Api, id: &str, planned: PlannedPatch) -> Result<SubmitResult, Problem> {
    let PlannedPatch { generation, revision, registered_by, patched } = planned;
    let Patched { trigger: mut changed, late, parts } = patched;
    // The trigger stays its caller's, even if an operator changes it.
    let owner = api.callers.for_record(registered_by.as_deref());
    let first = api.original_request(id, generation).await?;
    let carried = first.and_then(|first| first.to_header());
    changed
        .metadata_headers
        .extend(carried.map(|text| (FINGERPRINT_HEADER.to_owned(), text.into_bytes())));
    let submission = prepare(api, &owner, changed, late).await?;
    let submission = submission.if_generation(revision).as_change(parts);
    let submission = match &registered_by {
        Some(caller) => submission.with_caller(caller),
        None => submission,
    };
    api.write(submission).await
}

async fn respond(
    api: &Api,
    caller: &Caller,
    id: &str,
    (result, outcome): (&SubmitResult, Option<&OutcomeKind>),
) -> Result<Response, Problem> {
    match outcome {
        Some(OutcomeKind::Changed { generation, revision, fire_at, .. }) => {
            let changed = RegisterResponse::changed(id, *generation, *revision, *fire_at);
            let mut response = Json(changed).into_response();
            set_etag(&mut response, *revision);
            Ok(response)
        }
        Some(OutcomeKind::Kept { generation, .. }) => Err(revision_differs(id, *generation)),
        Some(OutcomeKind::NotPending { fired, .. }) => {
            Err(not_pending(api, caller, id, *fired, None).await)
        }
        Some(OutcomeKind::Taken { .. }) => Err(id_taken(id)),
        Some(OutcomeKind::Rejected { reason }) => Err(rejected(id, reason)),
        _ => Ok(api.unanswered(id, result)),
    }
}

/// A patch, and what it is applied to.
struct PlannedPatch {
    generation: Offset,
    revision: Offset,
    registered_by: Option<String>,
    patched: Patched,
}

impl PlannedPatch {
    /// Applies the patch to what the view has, if that is what is expected.
    async fn of(
        api: &Api,
        caller: &Caller,
        id: &str,
        expected: Option<&[Offset]>,
        patch: &[u8],
    ) -> Result<Self, Problem> {
        let (trigger, _freshness) = api.find_trigger(caller, id).await?;
        let (generation, revision) = (trigger.generation, trigger.revision);
        if trigger.status.is_settled() {
            let problem = Problem::of(ErrorCode::Settled, format!("{id} has settled"));
            return Err(problem.with("triggerStatus", json!(trigger.status)));
        }
        let registered_by = trigger.caller.clone();
        let patched = apply_patch(trigger, patch, caller.limits.payload.bytes())?;
        // Checked after everything else that refuses a request: RFC 9110, section 13.2.1.
        if expected.is_some_and(|expected| !expected.contains(&revision)) {
            return Err(revision_differs(id, revision));
        }
        Ok(Self { generation, revision, registered_by, patched })
    }
}

/// The schema of a patch: the fields of a registration, without those that cannot be changed.
#[derive(Debug)]
pub(crate) struct TriggerPatch;

impl RequestBody for TriggerPatch {
    fn bytes_max(limits: &CallerLimits) -> u64 {
        TriggerBody::bytes_max(limits)
    }
}

impl utoipa::PartialSchema for TriggerPatch {
    fn schema() -> RefOr<Schema> {
        let mut schema = <TriggerBody as utoipa::PartialSchema>::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            object.properties.retain(|name, _| WRITABLE.contains(&name.as_str()));
            object.examples = vec![json!({"name": "Green tea", "expireAfter": null})];
        }
        schema
    }
}

impl utoipa::ToSchema for TriggerPatch {}

fn revision_differs(id: &str, revision: Offset) -> Problem {
    let detail = format!("{id} has revision {revision} now");
    Problem::of(ErrorCode::GenerationDiffers, detail).with("revision", json!(revision))
}
