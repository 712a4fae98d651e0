//! The checks of a trigger that are not about the bytes of its record: limits, targets and pools.
//!
//! Invariant: every refusal names the field of the HTTP API and what to write instead.

use thiserror::Error;

use super::new_trigger::FireTime;
use crate::kafka::Names;
use crate::model::definition::Target;
use crate::model::{Timestamp, callback_url, http_header, limits};

/// A field of a trigger, as a request names it, and what must change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct ValidationError {
    /// The field of the HTTP API, or `body` for all of it.
    pub field: &'static str,
    /// What is wrong, and what to write.
    pub reason: String,
}

pub(super) fn refuse<T>(
    field: &'static str,
    reason: impl Into<String>,
) -> Result<T, ValidationError> {
    Err(ValidationError { field, reason: reason.into() })
}

pub(super) fn check_id(id: &str) -> Result<(), ValidationError> {
    let max = limits::ID_BYTES_MAX;
    if id.is_empty() || id.len() > max {
        return refuse("triggerId", format!("it has {} bytes; write 1 to {max}", id.len()));
    }
    if id.chars().any(char::is_control) {
        return refuse("triggerId", "it has control characters; write text without them");
    }
    Ok(())
}

pub(super) fn check_time(when: FireTime, now: Timestamp) -> Result<(), ValidationError> {
    let (field, delay) = match when {
        FireTime::At(at) => ("fireAt", at.saturating_sub(now)),
        FireTime::After(delay) => ("delaySeconds", delay),
    };
    if delay > limits::FUTURE_MAX_MS {
        let days = limits::FUTURE_MAX_MS / 86_400_000;
        return refuse(field, format!("it is farther ahead than {days} days; check the unit"));
    }
    Ok(())
}

pub(super) fn check_target(target: &Target, names: &Names) -> Result<(), ValidationError> {
    match target {
        Target::Topic(target) => check_topic(target.topic.as_str(), names),
        Target::Http(target) => check_url(target.url.as_str()),
    }
}

fn check_topic(topic: &str, names: &Names) -> Result<(), ValidationError> {
    let max = limits::TOPIC_BYTES_MAX;
    let is_legal = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    if topic.is_empty() || topic.len() > max || !topic.chars().all(is_legal) {
        let legal = format!("write 1 to {max} letters, digits, '.', '_' and '-'");
        return refuse("topic", format!("{topic:?} is not a topic's name; {legal}"));
    }
    if names.owns(topic) || topic.starts_with("__") {
        return refuse("topic", format!("{topic} is Orloj's or Kafka's own; name one of yours"));
    }
    Ok(())
}

fn check_url(url: &str) -> Result<(), ValidationError> {
    match callback_url::parse(url) {
        Ok(_) => Ok(()),
        Err(error) => refuse("callbackUrl", error.to_string()),
    }
}

pub(super) fn check_headers(
    headers: &[(String, Vec<u8>)],
    target: &Target,
) -> Result<(), ValidationError> {
    let max = limits::HEADERS_MAX;
    if headers.len() > max {
        return refuse("headers", format!("there are {}, at most {max} are taken", headers.len()));
    }
    let bytes = headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    let max = limits::HEADER_BYTES_MAX;
    if bytes > max {
        return refuse("headers", format!("they have {bytes} bytes, at most {max} are taken"));
    }
    let refusal = |(name, value): &(String, Vec<u8>)| {
        let is_ours = name.starts_with("orloj-") || name.starts_with("scheduler-");
        let ours = "empty names, orloj-* and scheduler-* are instructions to Orloj";
        let why = (name.is_empty() || is_ours).then_some(ours);
        let why = why
            .or_else(|| http_header::rejection_reason(name, value).filter(|_| target.is_http()))?;
        Some(format!("{name:?} cannot be carried to the target: {why}"))
    };
    headers.iter().find_map(refusal).map_or(Ok(()), |reason| refuse("headers", reason))
}

/// Refuses a pool that is not in `topics.pools`.
pub(super) fn check_pool(target: &Target, pools: &[String]) -> Result<(), ValidationError> {
    let pool = match target {
        Target::Http(target) => target.pool.as_ref(),
        Target::Topic(_) => None,
    };
    match pool {
        Some(pool) if !pools.iter().any(|known| *pool == **known) => {
            let known = if pools.is_empty() { "none".to_owned() } else { pools.join(", ") };
            refuse("pool", format!("there is no pool {pool}; topics.pools names {known}"))
        }
        _ => Ok(()),
    }
}
