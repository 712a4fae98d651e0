//! A trigger in the JSON form, of which batches are made.
//!
//! Invariant: it is equivalent to the headers of the same trigger, with the payload and the
//! schedule byte for byte.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::submission::{FireTime, NewTrigger};
use crate::model::Millis;
use crate::model::Timestamp;
use crate::model::definition::Target;
use crate::model::input::OnConflict;
use crate::model::retry::RetryPolicy;

/// One registration of a batch.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BatchEnvelope {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fire_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<Millis>,
    target: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_conflict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Value>,
    /// The other options beyond one time and one attempt.
    #[serde(flatten)]
    lifecycle_fields: BTreeMap<&'static str, Box<RawValue>>,
}

impl BatchEnvelope {
    /// The envelope of a trigger whose headers are text, as those of a JSON body are.
    pub(super) fn of(trigger: &NewTrigger) -> Self {
        let when = trigger.when;
        let json = std::str::from_utf8(&trigger.payload).ok();
        let payload: Option<Box<RawValue>> = json.and_then(|json| serde_json::from_str(json).ok());
        // A null would count as an absent field.
        let payload = payload.filter(|json| json.get() != "null");
        let bytes = payload.is_none().then(|| BASE64.encode(&trigger.payload));
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let carried = trigger.metadata_headers.iter().chain(&trigger.headers);
        let lifecycle_fields = trigger.lifecycle_headers.iter().filter_map(|(header, value)| {
            let field = match *header {
                "orloj-schedule" => "schedule",
                "orloj-expire-after" => "expireAfter",
                "orloj-count" => "count",
                "orloj-retain" => "retain",
                "orloj-priority" => "priority",
                _ => return None,
            };
            Some((field, raw_json(field, value)))
        });
        Self {
            id: trigger.id.clone(),
            fire_at: when
                .and_then(|when| if let FireTime::At(at) = when { Some(at) } else { None }),
            delay_ms: when
                .and_then(|when| if let FireTime::After(d) = when { Some(d) } else { None }),
            target: target(&trigger.target),
            payload,
            payload_base64: bytes,
            headers: carried.map(|(name, value)| (name.clone(), text(value))).collect(),
            on_conflict: (trigger.on_conflict == OnConflict::Keep).then_some("keep"),
            retry: (!trigger.retry.is_empty()).then(|| retry_policy_json(&trigger.retry)),
            after: after_field(&trigger.lifecycle_headers),
            lifecycle_fields: lifecycle_fields.collect(),
        }
    }
}

/// A value as JSON: a schedule and a number are JSON already, anything else is a string.
fn raw_json(field: &str, value: &str) -> Box<RawValue> {
    let is_json = field == "schedule" || value.parse::<u64>().is_ok();
    let json = is_json.then(|| RawValue::from_string(value.to_owned()).ok()).flatten();
    json.unwrap_or_else(|| to_raw_value(value).expect("a string is JSON"))
}

fn target(target: &Target) -> Value {
    let mut fields = json!({});
    match target {
        Target::Topic(target) => {
            fields["topic"] = json!(target.topic.as_str());
            if let Some(key) = &target.key {
                fields["key"] = json!(String::from_utf8_lossy(key));
            }
        }
        Target::Http(target) => {
            fields["url"] = json!(target.url.as_str());
            fields["method"] = json!(target.method.as_str());
            if let Some(pool) = &target.pool {
                fields["pool"] = json!(pool.as_str());
            }
            if let Some(timeout) = target.timeout {
                fields["timeout"] = json!(timeout);
            }
        }
    }
    fields
}

fn after_field(lifecycle_headers: &[(&'static str, String)]) -> Option<Value> {
    let header_value = |name: &str| {
        let found = lifecycle_headers.iter().find(|(header, _)| *header == name);
        found.map(|(_, value)| value.as_str())
    };
    let ids = header_value("orloj-after")?;
    let ids = match ids.starts_with('[') {
        true => serde_json::from_str(ids).unwrap_or_default(),
        false => json!(ids.split(',').collect::<Vec<_>>()),
    };
    let mut after = json!({ "ids": ids });
    if let Some(word) = header_value("orloj-on-failure") {
        after["onFailure"] = json!(word);
    }
    if let Some(span) = header_value("orloj-after-timeout") {
        after["timeout"] = span.parse::<u64>().map_or_else(|_| json!(span), |ms| json!(ms));
    }
    Some(after)
}

/// A policy in the form in which registrations have it; pauses are in ms.
pub(super) fn retry_policy_json(policy: &RetryPolicy) -> Value {
    let RetryPolicy { delays, attempts, jitter, final_statuses } = policy;
    let mut retry = json!({});
    if !delays.is_empty() {
        retry["delays"] = json!(delays);
    }
    let numbers = [("attempts", attempts.map(u64::from)), ("jitter", jitter.map(u64::from))];
    for (name, value) in numbers {
        if let Some(value) = value {
            retry[name] = json!(value);
        }
    }
    if !final_statuses.is_empty() {
        retry["finalStatuses"] = json!(final_statuses);
    }
    retry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::request::read_body;
    use crate::gateway::submission::{BatchSubmission, Submission, SubmissionRules};
    use crate::gateway::validator::RegistrationValidator;
    use crate::kafka::Names;

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
            let trigger = || read_body(body.as_bytes()).unwrap().into_trigger(4_096).unwrap();
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
