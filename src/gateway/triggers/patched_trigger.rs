//! A trigger after a patch: the fields that register it, with those of the patch, and which parts
//! of it the owner has and the patch does not name.
//!
//! Invariant: a field that the patch does not name stays byte for byte as it was registered.

use serde_json::{Map, Value, json};

use super::merge_patch::merge;
use super::resource::{Trigger, is_reserved_header};
use super::trigger_body::{LatePolicy, TriggerBody};
use crate::client::NewTrigger;
use crate::gateway::http::json::{self, unknown_field_reason};
use crate::gateway::http::{ErrorCode, FieldError, Problem};
use crate::model::definition::Header;
use crate::model::input::ChangedParts;
use crate::model::time::format_time;
use crate::view::{FINGERPRINT_HEADER, LABEL_HEADER_PREFIX, NAME_HEADER, TriggerView};

/// The fields that a patch may name.
pub(super) const WRITABLE: [&str; 22] = [
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

/// A trigger after a patch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Patched {
    pub(super) trigger: NewTrigger,
    pub(super) late: LatePolicy,
    /// What else changes; the owner has the rest.
    pub(super) parts: ChangedParts,
}

/// The fields that say when a trigger is due.
const TIME: [&str; 6] = ["fireAt", "delaySeconds", "schedule", "end", "maxExecutions", "count"];
/// The headers of what a trigger waits for.
const AFTER_HEADERS: [&str; 3] = ["orloj-after", "orloj-on-failure", "orloj-after-timeout"];

/// The trigger after the patch.
pub(super) fn apply_patch(
    view: TriggerView,
    patch: &[u8],
    payload_max: u64,
) -> Result<Patched, Problem> {
    let mut patch: Map<String, Value> = json::parse_json(patch)?;
    check_names(&patch)?;
    let (id, definition) = (view.id.clone(), view.definition.clone());
    let (had_schedule, waited) = (view.schedule.is_some(), view.after.is_some());
    let fire_at = view.fire_at.unwrap_or(view.created_at);
    let parts = ChangedParts {
        time: TIME.iter().any(|name| patch.contains_key(*name)),
        after: patch.contains_key("after") || (waited && is_set(&patch, "schedule")),
        payload: patch.contains_key("payload"),
        key: patch.contains_key("key"),
    };
    if had_schedule && !parts.time {
        check_schedule_stays(&patch)?;
    }
    if !view.payload_is_complete && patch.get("payload").is_some_and(Value::is_object) {
        let detail = "the view has a part of it only, which this cannot be merged into: register \
                      the trigger again";
        return Err(Problem::at(ErrorCode::Conflict, FieldError::of("payload", detail)));
    }
    let mut fields = writable(view);
    if let Some(Value::Object(schedule)) = fields.get_mut("schedule")
        && !patch.contains_key("schedule")
    {
        patch_schedule(schedule, &mut patch);
    }
    for (name, others) in CONFLICTING_FIELDS {
        // A field that was set before is compatible with the other ones.
        if is_set(&patch, name) && !fields.contains_key(name) {
            others.iter().for_each(|other| drop(fields.remove(*other)));
        }
    }
    let keeps_schedule = !patch.get("schedule").is_some_and(Value::is_null);
    if keeps_schedule && had_schedule && fields.contains_key("schedule") {
        let _given = fields.entry("count").or_insert(json!("keep"));
    }
    let keeps_time = !patch.contains_key("fireAt");
    let patched_headers = patch.get("headers").cloned();
    let mut merged = Value::from(fields);
    merge(&mut merged, Value::from(patch));
    if let Some(fields) = merged.as_object_mut() {
        fields.retain(|name, value| {
            let kept = (name == "payload" && !parts.payload)
                || (name == "headers" && patched_headers.is_none())
                || (TIME.contains(&name.as_str()) && !parts.time);
            !kept && !value.is_null()
        });
    }
    if let (Value::Object(fields), false) = (&mut merged, parts.time) {
        // A record says when. The owner has the time.
        let _none = fields.insert("fireAt".to_owned(), json!(format_time(fire_at)));
    }
    let read: TriggerBody = json::parse_json(merged.to_string().as_bytes())?;
    let late = if keeps_time { LatePolicy::Fire } else { read.late.unwrap_or_default() };
    let mut trigger = read.into_trigger(payload_max)?;
    trigger.id = id;
    if !parts.after {
        trigger.lifecycle_headers.retain(|(name, _)| !AFTER_HEADERS.contains(name));
    }
    patch_headers(&mut trigger, &definition.headers, patched_headers.as_ref());
    Ok(Patched { trigger, late, parts })
}

