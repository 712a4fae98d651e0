//! Registering with an `Idempotency-Key`: the first request creates the trigger, and each
//! repetition gets the same response.
//!
//! Invariant: see [`crate::gateway::idempotency`]. A repetition is not refused by what need not
//! have refused the first request: its time may have passed, and its caller's limits may have
//! changed.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::registration::{RegisterResponse, copy_trace_headers, prepare, rejected};
use super::trigger_body::{LatePolicy, TriggerBody};
use crate::callers::Caller;
use crate::client::RecordMetadata;
use crate::client::{FireTime, NewTrigger, Submission};
use crate::gateway::api::{Api, id_taken};
use crate::gateway::http::{ErrorCode, FieldError, Problem};
use crate::gateway::idempotency::{
    self, FINGERPRINT_HEADER, IdempotencyKey, OriginalRequest, RETENTION_MS,
};
use crate::model::input::OnConflict;
use crate::model::outcome::OutcomeKind;
use crate::model::{Offset, Timestamp};
use crate::view::{Scope, TriggerView, ViewTopic, WritePosition};

const RETAIN: &str = "orloj-retain";

/// A request with a key.
pub(crate) struct IdempotentCreate<'a> {
    pub(crate) api: &'a Api,
    pub(crate) caller: &'a Caller,
    pub(crate) key: IdempotencyKey,
    /// The body as it was received.
    pub(crate) bytes: &'a [u8],
    /// The headers of the request.
    pub(crate) headers: HeaderMap,
}

/// The key of a request, if it has one.
#[derive(Debug)]
pub(crate) struct OptionalKey(pub(crate) Option<IdempotencyKey>);

impl<S: Send + Sync> FromRequestParts<S> for OptionalKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        idempotency_key(&parts.headers).map(Self)
    }
}

/// The fingerprint of a body as it was received.
pub(crate) fn fingerprint_of(bytes: &[u8]) -> Result<String, Problem> {
    let json = serde_json::from_slice(bytes).map_err(|error| {
        let (pointer, reason) = (String::new(), error.to_string());
        Problem::from(FieldError { pointer, reason })
    })?;
    Ok(idempotency::fingerprint(&json))
}

/// The key of a request, if it has one.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
    let Some(value) = headers.get(idempotency::HEADER) else { return Ok(None) };
    let key = IdempotencyKey::read(value.as_bytes()).map_err(|way_out| {
        Problem::of(ErrorCode::InvalidParameter, format!("Idempotency-Key: {way_out}"))
    })?;
    Ok(Some(key))
}

