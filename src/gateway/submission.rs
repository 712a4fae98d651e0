//! What the gateway and the command line write to `triggers`: records in headers form, and batches,
//! refused before they are written if the owner would refuse them.
//!
//! Invariant: a value is null only in a cancel, because a null value is a cancel.

use std::collections::BTreeSet;

use thiserror::Error;

use super::validator::RegistrationValidator;
use crate::codec::batch::BATCH;
use crate::codec::registration::{ACK, CALLER, COMMAND, IF_GENERATION};
use crate::kafka::Names;
use crate::model::definition::{HttpTarget, Target, TopicTarget};
use crate::model::input::OnConflict;
use crate::model::lifecycle::Command;
use crate::model::retry::RetryPolicy;
use crate::model::{Millis, Offset, Timestamp, callback_url, http_header, limits};

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
/// Other fields that the owner may refuse.
const OTHER_HEADERS: [(&str, &str); 4] = [
    ("orloj-fire-at", "fireAt"),
    ("orloj-delay", "delaySeconds"),
    ("orloj-callback-method", "method"),
    ("onFailure", "onFailure"),
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

/// A field of a trigger, as a request names it, and what must change.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct ValidationError {
    /// The field of the HTTP API, or `body` for all of it.
    pub field: &'static str,
    /// What is wrong, and what to write.
    pub reason: String,
}

/// Several registrations in one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSubmission {
    /// The record.
    pub submission: Submission,
    /// The triggers, in order, each once.
    pub ids: Vec<String>,
}

/// What the checks of a submission need.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionRules<'a> {
    /// Our topics, into which no trigger may fire.
    pub names: &'a Names,
    /// `topics.pools`.
    pub pools: &'a [String],
    /// Reads it as its owner will.
    pub validator: &'a RegistrationValidator,
    /// The wall clock, in ms since the epoch.
    pub now: Timestamp,
}

impl Submission {
    /// A registration, refused if the owner would refuse it.
    pub fn register(
        trigger: NewTrigger,
        rules: SubmissionRules<'_>,
    ) -> Result<Self, ValidationError> {
        let SubmissionRules { names, pools, validator, now } = rules;
        check_pool(&trigger.target, pools)?;
        check_id(&trigger.id)?;
        if let Some(when) = trigger.when {
            check_time(when, now)?;
        }
        check_target(&trigger.target, names)?;
        check_headers(&trigger.headers, &trigger.target)?;
        let bytes = trigger.payload.len();
        if bytes > limits::PAYLOAD_BYTES_MAX {
            let max = limits::PAYLOAD_BYTES_MAX;
            return refuse("payload", format!("it has {bytes} bytes, at most {max} are taken"));
        }
        let headers = instruction_headers(&trigger).into_iter().chain(trigger.metadata_headers);
        let headers = headers.chain(trigger.headers).collect();
        let submission = Self { id: trigger.id, value: Some(trigger.payload), headers };
        validator.validate(&submission, now).map_err(to_validation_error)?;
        Ok(submission)
    }

    /// A command for the trigger that is pending under `id`.
    pub fn command(id: &str, command: Command) -> Result<Self, ValidationError> {
        check_id(id)?;
        let word = match command {
            Command::Pause => "pause",
            Command::Resume => "resume",
            Command::FireNow => "fire-now",
        };
        let headers = vec![header(COMMAND, word)];
        Ok(Self { id: id.to_owned(), value: Some(Vec::new()), headers })
    }

    /// A cancel of the trigger that is pending under `id`.
    pub fn cancel(id: &str) -> Result<Self, ValidationError> {
        check_id(id)?;
        Ok(Self { id: id.to_owned(), value: None, headers: Vec::new() })
    }

    /// Adds the caller.
    #[must_use]
    pub fn with_caller(mut self, caller: &str) -> Self {
        self.headers.push(header(CALLER, caller));
        self
    }

    /// Adds a condition: it applies only if `generation` is still the trigger's.
    #[must_use]
    pub fn if_generation(mut self, generation: Offset) -> Self {
        self.headers.push(header(IF_GENERATION, generation.to_string()));
        self
    }

    /// Adds the request for an outcome.
    #[must_use]
    pub fn with_ack(mut self) -> Self {
        self.headers.push(header(ACK, "true"));
        self
    }
}

