//! The body of `POST /v1/triggers` and of each trigger in a batch, and the trigger in it.
//!
//! Invariant: a field is either checked here or passed on as it was written, to be checked by the
//! validator; nothing is checked twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::callers::CallerLimits;
use crate::client::{self, FireTime, NewTrigger, ValidationError, default_payload};
use crate::codec::registration::retry_policy;
use crate::gateway::http::FieldError;
use crate::gateway::http::field_types::{
    AfterField, DurationSchema, RetryPolicySchema, ScheduleSchema, Seconds, TimestampField,
};
use crate::gateway::json_body::RequestBody;
use crate::model::Millis;
use crate::model::definition::{HttpTarget, Target, TopicTarget, is_pool_name};
use crate::model::input::OnConflict;
use crate::model::limits::{self, TIMEOUT_MAX_MS};
use crate::model::text::Text;
use crate::view::{LABEL_HEADER_PREFIX, NAME_HEADER};

/// Bytes of a name or of a label's value.
const LINE_BYTES_MAX: usize = 256;
/// Labels of a trigger: each is a header of its record.
const LABELS_MAX: usize = 16;
/// Bytes of a label's key.
const LABEL_KEY_BYTES_MAX: usize = 63;

/// Bytes of a body besides its payload: an id, a URL, headers, and their JSON.
const BODY_OVERHEAD: u64 = 4 * limits::HEADER_BYTES_MAX as u64;

/// A trigger to be registered: when, where to, and what. A field that is null counts as absent.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a JSON object")]
#[schema(as = NewTrigger, examples(json!({
    "triggerId": "tea", "callbackUrl": "https://example.com/hook", "delaySeconds": 240,
    "payload": {"cups": 2}
})))]
pub(crate) struct TriggerBody {
    /// The id by which it is replaced and cancelled; a new one is made if none is given.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(crate) trigger_id: Option<String>,
    /// A name for people.
    #[schema(min_length = 1, max_length = 256)]
    name: Option<String>,
    /// Labels to find triggers by: keys of a-z, 0-9, '.', '_' and '-'.
    labels: Option<BTreeMap<String, String>>,
    /// Fires as a request to this URL. Give this or topic.
    #[schema(max_length = 2048, examples("https://example.com/hook"))]
    callback_url: Option<String>,
    /// The method of the request; POST if not given.
    #[schema(pattern = "^(POST|PUT|PATCH|DELETE|GET)$")]
    method: Option<String>,
    /// Headers of the request, or of the record.
    headers: Option<BTreeMap<String, String>>,
    /// Fires as a record of this topic. Give this or callbackUrl.
    #[schema(max_length = 249, pattern = "^[a-zA-Z0-9._-]+$")]
    topic: Option<String>,
    /// The key of the record; the triggerId if not given.
    key: Option<String>,
    /// What is delivered, byte for byte as it is written here.
    #[schema(value_type = Option<Value>)]
    payload: Option<Box<RawValue>>,
    /// The pool whose workers make the request.
    #[schema(max_length = 64, pattern = "^[a-zA-Z0-9_-]+$")]
    pool: Option<String>,
    /// How long an attempt of the request may take.
    timeout_seconds: Option<Seconds>,
    /// When a failed request is retried.
    #[schema(value_type = Option<RetryPolicySchema>)]
    retry: Option<Box<RawValue>>,
    /// Fires this long after the record is written.
    delay_seconds: Option<Seconds>,
    /// Fires at this time.
    fire_at: Option<TimestampField>,
    /// Fires repeatedly.
    #[schema(value_type = Option<ScheduleSchema>)]
    schedule: Option<Box<RawValue>>,
    /// Fires when others have settled.
    after: Option<AfterField>,
    /// The schedule ends before this time: short for schedule.end.
    #[schema(value_type = Option<TimestampField>)]
    end: Option<Value>,
    /// The schedule ends after so many executions: short for schedule.maxExecutions.
    #[schema(value_type = Option<u32>, minimum = 1)]
    max_executions: Option<Value>,
    /// A one-time trigger that is later than this does not fire.
    #[schema(value_type = Option<DurationSchema>)]
    expire_after: Option<Value>,
    /// Whether a schedule keeps or resets the number of executions of the one it replaces.
    #[schema(value_type = Option<String>, pattern = "^(keep|reset)$")]
    count: Option<Value>,
    /// How long it is kept once it has settled, so that other triggers can still wait for it.
    #[schema(value_type = Option<DurationSchema>)]
    retain: Option<Value>,
    /// 0 to 255: of what is due in the same millisecond, higher fires first; 127 if not given.
    #[schema(value_type = Option<u8>, minimum = 0, maximum = 255)]
    priority: Option<Value>,
    /// What happens if one is pending under this id: it is replaced, or it is kept.
    on_conflict: Option<ConflictPolicy>,
    /// What happens if fireAt has passed: it is refused, or it fires at once.
    pub(crate) late: Option<LatePolicy>,
}

