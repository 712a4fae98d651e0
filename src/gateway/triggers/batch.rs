//! `POST /v1/triggers:batch`: many registrations in one record, each with its own outcome.
//!
//! Invariant: if one of them is wrong, none is written. Each trigger's owner answers for it.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::idempotent_create::{OptionalKey, fingerprint_of};
use super::registration::{copy_trace_headers, prepare};
use super::trigger_body::TriggerBody;
use crate::callers::{Caller, CallerLimits};
use crate::client::BatchEnvelope;
use crate::client::BatchSubmission;
use crate::client::OutcomeRecord;
use crate::gateway::api::{Api, submit_error};
use crate::gateway::auth::Registrant;
use crate::gateway::http::{FieldError, Problem};
use crate::gateway::json_body::{JsonBody, RequestBody};
use crate::model::Offset;
use crate::model::limits;
use crate::model::outcome::OutcomeKind;
use crate::model::time::format_time;

/// Triggers to be registered together.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a JSON object")]
#[schema(examples(json!({"triggers": [
    {"triggerId": "extract", "topic": "jobs", "delaySeconds": 60},
    {"triggerId": "load", "topic": "jobs", "after": ["extract"]}
]})))]
pub(crate) struct BatchBody {
    /// They may wait for each other.
    #[schema(min_items = 1, max_items = 1000)]
    triggers: Vec<TriggerBody>,
}

impl RequestBody for BatchBody {
    fn bytes_max(_limits: &CallerLimits) -> u64 {
        2 * limits::PAYLOAD_BYTES_MAX as u64
    }
}

/// The outcomes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BatchAnswer {
    /// In the order in which they were given.
    items: Vec<BatchItem>,
}

/// The outcome of one trigger.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct BatchItem {
    trigger_id: String,
    outcome: BatchOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    generation: Option<Offset>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    fire_at: Option<String>,
    /// Why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// What its owner decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum BatchOutcome {
    /// It is registered.
    Accepted,
    /// One was pending, or was registered by the same request, and is kept.
    Kept,
    /// The id belongs to another caller.
    Taken,
    /// The owner refuses it.
    Rejected,
    /// Its record is written, and its owner has not answered in time.
    Unanswered,
}

/// Register many triggers in one request.
///
/// A repetition without an Idempotency-Key registers all of them again: those that have fired fire
/// again, and those without a triggerId are made a second time.
#[utoipa::path(
    post, path = "/v1/triggers:batch", tag = "triggers", operation_id = "createTriggers",
    params(("Idempotency-Key" = Option<String>, Header,
        min_length = 1, max_length = 255, pattern = "^[!-~]([ -~]*[!-~])?$",
        description = "Of requests with the same key and body one registers each trigger, until 24 \
            hours after it has settled; a repetition finds them KEPT")),
    request_body = BatchBody,
    responses((status = 200, description = "Written; each trigger has its own outcome",
        body = BatchAnswer))
)]
pub(crate) async fn register(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    OptionalKey(key): OptionalKey,
    request_headers: HeaderMap,
    json: JsonBody<BatchBody>,
) -> Result<Response, Problem> {
    let body = json.parse()?;
    let key = match key {
        Some(key) => Some(key.batch_key(&caller.id, &fingerprint_of(json.bytes())?)),
        None => None,
    };
    let _guard = key.as_ref().map(|key| api.in_flight.begin(key)).transpose()?;
    let count = body.triggers.len();
    if !(1..=limits::BATCH_MAX).contains(&count) {
        let reason = format!("there are {count}: write 1 to {}", limits::BATCH_MAX);
        return Err(FieldError::of("triggers", reason).into());
    }
    let mut envelopes = Vec::new();
    for (place, mut trigger) in body.triggers.into_iter().enumerate() {
        if let (None, Some(key)) = (&trigger.trigger_id, &key) {
            trigger.trigger_id = Some(format!("{key}-{place}"));
        }
        let envelope = prepare_envelope(&api, &caller, trigger).await;
        envelopes.push(
            envelope
                .map_err(|problem| problem.with_pointer_prefix(&format!("/triggers/{place}")))?,
        );
    }
    let json = serde_json::to_vec(&envelopes).expect("text and numbers make JSON");
    let mut batch = BatchSubmission::read(json, api.rules())?;
    if let Some(key) = &key {
        batch.submission = batch.submission.with_idempotency_key(key);
    }
    let mut headers = Vec::new();
    copy_trace_headers(&request_headers, &mut headers);
    submit_batch(&api, &caller, batch, headers).await
}

/// The envelope of one trigger, if it passes all checks.
async fn prepare_envelope(
    api: &Api,
    caller: &Caller,
    body: TriggerBody,
) -> Result<BatchEnvelope, Problem> {
    let late = body.late.unwrap_or_default();
    let trigger = body.into_trigger(caller.limits.payload.bytes())?;
    let envelope = BatchEnvelope::of(&trigger);
    let _record = prepare(api, caller, trigger, late).await?;
    Ok(envelope)
}

/// Writes the batch and collects the outcomes.
async fn submit_batch(
    api: &Api,
    caller: &Caller,
    batch: BatchSubmission,
    headers: Vec<(String, Vec<u8>)>,
) -> Result<Response, Problem> {
    api.check_health()?;
    let BatchSubmission { mut submission, ids } = batch;
    submission.headers.extend(headers);
    let submission = Api::with_caller(submission, caller);
    let first = submission.id.clone();
    let batch = BatchSubmission { submission, ids: ids.clone() };
    let mut results =
        api.client.submit_batch(batch).await.map_err(|error| submit_error(&error, &first))?;
    api.write_positions.observe_record(&results.record, api.view.now());
    let mut outcomes = HashMap::new();
    while let Some((id, answer)) = results.next().await {
        if let Some(answer) = answer {
            api.write_positions.observe_outcome(&answer, api.view.now());
            let _other = outcomes.insert(id, answer);
        }
    }
    let items = ids.into_iter().map(|id| {
        let answer = outcomes.remove(&id);
        BatchItem::of(id, answer)
    });
    Ok(Json(BatchAnswer { items: items.collect() }).into_response())
}

