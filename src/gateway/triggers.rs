//! `/v1/triggers`: registering, cancelling and commanding, answered truthfully.
//!
//! Law: 2xx other than 202 means that the owner said so in its transaction. 202 means that the
//! record is safe and the answer is still to come.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRef, FromRequest, Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, post};
use axum::{Json, Router};
use bytes::Bytes;
use serde_json::json;

use super::identity::{Identity, Registrant};
use super::judge::Judge;
use super::problem::Problem;
use super::request::read_trigger;
use super::submission::{Rules, Submission};
use super::{Desk, Receipt, SubmitError};
use crate::clock;
use crate::config::callers::Caller;
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::model::course::Command;
use crate::model::definition::Target;
use crate::model::limits;
use crate::model::outcome::Verdict;
use crate::model::time::show_time;

/// What a body may have beside its payload: an id, a URL, headers, and their JSON.
const BODY_OVERHEAD: u64 = 4 * limits::HEADER_BYTES_MAX as u64;

/// The commands there are.
const VERBS: &str = "POST /v1/triggers/{id} takes a command: write {id}:pause, {id}:resume or \
                     {id}:fireNow";

/// What the handlers share.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) desk: Desk,
    pub(super) health: Arc<Health>,
    pub(super) names: Names,
    pub(super) pools: Vec<String>,
    pub(super) judge: Judge,
    pub(super) identity: Identity,
    pub(super) answer_timeout: Duration,
    pub(super) guard: Guard,
    pub(super) resolve_timeout: Duration,
}

impl FromRef<Arc<Api>> for Identity {
    fn from_ref(api: &Arc<Api>) -> Self {
        api.identity.clone()
    }
}

/// The routes of triggers.
pub(super) fn routes(api: Arc<Api>) -> Router {
    Router::new()
        .route("/v1/triggers", post(register))
        .route("/v1/triggers/{id}", delete(cancel).post(command))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(api)
}

async fn register(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    request: Request,
) -> Result<Response, Problem> {
    let payload_max = caller.limits.payload.bytes();
    let asked_with = request.headers().clone();
    let mut trigger = read_trigger(&read_body(request, payload_max).await?, payload_max)?;
    carry_trace(&asked_with, &mut trigger.headers);
    api.identity.check_target(&caller, &trigger.target)?;
    let id = trigger.id.clone();
    let target = trigger.target.clone();
    let submission = Submission::register(trigger, api.rules())?;
    api.admit(&target, &caller).await?;
    let receipt = api.submit(submission, &caller).await?;
    match receipt.verdict() {
        Some(Verdict::Accepted { generation, fire_at, .. }) => {
            let fire_at = show_time(*fire_at);
            let body = json!({ "triggerId": id, "fireAt": fire_at, "generation": generation });
            Ok((StatusCode::CREATED, Json(body)).into_response())
        }
        Some(Verdict::Kept { generation, fire_at }) => {
            let fire_at = show_time(*fire_at);
            let body = json!({
                "triggerId": id, "fireAt": fire_at, "generation": generation, "kept": true,
            });
            Ok(Json(body).into_response())
        }
        Some(Verdict::Rejected { reason }) => {
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, reason);
            Err(problem.with("triggerId", json!(id)))
        }
        _ => Ok(api.unanswered(&id, &receipt)),
    }
}

async fn cancel(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let receipt = api.submit(Submission::cancel(&id)?, &caller).await?;
    match receipt.verdict() {
        Some(Verdict::Cancelled { generation }) => {
            Ok(Json(json!({ "cancelled": true, "generation": generation })).into_response())
        }
        Some(Verdict::NotPending { fired, withdrawal }) => {
            Err(not_pending(&id, *fired, withdrawal.then(|| api.names.outcomes())))
        }
        _ => Ok(api.unanswered(&id, &receipt)),
    }
}

/// `POST /v1/triggers/{id}:pause` and the like.
async fn command(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    Path(path): Path<String>,
) -> Result<Response, Problem> {
    let (id, verb) = path.rsplit_once(':').unwrap_or((&path, ""));
    let command = match verb {
        "pause" => Command::Pause,
        "resume" => Command::Resume,
        "fireNow" => Command::FireNow,
        _ => return Err(Problem::new(StatusCode::NOT_FOUND, VERBS)),
    };
    let receipt = api.submit(Submission::command(id, command)?, &caller).await?;
    let answer = match receipt.verdict() {
        Some(Verdict::Paused { generation, .. }) => {
            json!({ "triggerId": id, "paused": true, "generation": generation })
        }
        Some(Verdict::Resumed { generation, fire_at }) => {
            let fire_at = show_time(*fire_at);
            json!({ "triggerId": id, "resumed": true, "generation": generation, "fireAt": fire_at })
        }
        Some(Verdict::Called { generation, occurrence }) => json!({
            "triggerId": id, "called": true, "generation": generation, "occurrence": occurrence,
        }),
        Some(Verdict::NotPending { fired, .. }) => {
            let problem = Problem::new(StatusCode::CONFLICT, nothing_pending(id, *fired));
            return Err(problem.with("fired", json!(fired)));
        }
        _ => return Ok(api.unanswered(id, &receipt)),
    };
    Ok(Json(answer).into_response())
}

