//! Triggers and executions as the API shows them.
//!
//! Invariant: a time is RFC 3339 in UTC. A field that a client may write is shown under the same
//! name and in a form that may be written.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::client::retry_policy_json;
use crate::gateway::http::ListItem;
use crate::gateway::http::field_types::{RetryPolicySchema, ScheduleSchema};
use crate::model::definition::{Header, Target};
use crate::model::time::format_time;
use crate::model::{Millis, Offset, Timestamp};
use crate::view::{self, ExecutionStatus, Status};

/// A trigger: its registration, and its state.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trigger {
    /// The id by which it is replaced and cancelled.
    trigger_id: String,
    /// Which registration it is of.
    #[schema(value_type = u64)]
    generation: Offset,
    /// Which record defines it now, its registration or a change: the ETag.
    #[schema(value_type = u64)]
    revision: Offset,
    status: Status,
    /// Why it is paused, or how it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Labels to find it by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    /// Where its request goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    callback_url: Option<String>,
    /// The method of its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    /// Headers that are sent with it; those that are not text are omitted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    /// The topic of its record.
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
    /// The key of its record.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// What is delivered, if that is JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    payload: Option<Box<RawValue>>,
    /// What is delivered, if that is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// False if the view has only a part of the payload.
    payload_is_whole: bool,
    /// The pool whose workers make its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    /// How long an attempt may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<f64>,
    /// Its own retry policy, if it has one; pauses are in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RetryPolicySchema>)]
    retry: Option<Value>,
    /// When it is due next, or was due last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    fire_at: Option<String>,
    /// When it fires again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ScheduleSchema>)]
    schedule: Option<Box<RawValue>>,
    /// What must settle first: ids, onFailure, and timeout in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    after: Option<Value>,
    /// It does not fire later than this after its time, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    expire_after: Option<Millis>,
    /// How long it is kept for triggers that wait for it once it has settled, in ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    retain: Option<Millis>,
    priority: u8,
    /// The caller that registered it.
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    /// When it settled, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    settled_at: Option<String>,
    /// How many times it fired.
    executions: u32,
    /// The newest execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Execution>,
    /// The response is complete up to then; absent within a list, which has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    as_of: Option<String>,
}

/// One attempt of one occurrence.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Execution {
    #[schema(value_type = u64)]
    generation: Offset,
    /// Which occurrence, from 0.
    occurrence: u32,
    /// Which attempt, from 1; 0 if there was none.
    attempt: u32,
    status: ExecutionStatus,
    /// When it was due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    due: Option<String>,
    /// When this was recorded.
    #[schema(format = DateTime)]
    at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    http_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    retry_at: Option<String>,
}

impl ListItem for Trigger {
    const LIST_NAME: &'static str = "TriggerList";
}

impl ListItem for Execution {
    const LIST_NAME: &'static str = "ExecutionList";
}

impl Trigger {
    /// Adds the time up to which the response is complete.
    pub(crate) fn with_as_of(self, as_of: Timestamp) -> Self {
        Self { as_of: Some(format_time(as_of)), ..self }
    }
}

impl From<view::TriggerView> for Trigger {
    fn from(view: view::TriggerView) -> Self {
        let definition = view.definition;
        let (mut callback_url, mut method, mut pool, mut timeout_seconds) =
            (None, None, None, None);
        let (mut topic, mut key) = (None, None);
        match &definition.target {
            Target::Http(http) => {
                callback_url = Some(http.url.to_string());
                method = Some(http.method.to_string());
                pool = http.pool.as_ref().map(ToString::to_string);
                timeout_seconds = http.timeout.map(|ms| ms as f64 / 1_000.0);
            }
            Target::Topic(target) => {
                topic = Some(target.topic.to_string());
                let bytes = target.key.as_ref();
                key = bytes.map(|key| String::from_utf8_lossy(key).into_owned());
            }
        }
        let (payload, payload_base64) = payload(definition.payload.as_deref());
        Self {
            trigger_id: view.id,
            generation: view.generation,
            revision: view.revision,
            status: view.status,
            reason: view.reason,
            name: view.name,
            labels: view.labels,
            callback_url,
            method,
            headers: headers(&definition.headers),
            topic,
            key,
            payload,
            payload_base64,
            payload_is_whole: view.payload_is_complete,
            pool,
            timeout_seconds,
            retry: definition.retry.as_deref().map(retry_policy_json),
            fire_at: view.fire_at.map(format_time),
            schedule: view.schedule.and_then(|json| RawValue::from_string(json).ok()),
            after: view.after.map(|after| {
                json!({ "ids": after.ids.iter().map(ToString::to_string).collect::<Vec<_>>(),
                        "onFailure": after.on_failure, "timeout": after.timeout })
            }),
            expire_after: view.expire_after,
            retain: view.retain,
            priority: view.priority,
            caller: view.caller,
            created_at: format_time(view.created_at),
            settled_at: view.settled_at.map(format_time),
            executions: view.executions,
            last: view.last_execution.map(Execution::from),
            as_of: None,
        }
    }
}

impl From<view::ExecutionView> for Execution {
    fn from(view: view::ExecutionView) -> Self {
        Self {
            generation: view.generation,
            occurrence: view.occurrence,
            attempt: view.attempt,
            status: view.status,
            due: view.due.map(format_time),
            at: format_time(view.at),
            http_status: view.http_status,
            reason: view.reason,
            retry_at: view.retry_at.map(format_time),
        }
    }
}

/// The payload as JSON, or else as base64.
fn payload(bytes: Option<&[u8]>) -> (Option<Box<RawValue>>, Option<String>) {
    let Some(bytes) = bytes else { return (None, None) };
    let json = std::str::from_utf8(bytes).ok();
    match json.and_then(|json| serde_json::from_str(json).ok()) {
        Some(json) => (Some(json), None),
        None => (None, Some(BASE64.encode(bytes))),
    }
}

/// The headers of the target, as text.
pub(crate) fn headers(headers: &[Header]) -> BTreeMap<String, String> {
    let text = |header: &Header| {
        let value = std::str::from_utf8(header.value.as_deref()?).ok()?;
        (!is_reserved_header(header.name.as_str()))
            .then(|| (header.name.to_string(), value.to_owned()))
    };
    headers.iter().filter_map(text).collect()
}

/// Whether a header is Orloj's own: it is shown as a field.
pub(crate) fn is_reserved_header(name: &str) -> bool {
    name.starts_with("orloj-")
}