impl IdempotentCreate<'_> {
    /// Creates the trigger, or repeats the response to the request that created it.
    pub(crate) async fn create(self, body: TriggerBody) -> Result<Response, Problem> {
        if body.trigger_id.is_some() {
            let reason = "the id follows from the Idempotency-Key: leave one of the two out";
            return Err(FieldError::of("triggerId", reason).into());
        }
        let fingerprint = fingerprint_of(self.bytes)?;
        let id = self.key.trigger_id(&self.caller.id);
        let _guard = self.api.in_flight.begin(&id)?;
        // If the view cannot be read, the owner decides.
        let existing = self.api.view.trigger(&Scope::All, &id).await.ok().flatten();
        if let Some(existing) = existing.filter(|existing| self.is_kept(existing))
            && let Some(first) = self.original_request(&id, existing.generation).await
        {
            return repeat_response(&id, &first, &fingerprint);
        }
        let started = self.api.view.now();
        let late = body.late.unwrap_or_default();
        // The same body was refused before, too.
        let trigger = body.into_trigger(self.caller.limits.payload.bytes())?;
        let when = trigger.when;
        match self.prepare(trigger, id.clone(), fingerprint.clone(), late).await {
            Ok(submission) => self.register(id, fingerprint, submission).await,
            Err(refusal) => {
                let written_by = match when {
                    Some(FireTime::At(at)) if refusal.has_code(ErrorCode::TimePassed) => {
                        at.saturating_add(self.api.written_within())
                    }
                    _ => started,
                };
                self.refuse(&id, &fingerprint, written_by, refusal).await
            }
        }
    }

    /// Whether its owner still has the trigger.
    fn is_kept(&self, trigger: &TriggerView) -> bool {
        let until = trigger.settled_at.map(|at| at.saturating_add(RETENTION_MS));
        until.is_none_or(|until| self.api.view.now() < until)
    }

    /// Refuses the request, if the view has all that was written until `written_by`, and nothing
    /// with this key. An earlier request may have been accepted, and its record may still be on its
    /// way: until the view is that far, it is not known what this request has done.
    async fn refuse(
        &self,
        id: &str,
        fingerprint: &str,
        written_by: Timestamp,
        refusal: Problem,
    ) -> Result<Response, Problem> {
        let unknown = || {
            let detail = "the view does not show yet whether a request with this Idempotency-Key \
                          was accepted before";
            let problem = Problem::unacknowledged(format!("{}; {detail}", refusal.detail()));
            problem.hint("repeat it with the same Idempotency-Key")
        };
        let Api { view, view_wait_max, .. } = self.api;
        let is_early = written_by > view.now();
        if is_early || !self.api.wait_for_id_until(id, written_by).await.reached {
            return Err(unknown());
        }
        // What is read may not be decided: that takes as long as its partition has no owner.
        let found = view.current_trigger(&Scope::All, id, Duration::MAX);
        let Ok(found) = tokio::time::timeout(*view_wait_max, found).await else {
            return Err(unknown());
        };
        let Some(existing) = found?.filter(|existing| self.is_kept(existing)) else {
            return Err(refusal);
        };
        match self.original_request(id, existing.generation).await {
            Some(first) => repeat_response(id, &first, fingerprint),
            None => Err(unknown()),
        }
    }

    /// The first request with this key, if the view can be read.
    async fn original_request(&self, id: &str, generation: Offset) -> Option<OriginalRequest> {
        self.api.original_request(id, generation).await.ok().flatten()
    }

    async fn register(
        self,
        id: String,
        fingerprint: String,
        submission: Submission,
    ) -> Result<Response, Problem> {
        let result = self.api.submit(submission, self.caller).await?;
        match result.outcome_kind() {
            Some(OutcomeKind::Accepted { generation, fire_at, .. }) => {
                Ok(RegisterResponse::of(&id, *generation, *fire_at).response(StatusCode::CREATED))
            }
            Some(OutcomeKind::Kept { generation, .. }) => {
                let RecordMetadata { partition, .. } = result.record;
                let (topic, known_at) = (ViewTopic::Triggers, self.api.view.now());
                let position = WritePosition { topic, partition, offset: *generation, known_at };
                let _freshness = self.api.wait_for_positions(&[position]).await;
                match self.original_request(&id, *generation).await {
                    Some(first) => repeat_response(&id, &first, &fingerprint),
                    // The view is being rebuilt: the same request is answered later.
                    None => Ok(self.api.unanswered(&id, &result)),
                }
            }
            Some(OutcomeKind::Taken { .. }) => Err(id_taken(&id)),
            Some(OutcomeKind::Rejected { reason }) => Err(rejected(&id, reason)),
            _ => Ok(self.api.unanswered(&id, &result)),
        }
    }

    /// The record of the trigger, which keeps an existing one and is retained long enough.
    async fn prepare(
        &self,
        trigger: NewTrigger,
        id: String,
        fingerprint: String,
        late: LatePolicy,
    ) -> Result<Submission, Problem> {
        let mut trigger = NewTrigger { id, on_conflict: OnConflict::Keep, ..trigger };
        copy_trace_headers(&self.headers, &mut trigger.headers);
        trigger.metadata_headers.push((FINGERPRINT_HEADER.to_owned(), fingerprint.into_bytes()));
        if !trigger.lifecycle_headers.iter().any(|(name, _)| *name == RETAIN) {
            trigger.lifecycle_headers.push((RETAIN, RETENTION_MS.to_string()));
        }
        let submission = prepare(self.api, self.caller, trigger, late).await?;
        let read =
            self.api.validator.validate(&submission, self.api.view.now()).unwrap_or_default();
        if read.iter().any(|registration| registration.retain < Some(RETENTION_MS)) {
            let reason =
                "with an Idempotency-Key it is at least 24h: leave it out, or make it longer";
            return Err(FieldError::of("retain", reason).into());
        }
        Ok(submission)
    }
}

/// The first response again, if the request is the same.
fn repeat_response(
    id: &str,
    first: &OriginalRequest,
    fingerprint: &str,
) -> Result<Response, Problem> {
    if first.fingerprint.as_deref() == Some(fingerprint) {
        let registered = RegisterResponse::of(id, first.generation, first.fire_at);
        return Ok(registered.response(StatusCode::CREATED));
    }
    let detail = "this Idempotency-Key was used for a request with another body";
    Err(Problem::of(ErrorCode::IdempotencyKeyReused, detail))
}

#[cfg(test)]
mod tests {
    use axum::http::header::ETAG;

    use super::*;

    #[tokio::test]
    async fn only_the_same_request_is_answered_as_the_first_was() {
        let fingerprint = Some("abc".to_owned());
        let first = OriginalRequest { fingerprint, generation: 41, fire_at: 1_800_000_000_000 };
        let again = repeat_response("tea", &first, "abc").unwrap();
        assert_eq!(again.status(), StatusCode::CREATED);
        assert_eq!(again.headers()[ETAG], "\"41\"");
        let body = axum::body::to_bytes(again.into_body(), 10_000).await.unwrap();
        assert!(body.windows(20).any(|text| text == b"2027-01-15T08:00:00Z"), "when it was due");
        let reused = "this Idempotency-Key was used for a request with another body";
        let reused = Problem::of(ErrorCode::IdempotencyKeyReused, reused);
        assert_eq!(repeat_response("tea", &first, "abd").unwrap_err(), reused);
        let keyless = OriginalRequest { fingerprint: None, ..first };
        assert_eq!(repeat_response("tea", &keyless, "abc").unwrap_err(), reused);
    }

    #[test]
    fn an_invalid_key_is_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(idempotency_key(&headers), Ok(None));
        for (text, is_key) in [("8e03", true), ("", false)] {
            headers.insert(idempotency::HEADER, text.parse().unwrap());
            assert_eq!(
                idempotency_key(&headers).map(|key| key.is_some()).ok(),
                is_key.then_some(true)
            );
        }
    }
}
