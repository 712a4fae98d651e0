//! `PATCH /v1/triggers/{id}`: a JSON merge patch (RFC 7396) of what was registered, which is
//! written as a new registration.
//!
//! Invariant: a field that the patch does not name stays byte for byte as it was registered. The
//! owner accepts the change only if the trigger still has the generation that was patched.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};

use super::commands::not_pending;
use super::registration::{RegisterResponse, prepare, rejected};
use super::resource::{Trigger, is_reserved_header};
use super::trigger_body::{LatePolicy, TriggerBody};
use crate::callers::CallerLimits;
use crate::client::NewTrigger;
use crate::gateway::api::{Api, id_taken, set_etag};
use crate::gateway::auth::Registrant;
use crate::gateway::http::ErrorCode;
use crate::gateway::http::json::{self, unknown_field_reason};
use crate::gateway::http::{FieldError, Problem};
use crate::gateway::http::{IfMatch, PathId};
use crate::gateway::json_body::{JsonBody, RequestBody};
use crate::model::Offset;
use crate::model::definition::Header;
use crate::model::outcome::OutcomeKind;
use crate::view::{FINGERPRINT_HEADER, LABEL_HEADER_PREFIX, NAME_HEADER, TriggerView};

/// The fields that a patch may name.
const WRITABLE: [&str; 22] = [
    "name",
    "labels",
    "callbackUrl",
    "method",
    "headers",
    "topic",
    "key",
    "payload",
    "pool",
    "timeoutSeconds",
    "retry",
    "delaySeconds",
    "fireAt",
    "schedule",
    "after",
    "end",
    "maxExecutions",
    "expireAfter",
    "count",
    "retain",
    "priority",
    "late",
];

/// The fields that are removed when a patch sets a field that excludes them.
const CONFLICTING_FIELDS: [(&str, &[&str]); 5] = [
    ("fireAt", &["schedule"]),
    ("delaySeconds", &["fireAt", "schedule"]),
    ("schedule", &["fireAt", "expireAfter", "after"]),
    ("topic", &["callbackUrl", "method", "pool", "timeoutSeconds", "retry"]),
    ("callbackUrl", &["topic", "key"]),
];

/// Change a trigger that has not settled: a JSON merge patch of what can be registered.
#[utoipa::path(
    patch, path = "/v1/triggers/{id}", tag = "triggers", operation_id = "updateTrigger",
    params(
        ("id" = String, Path, description = "The trigger's id"),
        ("If-Match" = Option<String>, Header,
            pattern = r#"^(\*|([0-9]+|"[0-9]+")( *, *([0-9]+|"[0-9]+"))*)$"#,
            example = json!("\"41\""),
            description = "The ETag of the trigger that is to be changed; the newest if not given"),
    ),
    request_body(
        content = TriggerPatch, content_type = "application/merge-patch+json",
        description = "Fields of a registration; null takes one away"
    ),
    responses(
        (status = 200, description = "Changed", body = RegisterResponse,
            headers(("ETag" = String, description = "The new generation"))),
        (status = 202, description = "Written, and not answered in time",
            body = crate::gateway::api::Unanswered),
    )
)]
pub(crate) async fn patch(
    State(api): State<Arc<Api>>,
    Registrant(caller): Registrant,
    PathId(id): PathId,
    IfMatch(expected): IfMatch,
    patch: JsonBody<TriggerPatch>,
) -> Result<Response, Problem> {
    let payload_max = caller.limits.payload.bytes();
    let (trigger, _freshness) = api.find_trigger(&caller, &id).await?;
    let generation = trigger.generation;
    if trigger.status.is_settled() {
        let problem = Problem::of(ErrorCode::Settled, format!("{id} has settled"));
        return Err(problem.with("triggerStatus", json!(trigger.status)));
    }
    // The trigger stays its caller's, even if an operator changes it.
    let owner = api.callers.for_record(trigger.caller.as_deref());
    let registered_by = trigger.caller.clone();
    let (mut changed, late) = apply_patch(trigger, patch.bytes(), payload_max)?;
    // Checked after everything else that refuses a request: RFC 9110, section 13.2.1.
    if expected.is_some_and(|expected| !expected.contains(&generation)) {
        return Err(generation_differs(&id, generation));
    }
    let first = api.original_request(&id, generation).await?;
    let carried = first.and_then(|first| first.to_header());
    changed
        .metadata_headers
        .extend(carried.map(|text| (FINGERPRINT_HEADER.to_owned(), text.into_bytes())));
    let submission = prepare(&api, &owner, changed, late).await?.if_generation(generation);
    let submission = match &registered_by {
        Some(caller) => submission.with_caller(caller),
        None => submission,
    };
    let result = api.write(submission).await?;
    match result.outcome_kind() {
        Some(OutcomeKind::Accepted { generation, fire_at, .. }) => {
            let registered = RegisterResponse::of(&id, *generation, *fire_at);
            let mut response = Json(registered).into_response();
            set_etag(&mut response, *generation);
            Ok(response)
        }
        Some(OutcomeKind::Kept { generation, .. }) => Err(generation_differs(&id, *generation)),
        Some(OutcomeKind::NotPending { fired, .. }) => {
            Err(not_pending(&api, &caller, &id, *fired, None).await)
        }
        Some(OutcomeKind::Taken { .. }) => Err(id_taken(&id)),
        Some(OutcomeKind::Rejected { reason }) => Err(rejected(&id, reason)),
        _ => Ok(api.unanswered(&id, &result)),
    }
}