impl BatchSubmission {
    /// Reads a batch: a JSON array of envelopes with an id each.
    pub fn read(json: Vec<u8>, rules: SubmissionRules<'_>) -> Result<Self, ValidationError> {
        let (bytes, max) = (json.len(), limits::PAYLOAD_BYTES_MAX);
        if bytes > max {
            let reason = format!("it has {bytes} bytes, at most {max} go into one: split it");
            return refuse("batch", reason);
        }
        let headers = vec![header(BATCH, "true")];
        let submission = Submission { id: String::new(), value: Some(json), headers };
        let read = rules.validator.validate(&submission, rules.now);
        let registrations = read.map_err(|reason| ValidationError { field: "batch", reason })?;
        let mut ids = Vec::new();
        let mut ids_so_far = BTreeSet::new();
        for registration in registrations {
            let id = registration.id.as_str();
            let target = &registration.definition.target;
            check_target(target, rules.names)
                .and_then(|()| check_pool(target, rules.pools))
                .map_err(|ValidationError { field, reason }| ValidationError {
                    field: "batch",
                    reason: format!("{id}: {field}: {reason}"),
                })?;
            if !ids_so_far.insert(id.to_owned()) {
                return refuse("batch", format!("{id} is in it twice: give each id once"));
            }
            ids.push(id.to_owned());
        }
        // The key has no meaning for a batch; the first id makes the record easy to find.
        let id = ids.first().cloned().unwrap_or_default();
        Ok(Self { submission: Submission { id, ..submission }, ids })
    }
}

/// The payload of a request without one: `null` as JSON for a callback, an empty value for a
/// record.
#[must_use]
pub fn default_payload(target: &Target) -> Vec<u8> {
    if target.is_http() { b"null".to_vec() } else { Vec::new() }
}

