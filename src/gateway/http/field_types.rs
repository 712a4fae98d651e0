//! The types of the fields in bodies, and their schemas.
//!
//! Invariant: a value that the validator checks is kept as it was written, and only its schema is
//! here.

use std::fmt;
use std::time::Duration;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat,
    SchemaType, Type,
};
use utoipa::openapi::{KnownFormat, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::model::time::parse_time;
use crate::model::{Millis, Timestamp, limits};

/// A duration as the validator reads it: `90s`, `1h30m`, `PT20M`.
const DURATION_PATTERN: &str =
    "^(PT?[0-9][0-9A-Z.]*|([0-9]+(ms|s|m|h|d|w|min)?)( ?[0-9]+(ms|s|m|h|d|min))*)$";

/// A time, in ms since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimestampField(pub(crate) Timestamp);

/// A number of seconds, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seconds(pub(crate) Millis);

/// The triggers that must settle before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AfterField {
    pub(crate) ids: Vec<String>,
    pub(crate) on_failure: Option<Value>,
    pub(crate) timeout: Option<Value>,
}

/// The schema of a duration; the validator checks the value.
#[derive(Debug)]
pub(crate) struct DurationSchema;
/// The schema of a schedule.
#[derive(Debug)]
pub(crate) struct ScheduleSchema;
/// The schema of a retry policy.
#[derive(Debug)]
pub(crate) struct RetryPolicySchema;

struct TimestampVisitor;
struct SecondsVisitor;
struct AfterVisitor;

impl<'de> Deserialize<'de> for TimestampField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimestampVisitor)
    }
}

impl Visitor<'_> for TimestampVisitor {
    type Value = TimestampField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RFC 3339 such as 2030-01-31T08:00:00Z, or ms since the epoch")
    }

    fn visit_u64<E: Error>(self, at: u64) -> Result<TimestampField, E> {
        Ok(TimestampField(at))
    }

    /// In JSON 7.0 equals 7; a number beyond every time becomes the largest one.
    fn visit_f64<E: Error>(self, at: f64) -> Result<TimestampField, E> {
        if at < 0.0 || at.fract() != 0.0 {
            return Err(E::invalid_value(Unexpected::Float(at), &self));
        }
        Ok(TimestampField(at as u64))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TimestampField, E> {
        // A time before the epoch becomes 0, and a number beyond every time the largest one.
        let before = || text.parse::<jiff::Timestamp>().is_ok().then_some(0);
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let beyond = || is_number.then_some(u64::MAX);
        let at = parse_time(text).or_else(before).or_else(beyond).map(TimestampField);
        at.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// A whole number, which may be written as 7.0: in JSON that equals 7.
pub(crate) fn whole_number<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    let Some(number) = Option::<f64>::deserialize(deserializer)? else { return Ok(None) };
    if number < 0.0 || number.fract() != 0.0 {
        let expected = &"a whole number from 0 on";
        return Err(D::Error::invalid_value(Unexpected::Float(number), expected));
    }
    Ok(Some(number as u32))
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecondsVisitor)
    }
}

impl Visitor<'_> for SecondsVisitor {
    type Value = Seconds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of seconds from 0 on")
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<Seconds, E> {
        Ok(Seconds(seconds.saturating_mul(1_000)))
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<Seconds, E> {
        if seconds < 0.0 {
            return Err(E::invalid_value(Unexpected::Float(seconds), &self));
        }
        // A number that no duration can hold becomes the longest one, which every check refuses.
        let span = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Ok(Seconds(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl<'de> Deserialize<'de> for AfterField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AfterVisitor)
    }
}

/// An `after` with options.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct AfterObject {
    ids: Vec<String>,
    on_failure: Option<Value>,
    timeout: Option<Value>,
}

impl<'de> Visitor<'de> for AfterVisitor {
    type Value = AfterField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of ids, or an object with ids, onFailure and timeout")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<AfterField, A::Error> {
        let ids = Vec::deserialize(SeqAccessDeserializer::new(list))?;
        Ok(AfterField { ids, on_failure: None, timeout: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<AfterField, A::Error> {
        let after = AfterObject::deserialize(MapAccessDeserializer::new(object))?;
        let AfterObject { ids, on_failure, timeout } = after;
        Ok(AfterField { ids, on_failure, timeout })
    }
}

fn string() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String))
}

fn integer() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer)).minimum(Some(0))
}

fn list(item: impl Into<RefOr<Schema>>) -> ArrayBuilder {
    ArrayBuilder::new().items(item.into())
}

/// An object with these fields and no others.
fn closed_object() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::Object))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

impl PartialSchema for TimestampField {
    fn schema() -> RefOr<Schema> {
        let rfc = string().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
        let rfc = rfc.examples([json!("2030-01-31T08:00:00Z")]);
        let ms = integer().description(Some("Milliseconds since the epoch."));
        OneOfBuilder::new().item(rfc).item(ms).description(Some("A point in time.")).into()
    }
}

impl ToSchema for TimestampField {
    fn name() -> std::borrow::Cow<'static, str> {
        "Moment".into()
    }
}

impl PartialSchema for Seconds {
    fn schema() -> RefOr<Schema> {
        let seconds = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Number));
        seconds.minimum(Some(0)).description(Some("Seconds, down to the millisecond.")).into()
    }
}

