//! `PATCH`, over HTTP on a real broker: each field of a trigger in each of its states.
//!
//! Invariant: what a patch names is shown as it says, and what it does not name stays, what the
//! owner knows of the trigger included. A patch that is refused changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use orloj::clock;
use orloj::model::time::parse_time;
use reqwest::Method;
use serde_json::{Value, json};

use super::fixture::{ApiFixture, ApiResponse, DEADLINE, merge_patch, merged};
use crate::wait::until;

/// A time that no test lives to see.
const FAR: &str = "2035-01-01T00:00:00Z";
/// Another one.
const SOONER: &str = "2034-01-01T00:00:00Z";
const PAST: &str = "2020-01-01T00:00:00Z";
const DELAY_SECONDS: u64 = 86_400;

/// How a field is answered in a state in which a trigger can be changed: of a one-time trigger
/// into a topic, of one that is a callback, and the same of recurring ones.
type FieldAnswers = [u16; 4];
const ANY: FieldAnswers = [200, 200, 200, 200];
const ONE_TIME: FieldAnswers = [200, 200, 422, 422];
const RECURRING: FieldAnswers = [422, 422, 200, 200];
const TOPIC: FieldAnswers = [200, 422, 200, 422];
const CALLBACK: FieldAnswers = [422, 200, 422, 200];

/// The fields that a field replaces, because it excludes them.
const REPLACED: [(&str, &[&str]); 5] = [
    ("fireAt", &["schedule"]),
    ("delaySeconds", &["schedule"]),
    ("schedule", &["expireAfter", "after"]),
    ("topic", &["callbackUrl", "method", "pool", "timeoutSeconds", "retry"]),
    ("callbackUrl", &["topic", "key"]),
];

/// A field with a value that no trigger here has before.
struct FieldPatch {
    name: &'static str,
    value: Value,
    /// What is shown then, as a merge patch of what was shown before.
    shown: Value,
    answers: FieldAnswers,
}

/// A state in which a trigger can be changed.
struct ChangeableState {
    /// The id of a trigger in it.
    id: String,
    registration: Value,
    status: &'static str,
    /// The place of its answers in [`FieldAnswers`].
    column: usize,
}

/// How each field was answered, by state.
#[derive(Default)]
struct AnswerTable {
    states: Vec<String>,
    fields: BTreeMap<&'static str, Vec<u16>>,
}

impl ApiFixture {
    fn patch(&self, id: &str, fields: Value) -> ApiResponse {
        self.request(Method::PATCH, &format!("/v1/triggers/{id}"), Some(fields))
    }

    fn patch_field(&self, id: &str, field: &FieldPatch) -> ApiResponse {
        let name = field.name;
        self.patch(id, json!({ name: field.value }))
    }

    /// Registers a trigger in a state; what is shown of it.
    fn register_in(&self, state: &ChangeableState, id: &str) -> Value {
        self.register(merged(state.registration.clone(), json!({"triggerId": id})));
        if state.status == "PAUSED" {
            self.command(id, "pause");
        }
        let trigger = self.shown(id);
        assert_eq!(trigger["status"], state.status, "{trigger}");
        trigger
    }
}

impl FieldPatch {
    /// Whether its patch may make a trigger one of another kind, or of another state.
    fn changes_the_state(&self) -> bool {
        self.name == "after" || REPLACED.iter().any(|(name, _)| *name == self.name)
    }

    /// What is shown of a trigger after this patch, which was answered 200 with `answer`.
    fn applied_to(&self, before: &Value, answer: &Value) -> Value {
        let mut trigger = before.clone();
        let fields = trigger.as_object_mut().unwrap();
        for (_, replaced) in REPLACED.iter().filter(|(name, _)| *name == self.name) {
            for other in *replaced {
                let _replaced = fields.remove(*other);
            }
        }
        // What is shown though no request says it.
        if self.name == "callbackUrl" {
            let _method = fields.entry("method").or_insert(json!("POST"));
        }
        if self.name == "after" {
            let _after = fields.entry("after").or_insert(json!({"onFailure": "fail"}));
        }
        merge_patch(&mut trigger, &self.shown);
        if self.name == "delaySeconds" {
            merge_patch(&mut trigger, &json!({"fireAt": answer["fireAt"]}));
        }
        let is_another = trigger != *before || self.shown == json!({});
        assert!(is_another, "{}: it has this value before: {before}", self.name);
        let status = status_after(before["status"].as_str().unwrap(), self.name);
        merge_patch(&mut trigger, &json!({"status": status, "revision": answer["revision"]}));
        trigger
    }
}