/// What happens to the pending trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OnConflict)]
pub(crate) enum ConflictPolicy {
    Replace,
    Keep,
}

/// What happens to a trigger whose time has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Late)]
pub(crate) enum LatePolicy {
    Fire,
    #[default]
    Refuse,
}

impl RequestBody for TriggerBody {
    fn bytes_max(limits: &CallerLimits) -> u64 {
        body_max(limits.payload.bytes())
    }
}

/// The largest body with one payload, in bytes.
pub(crate) fn body_max(payload_max: u64) -> u64 {
    payload_max.min(limits::PAYLOAD_BYTES_MAX as u64) + BODY_OVERHEAD
}

impl TriggerBody {
    /// The trigger. Without `triggerId` it gets a new id. `payload_max` is in bytes.
    pub(crate) fn into_trigger(mut self, payload_max: u64) -> Result<NewTrigger, FieldError> {
        let lifecycle_headers = self.lifecycle_headers()?;
        let when = self.when(&lifecycle_headers)?;
        let metadata_headers = metadata_headers(self.name.take(), self.labels.take())?;
        let target = self.target()?;
        let payload = self.payload.take();
        let bytes = payload.as_ref().map_or(0, |payload| payload.get().len());
        check_payload(bytes, payload_max)?;
        let payload = payload
            .map_or_else(|| default_payload(&target), |payload| payload.get().as_bytes().to_vec());
        let retry = self.retry.take().map(|json| retry_policy(json.get())).transpose();
        let retry = retry.map_err(|reason| ValidationError { field: "retry", reason })?.flatten();
        let headers = self.headers.take().unwrap_or_default().into_iter();
        Ok(NewTrigger {
            id: self.trigger_id.unwrap_or_else(|| Uuid::now_v7().to_string()),
            when,
            target,
            payload,
            headers: headers.map(|(name, value)| (name, value.into_bytes())).collect(),
            metadata_headers,
            lifecycle_headers,
            on_conflict: match self.on_conflict {
                Some(ConflictPolicy::Keep) => OnConflict::Keep,
                Some(ConflictPolicy::Replace) | None => OnConflict::Replace,
            },
            retry: retry.map_or_else(Default::default, |policy| *policy),
        })
    }

    /// The options beyond one time and one attempt, as headers: the validator checks the values.
    fn lifecycle_headers(&mut self) -> Result<Vec<(&'static str, String)>, FieldError> {
        let mut headers = Vec::new();
        headers.extend(self.schedule()?.map(|schedule| ("orloj-schedule", schedule)));
        for (value, header) in [
            (self.expire_after.take(), "orloj-expire-after"),
            (self.count.take(), "orloj-count"),
            (self.retain.take(), "orloj-retain"),
            (self.priority.take(), "orloj-priority"),
        ] {
            headers.extend(value.map(|value| (header, header_value(&value))));
        }
        if let Some(AfterField { ids, on_failure, timeout }) = self.after.take() {
            headers.push(("orloj-after", client::after_header_value(&ids)));
            headers.extend(on_failure.map(|word| ("orloj-on-failure", header_value(&word))));
            headers.extend(timeout.map(|span| ("orloj-after-timeout", header_value(&span))));
        }
        Ok(headers)
    }

    /// The schedule as JSON: as it was written, unless the body has a short form of its fields.
    fn schedule(&mut self) -> Result<Option<String>, FieldError> {
        let short_forms = [("end", self.end.take()), ("maxExecutions", self.max_executions.take())];
        let short_forms = short_forms.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let short_forms: Vec<_> = short_forms.collect();
        let schedule = self.schedule.take();
        let Some((first, _)) = short_forms.first() else {
            return Ok(schedule.map(|schedule| schedule.get().to_owned()));
        };
        let Some(schedule) = schedule else {
            return Err(FieldError::of(
                first,
                "it is a field of a schedule, and there is none: remove it",
            ));
        };
        let fields: Result<Map<String, Value>, _> = serde_json::from_str(schedule.get());
        // A schedule that is not an object is refused by the validator.
        let Ok(mut fields) = fields else { return Ok(Some(schedule.get().to_owned())) };
        for (name, value) in short_forms {
            let within = fields.insert(name.to_owned(), value);
            if within.is_some_and(|within| !within.is_null()) {
                let reason = format!("there is schedule.{name} too: write one of them");
                return Err(FieldError::of(name, reason));
            }
        }
        Ok(Some(Value::from(fields).to_string()))
    }