/// The schema of a patch: the fields of a registration, without those that cannot be changed.
#[derive(Debug)]
pub(crate) struct TriggerPatch;

impl RequestBody for TriggerPatch {
    fn bytes_max(limits: &CallerLimits) -> u64 {
        TriggerBody::bytes_max(limits)
    }
}

impl utoipa::PartialSchema for TriggerPatch {
    fn schema() -> RefOr<Schema> {
        let mut schema = <TriggerBody as utoipa::PartialSchema>::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            object.properties.retain(|name, _| WRITABLE.contains(&name.as_str()));
            object.examples = vec![json!({"name": "Green tea", "expireAfter": null})];
        }
        schema
    }
}

impl utoipa::ToSchema for TriggerPatch {}

fn generation_differs(id: &str, generation: Offset) -> Problem {
    let detail = format!("{id} is generation {generation} now");
    Problem::of(ErrorCode::GenerationDiffers, detail).with("generation", json!(generation))
}

/// The trigger after the patch.
fn apply_patch(
    view: TriggerView,
    patch: &[u8],
    payload_max: u64,
) -> Result<(NewTrigger, LatePolicy), Problem> {
    let patch: Map<String, Value> = json::parse_json(patch)?;
    check_names(&patch)?;
    let is_set_in_patch = |name: &str| patch.get(name).is_some_and(|value| !value.is_null());
    let (id, definition) = (view.id.clone(), view.definition.clone());
    let (whole, had_schedule) = (view.payload_is_complete, view.schedule.is_some());
    let mut fields = writable(view);
    for (name, others) in CONFLICTING_FIELDS {
        // A field that was set before is compatible with the other ones.
        if is_set_in_patch(name) && !fields.contains_key(name) {
            others.iter().for_each(|other| drop(fields.remove(*other)));
        }
    }
    if had_schedule && fields.contains_key("schedule") {
        let _given = fields.entry("count").or_insert(json!("keep"));
    }
    let (keeps_payload, keeps_headers) =
        (!patch.contains_key("payload"), !patch.contains_key("headers"));
    let keeps_time = !patch.contains_key("fireAt");
    let mut merged = Value::from(fields);
    merge(&mut merged, Value::from(patch));
    if let Some(fields) = merged.as_object_mut() {
        fields.retain(|name, value| {
            let kept = (name == "payload" && keeps_payload) || (name == "headers" && keeps_headers);
            !kept && !value.is_null()
        });
    }
    let read: TriggerBody = json::parse_json(merged.to_string().as_bytes())?;
    let late = if keeps_time { LatePolicy::Fire } else { read.late.unwrap_or_default() };
    let mut trigger = read.into_trigger(payload_max)?;
    trigger.id = id;
    if keeps_payload {
        let payload = definition.payload.filter(|_| whole);
        let Some(payload) = payload else {
            let detail = "the view has not the whole payload, or it is null: give payload";
            return Err(Problem::at(ErrorCode::Conflict, FieldError::of("payload", detail)));
        };
        trigger.payload = payload.to_vec();
    }
    let (ours, theirs): (Vec<_>, Vec<_>) =
        definition.headers.iter().partition(|header| is_reserved_header(header.name.as_str()));
    if keeps_headers {
        trigger.headers = theirs.into_iter().map(header_pair).collect();
    }
    trigger.metadata_headers.extend(ours.into_iter().filter(is_other_header).map(header_pair));
    Ok((trigger, late))
}