impl AnswerTable {
    fn add(&mut self, field: &'static str, status: u16) {
        self.fields.entry(field).or_default().push(status);
    }

    /// Shows it, and checks that it has every field that a patch may name.
    fn end(&self, fixture: &ApiFixture) {
        self.print_row("field", self.states.clone());
        for (field, answers) in &self.fields {
            assert_eq!(answers.len(), self.states.len(), "{field}");
            self.print_row(field, answers.iter().map(u16::to_string).collect());
        }
        let document = fixture.get("/openapi.json").body;
        let writable = &document["components"]["schemas"]["TriggerPatch"]["properties"];
        let writable: BTreeSet<_> = writable.as_object().unwrap().keys().cloned().collect();
        let named: BTreeSet<_> = self.fields.keys().map(|field| (*field).to_owned()).collect();
        assert_eq!(named, writable);
    }

    fn print_row(&self, name: &str, cells: Vec<String>) {
        let cells = self.states.iter().zip(cells).map(|(state, cell)| {
            let width = state.len() + 2;
            format!("{cell:>width$}")
        });
        eprintln!("{name:<14}{}", cells.collect::<String>());
    }
}

/// The status after a patch of this field.
fn status_after<'a>(before: &'a str, field: &str) -> &'a str {
    match (before, field) {
        ("PAUSED", _) => before,
        // A schedule does not wait for others.
        (_, "schedule") => "SCHEDULED",
        ("PENDING", "after") => "WAITING",
        ("SCHEDULED", "fireAt" | "delaySeconds") => "PENDING",
        _ => before,
    }
}

#[test]
fn a_patch_of_a_paused_trigger_does_not_fire_it() {
    let fixture = ApiFixture::start("api-patch-paused");
    fixture.register(merged(fixture.for_topic("tea"), json!({"delaySeconds": 1})));
    fixture.command("tea", "pause");
    fixture.register(merged(fixture.for_topic("later"), json!({"delaySeconds": 1.5})));
    let _its_time_has_passed = fixture.wait_for_status("later", "FIRED");
    let changed = fixture.patch("tea", json!({"name": "Tea"}));
    assert_eq!(changed.status, 200, "{changed:?}");
    fixture.register(merged(fixture.for_topic("last"), json!({"delaySeconds": 0})));
    let _it_could_have_fired = fixture.wait_for_status("last", "FIRED");
    let found = fixture.get("/v1/triggers/tea").body;
    assert_eq!((&found["status"], &found["name"]), (&json!("PAUSED"), &json!("Tea")), "{found}");
    fixture.command("tea", "resume");
    let _fired = fixture.wait_for_status("tea", "FIRED");
    let fires = fixture.cluster.fires();
    assert_eq!(fires.iter().filter(|fire| fire.trigger == "tea").count(), 1);
    fixture.end();
}

#[test]
fn a_patch_of_a_waiting_trigger_keeps_what_has_settled() {
    let fixture = ApiFixture::start("api-patch-waiting");
    // It is waited for before it fires, and forgotten once it has.
    fixture.register(merged(fixture.for_topic("water"), json!({"delaySeconds": 2})));
    fixture.register(merged(fixture.for_topic("leaves"), json!({"fireAt": FAR})));
    let after = json!({"after": {"ids": ["water", "leaves"]}});
    fixture.register(merged(fixture.for_topic("tea"), after));
    let _settled = fixture.wait_for_status("water", "FIRED");
    let changed = fixture.patch("tea", json!({"name": "Tea"}));
    assert_eq!(changed.status, 200, "{changed:?}");
    let found = fixture.get("/v1/triggers/tea").body;
    assert_eq!(found["after"]["ids"], json!(["water", "leaves"]), "it is shown as it was given");
    fixture.command("leaves", "fireNow");
    let _fired = fixture.wait_for_status("tea", "FIRED");
    fixture.end();
}