impl BatchItem {
    fn of(trigger_id: String, outcome: Option<OutcomeRecord>) -> Self {
        let (outcome, generation, fire_at, reason) = match outcome.map(|record| record.outcome.kind)
        {
            Some(OutcomeKind::Accepted { generation, fire_at, .. }) => {
                (BatchOutcome::Accepted, Some(generation), Some(fire_at), None)
            }
            Some(OutcomeKind::Kept { generation, fire_at }) => {
                (BatchOutcome::Kept, Some(generation), Some(fire_at), None)
            }
            Some(OutcomeKind::Rejected { reason }) => {
                (BatchOutcome::Rejected, None, None, Some(reason))
            }
            Some(OutcomeKind::Taken { generation }) => {
                (BatchOutcome::Taken, Some(generation), None, None)
            }
            _ => (BatchOutcome::Unanswered, None, None, None),
        };
        Self { trigger_id, outcome, generation, fire_at: fire_at.map(format_time), reason }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::{RegistrationValidator, Submission, SubmissionRules};
    use crate::gateway::http::json;
    use crate::kafka::Names;
    use crate::model::outcome::Outcome;

    #[test]
    fn each_batch_item_has_the_outcome_of_its_owner() {
        let item = |kind: Option<OutcomeKind>| {
            let record = kind.map(|kind| {
                let outcome =
                    Outcome { trigger: "tea".into(), answers: Some(1), request: None, at: 0, kind };
                OutcomeRecord { outcome, partition: 0, offset: 7 }
            });
            serde_json::to_value(BatchItem::of("tea".to_owned(), record)).unwrap()
        };
        let (generation, fire_at) = (3, 1_800_000_000_000);
        let at = "2027-01-15T08:00:00Z";
        for (kind, expected_item) in [
            (
                Some(OutcomeKind::Accepted { generation, fire_at, replaced: None }),
                json!({"outcome": "ACCEPTED", "generation": 3, "fireAt": at}),
            ),
            (
                Some(OutcomeKind::Kept { generation, fire_at }),
                json!({"outcome": "KEPT", "generation": 3, "fireAt": at}),
            ),
            (Some(OutcomeKind::Taken { generation }), json!({"outcome": "TAKEN", "generation": 3})),
            (
                Some(OutcomeKind::Rejected { reason: "why".to_owned() }),
                json!({"outcome": "REJECTED", "reason": "why"}),
            ),
            (None, json!({"outcome": "UNANSWERED"})),
        ] {
            let mut expected = expected_item;
            expected["triggerId"] = json!("tea");
            assert_eq!(item(kind), expected);
        }
    }

    /// The headers and the envelope are read as the same registration.
    #[test]
    fn an_envelope_says_what_the_headers_say() {
        let (names, validator, pools) =
            (Names::new("orloj"), RegistrationValidator::new(), ["slow".to_owned()]);
        let now = 1_800_000_000_000;
        let rules = SubmissionRules { names: &names, pools: &pools, validator: &validator, now };
        for body in [
            r#"{"triggerId": "a", "topic": "t", "delaySeconds": 1.5}"#,
            r#"{"triggerId": "a", "topic": "t", "key": "k", "fireAt": 1900000000000,
                "payload": {"n": 1.0,  "s": "ü"}, "headers": {"x": "y"}, "name": "A b",
                "labels": {"team": "kitchen"}, "expireAfter": "1h", "priority": 200,
                "onConflict": "keep", "retain": 5000}"#,
            r#"{"triggerId": "a", "callbackUrl": "https://h/x", "method": "put", "pool": "slow",
                "timeoutSeconds": 2, "fireAt": 1900000000000,
                "retry": {"delays": ["1s", 2000], "attempts": 5, "jitter": 0,
                          "finalStatuses": [404]}}"#,
            r#"{"triggerId": "a", "topic": "t", "schedule": {"every": "1h"}, "count": "keep",
                "maxExecutions": 3}"#,
            r#"{"triggerId": "a", "topic": "t",
                "after": {"ids": ["b,c", "d"], "onFailure": "skip", "timeout": "30s"}}"#,
            r#"{"triggerId": "a", "topic": "t", "after": ["b"], "delaySeconds": 1}"#,
        ] {
            let trigger = || {
                json::parse_json::<TriggerBody>(body.as_bytes())
                    .unwrap()
                    .into_trigger(4_096)
                    .unwrap()
            };
            let json = serde_json::to_vec(&[BatchEnvelope::of(&trigger())]).unwrap();
            let batch =
                BatchSubmission::read(json, rules).unwrap_or_else(|no| panic!("{body}: {no}"));
            let [batched] = &validator.validate(&batch.submission, now).unwrap()[..] else {
                panic!()
            };
            let alone = Submission::register(trigger(), rules).unwrap();
            let [mut alone] = <[_; 1]>::try_from(validator.validate(&alone, now).unwrap()).unwrap();
            // The order of headers is that of a map in JSON.
            alone.definition.headers.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(*batched, alone, "{body}");
        }
    }
}