impl Api {
    fn rules(&self) -> Rules<'_> {
        let Self { names, pools, judge, .. } = self;
        Rules { names, pools, judge, now: clock::now_ms() }
    }

    /// Refuses a callback that no worker would make.
    async fn admit(&self, target: &Target, caller: &Caller) -> Result<(), Problem> {
        let Target::Http(target) = target else { return Ok(()) };
        let (url, bases) = (target.url.as_str(), caller.urls.as_deref());
        let admitted = self.guard.admit(url, bases, self.resolve_timeout).await;
        admitted.map_err(|forbidden| {
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, forbidden.to_string());
            problem.with("field", json!("callbackUrl"))
        })
    }

    async fn submit(&self, submission: Submission, caller: &Caller) -> Result<Receipt, Problem> {
        // Without callers nobody is known, and a record says so by saying nothing.
        let is_known = !caller.is_anonymous();
        let submission = if is_known { submission.by(&caller.id) } else { submission };
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

/// The whole body, if it is no larger than a payload and what may stand around it.
async fn read_body(mut request: Request, payload_max: u64) -> Result<Bytes, Problem> {
    let max = payload_max.min(limits::PAYLOAD_BYTES_MAX as u64) + BODY_OVERHEAD;
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    DefaultBodyLimit::max(max).apply(&mut request);
    let body = Bytes::from_request(request, &()).await;
    body.map_err(|refused| Problem::new(refused.status(), refused.body_text()))
}

/// The trace that a request is part of goes with its trigger, unless that has one of its own.
fn carry_trace(request: &HeaderMap, carried: &mut Vec<(String, Vec<u8>)>) {
    let is_traced = |(name, _): &(String, _)| name.eq_ignore_ascii_case("traceparent");
    if carried.iter().any(is_traced) || !request.contains_key("traceparent") {
        return;
    }
    for name in ["traceparent", "tracestate"] {
        let value = request.get(name).map(|value| value.as_bytes().to_vec());
        carried.extend(value.map(|value| (name.to_owned(), value)));
    }
}

/// `outcomes`: where to read on, if a withdrawal is requested.
fn not_pending(id: &str, fired: Option<u64>, outcomes: Option<String>) -> Problem {
    let detail = nothing_pending(id, fired);
    let withdrawal = outcomes.is_some();
    let detail = match outcomes {
        Some(outcomes) => format!(
            "{detail}; withdrawal requested: a callback in flight, if there is one, is not tried \
             again, and records of {outcomes} with the key {id} say what becomes of it: Withdrawn \
             if its request had not begun, else Delivered or Failed"
        ),
        None => detail,
    };
    Problem::new(StatusCode::CONFLICT, detail)
        .with("cancelled", json!(false))
        .with("fired", json!(fired))
        .with("withdrawalRequested", json!(withdrawal))
}

fn nothing_pending(id: &str, fired: Option<u64>) -> String {
    match fired {
        Some(generation) => format!("{id} has fired: generation {generation}"),
        None => format!("nothing is pending under {id}: fired, cancelled, or never registered"),
    }
}

async fn method_not_allowed() -> Problem {
    let detail = "POST /v1/triggers registers, DELETE /v1/triggers/{id} cancels, and POST \
                  /v1/triggers/{id}:pause, :resume and :fireNow command";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_of_a_request_goes_with_its_trigger() {
        let mut request = HeaderMap::new();
        let mut carried = Vec::new();
        request.insert("tracestate", "a=1".parse().unwrap());
        carry_trace(&request, &mut carried);
        assert_eq!(carried, [], "a state of no trace");

        request.insert("traceparent", "00-1".parse().unwrap());
        carry_trace(&request, &mut carried);
        let expected = [("traceparent", "00-1"), ("tracestate", "a=1")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(carried, expected);

        let own = [("Traceparent".to_owned(), b"00-2".to_vec())];
        carried = own.to_vec();
        carry_trace(&request, &mut carried);
        assert_eq!(carried, own);
    }
}