fn is_set(patch: &Map<String, Value>, name: &str) -> bool {
    patch.get(name).is_some_and(|value| !value.is_null())
}

/// Moves the short forms of fields of a schedule into the one that stays.
fn patch_schedule(schedule: &mut Map<String, Value>, patch: &mut Map<String, Value>) {
    for name in ["end", "maxExecutions"] {
        match patch.remove(name) {
            Some(Value::Null) => drop(schedule.remove(name)),
            Some(value) => drop(schedule.insert(name.to_owned(), value)),
            None => {}
        }
    }
}

/// The headers after a patch: those that it does not name stay byte for byte.
fn patch_headers(trigger: &mut NewTrigger, before: &[Header], patch: Option<&Value>) {
    let (ours, theirs): (Vec<_>, Vec<_>) =
        before.iter().partition(|header| is_reserved_header(header.name.as_str()));
    match patch {
        None => trigger.headers = theirs.into_iter().map(header_pair).collect(),
        Some(patch) => {
            // Those that are no text are not shown, so they are not among what was patched.
            let stays = |header: &&Header| {
                let value = header.value.as_deref().unwrap_or_default();
                let is_named = !patch.is_object() || patch.get(header.name.as_str()).is_some();
                std::str::from_utf8(value).is_err() && !is_named
            };
            trigger.headers.extend(theirs.into_iter().filter(stays).map(header_pair));
        }
    }
    trigger.metadata_headers.extend(ours.into_iter().filter(is_other_header).map(header_pair));
}

/// Refuses a field that a trigger with a schedule does not have.
fn check_schedule_stays(patch: &Map<String, Value>) -> Result<(), FieldError> {
    for (name, reason) in [
        ("expireAfter", "a schedule says with its misfire what happens to what is late"),
        ("after", "a schedule does not wait for others: give fireAt or delaySeconds, too"),
    ] {
        if is_set(patch, name) {
            return Err(FieldError::of(name, reason));
        }
    }
    Ok(())
}

