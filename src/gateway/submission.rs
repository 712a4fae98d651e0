//! What the gateway and the command line write to `triggers`: records in headers form, refused
//! before they are written where the owner would refuse them anyway.
//!
//! Law: a value is never null unless the record cancels, because a null value is a cancel.

use thiserror::Error;

use crate::kafka::Names;
use crate::model::definition::{HttpTarget, Target, TopicTarget};
use crate::model::input::OnConflict;
use crate::model::retry::RetryPolicy;
use crate::model::{Millis, Timestamp, callback_url, http_header, limits};

/// A trigger to be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTrigger {
    /// The id, which is the record's key.
    pub id: String,
    /// When it fires.
    pub when: When,
    /// Where it fires.
    pub target: Target,
    /// What it delivers.
    pub payload: Vec<u8>,
    /// Headers carried to the target, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// What happens if the id is pending already.
    pub on_conflict: OnConflict,
    /// The retry policy of a callback; an open one leaves it to the worker.
    pub retry: RetryPolicy,
}

/// A time, or a delay that counts from the broker's timestamp of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// In ms since the epoch.
    At(Timestamp),
    /// In ms from the record's timestamp.
    After(Millis),
}

/// A record for `triggers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The trigger, and the record's key.
    pub id: String,
    /// The record's value; `None` cancels.
    pub value: Option<Vec<u8>>,
    /// The record's headers, in order.
    pub headers: Vec<(String, Vec<u8>)>,
}

/// Part of a trigger, as a request names it, and what must change about it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct Refusal {
    /// The field of the HTTP API, or `body` for all of it.
    pub field: &'static str,
    /// What is wrong, and what is right.
    pub reason: String,
}

impl Submission {
    /// A registration, refused if the owner would refuse it. `now` is the wall clock, in ms.
    pub fn register(trigger: NewTrigger, names: &Names, now: Timestamp) -> Result<Self, Refusal> {
        check_id(&trigger.id)?;
        check_time(trigger.when, now)?;
        check_target(&trigger.target, names)?;
        check_headers(&trigger.headers, &trigger.target)?;
        let bytes = trigger.payload.len();
        if bytes > limits::PAYLOAD_BYTES_MAX {
            let max = limits::PAYLOAD_BYTES_MAX;
            return refuse("payload", format!("it has {bytes} bytes, at most {max} are taken"));
        }
        let headers = instructions(&trigger).into_iter().chain(trigger.headers).collect();
        Ok(Self { id: trigger.id, value: Some(trigger.payload), headers })
    }

    /// A cancel of whatever is pending under `id`.
    pub fn cancel(id: &str) -> Result<Self, Refusal> {
        check_id(id)?;
        Ok(Self { id: id.to_owned(), value: None, headers: Vec::new() })
    }

    /// The same, in the name of a caller.
    #[must_use]
    pub fn by(mut self, caller: &str) -> Self {
        self.headers.push(header("orloj-caller", caller));
        self
    }

    /// The same, asking the owner for an outcome.
    #[must_use]
    pub fn acknowledged(mut self) -> Self {
        self.headers.push(("orloj-ack".to_owned(), b"true".to_vec()));
        self
    }
}

/// What is delivered when a request names no payload: a callback's body is JSON and says null, a
/// record of a topic is simply empty.
#[must_use]
pub fn absent_payload(target: &Target) -> Vec<u8> {
    if target.is_http() { b"null".to_vec() } else { Vec::new() }
}

fn instructions(trigger: &NewTrigger) -> Vec<(String, Vec<u8>)> {
    let mut headers = vec![match trigger.when {
        When::At(at) => header("orloj-fire-at", at.to_string()),
        When::After(delay) => header("orloj-delay", delay.to_string()),
    }];
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
    headers.extend(retry(&trigger.retry));
    headers
}

