//! The JSON envelope: written by people and by the HTTP API.
//!
//! Invariant: no field is silently ignored ([`ObjectFields`]). The payload is delivered as the very
//! text it was sent as.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::draft::{Destination, DueSpec, RegistrationDraft};
use super::lifecycle_fields;
use super::text_field::{self, Reason, refused};
use crate::model::definition::Header;
use crate::model::object_fields::{ObjectFields, delay, string};
use crate::model::schedule::Schedule;
use crate::model::text::Text;

const FIELDS: [&str; 20] = [
    "id",
    "fireAt",
    "delay",
    "delayMs",
    "delaySeconds",
    "schedule",
    "target",
    "topic",
    "callbackUrl",
    "payload",
    "payloadBase64",
    "headers",
    "priority",
    "onConflict",
    "retry",
    "caller",
    "expireAfter",
    "count",
    "after",
    "retain",
];
const TARGET_FIELDS: [&str; 7] = [
    "target.topic",
    "target.key",
    "target.url",
    "target.method",
    "target.headers",
    "target.pool",
    "target.timeout",
];
const AFTER_FIELDS: [&str; 3] = ["after.ids", "after.onFailure", "after.timeout"];
const RETRY_FIELDS: [&str; 4] =
    ["retry.delays", "retry.attempts", "retry.jitter", "retry.finalStatuses"];

/// Reads the envelope `value` into `draft`, which already holds what the headers say.
pub(super) fn read(value: &[u8], draft: &mut RegistrationDraft) -> Result<(), Reason> {
    let text = text_field::utf8("the value", value)?;
    let mut fields = ObjectFields::parse("", text).map_err(|_| {
        let way_out = "it is neither a JSON object nor Avro; to send a payload verbatim, say when \
                       and where to in headers (orloj-fire-at, orloj-target-topic)";
        refused("the value", text, way_out)
    })?;
    read_due(&mut fields, draft)?;
    read_destination(&mut fields, draft)?;
    read_payload(&mut fields, draft)?;
    if let Some(headers) = fields.take("headers") {
        read_headers("headers", headers, draft)?;
    }
    if let Some(json) = fields.take("priority") {
        draft.priority = text_field::priority("priority", json)?;
    }
    if let Some(text) = fields.text("onConflict")? {
        draft.on_conflict = text_field::on_conflict("onConflict", &text)?;
    }
    if let Some(json) = fields.take("retry") {
        read_retry(json, draft)?;
    }
    if let Some(text) = fields.text("caller")? {
        let caller = text_field::caller("caller", &text)?;
        draft.caller.get_or_insert(caller);
    }
    if let Some(id) = fields.text("id")?
        && draft.id.as_ref().is_some_and(|key| *key != *id.as_str())
    {
        return Err(refused(
            "id",
            id,
            "it is not the record's key: give the same, or leave it out",
        ));
    }
    read_lifecycle(&mut fields, draft)?;
    fields.finish(&FIELDS)
}

/// What goes beyond one time and one attempt.
fn read_lifecycle(
    fields: &mut ObjectFields<'_>,
    draft: &mut RegistrationDraft,
) -> Result<(), Reason> {
    let lifecycle = &mut draft.lifecycle;
    if let Some(json) = fields.take("expireAfter") {
        lifecycle.expire_after =
            Some(lifecycle_fields::span("expireAfter", delay("expireAfter", json)?)?);
    }
    if let Some(text) = fields.text("count")? {
        lifecycle.count = Some(lifecycle_fields::count("count", &text)?);
    }
    if let Some(json) = fields.take("retain") {
        lifecycle.retain = Some(lifecycle_fields::retain("retain", delay("retain", json)?)?);
    }
    let Some(json) = fields.take("after") else { return Ok(()) };
    if json.starts_with('[') {
        lifecycle.after = Some(read_ids("after", json)?);
        return Ok(());
    }
    let mut after = ObjectFields::object("after.", "after", json)?;
    if let Some(json) = after.take("after.ids") {
        lifecycle.after = Some(read_ids("after.ids", json)?);
    }
    if let Some(text) = after.text("after.onFailure")? {
        lifecycle.on_failure = Some(lifecycle_fields::on_failure("after.onFailure", &text)?);
    }
    if let Some(json) = after.take("after.timeout") {
        let timeout = delay("after.timeout", json)?;
        lifecycle.after_timeout = Some(lifecycle_fields::span("after.timeout", timeout)?);
    }
    after.finish(&AFTER_FIELDS)
}

/// Reads a list of ids of triggers.
pub(super) fn read_ids(field: &str, json: &str) -> Result<Vec<Text>, Reason> {
    let ids: Vec<String> = serde_json::from_str(json)
        .map_err(|_| refused(field, json, "give a list of ids like [\"order-7\"]"))?;
    lifecycle_fields::ids(field, ids.iter().map(String::as_str))
}

