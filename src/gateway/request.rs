//! The body of `POST /v1/triggers`, read field by field so that a mistake names its field.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::submission::{self, NewTrigger, Refusal, When, absent_payload};
use crate::model::Millis;
use crate::model::codec::registration::retry_policy;
use crate::model::definition::{HttpTarget, Target, TopicTarget, is_pool};
use crate::model::input::OnConflict;
use crate::model::limits::TIMEOUT_MAX_MS;
use crate::model::text::Text;
use crate::model::time::read_time;

/// What a body may contain.
const FIELDS: [&str; 18] = [
    "triggerId",
    "callbackUrl",
    "topic",
    "key",
    "payload",
    "delaySeconds",
    "fireAt",
    "headers",
    "pool",
    "timeoutSeconds",
    "retry",
    "schedule",
    "expireAfter",
    "count",
    "after",
    "retain",
    "priority",
    "onConflict",
];

/// What an `after` says that is more than a list of ids.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct After {
    ids: Vec<String>,
    on_failure: Option<Value>,
    timeout: Option<Value>,
}

/// Reads a trigger. Without `triggerId` it gets a fresh one. `payload_max` is in bytes.
pub(super) fn read_trigger(body: &[u8], payload_max: u64) -> Result<NewTrigger, Refusal> {
    let mut fields = Fields::read(body)?;
    let id = fields.take("triggerId", "a string")?;
    let course = course(&mut fields)?;
    let when = when(&mut fields, &course)?;
    let on_conflict = on_conflict(&mut fields)?;
    let payload: Option<Box<RawValue>> = fields.take("payload", "any JSON")?;
    let bytes = payload.as_ref().map_or(0, |payload| payload.get().len());
    if bytes as u64 > payload_max {
        let reason = format!("it has {bytes} bytes, at most {payload_max} are taken over HTTP");
        return Err(Refusal { field: "payload", reason });
    }
    let target = target(&mut fields)?;
    let payload = payload
        .map_or_else(|| absent_payload(&target), |payload| payload.get().as_bytes().to_vec());
    let retry: Option<Box<RawValue>> = fields.take("retry", "an object")?;
    let retry = retry.map(|json| retry_policy(json.get())).transpose();
    let retry = retry.map_err(|reason| Refusal { field: "retry", reason })?.flatten();
    let headers: Option<BTreeMap<String, String>> =
        fields.take("headers", "an object of strings")?;
    let headers = headers.unwrap_or_default().into_iter();
    Ok(NewTrigger {
        id: id.unwrap_or_else(|| Uuid::now_v7().to_string()),
        when,
        target,
        payload,
        headers: headers.map(|(name, value)| (name, value.into_bytes())).collect(),
        course,
        on_conflict,
        retry: retry.map_or_else(Default::default, |policy| *policy),
    })
}

/// The fields of a body that nobody has taken yet.
struct Fields(BTreeMap<String, Box<RawValue>>);

impl Fields {
    fn read(body: &[u8]) -> Result<Self, Refusal> {
        let fields: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(body).map_err(|error| Refusal {
                field: "body",
                reason: format!("not a JSON object: {error}"),
            })?;
        match fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            Some(unknown) => Err(Refusal { field: "body", reason: misspelt(unknown) }),
            None => Ok(Self(fields)),
        }
    }

    /// The field, or nothing if it is absent or null.
    fn take<T: DeserializeOwned>(
        &mut self,
        field: &'static str,
        expected: &str,
    ) -> Result<Option<T>, Refusal> {
        let Some(raw) = self.0.remove(field).filter(|raw| raw.get() != "null") else {
            return Ok(None);
        };
        serde_json::from_str(raw.get()).map(Some).map_err(|_| {
            let shown: String = raw.get().chars().take(80).collect();
            Refusal { field, reason: format!("write {expected}, not {shown}") }
        })
    }
}