fn instruction_headers(trigger: &NewTrigger) -> Vec<(String, Vec<u8>)> {
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

/// Refuses a pool that is not in `topics.pools`.
fn check_pool(target: &Target, pools: &[String]) -> Result<(), ValidationError> {
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

fn refuse<T>(field: &'static str, reason: impl Into<String>) -> Result<T, ValidationError> {
    Err(ValidationError { field, reason: reason.into() })
}

/// The field of the HTTP API for the header that the validator refuses.
fn to_validation_error(mut reason: String) -> ValidationError {
    let names = || LIFECYCLE_HEADERS.iter().chain(&OTHER_HEADERS);
    for (header, field) in names() {
        reason = reason.replace(&format!("{header} "), &format!("{field} "));
    }
    let named = names().find(|(_, field)| {
        let root = field.split('.').next().unwrap_or(field);
        reason.strip_prefix(root).is_some_and(|rest| rest.starts_with([' ', '.']))
    });
    let field = named.map_or("body", |(_, field)| *field);
    ValidationError { field: field.split_once('.').map_or(field, |(root, _)| root), reason }
}

/// Ids as `orloj-after` takes them.
#[must_use]
pub fn after_header_value(ids: &[String]) -> String {
    let is_plain = |id: &String| {
        !id.is_empty() && id.trim() == id && !id.contains(',') && !id.starts_with('[')
    };
    if ids.iter().all(is_plain) { ids.join(",") } else { serde_json::json!(ids).to_string() }
}

fn check_id(id: &str) -> Result<(), ValidationError> {
    let max = limits::ID_BYTES_MAX;
    if id.is_empty() || id.len() > max {
        return refuse("triggerId", format!("it has {} bytes; write 1 to {max}", id.len()));
    }
    if id.chars().any(char::is_control) {
        return refuse("triggerId", "it has control characters; write text without them");
    }
    Ok(())
}

fn check_time(when: FireTime, now: Timestamp) -> Result<(), ValidationError> {
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

fn check_target(target: &Target, names: &Names) -> Result<(), ValidationError> {
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
        Err(fault) => refuse("callbackUrl", fault.to_string()),
    }
}

fn check_headers(headers: &[(String, Vec<u8>)], target: &Target) -> Result<(), ValidationError> {
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
            when: Some(FireTime::After(1_500)),
            target: topic("kitchen"),
            payload: b"ready".to_vec(),
            headers: vec![header("content-type", "text/plain")],
            metadata_headers: Vec::new(),
            lifecycle_headers: Vec::new(),
            on_conflict: OnConflict::Keep,
            retry: RetryPolicy::default(),
        }
    }

    /// Registers it where there is a pool called slow.
    fn register(trigger: NewTrigger) -> Result<Submission, ValidationError> {
        let (names, validator, pools) =
            (Names::new("orloj"), RegistrationValidator::new(), ["slow".to_owned()]);
        let rules =
            SubmissionRules { names: &names, pools: &pools, validator: &validator, now: NOW };
        Submission::register(trigger, rules)
    }

    fn refusal(change: impl FnOnce(&mut NewTrigger)) -> (&'static str, String) {
        let mut trigger = trigger();
        change(&mut trigger);
        let refusal = register(trigger).unwrap_err();
        (refusal.field, refusal.reason)
    }

    fn batch(json: &str) -> Result<BatchSubmission, ValidationError> {
        let (names, validator) = (Names::new("orloj"), RegistrationValidator::new());
        let rules = SubmissionRules { names: &names, pools: &[], validator: &validator, now: NOW };
        BatchSubmission::read(json.as_bytes().to_vec(), rules)
    }

    #[test]
    fn a_registration_is_a_record_in_headers_form() {
        let submission = register(trigger()).unwrap();
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
        assert_eq!(submission.with_ack(), expected);
        let at = NewTrigger { when: Some(FireTime::At(NOW)), ..trigger() };
        assert_eq!(register(at).unwrap().headers[0], header("orloj-fire-at", NOW.to_string()));
    }

    #[test]
    fn caller_and_generation_are_written_as_headers() {
        let cancel = || Submission::cancel("tea").unwrap();
        assert_eq!(cancel().with_caller("billing").headers, [header("orloj-caller", "billing")]);
        let generation = [header("orloj-if-generation", "41")];
        assert_eq!(cancel().if_generation(41).headers, generation);
    }

    #[test]
    fn values_at_the_limits_are_accepted() {
        let horizon = limits::FUTURE_MAX_MS;
        for within in [
            NewTrigger { id: "x".repeat(256), ..trigger() },
            NewTrigger { when: Some(FireTime::At(NOW + horizon)), ..trigger() },
            NewTrigger { when: Some(FireTime::After(horizon)), ..trigger() },
            NewTrigger { payload: vec![0; limits::PAYLOAD_BYTES_MAX], ..trigger() },
            NewTrigger { headers: vec![header("n", "v"); 64], ..trigger() },
            NewTrigger { headers: vec![header("n", "v".repeat(16_383))], ..trigger() },
            // A header that HTTP refuses is allowed in a record.
            NewTrigger { headers: vec![header("Host", "internal")], ..trigger() },
        ] {
            assert_eq!(register(within).map(drop), Ok(()));
        }
    }

    #[test]
    fn callback_options_are_written_as_headers() {
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
        let headers = instruction_headers(&NewTrigger { target, retry, ..trigger() });
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
    fn a_value_that_the_owner_would_refuse_is_refused_by_field() {
        let horizon = limits::FUTURE_MAX_MS;
        type TriggerEdit = Box<dyn FnOnce(&mut NewTrigger)>;
        let cases: [(&str, TriggerEdit); 17] = [
            ("triggerId", Box::new(|t| t.id = "x".repeat(257))),
            ("triggerId", Box::new(|t| t.id = "a\nb".to_owned())),
            ("fireAt", Box::new(move |t| t.when = Some(FireTime::At(NOW + horizon + 1)))),
            ("delaySeconds", Box::new(move |t| t.when = Some(FireTime::After(horizon + 1)))),
            ("topic", Box::new(|t| t.target = topic("a b"))),
            ("topic", Box::new(|t| t.target = topic("orloj.ledger"))),
            ("topic", Box::new(|t| t.target = topic("__consumer_offsets"))),
            ("callbackUrl", Box::new(|t| t.target = callback("/relative"))),
            ("callbackUrl", Box::new(|t| t.target = callback("ftp://host/x"))),
            ("callbackUrl", Box::new(|t| t.target = callback(&"http://h/".repeat(300)))),
            ("payload", Box::new(|t| t.payload = vec![0; limits::PAYLOAD_BYTES_MAX + 1])),
            ("headers", Box::new(|t| t.headers = vec![header("orloj-delay", "1")])),
            ("headers", Box::new(|t| t.headers = vec![header("n", "v"); 65])),
            ("headers", Box::new(|t| t.headers = vec![header("n", "v".repeat(16_384))])),
            ("headers", Box::new(|t| t.headers = vec![header("scheduler-x", "1")])),
            ("headers", Box::new(|t| t.headers = vec![header("", "1")])),
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
        let past = NewTrigger { when: Some(FireTime::At(1)), ..trigger() };
        assert!(register(past).is_ok());
    }

    #[test]
    fn lifecycle_headers_are_validated_as_the_owner_does() {
        let register_with = |headers: &[(&'static str, &str)]| {
            let lifecycle_headers =
                headers.iter().map(|(name, value)| (*name, (*value).to_owned()));
            register(NewTrigger {
                lifecycle_headers: lifecycle_headers.collect(),
                when: None,
                ..trigger()
            })
        };
        let daily = ("orloj-schedule", r#"{"daily": "09:00"}"#);
        let submission = register_with(&[daily, ("orloj-count", "keep")]).unwrap();
        assert_eq!(submission.headers[0], header(daily.0, daily.1));
        let after = ("orloj-after", "a,b");
        assert!(
            register_with(&[after, ("orloj-after-timeout", "1h"), ("orloj-retain", "7d")]).is_ok()
        );
        for (headers, field, reason) in [
            (&[daily, ("orloj-expire-after", "1h")][..], "expireAfter", "misfire"),
            (&[("orloj-schedule", r#"{"cron": "* * 31 2 *"}"#)], "schedule", "it never comes"),
            (&[("orloj-schedule", r#"{"daily": "9:00", "end": 5}"#)], "schedule", "even once"),
            (&[after, ("orloj-count", "keep")], "count", "there is none"),
            (&[("orloj-after", "tea")], "after", "cannot wait for itself"),
            (&[after, ("orloj-after-timeout", "soon")], "after", "after.timeout is \"soon\""),
            (&[daily, after], "after", "does not wait for others"),
            (&[daily, ("orloj-on-failure", "skip")], "onFailure", "there is none"),
            (&[after, ("orloj-retain", "2y")], "retain", "give milliseconds"),
            (&[after, ("orloj-priority", "256")], "priority", "255 (fires first)"),
        ] {
            let refusal = register_with(headers).unwrap_err();
            assert_eq!(refusal.field, field, "{refusal}");
            assert!(refusal.reason.contains(reason), "{refusal}");
        }
    }

    #[test]
    fn ids_with_commas_are_a_list() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(after_header_value(&ids(&["a", "b"])), "a,b");
        assert_eq!(after_header_value(&ids(&["a,b", "c"])), r#"["a,b","c"]"#);
        assert_eq!(after_header_value(&ids(&["[c"])), r#"["[c"]"#);
        assert_eq!(after_header_value(&ids(&[" a", "b"])), r#"[" a","b"]"#);
        let lifecycle_headers = vec![("orloj-after", after_header_value(&ids(&["a,b", "[c"])))];
        let submission = register(NewTrigger { lifecycle_headers, ..trigger() }).unwrap();
        let [registration] = &RegistrationValidator::new().validate(&submission, NOW).unwrap()[..]
        else {
            panic!()
        };
        assert_eq!(registration.after.as_ref().unwrap().ids, ["a,b", "[c"].map(Text::from));
    }

    #[test]
    fn a_command_is_an_empty_value_and_a_header() {
        for (command, word) in
            [(Command::Pause, "pause"), (Command::Resume, "resume"), (Command::FireNow, "fire-now")]
        {
            let submission = Submission::command("tea", command).unwrap();
            assert_eq!(submission.value, Some(Vec::new()), "null would cancel");
            assert_eq!(submission.headers, [header("orloj-command", word)]);
            assert_eq!(RegistrationValidator::new().validate(&submission, NOW), Ok(Vec::new()));
        }
        assert_eq!(Submission::command("", Command::Pause).unwrap_err().field, "triggerId");
    }

    #[test]
    fn each_registration_of_a_batch_is_validated() {
        let batched = batch(
            r#"[{"id": "a", "topic": "t", "delay": "1s"},
                {"id": "b", "topic": "t", "after": ["a"]}]"#,
        );
        let BatchSubmission { submission, ids } = batched.unwrap();
        assert_eq!((ids, submission.id.as_str()), (vec!["a".to_owned(), "b".to_owned()], "a"));
        assert_eq!(submission.headers, [header("orloj-batch", "true")]);
        let a = r#"{"id": "a", "topic": "t", "delay": "1s"}"#;
        for (json, reason) in [
            ("{}".to_owned(), "give a JSON array"),
            ("[]".to_owned(), "has 0 registrations"),
            (format!("[{}]", vec![a; 1_001].join(",")), "has 1001 registrations"),
            (format!("[{a}, {a}]"), "a is in it twice"),
            (r#"[{"topic": "t", "delay": "1s"}]"#.to_owned(), "with an id"),
            (r#"[{"id": "a", "topic": "t"}]"#.to_owned(), "a: nothing says when"),
            (r#"[{"id": "a", "topic": "orloj.ledger", "delay": 1}]"#.to_owned(), "a: topic: "),
            (
                r#"[{"id": "a", "target": {"url": "http://h/", "pool": "p"}, "delay": 1}]"#
                    .to_owned(),
                "a: pool: there is no pool p",
            ),
            (" ".repeat(1_000_001), "split it"),
        ] {
            let refusal = batch(&json).unwrap_err();
            assert!(refusal.reason.contains(reason), "{refusal}");
        }
    }
}