/// Refuses a field that a patch cannot have.
fn check_names(patch: &Map<String, Value>) -> Result<(), FieldError> {
    let Some(unknown) = patch.keys().find(|name| !WRITABLE.contains(&name.as_str())) else {
        return Ok(());
    };
    let reason = match unknown.as_str() {
        "triggerId" | "onConflict" => format!("{unknown} cannot be changed: leave it out"),
        "generation" | "revision" | "status" | "caller" | "createdAt" | "settledAt"
        | "executions" | "last" | "reason" | "asOf" | "payloadIsWhole" | "payloadBase64" => {
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
            revision: 41,
            is_behind: false,
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
            counted_from: 0,
            last_execution: None,
            reason: None,
        }
    }

    fn patched_by(patch: Value) -> Result<NewTrigger, Problem> {
        apply_patch(view(), patch.to_string().as_bytes(), 4_096).map(|patched| patched.trigger)
    }

    fn lifecycle_headers(trigger: &NewTrigger) -> Vec<(&str, &str)> {
        trigger.lifecycle_headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    #[test]
    fn fields_without_a_patch_stay_byte_for_byte() {
        let trigger = patched_by(json!({"name": "Green tea"})).unwrap();
        assert_eq!(trigger.id, "tea");
        assert_eq!(trigger.when, Some(FireTime::At(1_800_000_000_000)));
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
            apply_patch(view, patch.to_string().as_bytes(), 4_096).unwrap().trigger
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
        let patch =
            |patch: Value| apply_patch(waiting(), patch.to_string().as_bytes(), 4_096).unwrap();
        let names = |patched: &Patched| {
            let headers = patched.trigger.lifecycle_headers.iter();
            headers.map(|(name, _)| *name).collect::<Vec<_>>()
        };
        let kept = patch(json!({"name": "x"}));
        assert_eq!((names(&kept), kept.parts.after), (vec!["orloj-priority"], false));
        let recurring = patch(json!({"schedule": {"daily": "09:00"}}));
        assert_eq!(names(&recurring), ["orloj-schedule", "orloj-priority"]);
        assert!(recurring.parts.after && recurring.parts.time);
        let other = patch(json!({"after": {"ids": ["b"]}}));
        let headers = ["orloj-priority", "orloj-after", "orloj-on-failure", "orloj-after-timeout"];
        assert_eq!((names(&other), other.parts.after), (headers.to_vec(), true));
    }

    #[test]
    fn an_unchanged_time_may_have_passed() {
        let late = |patch: Value| {
            apply_patch(view(), patch.to_string().as_bytes(), 4_096).map(|patched| patched.late)
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
            let Patched { trigger, parts, .. } =
                apply_patch(recurring(), patch.to_string().as_bytes(), 4_096).unwrap();
            (trigger.when, trigger.lifecycle_headers, parts.time)
        };
        // The owner has the schedule, which may have no further occurrence after this one.
        let priority = ("orloj-priority", "127".to_owned());
        let now = Some(FireTime::At(1_800_000_000_000));
        assert_eq!(patch(json!({"name": "x"})), (now, vec![priority.clone()], false));
        let (when, headers, changes) = patch(json!({"maxExecutions": null, "name": "x"}));
        assert!(changes);
        let schedule = r#"{"daily":{"at":["09:00"]}}"#.to_owned();
        assert_eq!(when, None);
        let expected = ("orloj-count", "keep".to_owned());
        assert_eq!(headers[..2], [("orloj-schedule", schedule), expected]);
        let (when, headers, _) = patch(json!({"fireAt": "2030-01-01T00:00:00Z", "count": null}));
        assert_eq!(when, Some(FireTime::At(1_893_456_000_000)));
        assert_eq!(headers, [priority]);
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
    }

    #[test]
    fn the_owner_has_what_the_patch_does_not_name() {
        let named = |patch: Value| {
            apply_patch(view(), patch.to_string().as_bytes(), 4_096).map(|patched| patched.parts)
        };
        let none = ChangedParts::default();
        for (patch, parts) in [
            (json!({"name": "x", "labels": {"a": "b"}, "priority": 3, "retain": "1h"}), none),
            (json!({"payload": null}), ChangedParts { payload: true, ..none }),
            (json!({"fireAt": "2030-01-01T00:00:00Z"}), ChangedParts { time: true, ..none }),
            (json!({"delaySeconds": 1}), ChangedParts { time: true, ..none }),
            (json!({"topic": "t", "key": "k"}), ChangedParts { key: true, ..none }),
            (json!({"after": {"ids": ["a"]}}), ChangedParts { after: true, ..none }),
        ] {
            assert_eq!(named(patch.clone()), Ok(parts), "{patch}");
        }
    }

    #[test]
    fn a_payload_of_which_the_view_has_a_part_is_replaced_or_left_alone() {
        let patch = |patch: &[u8]| {
            apply_patch(TriggerView { payload_is_complete: false, ..view() }, patch, 4_096)
        };
        assert!(!patch(br#"{"name": "x"}"#).unwrap().parts.payload);
        assert_eq!(patch(br#"{"payload": [1]}"#).unwrap().trigger.payload, b"[1]");
        assert!(patch(br#"{"payload": {"a": 1}}"#).is_err(), "there is nothing to merge it into");
    }

    #[test]
    fn a_schedule_has_no_field_of_a_one_time_trigger() {
        let recurring = || TriggerView {
            schedule: Some(r#"{"daily":{"at":["09:00"]}}"#.to_owned()),
            expire_after: None,
            ..view()
        };
        for patch in [json!({"expireAfter": "1m"}), json!({"after": {"ids": ["a"]}})] {
            let problem = apply_patch(recurring(), patch.to_string().as_bytes(), 4_096);
            assert!(problem.is_err(), "{patch}");
        }
    }

    #[test]
    fn a_header_that_is_no_text_stays_if_others_are_patched() {
        let binary = Header { name: "bin".into(), value: Some(vec![0xff].into()) };
        let definition = Definition { headers: vec![binary], ..view().definition };
        let view = TriggerView { definition, ..view() };
        let patched = apply_patch(view, br#"{"headers": {"c": "d"}}"#, 4_096).unwrap();
        let expected = [("c".to_owned(), b"d".to_vec()), ("bin".to_owned(), vec![0xff])];
        assert_eq!(patched.trigger.headers, expected);
    }
}