    fn when(
        &self,
        lifecycle_headers: &[(&'static str, String)],
    ) -> Result<Option<FireTime>, FieldError> {
        let says_when =
            |(header, _): &(&str, String)| matches!(*header, "orloj-schedule" | "orloj-after");
        match (self.delay_seconds, self.fire_at) {
            (Some(Seconds(delay)), None) => Ok(Some(FireTime::After(delay))),
            (None, Some(TimestampField(at))) => Ok(Some(FireTime::At(at))),
            (None, None) if lifecycle_headers.iter().any(says_when) => Ok(None),
            (None, None) => {
                let reason = "say when: write fireAt, delaySeconds, schedule or after";
                Err(FieldError::of("fireAt", reason))
            }
            (Some(_), Some(_)) => {
                Err(FieldError::of("fireAt", "there is delaySeconds too: write one of them"))
            }
        }
    }

    fn target(&mut self) -> Result<Target, FieldError> {
        let pool = self.pool()?;
        let timeout = self.timeout()?;
        let method = self.method.take();
        let has_callback_options = pool.is_some() || timeout.is_some() || method.is_some();
        match (self.callback_url.take(), self.topic.take(), self.key.take()) {
            (Some(url), None, None) => {
                let post = HttpTarget { pool, timeout, ..HttpTarget::post(&url) };
                let method = method.map_or_else(|| post.method.clone(), Text::from);
                Ok(Target::Http(Box::new(HttpTarget { method, ..post })))
            }
            (None, Some(_), _) if has_callback_options => {
                let reason = "method, pool and timeoutSeconds are for callbacks; leave them out";
                Err(FieldError::of("topic", reason))
            }
            (None, Some(topic), key) => {
                let (topic, key) = (Text::from(topic), key.map(Into::into));
                Ok(Target::Topic(TopicTarget { topic, key }))
            }
            (Some(_), None, Some(_)) => {
                Err(FieldError::of("key", "only a record of a topic has a key; leave it out"))
            }
            (None, None, _) => {
                Err(FieldError::of("callbackUrl", "say where: write callbackUrl or topic"))
            }
            (Some(_), Some(_), _) => {
                Err(FieldError::of("callbackUrl", "there is topic too: write one of them"))
            }
        }
    }

    fn pool(&mut self) -> Result<Option<Text>, FieldError> {
        match self.pool.take() {
            Some(pool) if !is_pool_name(&pool) => {
                let expected = "write letters, digits, '_' and '-'";
                Err(FieldError::of("pool", format!("{pool:?} cannot be one: {expected}")))
            }
            pool => Ok(pool.map(Text::from)),
        }
    }

    /// In ms.
    fn timeout(&self) -> Result<Option<Millis>, FieldError> {
        match self.timeout_seconds {
            Some(Seconds(ms)) if !(1..=TIMEOUT_MAX_MS).contains(&ms) => {
                let max = TIMEOUT_MAX_MS / 1_000;
                let reason = format!("write seconds above 0 and up to {max}");
                Err(FieldError::of("timeoutSeconds", reason))
            }
            timeout => Ok(timeout.map(|Seconds(ms)| ms)),
        }
    }
}

/// Refuses a payload that is larger than its caller may send.
pub(crate) fn check_payload(bytes: usize, max: u64) -> Result<(), FieldError> {
    if bytes as u64 > max {
        let reason = format!("it has {bytes} bytes, at most {max} are taken over HTTP");
        return Err(FieldError::of("payload", reason));
    }
    Ok(())
}

/// The headers that carry a name and labels.
pub(crate) fn metadata_headers(
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
) -> Result<Vec<(String, Vec<u8>)>, FieldError> {
    let mut headers = Vec::new();
    if let Some(name) = name {
        check_line("name", &name)?;
        headers.push((NAME_HEADER.to_owned(), name.into_bytes()));
    }
    let labels = labels.unwrap_or_default();
    if labels.len() > LABELS_MAX {
        let reason = format!("there are {}, at most {LABELS_MAX} are taken", labels.len());
        return Err(FieldError::of("labels", reason));
    }
    for (key, value) in labels {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
        if key.is_empty() || key.len() > LABEL_KEY_BYTES_MAX || !key.bytes().all(legal) {
            let reason = format!(
                "{key:?} is no key: write 1 to {LABEL_KEY_BYTES_MAX} of a-z, 0-9, '.', '_', '-'"
            );
            return Err(FieldError::of("labels", reason));
        }
        check_line(&format!("labels/{key}"), &value)?;
        headers.push((format!("{LABEL_HEADER_PREFIX}{key}"), value.into_bytes()));
    }
    Ok(headers)
}

fn check_line(pointer: &str, text: &str) -> Result<(), FieldError> {
    if text.is_empty() || text.len() > LINE_BYTES_MAX || text.chars().any(char::is_control) {
        let bytes = text.len();
        let reason = format!(
            "it has {bytes} bytes: write 1 to {LINE_BYTES_MAX}, without control characters"
        );
        return Err(FieldError::of(pointer, reason));
    }
    Ok(())
}

/// A value as a header has it.
fn header_value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::http::{ParseError, json};

    fn read(body: &str) -> Result<NewTrigger, FieldError> {
        let body = json::parse_json::<TriggerBody>(body.as_bytes());
        body.map_err(|ParseError(error)| error)?.into_trigger(64)
    }

    #[test]
    fn a_callback_with_a_delay() {
        let trigger = read(
            r#"{"triggerId": "tea", "callbackUrl": "http://h/x", "delaySeconds": 1.5,
                "payload": {"n": 1.0,  "s": "ü"}, "headers": {"traceparent": "00-1"}}"#,
        )
        .unwrap();
        assert_eq!(trigger.id, "tea");
        assert_eq!(trigger.when, Some(FireTime::After(1_500)));
        assert!(trigger.target.is_http());
        assert_eq!(trigger.payload, r#"{"n": 1.0,  "s": "ü"}"#.as_bytes(), "as it was written");
        assert_eq!(trigger.headers, [("traceparent".to_owned(), b"00-1".to_vec())]);
    }

    #[test]
    fn a_callback_with_a_pool_and_a_policy() {
        let trigger = read(
            r#"{"callbackUrl": "http://h/x", "fireAt": 1, "pool": "slow", "timeoutSeconds": 2.5,
                "retry": {"delays": ["1s"], "attempts": 5}}"#,
        )
        .unwrap();
        let Target::Http(target) = &trigger.target else { panic!("{trigger:?}") };
        assert_eq!((target.pool.clone(), target.timeout), (Some("slow".into()), Some(2_500)));
        assert_eq!((trigger.retry.delays, trigger.retry.attempts), (vec![1_000], Some(5)));
    }

