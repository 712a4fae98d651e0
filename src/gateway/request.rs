//! The body of `POST /v1/triggers` and of each trigger in a batch, and the trigger that it says.
//!
//! Law: a field is either judged here or handed on as it was written, to be judged by the owner's
//! own reading; nothing is judged twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::body;
use super::problem::{Fault, Misread};
use super::shape::{After, Moment, RetryForm, ScheduleForm, Seconds, Span};
use super::submission::{self, NewTrigger, Refusal, When, absent_payload};
use crate::codec::registration::retry_policy;
use crate::model::Millis;
use crate::model::definition::{HttpTarget, Target, TopicTarget, is_pool};
use crate::model::input::OnConflict;
use crate::model::limits::TIMEOUT_MAX_MS;
use crate::model::text::Text;
use crate::view::{LABEL, NAME};

/// Bytes of a name or of a label's value: a line that people read.
const LINE_BYTES_MAX: usize = 256;
/// Labels of a trigger: each is a header of its record.
const LABELS_MAX: usize = 16;
/// Bytes of a label's key.
const LABEL_KEY_BYTES_MAX: usize = 63;
/// A trigger to be registered: when, where to, and what. A field that is null counts as absent.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a JSON object")]
#[schema(as = NewTrigger, examples(json!({
    "triggerId": "tea", "callbackUrl": "https://example.com/hook", "delaySeconds": 240,
    "payload": {"cups": 2}
})))]
pub(super) struct TriggerBody {
    /// The name by which it is replaced and cancelled; a new one is made if none is given.
    #[schema(min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    pub(super) trigger_id: Option<String>,
    /// What people call it.
    #[schema(min_length = 1, max_length = 256)]
    pub(super) name: Option<String>,
    /// By which triggers are found again: keys of a-z, 0-9, '.', '_' and '-'.
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Fires as a request to this URL. Give this or topic.
    #[schema(max_length = 2048, examples("https://example.com/hook"))]
    pub(super) callback_url: Option<String>,
    /// The method of the request; POST if not given.
    #[schema(pattern = "^(POST|PUT|PATCH|DELETE|GET)$")]
    pub(super) method: Option<String>,
    /// Headers that go with the request, or with the record.
    pub(super) headers: Option<BTreeMap<String, String>>,
    /// Fires as a record of this topic. Give this or callbackUrl.
    #[schema(max_length = 249, pattern = "^[a-zA-Z0-9._-]+$")]
    pub(super) topic: Option<String>,
    /// The key of the record; the triggerId if not given.
    pub(super) key: Option<String>,
    /// What is delivered, byte for byte as it is written here.
    #[schema(value_type = Option<Value>)]
    pub(super) payload: Option<Box<RawValue>>,
    /// The pool whose workers make the request.
    #[schema(max_length = 64, pattern = "^[a-zA-Z0-9_-]+$")]
    pub(super) pool: Option<String>,
    /// How long an attempt of the request may take.
    pub(super) timeout_seconds: Option<Seconds>,
    /// When a failed request is made again.
    #[schema(value_type = Option<RetryForm>)]
    pub(super) retry: Option<Box<RawValue>>,
    /// Fires after so long, counted from when the record is written.
    pub(super) delay_seconds: Option<Seconds>,
    /// Fires at this time.
    pub(super) fire_at: Option<Moment>,
    /// Fires again and again.
    #[schema(value_type = Option<ScheduleForm>)]
    pub(super) schedule: Option<Box<RawValue>>,
    /// Fires when others have settled.
    pub(super) after: Option<After>,
    /// The schedule ends before this time: short for schedule.end.
    #[schema(value_type = Option<Moment>)]
    pub(super) end: Option<Value>,
    /// The schedule ends after so many executions: short for schedule.maxExecutions.
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub(super) max_executions: Option<Value>,
    /// A one-time trigger that is later than this does not fire.
    #[schema(value_type = Option<Span>)]
    pub(super) expire_after: Option<Value>,
    /// Whether a schedule goes on counting executions from the one it replaces: keep or reset.
    #[schema(value_type = Option<String>, pattern = "^(keep|reset)$")]
    pub(super) count: Option<Value>,
    /// How long it is remembered once it has settled, so that others can still wait for it.
    #[schema(value_type = Option<Span>)]
    pub(super) retain: Option<Value>,
    /// 0 to 255: of what is due in the same millisecond, higher fires first; 127 if not given.
    #[schema(value_type = Option<u8>, minimum = 0, maximum = 255)]
    pub(super) priority: Option<Value>,
    /// What happens if one is pending under this id: it is replaced, or it is kept.
    pub(super) on_conflict: Option<Conflict>,
    /// What happens if fireAt has passed: it is refused, or it fires at once.
    pub(super) late: Option<Late>,
}

