//! `PATCH`, over HTTP on a real broker: each field of a trigger in each of its states.
//!
//! Invariant: what a patch does not name stays, what the owner knows of the trigger included.

use reqwest::Method;
use serde_json::{Value, json};

use super::fixture::{ApiFixture, ApiResponse, DEADLINE, merged};
use crate::wait::until;

/// A time that no test lives to see.
const FAR: &str = "2035-01-01T00:00:00Z";

impl ApiFixture {
    fn patch(&self, id: &str, fields: Value) -> ApiResponse {
        self.request(Method::PATCH, &format!("/v1/triggers/{id}"), Some(fields))
    }

    fn command(&self, id: &str, verb: &str) {
        let answer = self.post(&format!("/v1/triggers/{id}:{verb}"), json!({}));
        assert_eq!(answer.status, 200, "{answer:?}");
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

/// A field with a value, and how it is answered in a state in which it can be changed.
struct Field {
    patch: Value,
    one_time: u16,
    recurring: u16,
}

fn fields(fixture: &ApiFixture) -> Vec<Field> {
    let both = |patch: Value| Field { patch, one_time: 200, recurring: 200 };
    vec![
        both(json!({"name": "Green tea"})),
        both(json!({"labels": {"shelf": "2"}})),
        both(json!({"headers": {"cup": "blue"}})),
        both(json!({"payload": {"cups": 3}})),
        both(json!({"topic": fixture.cluster.target().1})),
        both(json!({"key": "kettle"})),
        both(json!({"priority": 9})),
        both(json!({"retain": "1h"})),
        both(json!({"late": "fire"})),
        Field { patch: json!({"expireAfter": "1h"}), one_time: 200, recurring: 422 },
        Field { patch: json!({"count": "keep"}), one_time: 422, recurring: 200 },
        Field { patch: json!({"maxExecutions": 9}), one_time: 422, recurring: 200 },
        Field { patch: json!({"end": "2036-01-01T00:00:00Z"}), one_time: 422, recurring: 200 },
        Field { patch: json!({"method": "PUT"}), one_time: 422, recurring: 422 },
        Field { patch: json!({"pool": "slow"}), one_time: 422, recurring: 422 },
        Field { patch: json!({"timeoutSeconds": 3}), one_time: 422, recurring: 422 },
    ]
}

/// Fields that say when a trigger fires; of each kind of trigger, the status after them.
fn times() -> [(Value, &'static str); 3] {
    [
        (json!({"fireAt": FAR}), "PENDING"),
        (json!({"schedule": {"every": "24h", "start": FAR}}), "SCHEDULED"),
        (json!({"delaySeconds": 86_400}), "PENDING"),
    ]
}

#[test]
fn every_field_of_a_trigger_that_has_not_fired_is_changed_and_its_state_stays() {
    let fixture = ApiFixture::start("api-patch-fields");
    fixture.register(merged(fixture.for_topic("other"), json!({"fireAt": FAR})));
    let states = [
        ("pending", json!({"fireAt": FAR}), "PENDING"),
        ("paused", json!({"fireAt": FAR}), "PAUSED"),
        ("waiting", json!({"after": {"ids": ["other"]}, "fireAt": FAR}), "WAITING"),
        ("recurring", json!({"schedule": {"every": "24h", "start": FAR}}), "SCHEDULED"),
    ];
    for (id, when, status) in states {
        fixture.register(merged(fixture.for_topic(id), when));
        if status == "PAUSED" {
            fixture.command(id, "pause");
        }
        let path = format!("/v1/triggers/{id}");
        let before = fixture.get(&path).body;
        for field in fields(&fixture) {
            let expected = if status == "SCHEDULED" { field.recurring } else { field.one_time };
            let answer = fixture.patch(id, field.patch.clone());
            assert_eq!(answer.status, expected, "{id}, {}: {answer:?}", field.patch);
            let found = fixture.get(&path).body;
            assert_eq!(found["status"], status, "{id}, {}: {found}", field.patch);
            for stays in ["generation", "fireAt", "after", "createdAt"] {
                assert_eq!(found[stays], before[stays], "{id}, {}, {stays}", field.patch);
            }
            if expected == 200 {
                assert_eq!(found["revision"], answer.body["revision"], "{id}, {}", field.patch);
            }
        }
        for (patch, then) in times() {
            let answer = fixture.patch(id, patch.clone());
            assert_eq!(answer.status, 200, "{id}, {patch}: {answer:?}");
            let found = fixture.get(&path).body;
            let waits = status == "WAITING" && !patch["schedule"].is_object();
            let expected = match status {
                "PAUSED" => "PAUSED",
                // A schedule does not wait for others.
                _ if waits && !found["after"].is_null() => "WAITING",
                _ => then,
            };
            assert_eq!(found["status"], expected, "{id}, {patch}: {found}");
            assert_eq!(found["fireAt"], answer.body["fireAt"], "{id}, {patch}");
            assert_eq!(found["generation"], before["generation"], "{id}, {patch}");
        }
        let cancelled = fixture.request(Method::DELETE, &path, None);
        assert_eq!(cancelled.status, 200, "{cancelled:?}");
    }
    fixture.end();
}

#[test]
fn a_trigger_that_has_fired_is_not_changed() {
    let fixture = ApiFixture::start("api-patch-fired");
    let now = json!({"delaySeconds": 0});
    let call = |id: &str, to: &str| {
        let url = fixture.endpoint.url(to);
        let retry = json!({"delays": ["1h"], "jitter": 0});
        fixture.register(
            json!({"triggerId": id, "callbackUrl": url, "delaySeconds": 0, "retry": retry}),
        );
    };
    fixture.register(merged(fixture.for_topic("just-fired"), now));
    fixture.register(merged(fixture.for_topic("cancelled"), json!({"fireAt": FAR})));
    let cancelled = fixture.request(Method::DELETE, "/v1/triggers/cancelled", None);
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    call("in-flight", "wait");
    call("retrying", "broken");
    until("both to be called", DEADLINE, || {
        let called = |id: &str| !fixture.endpoint.requests_for(id).is_empty();
        (called("in-flight") && called("retrying")).then_some(())
    });
    let states = [
        ("just-fired", "FIRED"),
        ("cancelled", "CANCELLED"),
        ("in-flight", "IN_FLIGHT"),
        ("retrying", "IN_FLIGHT"),
    ];
    for (id, status) in states {
        let _there = fixture.wait_for_status(id, status);
        let times = times().map(|(patch, _)| patch);
        for patch in fields(&fixture).into_iter().map(|field| field.patch).chain(times) {
            let answer = fixture.patch(id, patch.clone());
            assert!(matches!(answer.status, 409 | 422), "{id}, {patch}: {answer:?}");
            let found = fixture.get(&format!("/v1/triggers/{id}")).body;
            assert_eq!(found["status"], status, "{id}, {patch}: {found}");
        }
    }
    fixture.endpoint.recover();
    fixture.endpoint.answer_one("in-flight");
    fixture.end();
}