/// What goes beyond one time and one attempt, as the headers that say it: the owner's own reading
/// judges the values.
fn course(fields: &mut Fields) -> Result<Vec<(&'static str, String)>, Refusal> {
    let mut course = Vec::new();
    if let Some(schedule) = fields.take::<Box<RawValue>>("schedule", "an object")? {
        course.push(("orloj-schedule", schedule.get().to_owned()));
    }
    for (field, header) in [
        ("expireAfter", "orloj-expire-after"),
        ("count", "orloj-count"),
        ("retain", "orloj-retain"),
        ("priority", "orloj-priority"),
    ] {
        let value: Option<Value> = fields.take(field, "a value")?;
        course.extend(value.map(|value| (header, plain(&value))));
    }
    let Some(after) = fields.take::<Value>("after", "a list of ids")? else { return Ok(course) };
    let wrong = |_| {
        let way_out = "write a list of ids, or an object with ids, onFailure and timeout";
        Refusal { field: "after", reason: format!("{way_out}, not {after}") }
    };
    let After { ids, on_failure, timeout } = if after.is_array() {
        let ids = Vec::deserialize(&after).map_err(wrong)?;
        After { ids, on_failure: None, timeout: None }
    } else {
        After::deserialize(&after).map_err(wrong)?
    };
    course.push(("orloj-after", submission::after(&ids)));
    course.extend(on_failure.map(|word| ("orloj-on-failure", plain(&word))));
    course.extend(timeout.map(|span| ("orloj-after-timeout", plain(&span))));
    Ok(course)
}

/// A value as a header has it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn on_conflict(fields: &mut Fields) -> Result<OnConflict, Refusal> {
    let word: Option<String> = fields.take("onConflict", "replace or keep")?;
    match word.as_deref() {
        None | Some("replace") => Ok(OnConflict::Replace),
        Some("keep") => Ok(OnConflict::Keep),
        Some(other) => {
            let reason = format!("write replace or keep, not {other:?}");
            Err(Refusal { field: "onConflict", reason })
        }
    }
}