/// What happens to the one that is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OnConflict)]
pub(super) enum Conflict {
    Replace,
    Keep,
}

/// What happens to one whose time has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum Late {
    Fire,
    #[default]
    Refuse,
}

/// Reads a trigger. `payload_max` is in bytes.
#[cfg(test)]
fn read_trigger(json: &[u8], payload_max: u64) -> Result<NewTrigger, Fault> {
    read_body(json).map_err(|Misread(fault)| fault)?.into_trigger(payload_max)
}

/// Reads the body.
pub(super) fn read_body(json: &[u8]) -> Result<TriggerBody, Misread> {
    body::read(json)
}

impl TriggerBody {
    /// The trigger. Without `triggerId` it gets a fresh one. `payload_max` is in bytes.
    pub(super) fn into_trigger(mut self, payload_max: u64) -> Result<NewTrigger, Fault> {
        let course = self.course()?;
        let when = self.when(&course)?;
        let about = about(self.name.take(), self.labels.take())?;
        let target = self.target()?;
        let payload = self.payload.take();
        let bytes = payload.as_ref().map_or(0, |payload| payload.get().len());
        check_payload(bytes, payload_max)?;
        let payload = payload
            .map_or_else(|| absent_payload(&target), |payload| payload.get().as_bytes().to_vec());
        let retry = self.retry.take().map(|json| retry_policy(json.get())).transpose();
        let retry = retry.map_err(|reason| Refusal { field: "retry", reason })?.flatten();
        let headers = self.headers.take().unwrap_or_default().into_iter();
        Ok(NewTrigger {
            id: self.trigger_id.unwrap_or_else(|| Uuid::now_v7().to_string()),
            when,
            target,
            payload,
            headers: headers.map(|(name, value)| (name, value.into_bytes())).collect(),
            about,
            course,
            on_conflict: match self.on_conflict {
                Some(Conflict::Keep) => OnConflict::Keep,
                Some(Conflict::Replace) | None => OnConflict::Replace,
            },
            retry: retry.map_or_else(Default::default, |policy| *policy),
        })
    }

    /// What goes beyond one time and one attempt, as the headers that say it: the owner's own
    /// reading judges the values.
    fn course(&mut self) -> Result<Vec<(&'static str, String)>, Fault> {
        let mut course = Vec::new();
        course.extend(self.schedule()?.map(|schedule| ("orloj-schedule", schedule)));
        for (value, header) in [
            (self.expire_after.take(), "orloj-expire-after"),
            (self.count.take(), "orloj-count"),
            (self.retain.take(), "orloj-retain"),
            (self.priority.take(), "orloj-priority"),
        ] {
            course.extend(value.map(|value| (header, plain(&value))));
        }
        if let Some(After { ids, on_failure, timeout }) = self.after.take() {
            course.push(("orloj-after", submission::after(&ids)));
            course.extend(on_failure.map(|word| ("orloj-on-failure", plain(&word))));
            course.extend(timeout.map(|span| ("orloj-after-timeout", plain(&span))));
        }
        Ok(course)
    }

    /// The schedule as JSON: as it was written, unless something of it stands beside it.
    fn schedule(&mut self) -> Result<Option<String>, Fault> {
        let beside = [("end", self.end.take()), ("maxExecutions", self.max_executions.take())];
        let beside = beside.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let beside: Vec<_> = beside.collect();
        let schedule = self.schedule.take();
        let Some((first, _)) = beside.first() else {
            return Ok(schedule.map(|schedule| schedule.get().to_owned()));
        };
        let Some(schedule) = schedule else {
            return Err(Fault::of(first, "it is of a schedule, and there is none: leave it out"));
        };
        let fields: Result<Map<String, Value>, _> = serde_json::from_str(schedule.get());
        // What is no object is refused by the owner's reading.
        let Ok(mut fields) = fields else { return Ok(Some(schedule.get().to_owned())) };
        for (name, value) in beside {
            let within = fields.insert(name.to_owned(), value);
            if within.is_some_and(|within| !within.is_null()) {
                let reason = format!("there is schedule.{name} too: write one of them");
                return Err(Fault::of(name, reason));
            }
        }
        Ok(Some(Value::from(fields).to_string()))
    }

