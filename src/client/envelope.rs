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

use super::new_trigger::{FireTime, NewTrigger};
use crate::model::Millis;
use crate::model::Timestamp;
use crate::model::definition::Target;
use crate::model::input::OnConflict;
use crate::model::retry::RetryPolicy;

/// One registration of a batch.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchEnvelope {
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
    #[must_use]
    pub fn of(trigger: &NewTrigger) -> Self {
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
#[must_use]
pub fn retry_policy_json(policy: &RetryPolicy) -> Value {
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