/// Refuses a field that a patch cannot have.
fn check_names(patch: &Map<String, Value>) -> Result<(), FieldError> {
    let Some(unknown) = patch.keys().find(|name| !WRITABLE.contains(&name.as_str())) else {
        return Ok(());
    };
    let reason = match unknown.as_str() {
        "triggerId" | "onConflict" => format!("{unknown} cannot be changed: leave it out"),
        "generation" | "status" | "caller" | "createdAt" | "settledAt" | "executions" | "last"
        | "reason" | "asOf" | "payloadIsWhole" | "payloadBase64" => {
            format!("{unknown} is only shown: leave it out")
        }
        _ => unknown_field_reason(unknown, &WRITABLE),
    };
    Err(FieldError::of(unknown, reason))
}

/// The trigger, as the fields that register it.
fn writable(view: TriggerView) -> Map<String, Value> {
    let recurs = view.schedule.is_some();
    let shown = serde_json::to_value(Trigger::from(view)).expect("text and numbers make JSON");
    let Value::Object(mut fields) = shown else { unreachable!("a trigger is shown as an object") };
    fields.retain(|name, _| WRITABLE.contains(&name.as_str()));
    if recurs {
        // The schedule says when; this time was calculated from it.
        let _next = fields.remove("fireAt");
    }
    fields
}

/// RFC 7396.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            let _removed = fields.remove(&name);
        } else {
            merge(fields.entry(name).or_insert(Value::Null), value);
        }
    }
}

fn header_pair(header: &Header) -> (String, Vec<u8>) {
    (header.name.to_string(), header.value.as_ref().map(|value| value.to_vec()).unwrap_or_default())
}