#[test]
fn a_patch_of_a_recurring_trigger_keeps_its_callback_in_progress() {
    let fixture = ApiFixture::start("api-patch-open");
    let schedule = json!({"every": "1s", "overlap": "skip"});
    let url = fixture.endpoint.url("wait");
    fixture.register(json!({"triggerId": "tea", "callbackUrl": url, "schedule": schedule}));
    until("its first callback", DEADLINE, || {
        (!fixture.endpoint.requests_for("tea").is_empty()).then_some(())
    });
    let changed = fixture.patch("tea", json!({"name": "Tea"}));
    assert_eq!(changed.status, 200, "{changed:?}");
    until("occurrences to be skipped", DEADLINE, || {
        let skipped = fixture.get("/v1/triggers/tea/executions?status=SKIPPED").body;
        (skipped["items"].as_array()?.len() >= 3).then_some(())
    });
    assert_eq!(fixture.endpoint.max_concurrency("tea"), 1, "one callback at a time");
    fixture.endpoint.recover();
    fixture.endpoint.answer_one("tea");
    fixture.end();
}

/// Every field that a patch may name.
fn fields(fixture: &ApiFixture) -> Vec<FieldPatch> {
    let shown_as = |name, value, shown, answers| FieldPatch { name, value, shown, answers };
    let field = |name: &'static str, value: Value, answers| {
        let shown = json!({ name: value });
        shown_as(name, value, shown, answers)
    };
    let other_topic = format!("{}-2", fixture.cluster.target().1);
    let retry = json!({"delays": ["5s"], "attempts": 4});
    let retry_shown = json!({"retry": {"delays": [5_000], "attempts": 4}});
    let schedule = json!({"every": "P2D", "start": FAR});
    let schedule_shown = json!({"schedule": schedule, "fireAt": FAR});
    let after = json!({"ids": ["other", "another"], "timeout": "2h"});
    let after_shown = json!({"after": {"ids": ["other", "another"], "timeout": 7_200_000}});
    let (end, unshown) = ("2036-01-01T00:00:00Z", json!({}));
    vec![
        field("name", json!("Green tea"), ANY),
        field("labels", json!({"shelf": "2"}), ANY),
        field("callbackUrl", json!(fixture.endpoint.url("other")), ANY),
        field("method", json!("PATCH"), CALLBACK),
        field("headers", json!({"cup": "blue"}), ANY),
        field("topic", json!(other_topic), ANY),
        field("key", json!("pot"), TOPIC),
        field("payload", json!({"cups": 3}), ANY),
        field("pool", json!("fast"), CALLBACK),
        field("timeoutSeconds", json!(3.5), CALLBACK),
        shown_as("retry", retry, retry_shown, ANY),
        shown_as("delaySeconds", json!(DELAY_SECONDS), unshown.clone(), ANY),
        field("fireAt", json!(SOONER), ANY),
        shown_as("schedule", schedule, schedule_shown, ANY),
        shown_as("after", after, after_shown, ONE_TIME),
        shown_as("end", json!(end), json!({"schedule": {"end": end}}), RECURRING),
        shown_as("maxExecutions", json!(9), json!({"schedule": {"maxExecutions": 9}}), RECURRING),
        shown_as("expireAfter", json!("1h"), json!({"expireAfter": 3_600_000}), ONE_TIME),
        // What these two do: `late_and_count_do_what_a_patch_says`.
        shown_as("count", json!("keep"), unshown.clone(), RECURRING),
        shown_as("late", json!("fire"), unshown, ANY),
        shown_as("retain", json!("1h"), json!({"retain": 3_600_000}), ANY),
        field("priority", json!(9), ANY),
    ]
}