    fn when(&self, course: &[(&'static str, String)]) -> Result<Option<When>, Fault> {
        let says_when =
            |(header, _): &(&str, String)| matches!(*header, "orloj-schedule" | "orloj-after");
        match (self.delay_seconds, self.fire_at) {
            (Some(Seconds(delay)), None) => Ok(Some(When::After(delay))),
            (None, Some(Moment(at))) => Ok(Some(When::At(at))),
            (None, None) if course.iter().any(says_when) => Ok(None),
            (None, None) => {
                let way_out = "say when: write fireAt, delaySeconds, schedule or after";
                Err(Fault::of("fireAt", way_out))
            }
            (Some(_), Some(_)) => {
                Err(Fault::of("fireAt", "there is delaySeconds too: write one of them"))
            }
        }
    }

    fn target(&mut self) -> Result<Target, Fault> {
        let pool = self.pool()?;
        let timeout = self.timeout()?;
        let method = self.method.take();
        let of_callbacks = pool.is_some() || timeout.is_some() || method.is_some();
        match (self.callback_url.take(), self.topic.take(), self.key.take()) {
            (Some(url), None, None) => {
                let post = HttpTarget { pool, timeout, ..HttpTarget::post(&url) };
                let method = method.map_or_else(|| post.method.clone(), Text::from);
                Ok(Target::Http(Box::new(HttpTarget { method, ..post })))
            }
            (None, Some(_), _) if of_callbacks => {
                let reason = "method, pool and timeoutSeconds are for callbacks; leave them out";
                Err(Fault::of("topic", reason))
            }
            (None, Some(topic), key) => {
                let (topic, key) = (Text::from(topic), key.map(Into::into));
                Ok(Target::Topic(TopicTarget { topic, key }))
            }
            (Some(_), None, Some(_)) => {
                Err(Fault::of("key", "only a record of a topic has a key; leave it out"))
            }
            (None, None, _) => {
                Err(Fault::of("callbackUrl", "say where: write callbackUrl or topic"))
            }
            (Some(_), Some(_), _) => {
                Err(Fault::of("callbackUrl", "there is topic too: write one of them"))
            }
        }
    }

    fn pool(&mut self) -> Result<Option<Text>, Fault> {
        match self.pool.take() {
            Some(pool) if !is_pool(&pool) => {
                let way_out = "write letters, digits, '_' and '-'";
                Err(Fault::of("pool", format!("{pool:?} cannot be one: {way_out}")))
            }
            pool => Ok(pool.map(Text::from)),
        }
    }

    /// In ms.
    fn timeout(&self) -> Result<Option<Millis>, Fault> {
        match self.timeout_seconds {
            Some(Seconds(ms)) if !(1..=TIMEOUT_MAX_MS).contains(&ms) => {
                let max = TIMEOUT_MAX_MS / 1_000;
                let reason = format!("write seconds above 0 and up to {max}");
                Err(Fault::of("timeoutSeconds", reason))
            }
            timeout => Ok(timeout.map(|Seconds(ms)| ms)),
        }
    }
}

/// Refuses a payload that is larger than its caller may send.
pub(super) fn check_payload(bytes: usize, max: u64) -> Result<(), Fault> {
    if bytes as u64 > max {
        let reason = format!("it has {bytes} bytes, at most {max} are taken over HTTP");
        return Err(Fault::of("payload", reason));
    }
    Ok(())
}

/// The headers that carry a name and labels.
pub(super) fn about(
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
) -> Result<Vec<(String, Vec<u8>)>, Fault> {
    let mut about = Vec::new();
    if let Some(name) = name {
        check_line("name", &name)?;
        about.push((NAME.to_owned(), name.into_bytes()));
    }
    let labels = labels.unwrap_or_default();
    if labels.len() > LABELS_MAX {
        let reason = format!("there are {}, at most {LABELS_MAX} are taken", labels.len());
        return Err(Fault::of("labels", reason));
    }
    for (key, value) in labels {
        let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
        if key.is_empty() || key.len() > LABEL_KEY_BYTES_MAX || !key.bytes().all(legal) {
            let way_out = format!(
                "{key:?} is no key: write 1 to {LABEL_KEY_BYTES_MAX} of a-z, 0-9, '.', '_', '-'"
            );
            return Err(Fault::of("labels", way_out));
        }
        check_line(&format!("labels/{key}"), &value)?;
        about.push((format!("{LABEL}{key}"), value.into_bytes()));
    }
    Ok(about)
}

fn check_line(pointer: &str, text: &str) -> Result<(), Fault> {
    if text.is_empty() || text.len() > LINE_BYTES_MAX || text.chars().any(char::is_control) {
        let bytes = text.len();
        let reason = format!(
            "it has {bytes} bytes: write 1 to {LINE_BYTES_MAX}, without control characters"
        );
        return Err(Fault::of(pointer, reason));
    }
    Ok(())
}

/// A value as a header has it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<NewTrigger, Fault> {
        read_trigger(body.as_bytes(), 64)
    }