    #[test]
    fn a_callback_without_a_payload_sends_null() {
        let put = r#"{"callbackUrl": "http://h/x", "fireAt": 1, "method": "PUT"}"#;
        let trigger = read(put).unwrap();
        let Target::Http(target) = &trigger.target else { panic!("{trigger:?}") };
        assert_eq!((target.method.as_str(), &*trigger.payload), ("PUT", &b"null"[..]));
    }

    #[test]
    fn a_number_is_accepted_in_any_json_form() {
        let when = |when: &str| {
            let trigger = read(&format!(r#"{{"topic": "t", {when}}}"#));
            trigger.map(|trigger| trigger.when.unwrap()).map_err(|error| error.reason)
        };
        for (text, read) in [
            (r#""fireAt": 1.8e12"#, FireTime::At(1_800_000_000_000)),
            (r#""fireAt": "1969-12-31T23:00:00Z""#, FireTime::At(0)),
            (r#""fireAt": "99999999999999999999""#, FireTime::At(u64::MAX)),
            (r#""delaySeconds": 18446744073709551615"#, FireTime::After(u64::MAX)),
            (r#""delaySeconds": 1e300"#, FireTime::After(u64::MAX)),
            (r#""delaySeconds": 2"#, FireTime::After(2_000)),
        ] {
            assert_eq!(when(text), Ok(read), "{text}");
        }
        assert!(when(r#""fireAt": 1.5"#).unwrap_err().contains("RFC 3339"));
        assert!(when(r#""fireAt": -1.0"#).unwrap_err().contains("RFC 3339"));
        assert!(when(r#""delaySeconds": -0.5"#).unwrap_err().contains("from 0 on"));
    }

    #[test]
    fn a_topic_with_a_time() {
        for at in [r#""2027-01-15T08:00:00Z""#, r#""2027-01-15T09:00:00+01:00""#, "1800000000000"] {
            let trigger = read(&format!(r#"{{"topic": "t", "key": "k", "fireAt": {at}}}"#));
            let trigger = trigger.unwrap();
            let Target::Topic(target) = &trigger.target else { panic!("{trigger:?}") };
            assert_eq!(target.key, Some("k".into()));
            assert_eq!(trigger.when, Some(FireTime::At(1_800_000_000_000)));
            assert_eq!(trigger.payload, b"");
            assert_eq!(trigger.id.len(), 36, "a fresh id: {}", trigger.id);
        }
    }

    #[test]
    fn lifecycle_options_are_written_as_headers() {
        let trigger = read(
            r#"{"topic": "t", "schedule": {"every": "1h"}, "count": "keep", "retain": 5000,
                "expireAfter": "1h", "priority": 200, "onConflict": "keep",
                "after": {"ids": ["a", "b"], "onFailure": "skip", "timeout": "30s"}}"#,
        )
        .unwrap();
        assert_eq!((trigger.when, trigger.on_conflict), (None, OnConflict::Keep));
        let expected = [
            ("orloj-schedule", r#"{"every": "1h"}"#),
            ("orloj-expire-after", "1h"),
            ("orloj-count", "keep"),
            ("orloj-retain", "5000"),
            ("orloj-priority", "200"),
            ("orloj-after", "a,b"),
            ("orloj-on-failure", "skip"),
            ("orloj-after-timeout", "30s"),
        ];
        assert_eq!(
            trigger.lifecycle_headers,
            expected.map(|(name, value)| (name, value.to_owned()))
        );
        let trigger = read(r#"{"topic": "t", "after": ["a,b"]}"#).unwrap();
        assert_eq!(trigger.lifecycle_headers, [("orloj-after", r#"["a,b"]"#.to_owned())]);
    }

    #[test]
    fn the_end_of_a_schedule_may_be_a_field_of_the_body() {
        let trigger = read(
            r#"{"topic": "t", "schedule": {"every": "1h"}, "end": "2030-01-01T00:00:00Z",
                "maxExecutions": 3}"#,
        );
        let expected = r#"{"end":"2030-01-01T00:00:00Z","every":"1h","maxExecutions":3}"#;
        assert_eq!(trigger.unwrap().lifecycle_headers, [("orloj-schedule", expected.to_owned())]);
    }

    #[test]
    fn a_name_and_labels_are_headers_of_our_own() {
        let trigger = read(
            r#"{"topic": "t", "fireAt": 1, "name": "Grüner Tee", "headers": {"a": "b"},
                "labels": {"team": "kitchen", "env.x": "prod"}}"#,
        )
        .unwrap();
        let about = [
            ("orloj-name", "Grüner Tee"),
            ("orloj-label-env.x", "prod"),
            ("orloj-label-team", "kitchen"),
        ];
        let about = about.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(trigger.metadata_headers, about);
        assert_eq!(trigger.headers, [("a".to_owned(), b"b".to_vec())]);
    }

    #[test]
    fn a_mistake_names_its_field() {
        let table = [
            ("", r#"nonsense"#, "not a JSON object"),
            ("/delay", r#"{"delay": 1}"#, "did you mean \"delaySeconds\"?"),
            ("/xyz", r#"{"xyz": 1}"#, "there are triggerId, name, labels, callbackUrl"),
            ("/fireAt", r#"{"topic": "t"}"#, "write fireAt, delaySeconds, schedule"),
            ("/fireAt", r#"{"topic": "t", "fireAt": 1, "delaySeconds": 1}"#, "one of them"),
            ("/fireAt", r#"{"topic": "t", "fireAt": "tomorrow"}"#, "RFC 3339"),
            ("/fireAt", r#"{"topic": "t", "fireAt": -1}"#, "RFC 3339"),
            ("/delaySeconds", r#"{"topic": "t", "delaySeconds": -1}"#, "from 0 on, not -1"),
            ("/delaySeconds", r#"{"topic": "t", "delaySeconds": "1"}"#, "not \"1\""),
            ("/callbackUrl", r#"{"fireAt": 1}"#, "write callbackUrl or topic"),
            ("/callbackUrl", r#"{"fireAt": 1, "topic": "t", "callbackUrl": "u"}"#, "one of them"),
            ("/key", r#"{"fireAt": 1, "callbackUrl": "u", "key": "k"}"#, "leave it out"),
            ("/triggerId", r#"{"triggerId": 7}"#, "write a string, not 7"),
            ("/pool", r#"{"fireAt": 1, "callbackUrl": "u", "pool": "a.b"}"#, "letters, digits"),
            (
                "/timeoutSeconds",
                r#"{"fireAt": 1, "callbackUrl": "u", "timeoutSeconds": 0}"#,
                "up to",
            ),
            ("/topic", r#"{"fireAt": 1, "topic": "t", "pool": "slow"}"#, "leave them out"),
            (
                "/retry/attempts",
                r#"{"fireAt": 1, "callbackUrl": "u", "retry": {"attempts": 0}}"#,
                "give 1",
            ),
            ("/retry", r#"{"fireAt": 1, "callbackUrl": "u", "retry": []}"#, "give a JSON object"),
            (
                "/headers/a",
                r#"{"fireAt": 1, "topic": "t", "headers": {"a": 1}}"#,
                "a string, not 1",
            ),
            ("/after", r#"{"topic": "t", "after": "a"}"#, "write a list of ids"),
            ("/after/id", r#"{"topic": "t", "after": {"id": ["a"]}}"#, "did you mean \"ids\"?"),
            ("/after", r#"{"topic": "t", "after": {}}"#, "ids is missing"),
            ("/after/1", r#"{"topic": "t", "after": ["a", 7]}"#, "a string, not 7"),
            ("/method", r#"{"fireAt": 1, "callbackUrl": "u", "method": 7}"#, "a string, not 7"),
            ("/topic", r#"{"fireAt": 1, "topic": "t", "method": "PUT"}"#, "leave them out"),
            ("/end", r#"{"fireAt": 1, "topic": "t", "end": 1}"#, "field of a schedule"),
            (
                "/maxExecutions",
                r#"{"topic": "t", "schedule": {"maxExecutions": 1}, "maxExecutions": 2}"#,
                "one of them",
            ),
            ("/name", r#"{"fireAt": 1, "topic": "t", "name": ""}"#, "write 1 to 256"),
            ("/labels", r#"{"fireAt": 1, "topic": "t", "labels": {"A": "b"}}"#, "is no key"),
            ("/labels/a", r#"{"fireAt": 1, "topic": "t", "labels": {"a": ""}}"#, "1 to 256"),
            ("/name", r#"{"fireAt": 1, "topic": "t", "name": "a\u0007"}"#, "control"),
            (
                "/timeoutSeconds",
                r#"{"fireAt": 1, "callbackUrl": "u", "timeoutSeconds": 3600.001}"#,
                "up to 3600",
            ),
            ("/late", r#"{"fireAt": 1, "topic": "t", "late": "no"}"#, "fire or refuse, not"),
            ("/onConflict", r#"{"fireAt": 1, "topic": "t", "onConflict": "kep"}"#, "or keep"),
        ];
        for (field, body, reason) in table {
            let error = read(body).unwrap_err();
            assert_eq!(error.pointer, field, "{body}: {error:?}");
            assert!(error.reason.contains(reason), "{body}: {error:?}");
        }
    }

    #[test]
    fn values_at_the_limits_are_accepted_and_longer_ones_are_not() {
        let body = |field: &str, value: Value| {
            let body = serde_json::json!({"fireAt": 1, "topic": "t", field: value});
            read(&body.to_string()).map(drop).map_err(|error| error.pointer)
        };
        let text = |bytes: usize| Value::from("x".repeat(bytes));
        let label = |bytes: usize| serde_json::json!({ "x".repeat(bytes): "v" });
        let labels = |count: usize| (0..count).map(|n| (n.to_string(), Value::from("v"))).collect();
        for (field, longest, longer) in [
            ("payload", text(62), text(63)), // and its quotes
            ("name", text(256), text(257)),
            ("labels", label(63), label(64)),
            ("labels", labels(16), labels(17)),
        ] {
            assert_eq!(body(field, longest), Ok(()), "{field}");
            assert_eq!(body(field, longer), Err(format!("/{field}")));
        }
    }
}
