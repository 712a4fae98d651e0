//! What the handlers share: writing records, and reading the view.
//!
//! Invariant: 2xx other than 202 means that the owner committed it in its transaction, or that the
//! view has it, with the time up to which it is complete. 202 means that the record is written and
//! the outcome is not yet known.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::FromRef;
use axum::http::header::{ETAG, LOCATION};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use reqwest::Url;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::auth::{Authenticator, scope_of};
use super::idempotency::{InFlightRequests, OriginalRequest};
use super::write_positions::WritePositions;
use crate::callers::{Caller, Callers};
use crate::client::RegistrationValidator;
use crate::client::{Submission, SubmissionRules};
use crate::client::{SubmitError, SubmitResult, TriggerClient};
use crate::config::Settings;
use crate::dead_letters;
use crate::gateway::http::ErrorCode;
use crate::gateway::http::{FieldError, Problem};
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::model::definition::Target;
use crate::model::time::{format_time, whole_ms};
use crate::model::{Millis, Offset, PartitionId, Timestamp};
use crate::view::{Freshness, Scope, TriggerView, View, ViewError, WritePosition};

/// How long a read waits for this gateway's own writes.
pub(super) const VIEW_WAIT_MAX: Duration = Duration::from_secs(2);
/// By how much the clocks of two gateways differ at most.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);
/// Up to when a response from the view is complete.
pub(super) const AS_OF: HeaderName = HeaderName::from_static("orloj-view-as-of");

/// What the handlers share.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) client: TriggerClient,
    pub(super) view: View,
    /// [`VIEW_WAIT_MAX`], but in a simulation.
    pub(super) view_wait_max: Duration,
    pub(super) write_positions: WritePositions,
    pub(super) in_flight: InFlightRequests,
    pub(super) dead_letter_actions: dead_letters::DeadLetterActions,
    pub(super) settings: Settings,
    pub(super) health: Arc<Health>,
    pub(super) names: Names,
    pub(super) validator: RegistrationValidator,
    pub(super) callers: Callers,
    pub(super) authenticator: Authenticator,
    pub(super) guard: Guard,
}

/// 202: the record is written, and its owner has not answered in time.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Unanswered {
    trigger_id: String,
    /// Where the outcome will be.
    detail: String,
}

impl FromRef<Arc<Api>> for Authenticator {
    fn from_ref(api: &Arc<Api>) -> Self {
        api.authenticator.clone()
    }
}