    #[test]
    fn a_callback_with_a_delay() {
        let trigger = read(
            r#"{"triggerId": "tea", "callbackUrl": "http://h/x", "delaySeconds": 1.5,
                "payload": {"n": 1.0,  "s": "ü"}, "headers": {"traceparent": "00-1"}}"#,
        )
        .unwrap();
        assert_eq!(trigger.id, "tea");
        assert_eq!(trigger.when, Some(When::After(1_500)));
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
    fn a_callback_without_a_payload_says_null() {
        let put = r#"{"callbackUrl": "http://h/x", "fireAt": 1, "method": "PUT"}"#;
        let trigger = read(put).unwrap();
        let Target::Http(target) = &trigger.target else { panic!("{trigger:?}") };
        assert_eq!((target.method.as_str(), &*trigger.payload), ("PUT", &b"null"[..]));
    }

    #[test]
    fn a_number_is_taken_however_json_writes_it() {
        let when = |when: &str| {
            let trigger = read(&format!(r#"{{"topic": "t", {when}}}"#));
            trigger.map(|trigger| trigger.when.unwrap()).map_err(|fault| fault.reason)
        };
        for (text, read) in [
            (r#""fireAt": 1.8e12"#, When::At(1_800_000_000_000)),
            (r#""fireAt": "1969-12-31T23:00:00Z""#, When::At(0)),
            (r#""fireAt": "99999999999999999999""#, When::At(u64::MAX)),
            (r#""delaySeconds": 18446744073709551615"#, When::After(u64::MAX)),
            (r#""delaySeconds": 1e300"#, When::After(u64::MAX)),
            (r#""delaySeconds": 2"#, When::After(2_000)),
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
            assert_eq!(trigger.when, Some(When::At(1_800_000_000_000)));
            assert_eq!(trigger.payload, b"");
            assert_eq!(trigger.id.len(), 36, "a fresh id: {}", trigger.id);
        }
    }

    #[test]
    fn a_course_is_said_in_headers() {
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
        assert_eq!(trigger.course, expected.map(|(name, value)| (name, value.to_owned())));
        let trigger = read(r#"{"topic": "t", "after": ["a,b"]}"#).unwrap();
        assert_eq!(trigger.course, [("orloj-after", r#"["a,b"]"#.to_owned())]);
    }

    #[test]
    fn the_end_of_a_schedule_may_stand_beside_it() {
        let trigger = read(
            r#"{"topic": "t", "schedule": {"every": "1h"}, "end": "2030-01-01T00:00:00Z",
                "maxExecutions": 3}"#,
        );
        let expected = r#"{"end":"2030-01-01T00:00:00Z","every":"1h","maxExecutions":3}"#;
        assert_eq!(trigger.unwrap().course, [("orloj-schedule", expected.to_owned())]);
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
        assert_eq!(trigger.about, about);
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
            ("/end", r#"{"fireAt": 1, "topic": "t", "end": 1}"#, "of a schedule"),
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
            let fault = read(body).unwrap_err();
            assert_eq!(fault.pointer, field, "{body}: {fault:?}");
            assert!(fault.reason.contains(reason), "{body}: {fault:?}");
        }
    }

    #[test]
    fn what_is_as_long_as_may_be_is_taken_and_no_more() {
        let body = |field: &str, value: Value| {
            let body = serde_json::json!({"fireAt": 1, "topic": "t", field: value});
            read(&body.to_string()).map(drop).map_err(|fault| fault.pointer)
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