fn read_due(fields: &mut ObjectFields<'_>, draft: &mut RegistrationDraft) -> Result<(), Reason> {
    if let Some(json) = fields.take("fireAt") {
        let time = match json.parse() {
            Ok(ms) => text_field::time_ms("fireAt", ms)?,
            Err(_) => text_field::time("fireAt", &string("fireAt", json)?)?,
        };
        draft.set_due("fireAt", DueSpec::At(time))?;
    }
    for name in ["delay", "delayMs"] {
        if let Some(json) = fields.take(name) {
            draft.set_due(name, DueSpec::After(delay(name, json)?))?;
        }
    }
    if let Some(json) = fields.take("delaySeconds") {
        let seconds = json.parse().unwrap_or(f64::NAN);
        if seconds.is_nan() || seconds < 0.0 {
            let way_out = "give a number of seconds, zero or more";
            return Err(refused("delaySeconds", json, way_out));
        }
        // A number out of range becomes the largest one, which is beyond the horizon.
        draft.set_due("delaySeconds", DueSpec::After((seconds * 1_000.0).round() as u64))?;
    }
    if let Some(json) = fields.take("schedule") {
        draft.set_due("schedule", DueSpec::Recurring(Box::new(Schedule::from_json(json)?)))?;
    }
    Ok(())
}

fn read_destination(
    fields: &mut ObjectFields<'_>,
    draft: &mut RegistrationDraft,
) -> Result<(), Reason> {
    if let Some(name) = fields.text("topic")? {
        let topic = text_field::topic("topic", &name)?;
        draft.set_destination("topic", Destination::Topic(topic))?;
    }
    if let Some(url) = fields.text("callbackUrl")? {
        let url = text_field::url("callbackUrl", &url)?;
        draft.set_destination("callbackUrl", Destination::Url(url))?;
    }
    let Some(json) = fields.take("target") else { return Ok(()) };
    let mut target = ObjectFields::object("target.", "target", json)?;
    if let Some(name) = target.text("target.topic")? {
        let topic = text_field::topic("target.topic", &name)?;
        draft.set_destination("target.topic", Destination::Topic(topic))?;
    }
    if let Some(url) = target.text("target.url")? {
        let url = text_field::url("target.url", &url)?;
        draft.set_destination("target.url", Destination::Url(url))?;
    }
    if let Some(key) = target.text("target.key")? {
        draft.key = Some(key.into());
    }
    if let Some(method) = target.text("target.method")? {
        draft.method = Some(text_field::method("target.method", &method)?);
    }
    if let Some(name) = target.text("target.pool")? {
        draft.pool = Some(text_field::pool("target.pool", &name)?);
    }
    if let Some(json) = target.take("target.timeout") {
        let timeout = delay("target.timeout", json)?;
        draft.timeout = Some(text_field::timeout("target.timeout", timeout)?);
    }
    if let Some(headers) = target.take("target.headers") {
        read_headers("target.headers", headers, draft)?;
    }
    target.finish(&TARGET_FIELDS)
}

/// Reads the field `retry`.
pub(super) fn read_retry(json: &str, draft: &mut RegistrationDraft) -> Result<(), Reason> {
    let mut retry = ObjectFields::object("retry.", "retry", json)?;
    let list = |field: &str, json, like: &str| {
        let items: Result<Vec<&RawValue>, _> = serde_json::from_str(json);
        items.map_err(|_| refused(field, json, format!("give a list like {like}")))
    };
    if let Some(json) = retry.take("retry.delays") {
        let delays = list("retry.delays", json, "[\"10s\"]")?;
        let delays = delays.iter().map(|json| delay("retry.delays", json.get()));
        draft.retry_delays = Some(text_field::delays("retry.delays", delays)?);
    }
    if let Some(json) = retry.take("retry.attempts") {
        draft.retry.attempts = Some(text_field::attempts("retry.attempts", json)?);
    }
    if let Some(json) = retry.take("retry.jitter") {
        draft.retry.jitter = Some(text_field::jitter("retry.jitter", json)?);
    }
    if let Some(json) = retry.take("retry.finalStatuses") {
        let statuses = list("retry.finalStatuses", json, "[404, 422]")?;
        let statuses = statuses.iter().map(|json| json.get());
        draft.retry.final_statuses = text_field::final_statuses("retry.finalStatuses", statuses)?;
    }
    retry.finish(&RETRY_FIELDS)
}

fn read_payload(
    fields: &mut ObjectFields<'_>,
    draft: &mut RegistrationDraft,
) -> Result<(), Reason> {
    let verbatim = fields.take("payload").map(|json| Bytes::copy_from_slice(json.as_bytes()));
    let decoded = match fields.text("payloadBase64")? {
        Some(text) => match BASE64.decode(&text) {
            Ok(bytes) => Some(Bytes::from(bytes)),
            Err(_) => return Err(refused("payloadBase64", text, "give padded, standard base64")),
        },
        None => None,
    };
    if verbatim.is_some() && decoded.is_some() {
        return Err("payload and payloadBase64 both say what to deliver: give one".to_owned());
    }
    draft.payload = verbatim.or(decoded);
    Ok(())
}

fn read_headers(field: &str, json: &str, draft: &mut RegistrationDraft) -> Result<(), Reason> {
    let headers: BTreeMap<String, Option<String>> = serde_json::from_str(json)
        .map_err(|_| refused(field, json, "give an object of strings like {\"a\": \"b\"}"))?;
    draft.headers.extend(
        headers
            .into_iter()
            .map(|(name, value)| Header { name: Text::from(name), value: value.map(Bytes::from) }),
    );
    Ok(())
}