/// Each state in which a trigger can be changed, into a topic and as a callback. Every field has a
/// value that a patch of another one could lose.
fn changeable_states(fixture: &ApiFixture) -> Vec<ChangeableState> {
    let about = json!({
        "name": "Tea", "labels": {"team": "drinks"}, "headers": {"cup": "red", "spoon": "one"},
        "payload": {"cups": 2, "of": "tea"}, "retain": "2h", "priority": 200,
    });
    let once = json!({"fireAt": FAR, "expireAfter": "2h"});
    let after = json!({"after": {"ids": ["other"], "onFailure": "skip", "timeout": "12h"}});
    let end = "2037-01-01T00:00:00Z";
    let schedule = json!({"every": "P1D", "start": FAR, "end": end, "maxExecutions": 5});
    let times = [
        ("pending", "PENDING", once.clone()),
        ("paused", "PAUSED", once.clone()),
        ("waiting", "WAITING", merged(once, after)),
        ("recurring", "SCHEDULED", json!({"schedule": schedule})),
    ];
    let callback = json!({
        "callbackUrl": fixture.endpoint.url("fine"), "method": "PUT", "pool": "slow",
        "timeoutSeconds": 2.5, "retry": {"delays": ["1s"], "attempts": 2, "jitter": 0},
    });
    let topic = json!({"topic": fixture.cluster.target().1, "key": "kettle"});
    let targets = [("topic", topic), ("callback", callback)];
    let mut states = Vec::new();
    for (state, status, when) in times {
        for (column, (kind, target)) in targets.iter().enumerate() {
            let registration = merged(merged(about.clone(), when.clone()), target.clone());
            let column = if status == "SCHEDULED" { column + 2 } else { column };
            let id = format!("{state}-{kind}");
            states.push(ChangeableState { id, registration, status, column });
        }
    }
    states
}

/// Patches one field of a trigger, and compares all that is shown of it then, which is returned.
fn check_patch(
    fixture: &ApiFixture,
    state: &ChangeableState,
    field: &FieldPatch,
    before: &Value,
) -> Value {
    let id = before["triggerId"].as_str().unwrap();
    let answer = fixture.patch_field(id, field);
    let (what, expected) = (format!("{id}, {}", field.name), field.answers[state.column]);
    assert_eq!(answer.status, expected, "{what}: {answer:?}");
    let found = fixture.shown(id);
    if expected != 200 {
        assert_eq!(found, *before, "{what}");
        return found;
    }
    assert_eq!(found, field.applied_to(before, &answer.body), "{what}");
    assert!(found["revision"].as_u64() > before["revision"].as_u64(), "{what}: {found}");
    for same in ["generation", "fireAt"] {
        assert_eq!(answer.body[same], found[same], "{what}, {same}");
    }
    if field.name == "delaySeconds" {
        let due = parse_time(found["fireAt"].as_str().unwrap()).unwrap();
        let expected = clock::now_ms() + DELAY_SECONDS * 1_000;
        assert!(due.abs_diff(expected) < 60_000, "{what}: {found}");
    }
    found
}

#[test]
fn every_field_of_a_trigger_that_has_not_fired_is_changed_and_its_state_stays() {
    let fixture = ApiFixture::start_with_pools("api-patch-fields");
    for id in ["other", "another"] {
        fixture.register(merged(fixture.for_topic(id), json!({"fireAt": FAR})));
    }
    let fields = fields(&fixture);
    let mut table = AnswerTable::default();
    for state in changeable_states(&fixture) {
        // One patch follows another: what the earlier ones made is what stays.
        let mut trigger = fixture.register_in(&state, &state.id);
        for field in &fields {
            if field.changes_the_state() {
                let id = format!("{}-{}", state.id, field.name);
                let before = fixture.register_in(&state, &id);
                let _changed = check_patch(&fixture, &state, field, &before);
            } else {
                trigger = check_patch(&fixture, &state, field, &trigger);
            }
            table.add(field.name, field.answers[state.column]);
        }
        fixture.cancel(&state.id);
        table.states.push(state.id);
    }
    table.end(&fixture);
    fixture.end();
}