fn when(fields: &mut Fields, course: &[(&'static str, String)]) -> Result<Option<When>, Refusal> {
    let says_when =
        |(header, _): &(&str, String)| matches!(*header, "orloj-schedule" | "orloj-after");
    let delay: Option<f64> = fields.take("delaySeconds", "a number of seconds")?;
    let time: Option<Value> = fields.take("fireAt", "a time")?;
    match (delay, time) {
        (Some(seconds), None) => {
            let delay = Duration::try_from_secs_f64(seconds).map_err(|_| Refusal {
                field: "delaySeconds",
                reason: format!("write a number of seconds from 0 on, not {seconds}"),
            })?;
            Ok(Some(When::After(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))))
        }
        (None, Some(time)) => {
            let at = time.as_u64().or_else(|| read_time(time.as_str()?));
            at.map(|at| Some(When::At(at))).ok_or_else(|| Refusal {
                field: "fireAt",
                reason: format!(
                    "write RFC 3339 such as 2030-01-31T08:00:00Z, or ms since the epoch, not {time}"
                ),
            })
        }
        (None, None) if course.iter().any(says_when) => Ok(None),
        (None, None) => Err(Refusal {
            field: "fireAt",
            reason: "say when: write fireAt, delaySeconds, schedule or after".to_owned(),
        }),
        (Some(_), Some(_)) => Err(Refusal {
            field: "fireAt",
            reason: "there is delaySeconds too: write one of them".to_owned(),
        }),
    }
}

fn target(fields: &mut Fields) -> Result<Target, Refusal> {
    let url: Option<String> = fields.take("callbackUrl", "a string")?;
    let topic: Option<String> = fields.take("topic", "a string")?;
    let key: Option<String> = fields.take("key", "a string")?;
    let delivery = delivery(fields)?;
    match (url, topic, key) {
        (Some(url), None, None) => {
            let (pool, timeout) = delivery;
            Ok(Target::Http(Box::new(HttpTarget { pool, timeout, ..HttpTarget::post(&url) })))
        }
        (None, Some(_), _) if delivery != (None, None) => Err(Refusal {
            field: "topic",
            reason: "pool and timeoutSeconds are for callbacks; leave them out".to_owned(),
        }),
        (None, Some(topic), key) => {
            let (topic, key) = (Text::from(topic), key.map(Into::into));
            Ok(Target::Topic(TopicTarget { topic, key }))
        }
        (Some(_), None, Some(_)) => Err(Refusal {
            field: "key",
            reason: "only a record of a topic has a key; leave it out".to_owned(),
        }),
        (None, None, _) => Err(Refusal {
            field: "callbackUrl",
            reason: "say where: write callbackUrl or topic".to_owned(),
        }),
        (Some(_), Some(_), _) => Err(Refusal {
            field: "callbackUrl",
            reason: "there is topic too: write one of them".to_owned(),
        }),
    }
}

/// The pool and the timeout of a callback, in ms.
fn delivery(fields: &mut Fields) -> Result<(Option<Text>, Option<Millis>), Refusal> {
    let pool: Option<String> = fields.take("pool", "a string")?;
    if let Some(pool) = pool.as_ref().filter(|pool| !is_pool(pool)) {
        let reason = format!("{pool:?} cannot be one: write letters, digits, '_' and '-'");
        return Err(Refusal { field: "pool", reason });
    }
    let timeout: Option<f64> = fields.take("timeoutSeconds", "a number of seconds")?;
    let timeout = timeout.map(|seconds| {
        let ms = Duration::try_from_secs_f64(seconds).map(|timeout| timeout.as_millis());
        let ms = ms.ok().and_then(|ms| Millis::try_from(ms).ok());
        ms.filter(|ms| (1..=TIMEOUT_MAX_MS).contains(ms)).ok_or_else(|| Refusal {
            field: "timeoutSeconds",
            reason: format!("write seconds, up to {}, not {seconds}", TIMEOUT_MAX_MS / 1_000),
        })
    });
    Ok((pool.map(Text::from), timeout.transpose()?))
}

fn misspelt(unknown: &str) -> String {
    let similarity = |field: &&&str| strsim::jaro_winkler(unknown, field);
    let nearest = FIELDS
        .iter()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        .filter(|field| similarity(field) > 0.7);
    match nearest {
        Some(nearest) => format!("there is no field {unknown:?}; did you mean {nearest:?}?"),
        None => format!("there is no field {unknown:?}; there are {}", FIELDS.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<NewTrigger, Refusal> {
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
    fn a_topic_with_a_time() {
        for at in [r#""2027-01-15T08:00:00Z""#, r#""2027-01-15T09:00:00+01:00""#, "1800000000000"] {
            let trigger = read(&format!(r#"{{"topic": "t", "key": "k", "fireAt": {at}}}"#));
            let trigger = trigger.unwrap();
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
    fn a_mistake_names_its_field() {
        let table = [
            ("body", r#"nonsense"#, "not a JSON object"),
            ("body", r#"{"delay": 1}"#, "did you mean \"delaySeconds\"?"),
            ("body", r#"{"xyz": 1}"#, "there are triggerId, callbackUrl"),
            ("fireAt", r#"{"topic": "t"}"#, "write fireAt, delaySeconds, schedule"),
            ("fireAt", r#"{"topic": "t", "fireAt": 1, "delaySeconds": 1}"#, "one of them"),
            ("fireAt", r#"{"topic": "t", "fireAt": "tomorrow"}"#, "RFC 3339"),
            ("fireAt", r#"{"topic": "t", "fireAt": -1}"#, "RFC 3339"),
            ("delaySeconds", r#"{"topic": "t", "delaySeconds": -1}"#, "from 0 on, not -1"),
            ("delaySeconds", r#"{"topic": "t", "delaySeconds": "1"}"#, "not \"1\""),
            ("callbackUrl", r#"{"fireAt": 1}"#, "write callbackUrl or topic"),
            ("callbackUrl", r#"{"fireAt": 1, "topic": "t", "callbackUrl": "u"}"#, "one of them"),
            ("key", r#"{"fireAt": 1, "callbackUrl": "u", "key": "k"}"#, "leave it out"),
            ("triggerId", r#"{"triggerId": 7}"#, "write a string, not 7"),
            ("pool", r#"{"fireAt": 1, "callbackUrl": "u", "pool": "a.b"}"#, "letters, digits"),
            (
                "timeoutSeconds",
                r#"{"fireAt": 1, "callbackUrl": "u", "timeoutSeconds": 0}"#,
                "up to",
            ),
            ("topic", r#"{"fireAt": 1, "topic": "t", "pool": "slow"}"#, "leave them out"),
            ("retry", r#"{"fireAt": 1, "callbackUrl": "u", "retry": {"attempts": 0}}"#, "give 1"),
            ("retry", r#"{"fireAt": 1, "callbackUrl": "u", "retry": []}"#, "give a JSON object"),
            ("headers", r#"{"fireAt": 1, "topic": "t", "headers": {"a": 1}}"#, "of strings"),
            ("after", r#"{"topic": "t", "after": "a"}"#, "write a list of ids"),
            ("after", r#"{"topic": "t", "after": {"id": ["a"]}}"#, "an object with ids"),
            ("onConflict", r#"{"fireAt": 1, "topic": "t", "onConflict": "kep"}"#, "or keep"),
        ];
        for (field, body, reason) in table {
            let refusal = read(body).unwrap_err();
            assert_eq!(refusal.field, field, "{body}: {refusal}");
            assert!(refusal.reason.contains(reason), "{body}: {refusal}");
        }
        let long = format!(r#"{{"fireAt": 1, "topic": "t", "payload": "{}"}}"#, "x".repeat(63));
        assert_eq!(read(&long).unwrap_err().field, "payload");
    }
}