impl ToSchema for Seconds {}

impl PartialSchema for DurationSchema {
    fn schema() -> RefOr<Schema> {
        let what = "A duration such as 90s, 1h30m, 7d or PT20M, or milliseconds.";
        let words =
            string().pattern(Some(DURATION_PATTERN)).examples([json!("90s"), json!("PT20M")]);
        let ms = integer().description(Some("Milliseconds."));
        OneOfBuilder::new().item(words).item(ms).description(Some(what)).into()
    }
}

impl ToSchema for DurationSchema {
    fn name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }
}

impl PartialSchema for AfterField {
    fn schema() -> RefOr<Schema> {
        let ids = || {
            let id = string().min_length(Some(1)).max_length(Some(limits::ID_BYTES_MAX));
            list(id).min_items(Some(1)).max_items(Some(limits::AFTER_MAX))
        };
        let on_failure = string().enum_values(Some(["fire", "skip", "fail"]));
        let what = "What happens if one of them fails or does not settle in time; fail if not \
                    given.";
        let long = closed_object()
            .property("ids", ids())
            .required("ids")
            .property("onFailure", on_failure.description(Some(what)))
            .property("timeout", DurationSchema::schema());
        let what = "Triggers that must settle before this one fires: docs/guides/dependencies.md.";
        OneOfBuilder::new().item(ids()).item(long).description(Some(what)).into()
    }
}

impl ToSchema for AfterField {
    fn name() -> std::borrow::Cow<'static, str> {
        "After".into()
    }
}

impl PartialSchema for ScheduleSchema {
    fn schema() -> RefOr<Schema> {
        let texts = || OneOfBuilder::new().item(string()).item(list(string()));
        let misfire = OneOfBuilder::new()
            .item(string().enum_values(Some(["skip", "latest"])))
            .item(closed_object().property("all", integer().minimum(Some(1))).required("all"));
        let days = || {
            let number = integer().minimum(Some(1)).maximum(Some(31));
            let day = OneOfBuilder::new().item(string()).item(number);
            OneOfBuilder::new().item(string()).item(integer()).item(list(Schema::from(day)))
        };
        let at = || closed_object().property("at", texts()).required("at");
        let monthly = at().property("on", days()).property("months", texts()).required("on");
        let local = || OneOfBuilder::new().item(string()).item(integer());
        let dst = closed_object()
            .property("gap", string().enum_values(Some(["shift", "skip"])))
            .property("overlap", string().enum_values(Some(["first", "last", "both"])));
        closed_object()
            .property("every", DurationSchema::schema())
            .property("cron", string().examples([json!("0 9 * * MON-FRI")]))
            .property("daily", OneOfBuilder::new().item(string()).item(list(string())).item(at()))
            .property("weekly", at().property("on", texts()).required("on"))
            .property("monthly", monthly)
            .property("zone", string().examples([json!("Europe/Prague")]))
            .property("start", local())
            .property("end", local())
            .property("maxExecutions", integer().minimum(Some(1)))
            .property("dst", dst)
            .property("jitter", DurationSchema::schema())
            .property("exact", ObjectBuilder::new().schema_type(SchemaType::Type(Type::Boolean)))
            .property("misfire", misfire)
            .property("overlap", string().enum_values(Some(["allow", "skip", "queue"])))
            .property("pauseAfter", integer().minimum(Some(1)))
            .description(Some(
                "When a recurring trigger fires: one of every, cron, daily, weekly and monthly, \
                 with options: docs/guides/schedules.md.",
            ))
            .examples([
                json!({"weekly": {"on": "weekdays", "at": "09:00"}, "zone": "Europe/Prague"}),
            ])
            .into()
    }
}

impl ToSchema for ScheduleSchema {
    fn name() -> std::borrow::Cow<'static, str> {
        "Schedule".into()
    }
}

impl PartialSchema for RetryPolicySchema {
    fn schema() -> RefOr<Schema> {
        let status = integer().minimum(Some(300)).maximum(Some(599));
        let attempts = integer().minimum(Some(1)).maximum(Some(limits::RETRY_ATTEMPTS_MAX));
        closed_object()
            .property(
                "delays",
                list(DurationSchema::schema()).max_items(Some(limits::RETRY_DELAYS_MAX)),
            )
            .property("attempts", attempts)
            .property("jitter", integer().maximum(Some(100)))
            .property("finalStatuses", list(status).max_items(Some(limits::FINAL_STATUSES_MAX)))
            .description(Some(
                "When a failed callback is tried again: pauses, attempts in all, by how many \
                 percent a pause may differ, and statuses that end it: docs/guides/callbacks.md.",
            ))
            .examples([json!({"delays": ["10s", "1m", "10m"], "attempts": 5})])
            .into()
    }
}

impl ToSchema for RetryPolicySchema {
    fn name() -> std::borrow::Cow<'static, str> {
        "RetryPolicy".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_number_is_accepted_in_any_json_form() {
        let read = |json: &str| whole_number(&mut serde_json::Deserializer::from_str(json)).ok();
        for (json, number) in [
            ("7", Some(Some(7))),
            ("7.0", Some(Some(7))),
            ("null", Some(None)),
            ("7.5", None),
            ("-7", None),
            ("\"7\"", None),
        ] {
            assert_eq!(read(json), number, "{json}");
        }
    }
}