/// Whether the header is none of those that fields of a trigger are written as.
fn is_other_header(header: &&Header) -> bool {
    let name = header.name.as_str();
    name != NAME_HEADER && !name.starts_with(LABEL_HEADER_PREFIX) && name != FINGERPRINT_HEADER
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::client::FireTime;
    use crate::model::definition::{Definition, HttpTarget, Target, TopicTarget};
    use crate::model::lifecycle::{Dependencies, OnFailure};
    use crate::model::retry::RetryPolicy;
    use crate::model::text::Text;
    use crate::view;

    fn view() -> TriggerView {
        let header = |name: &str, value: &str| Header {
            name: Text::from(name),
            value: Some(value.as_bytes().to_vec().into()),
        };
        let slow = HttpTarget { timeout: Some(1_500), ..HttpTarget::post("https://h/x") };
        TriggerView {
            id: "tea".to_owned(),
            generation: 41,
            partition: 0,
            caller: None,
            status: view::Status::Pending,
            name: Some("Tea".to_owned()),
            labels: BTreeMap::from([("team".to_owned(), "kitchen".to_owned())]),
            definition: Definition {
                target: Target::from(slow),
                payload: Some(br#"{"n": 1.0,  "s": 2}"#.as_slice().into()),
                headers: vec![
                    header("orloj-name", "Tea"),
                    header("orloj-label-team", "kitchen"),
                    header("orloj-fingerprint", "ff"),
                    header("orloj-other", "x"),
                    header("a", "b"),
                ],
                retry: None,
                caller: None,
            },
            payload_is_complete: true,
            schedule: None,
            after: None,
            expire_after: Some(60_000),
            retain: None,
            priority: 127,
            fire_at: Some(1_800_000_000_000),
            created_at: 1,
            settled_at: None,
            executions: 0,
            last_execution: None,
            reason: None,
        }
    }

    fn patched_by(patch: Value) -> Result<NewTrigger, Problem> {
        apply_patch(view(), patch.to_string().as_bytes(), 4_096).map(|(trigger, _late)| trigger)
    }

    fn lifecycle_headers(trigger: &NewTrigger) -> Vec<(&str, &str)> {
        trigger.lifecycle_headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    #[test]
    fn a_patch_is_merged_as_the_rfc_says() {
        // The examples of RFC 7396, appendix A.
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut merged = target.clone();
            merge(&mut merged, patch.clone());
            assert_eq!(merged, result, "{target} with {patch}");
        }
    }

    #[test]
    fn fields_without_a_patch_stay_byte_for_byte() {
        let trigger = patched_by(json!({"name": "Green tea"})).unwrap();
        assert_eq!(trigger.id, "tea");
        assert_eq!(trigger.when, Some(FireTime::At(1_800_000_000_000)));
        assert_eq!(trigger.payload, br#"{"n": 1.0,  "s": 2}"#, "byte for byte");
        assert_eq!(trigger.headers, [("a".to_owned(), b"b".to_vec())]);
        let about =
            [("orloj-name", "Green tea"), ("orloj-label-team", "kitchen"), ("orloj-other", "x")];
        let about = about.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(trigger.metadata_headers, about);
        let Target::Http(target) = &trigger.target else { panic!("{trigger:?}") };
        assert_eq!((target.url.as_str(), target.timeout), ("https://h/x", Some(1_500)));
        let expected = [("orloj-expire-after", "60000"), ("orloj-priority", "127")];
        assert_eq!(lifecycle_headers(&trigger), expected);
    }

    #[test]
    fn null_removes_a_field_and_conflicting_fields_are_removed() {
        let trigger = patched_by(json!({"expireAfter": null, "payload": {"s": null}})).unwrap();
        assert_eq!(lifecycle_headers(&trigger), [("orloj-priority", "127")]);
        assert_eq!(trigger.payload, br#"{"n":1.0}"#);

        let trigger = patched_by(json!({"schedule": {"daily": "09:00"}})).unwrap();
        let expected = [("orloj-schedule", r#"{"daily":"09:00"}"#), ("orloj-priority", "127")];
        assert_eq!((trigger.when, lifecycle_headers(&trigger)), (None, expected.to_vec()));

        let trigger = patched_by(json!({"delaySeconds": 2, "topic": "t"})).unwrap();
        assert_eq!(trigger.when, Some(FireTime::After(2_000)));
        assert!(!trigger.target.is_http());

        let retry = RetryPolicy { attempts: Some(3), ..RetryPolicy::default() };
        let to_topic = || Definition {
            target: Target::Topic(TopicTarget { topic: "t".into(), key: Some("k".into()) }),
            retry: Some(Box::new(retry.clone())),
            ..view().definition
        };
        let patch = |patch: Value| {
            let view = TriggerView { definition: to_topic(), ..view() };
            apply_patch(view, patch.to_string().as_bytes(), 4_096).unwrap().0
        };
        let trigger = patch(json!({"callbackUrl": "https://h/y"}));
        assert_eq!(trigger.target, Target::from(HttpTarget::post("https://h/y")));
        let trigger = patch(json!({"topic": "u"}));
        let target = Target::Topic(TopicTarget { topic: "u".into(), key: Some("k".into()) });
        assert_eq!((trigger.target, trigger.retry), (target, retry.clone()), "one of its kind");
    }

    #[test]
    fn dependencies_stay_until_a_schedule_replaces_them() {
        let after =
            Dependencies { ids: vec!["a".into()], on_failure: OnFailure::Skip, timeout: 9_000 };
        let waiting = || TriggerView { after: Some(after.clone()), expire_after: None, ..view() };
        let patch = |patch: Value| {
            apply_patch(waiting(), patch.to_string().as_bytes(), 4_096).unwrap().0.lifecycle_headers
        };
        let names = |headers: &[(&'static str, String)]| {
            headers.iter().map(|(name, _)| *name).collect::<Vec<_>>()
        };
        let kept = ["orloj-priority", "orloj-after", "orloj-on-failure", "orloj-after-timeout"];
        assert_eq!(names(&patch(json!({"name": "x"}))), kept);
        let recurring = patch(json!({"schedule": {"daily": "09:00"}}));
        assert_eq!(names(&recurring), ["orloj-schedule", "orloj-priority"]);
    }

    #[test]
    fn an_unchanged_time_may_have_passed() {
        let late = |patch: Value| {
            apply_patch(view(), patch.to_string().as_bytes(), 4_096).map(|(_, late)| late)
        };
        assert_eq!(late(json!({"name": "x"})), Ok(LatePolicy::Fire));
        assert_eq!(late(json!({"fireAt": 1})), Ok(LatePolicy::Refuse));
        assert_eq!(late(json!({"fireAt": 1, "late": "fire"})), Ok(LatePolicy::Fire));
    }

    #[test]
    fn headers_are_patched_one_by_one() {
        let headers = |patch: Value| patched_by(patch).unwrap().headers;
        let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let more = headers(json!({"headers": {"c": "d"}}));
        assert_eq!(more, [header("a", "b"), header("c", "d")]);
        assert_eq!(headers(json!({"headers": {"a": null}})), []);
    }

    #[test]
    fn an_unchanged_schedule_keeps_its_count() {
        let recurring = || TriggerView {
            schedule: Some(r#"{"daily":{"at":["09:00"]},"maxExecutions":3}"#.to_owned()),
            expire_after: None,
            ..view()
        };
        let patch = |patch: Value| {
            let (trigger, _) =
                apply_patch(recurring(), patch.to_string().as_bytes(), 4_096).unwrap();
            (trigger.when, trigger.lifecycle_headers)
        };
        let (when, headers) = patch(json!({"maxExecutions": null, "name": "x"}));
        let schedule = r#"{"daily":{"at":["09:00"]},"maxExecutions":3}"#.to_owned();
        assert_eq!(when, None);
        let expected = ("orloj-count", "keep".to_owned());
        assert_eq!(headers[..2], [("orloj-schedule", schedule), expected]);
        let (when, headers) = patch(json!({"fireAt": "2030-01-01T00:00:00Z", "count": null}));
        assert_eq!(when, Some(FireTime::At(1_893_456_000_000)));
        assert_eq!(headers, [("orloj-priority", "127".to_owned())]);
    }

    #[test]
    fn a_field_that_cannot_be_patched_is_refused_by_name() {
        for (patch, pointer, reason) in [
            (json!({"triggerId": "x"}), "/triggerId", "cannot be changed"),
            (json!({"status": "FIRED"}), "/status", "only shown"),
            (json!({"nam": "x"}), "/nam", "did you mean \"name\"?"),
            (json!({"priority": "x", "labels": {"a": 1}}), "/labels/a", "write a string, not 1"),
            (json!({"fireAt": null}), "/fireAt", "say when"),
        ] {
            let problem = patched_by(patch.clone()).unwrap_err();
            let error = FieldError { pointer: pointer.to_owned(), reason: String::new() };
            let shown = format!("{problem:?}");
            assert!(shown.contains(&format!("{:?}", error.pointer)), "{patch}: {shown}");
            assert!(shown.contains(&reason.replace('"', "\\\"")), "{patch}: {shown}");
        }
        let cut = TriggerView { payload_is_complete: false, ..view() };
        assert!(apply_patch(cut, b"{}", 4_096).is_err());
    }
}
