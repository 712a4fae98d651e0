//! A trigger to be registered, and the headers that instruct its owner.
//!
//! Invariant: a header is written only for an option that is set.

use crate::model::definition::{HttpTarget, Target, TopicTarget};
use crate::model::input::OnConflict;
use crate::model::retry::RetryPolicy;
use crate::model::{Millis, Timestamp};

/// The options of a trigger beyond one time and one attempt: the header, and the field of the HTTP
/// API.
pub const LIFECYCLE_HEADERS: [(&str, &str); 8] = [
    ("orloj-schedule", "schedule"),
    ("orloj-expire-after", "expireAfter"),
    ("orloj-count", "count"),
    ("orloj-after-timeout", "after.timeout"),
    ("orloj-after", "after"),
    ("orloj-on-failure", "after.onFailure"),
    ("orloj-retain", "retain"),
    ("orloj-priority", "priority"),
];

/// A trigger to be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTrigger {
    /// The id, which is the record's key.
    pub id: String,
    /// When it fires, unless a header of `lifecycle_headers` says that.
    pub when: Option<FireTime>,
    /// Where it fires.
    pub target: Target,
    /// What it delivers.
    pub payload: Vec<u8>,
    /// Headers carried to the target, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Headers with its name and labels: they are carried like the others.
    pub metadata_headers: Vec<(String, Vec<u8>)>,
    /// Headers of [`LIFECYCLE_HEADERS`], as they were given: the validator checks them.
    pub lifecycle_headers: Vec<(&'static str, String)>,
    /// What happens if the id is already pending.
    pub on_conflict: OnConflict,
    /// The retry policy of a callback; an empty one means the worker's default.
    pub retry: RetryPolicy,
}

/// A time, or a delay that counts from the broker's timestamp of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FireTime {
    /// In ms since the epoch.
    At(Timestamp),
    /// In ms from the record's timestamp.
    After(Millis),
}

/// The payload of a request without one: `null` as JSON for a callback, an empty value for a
/// record.
#[must_use]
pub fn default_payload(target: &Target) -> Vec<u8> {
    if target.is_http() { b"null".to_vec() } else { Vec::new() }
}

/// Ids as `orloj-after` takes them.
#[must_use]
pub fn after_header_value(ids: &[String]) -> String {
    let is_plain = |id: &String| {
        !id.is_empty() && id.trim() == id && !id.contains(',') && !id.starts_with('[')
    };
    if ids.iter().all(is_plain) { ids.join(",") } else { serde_json::json!(ids).to_string() }
}

pub(super) fn instruction_headers(trigger: &NewTrigger) -> Vec<(String, Vec<u8>)> {
    let when = trigger.when.map(|when| match when {
        FireTime::At(at) => header("orloj-fire-at", at.to_string()),
        FireTime::After(delay) => header("orloj-delay", delay.to_string()),
    });
    let mut headers = Vec::from_iter(when);
    headers
        .extend(trigger.lifecycle_headers.iter().map(|(name, value)| header(name, value.as_str())));
    match &trigger.target {
        Target::Topic(TopicTarget { topic, key }) => {
            headers.push(header("orloj-target-topic", topic.as_str()));
            headers.extend(key.as_ref().map(|key| header("orloj-target-key", key.to_vec())));
        }
        Target::Http(target) => {
            let HttpTarget { url, method, pool, timeout } = &**target;
            headers.push(header("orloj-callback-url", url.as_str()));
            headers.push(header("orloj-callback-method", method.as_str()));
            headers.extend(pool.as_ref().map(|pool| header("orloj-pool", pool.as_str())));
            headers.extend(timeout.map(|ms| header("orloj-timeout", ms.to_string())));
        }
    }
    if trigger.on_conflict == OnConflict::Keep {
        headers.push(header("orloj-on-conflict", "keep"));
    }
    headers.extend(retry_headers(&trigger.retry));
    headers
}

fn retry_headers(policy: &RetryPolicy) -> impl Iterator<Item = (String, Vec<u8>)> {
    fn list(numbers: impl Iterator<Item = impl ToString>) -> Option<String> {
        let texts: Vec<_> = numbers.map(|number| number.to_string()).collect();
        (!texts.is_empty()).then(|| texts.join(","))
    }
    let headers = [
        ("orloj-retry-delays", list(policy.delays.iter())),
        ("orloj-retry-attempts", list(policy.attempts.iter())),
        ("orloj-retry-jitter", list(policy.jitter.iter())),
        ("orloj-retry-final-statuses", list(policy.final_statuses.iter())),
    ];
    headers.into_iter().filter_map(|(name, value)| Some(header(name, value?)))
}

/// A header as a record has it.
pub(super) fn header(name: &str, value: impl Into<Vec<u8>>) -> (String, Vec<u8>) {
    (name.to_owned(), value.into())
}