impl Api {
    /// What the checks of a submission need.
    pub(super) fn rules(&self) -> SubmissionRules<'_> {
        let Self { names, validator, settings, .. } = self;
        SubmissionRules { names, pools: &settings.topics.pools, validator, now: self.view.now() }
    }

    /// Refuses a target that the caller may not use, and a callback that the guard forbids.
    pub(super) async fn check_target(
        &self,
        target: &Target,
        caller: &Caller,
    ) -> Result<(), Problem> {
        self.authenticator.check_target(caller, target)?;
        let Target::Http(target) = target else { return Ok(()) };
        let (url, bases) = (target.url.as_str(), caller.urls.as_deref());
        let timeout = self.settings.gateway.resolve_timeout;
        let admitted = self.guard.check_and_resolve(url, bases, timeout).await;
        admitted.map_err(|forbidden| {
            let field_error = FieldError::of("callbackUrl", forbidden.to_string());
            Problem::at(ErrorCode::TargetForbidden, field_error)
        })
    }

    /// Adds the caller to the submission; records of the anonymous caller have no such header.
    pub(super) fn with_caller(submission: Submission, caller: &Caller) -> Submission {
        if caller.is_anonymous() { submission } else { submission.with_caller(&caller.id) }
    }

    /// Writes a cancel or a command, and awaits the outcome. With a caller's id it applies only to
    /// that caller's triggers; an operator's has no id, and applies to every trigger.
    pub(super) async fn submit_command(
        &self,
        submission: Submission,
        caller: &Caller,
    ) -> Result<SubmitResult, Problem> {
        match scope_of(caller) {
            Scope::All => self.write(submission).await,
            Scope::Caller(id) => self.write(submission.with_caller(&id)).await,
        }
    }

    /// Writes a record with the caller's id, and awaits the outcome.
    pub(super) async fn submit(
        &self,
        submission: Submission,
        caller: &Caller,
    ) -> Result<SubmitResult, Problem> {
        self.write(Self::with_caller(submission, caller)).await
    }

    /// Writes a record that has its caller's id already, and awaits the outcome.
    pub(super) async fn write(&self, submission: Submission) -> Result<SubmitResult, Problem> {
        self.check_health()?;
        let id = submission.id.clone();
        let result =
            self.client.submit(submission).await.map_err(|error| submit_error(&error, &id))?;
        self.write_positions.observe_write(&result, self.view.now());
        Ok(result)
    }

    /// How long after its checks a registration may still be written, in ms: its callback's host is
    /// looked up, and the cluster takes the record.
    pub(super) fn written_within(&self) -> Millis {
        let Settings { gateway, timeouts, .. } = &self.settings;
        let longest = gateway.resolve_timeout + timeouts.delivery + timeouts.request;
        whole_ms(longest + CLOCKS_DIFFER)
    }

    /// Nothing is written while outcomes cannot be received.
    pub(super) fn check_health(&self) -> Result<(), Problem> {
        let reasons = self.health.reasons();
        if reasons.is_empty() { Ok(()) } else { Err(Problem::unavailable(reasons.join("; "))) }
    }

    /// 202: the record is written; the response says where its outcome will be.
    pub(super) fn unanswered(&self, id: &str, result: &SubmitResult) -> Response {
        let outcomes = self.names.outcomes();
        let detail = format!(
            "{} is written; its owner has not answered within {:?}. The outcome will be a record \
             of {outcomes} with the key {id}",
            result.record, self.settings.gateway.answer_timeout,
        );
        let body = Unanswered { trigger_id: id.to_owned(), detail };
        let mut response = (StatusCode::ACCEPTED, Json(body)).into_response();
        set_location(&mut response, id);
        response
    }

    /// Waits until the view has these records, and returns how fresh it is.
    pub(super) async fn wait_for_positions(&self, positions: &[WritePosition]) -> Freshness {
        self.view.wait_for(positions, self.view_wait_max).await
    }

    /// Waits until the view has this gateway's own writes, and returns how fresh it is.
    pub(super) async fn wait_for_view(&self) -> Freshness {
        self.wait_for_partitions(0..self.settings.topics.partitions.get().into()).await
    }

    /// The same for these partitions. A view that has never caught up may lack what was there
    /// before this process.
    async fn wait_for_partitions(&self, partitions: Range<PartitionId>) -> Freshness {
        let freshness = self.wait_for_positions(&self.write_positions.list(&partitions)).await;
        if !freshness.reached {
            return freshness;
        }
        let times = self.write_positions.times(partitions, self.view.now());
        self.view.wait_until_each(&times, self.view_wait_max).await
    }

    /// The partitions that may have this id: one that cannot be read holds up no request about an
    /// id of another one.
    fn partitions_of(&self, id: &str) -> Range<PartitionId> {
        let partitions = self.settings.topics.partitions.get().into();
        match self.settings.triggers.partitioner.partition(id.as_bytes(), partitions) {
            Some(partition) => partition..partition + 1,
            None => 0..partitions,
        }
    }

    /// Waits until the view has this gateway's own writes about this id.
    pub(super) async fn wait_for_id(&self, id: &str) -> Freshness {
        self.wait_for_partitions(self.partitions_of(id)).await
    }

    /// Waits until the view has everything about this id that was written at `time` or before, in
    /// ms since the epoch.
    pub(super) async fn wait_for_id_until(&self, id: &str, time: Timestamp) -> Freshness {
        let times: Vec<_> = self.partitions_of(id).map(|partition| (partition, time)).collect();
        self.view.wait_until_each(&times, self.view_wait_max).await
    }

    /// Waits for the view before a read, which is not answered with less: a view that is being
    /// built again has rows that are older than what this gateway has answered.
    pub(super) async fn fresh_view(&self) -> Result<Freshness, Problem> {
        not_lagging(self.wait_for_view().await)
    }

    /// The same before a read about this id.
    pub(super) async fn fresh_view_of(&self, id: &str) -> Result<Freshness, Problem> {
        not_lagging(self.wait_for_id(id).await)
    }

    /// The trigger, if it is in the caller's scope.
    pub(super) async fn find_trigger(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(TriggerView, Freshness), Problem> {
        let freshness = self.fresh_view_of(id).await?;
        match self.view.current_trigger(&scope_of(caller), id, self.view_wait_max).await? {
            Some(trigger) if trigger.is_behind => Err(view_lagging(&freshness)),
            Some(trigger) => Ok((trigger, freshness)),
            None => Err(unknown_trigger(id)),
        }
    }

    /// Refuses a trigger of a caller that has reached its limit of pending triggers, as counted in
    /// the view: registrations in progress are not included. A pending trigger may be replaced.
    pub(super) async fn check_pending_limit(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<(), Problem> {
        let limit = caller.limits.pending.get();
        // If the view cannot be read, the limit is not checked.
        if caller.is_anonymous() || self.view.pending_count(&caller.id).await.unwrap_or(0) < limit {
            return Ok(());
        }
        let existing = self.view.trigger(&scope_of(caller), id).await.ok().flatten();
        if existing.is_some_and(|trigger| !trigger.status.is_settled()) {
            return Ok(());
        }
        let detail = format!("{} may have {limit} triggers pending, and has", caller.id);
        Err(Problem::of(ErrorCode::PendingLimit, detail))
    }

    /// The request that created this generation, or the generation that it is a change of.
    pub(super) async fn original_request(
        &self,
        id: &str,
        generation: Offset,
    ) -> Result<Option<OriginalRequest>, ViewError> {
        let registration = self.view.registration(id, generation).await?;
        Ok(registration.map(|made| {
            OriginalRequest::from_header(made.fingerprint.as_deref(), generation, made.fire_at)
        }))
    }

    /// Whether the view has another caller's trigger under this id. If the view cannot be read, the
    /// owner decides.
    pub(super) async fn belongs_to_other_caller(&self, caller: &Caller, id: &str) -> bool {
        let Scope::Caller(own) = scope_of(caller) else { return false };
        let found = self.view.trigger(&Scope::All, id).await;
        let trigger = found.ok().flatten();
        trigger.is_some_and(|trigger| trigger.caller.as_ref() != Some(&own))
    }
}

/// A record could not be written, or it is not known whether it is.
pub(super) fn submit_error(error: &SubmitError, id: &str) -> Problem {
    let problem = match error {
        SubmitError::Busy(_) | SubmitError::NotSent(_) => Problem::unavailable(error.to_string()),
        SubmitError::NotAcknowledged(_) => Problem::unacknowledged(error.to_string()),
    };
    problem.with("triggerId", json!(id))
}

fn not_lagging(freshness: Freshness) -> Result<Freshness, Problem> {
    if freshness.reached { Ok(freshness) } else { Err(view_lagging(&freshness)) }
}

/// The view is behind: what was requested may not be there yet.
pub(super) fn view_lagging(freshness: &Freshness) -> Problem {
    let as_of = format_time(freshness.as_of);
    Problem::unavailable(format!("the view is complete up to {as_of} only and catches up"))
}

/// The id belongs to another caller.
pub(super) fn id_taken(id: &str) -> Problem {
    let detail = format!("{id} is registered by another caller");
    Problem::at(ErrorCode::IdTaken, FieldError::of("triggerId", detail))
}

pub(super) fn unknown_trigger(id: &str) -> Problem {
    let detail = format!("there is no trigger {id} among yours");
    Problem::of(ErrorCode::UnknownTrigger, detail).with("triggerId", json!(id))
}

/// A response from the view, with the time up to which it is complete.
pub(super) fn view_response(freshness: &Freshness, body: impl Serialize) -> Response {
    let mut response = Json(body).into_response();
    if let Ok(as_of) = HeaderValue::from_str(&format_time(freshness.as_of)) {
        response.headers_mut().insert(AS_OF, as_of);
    }
    response
}

/// Sets the revision of the trigger.
pub(super) fn set_etag(response: &mut Response, revision: Offset) {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
}

/// Sets the path of the trigger.
pub(super) fn set_location(response: &mut Response, id: &str) {
    let mut url = Url::parse("http://gateway/v1/triggers").expect("the literal is a URL");
    if let Ok(mut path) = url.path_segments_mut() {
        let _path = path.push(id);
    }
    if let Ok(path) = HeaderValue::from_str(url.path()) {
        response.headers_mut().insert(LOCATION, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_location_escapes_any_id() {
        for (id, path) in [
            ("tea", "/v1/triggers/tea"),
            ("green tea/7?x#y", "/v1/triggers/green%20tea%2F7%3Fx%23y"),
            ("ü:pause", "/v1/triggers/%C3%BC:pause"),
        ] {
            let mut response = Response::default();
            set_location(&mut response, id);
            assert_eq!(response.headers()[LOCATION], path);
        }
    }
}