fn retry(policy: &RetryPolicy) -> impl Iterator<Item = (String, Vec<u8>)> {
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

/// Refuses a pool that no worker of this installation serves, as far as `topics.pools` tells.
pub fn check_pool(target: &Target, pools: &[String]) -> Result<(), Refusal> {
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

fn header(name: &str, value: impl Into<Vec<u8>>) -> (String, Vec<u8>) {
    (name.to_owned(), value.into())
}

fn refuse<T>(field: &'static str, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { field, reason: reason.into() })
}

fn check_id(id: &str) -> Result<(), Refusal> {
    let max = limits::ID_BYTES_MAX;
    if id.is_empty() || id.len() > max {
        return refuse("triggerId", format!("it has {} bytes; write 1 to {max}", id.len()));
    }
    if id.chars().any(char::is_control) {
        return refuse("triggerId", "it has control characters; write text without them");
    }
    Ok(())
}

fn check_time(when: When, now: Timestamp) -> Result<(), Refusal> {
    let (field, delay) = match when {
        When::At(at) => ("fireAt", at.saturating_sub(now)),
        When::After(delay) => ("delaySeconds", delay),
    };
    if delay > limits::HORIZON_MAX_MS {
        let days = limits::HORIZON_MAX_MS / 86_400_000;
        return refuse(field, format!("it is farther ahead than {days} days; check the unit"));
    }
    Ok(())
}

fn check_target(target: &Target, names: &Names) -> Result<(), Refusal> {
    match target {
        Target::Topic(target) => check_topic(target.topic.as_str(), names),
        Target::Http(target) => check_url(target.url.as_str()),
    }
}

fn check_topic(topic: &str, names: &Names) -> Result<(), Refusal> {
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

fn check_url(url: &str) -> Result<(), Refusal> {
    match callback_url::read(url) {
        Ok(_) => Ok(()),
        Err(fault) => refuse("callbackUrl", fault.to_string()),
    }
}

fn check_headers(headers: &[(String, Vec<u8>)], target: &Target) -> Result<(), Refusal> {
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
        let why = why.or_else(|| http_header::refusal(name, value).filter(|_| target.is_http()))?;
        Some(format!("{name:?} cannot be carried to the target: {why}"))
    };
    headers.iter().find_map(refusal).map_or(Ok(()), |reason| refuse("headers", reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::text::Text;

    const NOW: Timestamp = 1_800_000_000_000;

    fn callback(url: &str) -> Target {
        Target::from(HttpTarget::post(url))
    }

    fn topic(topic: &str) -> Target {
        Target::Topic(TopicTarget { topic: Text::from(topic), key: Some("k".into()) })
    }

    fn trigger() -> NewTrigger {
        NewTrigger {
            id: "tea".to_owned(),
            when: When::After(1_500),
            target: topic("kitchen"),
            payload: b"ready".to_vec(),
            headers: vec![header("content-type", "text/plain")],
            on_conflict: OnConflict::Keep,
            retry: RetryPolicy::default(),
        }
    }

    fn refusal(change: impl FnOnce(&mut NewTrigger)) -> (&'static str, String) {
        let mut trigger = trigger();
        change(&mut trigger);
        let refusal = Submission::register(trigger, &Names::new("orloj"), NOW).unwrap_err();
        (refusal.field, refusal.reason)
    }

    #[test]
    fn a_registration_is_a_record_in_headers_form() {
        let submission = Submission::register(trigger(), &Names::new("orloj"), NOW).unwrap();
        let headers = [
            header("orloj-delay", "1500"),
            header("orloj-target-topic", "kitchen"),
            header("orloj-target-key", "k"),
            header("orloj-on-conflict", "keep"),
            header("content-type", "text/plain"),
            header("orloj-ack", "true"),
        ];
        let expected = Submission {
            id: "tea".to_owned(),
            value: Some(b"ready".to_vec()),
            headers: headers.to_vec(),
        };
        assert_eq!(submission.acknowledged(), expected);
    }

    #[test]
    fn how_a_callback_is_delivered_is_said_in_headers() {
        let slow = HttpTarget {
            pool: Some("slow".into()),
            timeout: Some(90_000),
            ..HttpTarget::post("https://h/x")
        };
        let retry = RetryPolicy {
            delays: vec![500, 1_000],
            attempts: Some(9),
            jitter: Some(0),
            final_statuses: vec![404, 422],
        };
        let target = Target::from(slow);
        assert_eq!(check_pool(&target, &["slow".to_owned()]), Ok(()));
        let refusal = check_pool(&target, &["fast".to_owned()]).unwrap_err();
        assert_eq!(refusal.to_string(), "pool: there is no pool slow; topics.pools names fast");
        let headers = instructions(&NewTrigger { target, retry, ..trigger() });
        for (name, value) in [
            ("orloj-pool", "slow"),
            ("orloj-timeout", "90000"),
            ("orloj-retry-delays", "500,1000"),
            ("orloj-retry-attempts", "9"),
            ("orloj-retry-jitter", "0"),
            ("orloj-retry-final-statuses", "404,422"),
        ] {
            assert!(headers.contains(&header(name, value)), "{name} in {headers:?}");
        }
    }

    #[test]
    fn a_cancel_is_a_tombstone() {
        let submission = Submission::cancel("tea").unwrap();
        assert_eq!((submission.value, submission.headers), (None, Vec::new()));
        assert_eq!(Submission::cancel("").unwrap_err().field, "triggerId");
    }

    #[test]
    fn what_the_owner_would_refuse_is_refused_by_field() {
        let horizon = limits::HORIZON_MAX_MS;
        type Change = Box<dyn FnOnce(&mut NewTrigger)>;
        let cases: [(&str, Change); 14] = [
            ("triggerId", Box::new(|t| t.id = "x".repeat(257))),
            ("triggerId", Box::new(|t| t.id = "a\nb".to_owned())),
            ("fireAt", Box::new(move |t| t.when = When::At(NOW + horizon + 1))),
            ("delaySeconds", Box::new(move |t| t.when = When::After(horizon + 1))),
            ("topic", Box::new(|t| t.target = topic("a b"))),
            ("topic", Box::new(|t| t.target = topic("orloj.ledger"))),
            ("topic", Box::new(|t| t.target = topic("__consumer_offsets"))),
            ("callbackUrl", Box::new(|t| t.target = callback("/relative"))),
            ("callbackUrl", Box::new(|t| t.target = callback("ftp://host/x"))),
            ("callbackUrl", Box::new(|t| t.target = callback(&"http://h/".repeat(300)))),
            ("payload", Box::new(|t| t.payload = vec![0; limits::PAYLOAD_BYTES_MAX + 1])),
            ("headers", Box::new(|t| t.headers = vec![header("orloj-delay", "1")])),
            ("headers", Box::new(|t| t.headers = vec![header("n", "v"); 65])),
            (
                "headers",
                Box::new(|t| {
                    t.target = callback("http://h/");
                    t.headers = vec![header("Host", "internal")];
                }),
            ),
        ];
        for (field, change) in cases {
            let (refused, reason) = refusal(change);
            assert_eq!(refused, field, "{reason}");
        }
    }

    #[test]
    fn a_time_in_the_past_is_fine() {
        let past = NewTrigger { when: When::At(1), ..trigger() };
        assert!(Submission::register(past, &Names::new("orloj"), NOW).is_ok());
    }
}