/// A trigger in each state in which it is not changed any more: its id, and its status.
fn unchangeable_states(fixture: &ApiFixture) -> [(&'static str, &'static str); 8] {
    let call = |id: &str, to: &str, more: Value| {
        let url = fixture.endpoint.url(to);
        let call = json!({"triggerId": id, "callbackUrl": url, "delaySeconds": 0});
        fixture.register(merged(call, more));
    };
    let later = json!({"delays": ["1h"], "jitter": 0});
    call("in-flight", "wait", json!({"timeoutSeconds": 300, "retry": later}));
    call("retrying", "broken", json!({"retry": later}));
    call("delivered", "fine", json!({}));
    call("dead-letter", "broken", json!({"retry": {"attempts": 1}}));
    let passed = json!({"fireAt": PAST, "late": "fire", "expireAfter": "1s"});
    let far = json!({"fireAt": FAR});
    for (id, when) in [
        ("expired", passed),
        ("fired", json!({"delaySeconds": 0})),
        ("cancelled", far.clone()),
        ("just-fired", far),
    ] {
        fixture.register(merged(fixture.for_topic(id), when));
    }
    fixture.cancel("cancelled");
    let states = [
        ("just-fired", "FIRED"),
        ("in-flight", "IN_FLIGHT"),
        ("retrying", "IN_FLIGHT"),
        ("fired", "FIRED"),
        ("cancelled", "CANCELLED"),
        ("delivered", "COMPLETED"),
        ("dead-letter", "FAILED"),
        ("expired", "EXPIRED"),
    ];
    for (id, status) in &states[1..] {
        let _there = fixture.wait_for_status(id, status);
    }
    until("one to be called and one to be retried", DEADLINE, || {
        let is_called = !fixture.endpoint.requests_for("in-flight").is_empty();
        let is_retried = fixture.shown("retrying")["last"]["status"] == "RETRYING";
        (is_called && is_retried).then_some(())
    });
    until("the dead letter", DEADLINE, || {
        let letters = fixture.get("/v1/dead-letters?trigger=dead-letter").body;
        (letters["items"].as_array()?.len() == 1).then_some(())
    });
    fixture.command("just-fired", "fireNow");
    // At once, before anything else has read that it has fired.
    let refused = fixture.patch("just-fired", json!({"name": "Green tea"}));
    assert_eq!(refused.status, 409, "{refused:?}");
    states
}

#[test]
fn a_trigger_that_has_fired_is_not_changed() {
    let fixture = ApiFixture::start_with_pools("api-patch-fired");
    let fields = fields(&fixture);
    let mut table = AnswerTable::default();
    for (id, status) in unchangeable_states(&fixture) {
        let before = fixture.shown(id);
        assert_eq!(before["status"], status, "{before}");
        for field in &fields {
            let answer = fixture.patch_field(id, field);
            // These are one-time callbacks. Of what has settled nothing else is looked at.
            let expected = match (status, field.answers[1]) {
                ("IN_FLIGHT", 200) => (409, "not-pending"),
                ("IN_FLIGHT", refused) => (refused, "contradiction"),
                _ => (409, "settled"),
            };
            let code = answer.body["code"].as_str().unwrap_or_default();
            assert_eq!((answer.status, code), expected, "{id}, {}: {answer:?}", field.name);
            assert_eq!(fixture.shown(id), before, "{id}, {}", field.name);
            table.add(field.name, answer.status);
        }
        table.states.push(id.to_owned());
    }
    table.end(&fixture);
    fixture.endpoint.recover();
    fixture.endpoint.answer_one("in-flight");
    fixture.end();
}

#[test]
fn late_and_count_do_what_a_patch_says() {
    let fixture = ApiFixture::start("api-patch-effects");
    fixture.register(merged(fixture.for_topic("tea"), json!({"fireAt": FAR})));
    let before = fixture.shown("tea");
    let passed = json!({"fireAt": PAST});
    let refused = fixture.patch("tea", passed.clone());
    assert_eq!(
        (refused.status, &refused.body["code"]),
        (422, &json!("time-passed")),
        "{refused:?}"
    );
    assert_eq!(fixture.shown("tea"), before);
    let changed = fixture.patch("tea", merged(passed, json!({"late": "fire"})));
    assert_eq!(changed.status, 200, "{changed:?}");
    let _fired = fixture.wait_for_status("tea", "FIRED");

    let schedule = json!({"every": "P1D", "start": FAR, "maxExecutions": 3});
    fixture.register(merged(fixture.for_topic("daily"), json!({"schedule": schedule})));
    for executions in 1..=2 {
        fixture.command("daily", "fireNow");
        until("it to have fired", DEADLINE, || {
            (fixture.shown("daily")["executions"] == executions).then_some(())
        });
    }
    for (count, left) in [("keep", 1), ("reset", 3)] {
        let changed = fixture.patch("daily", json!({"count": count}));
        assert_eq!(changed.status, 200, "{changed:?}");
        until(&format!("{left} occurrences to be left after {count}"), DEADLINE, || {
            let next = fixture.get("/v1/triggers/daily/next").body;
            (next["items"].as_array()?.len() == left).then_some(())
        });
    }
    fixture.end();
}
