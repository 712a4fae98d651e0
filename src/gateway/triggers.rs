//! `/v1/triggers`: registering and cancelling, answered truthfully.
//!
//! Law: 2xx other than 202 means that the owner said so in its transaction. 202 means that the
//! record is safe and the answer is still to come.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, post};
use axum::{Json, Router};
use bytes::Bytes;
use serde_json::json;

use super::problem::Problem;
use super::request::{read_trigger, show_time};
use super::submission::{Submission, check_pool};
use super::{Desk, Receipt, SubmitError};
use crate::clock;
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::model::definition::Target;
use crate::model::limits;
use crate::model::outcome::Verdict;

/// What a body may have beside its payload: an id, a URL, headers, and their JSON.
const BODY_OVERHEAD: u64 = 4 * limits::HEADER_BYTES_MAX as u64;

/// What the handlers share.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) desk: Desk,
    pub(super) health: Arc<Health>,
    pub(super) names: Names,
    pub(super) pools: Vec<String>,
    pub(super) payload_max: u64,
    pub(super) answer_timeout: Duration,
    pub(super) guard: Guard,
    pub(super) resolve_timeout: Duration,
}

/// The routes of triggers.
pub(super) fn routes(api: Arc<Api>) -> Router {
    let body_max = usize::try_from(api.payload_max + BODY_OVERHEAD).unwrap_or(usize::MAX);
    Router::new()
        .route("/v1/triggers", post(register))
        .route("/v1/triggers/{id}", delete(cancel))
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(body_max))
        .with_state(api)
}

async fn register(
    State(api): State<Arc<Api>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let body = body.map_err(|refused| Problem::new(refused.status(), refused.body_text()))?;
    let trigger = read_trigger(&body, api.payload_max)?;
    check_pool(&trigger.target, &api.pools)?;
    let id = trigger.id.clone();
    let target = trigger.target.clone();
    let submission = Submission::register(trigger, &api.names, clock::now_ms())?;
    api.admit(&target).await?;
    let receipt = api.submit(submission).await?;
    match receipt.verdict() {
        Some(Verdict::Accepted { generation, fire_at, .. }) => {
            let fire_at = show_time(*fire_at);
            let body = json!({ "triggerId": id, "fireAt": fire_at, "generation": generation });
            Ok((StatusCode::CREATED, Json(body)).into_response())
        }
        Some(Verdict::Rejected { reason }) => {
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, reason);
            Err(problem.with("triggerId", json!(id)))
        }
        _ => Ok(api.unanswered(&id, &receipt)),
    }
}

async fn cancel(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let receipt = api.submit(Submission::cancel(&id)?).await?;
    match receipt.verdict() {
        Some(Verdict::Cancelled { generation }) => {
            Ok(Json(json!({ "cancelled": true, "generation": generation })).into_response())
        }
        Some(Verdict::NotPending { fired, withdrawal }) => {
            Err(not_pending(&id, *fired, *withdrawal))
        }
        _ => Ok(api.unanswered(&id, &receipt)),
    }
}

impl Api {
    /// Refuses a callback that no worker would make.
    async fn admit(&self, target: &Target) -> Result<(), Problem> {
        let Target::Http(target) = target else { return Ok(()) };
        let url = target.url.as_str();
        let admitted = self.guard.admit(url, None, self.resolve_timeout).await;
        admitted.map_err(|forbidden| {
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, forbidden.to_string());
            problem.with("field", json!("callbackUrl"))
        })
    }

    async fn submit(&self, submission: Submission) -> Result<Receipt, Problem> {
        let reasons = self.health.reasons();
        if !reasons.is_empty() {
            return Err(Problem::unavailable(reasons.join("; ")));
        }
        let id = submission.id.clone();
        self.desk.submit(submission).await.map_err(|error| match error {
            SubmitError::Busy(_) => Problem::unavailable(error.to_string()),
            // The id makes repeating harmless, even if the record was written after all.
            SubmitError::Unwritten(_) => {
                let detail = format!("{error}; repeat the request with this triggerId");
                Problem::unavailable(detail).with("triggerId", json!(id))
            }
        })
    }

    /// 202: the record is written, and whoever wants to know more is told where to look.
    fn unanswered(&self, id: &str, receipt: &Receipt) -> Response {
        let outcomes = self.names.outcomes();
        let detail = format!(
            "{} is written; its owner has not answered within {:?}. The answer will be a record \
             of {outcomes} with the key {id}",
            receipt.place, self.answer_timeout,
        );
        (StatusCode::ACCEPTED, Json(json!({ "triggerId": id, "detail": detail }))).into_response()
    }
}

fn not_pending(id: &str, fired: Option<u64>, withdrawal: bool) -> Problem {
    let detail = match fired {
        Some(generation) => format!("{id} has fired: generation {generation}"),
        None => format!("nothing is pending under {id}: fired, cancelled, or never registered"),
    };
    let detail = if withdrawal {
        detail + "; a callback under way, if there is one, will not be tried again"
    } else {
        detail
    };
    Problem::new(StatusCode::CONFLICT, detail)
        .with("cancelled", json!(false))
        .with("fired", json!(fired))
        .with("withdrawalRequested", json!(withdrawal))
}

async fn method_not_allowed() -> Problem {
    let detail = "POST /v1/triggers registers, DELETE /v1/triggers/{id} cancels";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}
