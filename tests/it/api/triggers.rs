//! Triggers: registered, read back at once, changed, commanded, and followed to their end.

use reqwest::Method;
use serde_json::{Value, json};

use super::fixture::{ApiFixture, DEADLINE, merged};
use crate::wait::until;

#[test]
fn a_created_trigger_can_be_read_immediately() {
    let fixture = ApiFixture::start("api-read");
    for n in 0..20 {
        let id = format!("tea-{n}");
        let generation = fixture.register(merged(
            fixture.for_topic(&id),
            json!({"delaySeconds": 3600, "name": "Tea", "labels": {"team": "kitchen"},
                   "payload": {"n": n}}),
        ));
        let found = fixture.get(&format!("/v1/triggers/{id}"));
        assert_eq!((found.status, &found.body["status"]), (200, &json!("PENDING")), "{found:?}");
        assert_eq!(found.header("etag"), format!("\"{generation}\""));
        assert_eq!(found.body["generation"], json!(generation));
        assert_eq!(
            (&found.body["name"], &found.body["payload"]),
            (&json!("Tea"), &json!({"n": n}))
        );
        assert_eq!(found.body["asOf"], found.header("orloj-view-as-of"));
    }
    let page = fixture.get("/v1/triggers?label=team=kitchen&page_size=15");
    assert_eq!(page.body["items"].as_array().unwrap().len(), 15, "{page:?}");
    let token = page.body["nextPageToken"].as_str().unwrap();
    let rest =
        fixture.get(&format!("/v1/triggers?label=team=kitchen&page_size=15&page_token={token}"));
    assert_eq!(rest.body["items"].as_array().unwrap().len(), 5, "{rest:?}");
    let foreign = fixture.get(&format!("/v1/triggers?q=tea&page_token={token}"));
    assert_eq!((foreign.status, &foreign.body["code"]), (422, &json!("unknown-page-token")));

    let cancelled = fixture.request(Method::DELETE, "/v1/triggers/tea-0", None);
    assert_eq!(
        (cancelled.status, &cancelled.body["cancelled"]),
        (200, &json!(true)),
        "{cancelled:?}"
    );
    assert_eq!(fixture.get("/v1/triggers/tea-0").body["status"], "CANCELLED");
    let again = fixture.request(Method::DELETE, "/v1/triggers/tea-0", None);
    assert_eq!(
        (again.status, &again.body["triggerStatus"]),
        (409, &json!("CANCELLED")),
        "{again:?}"
    );
    let never = fixture.request(Method::DELETE, "/v1/triggers/never", None);
    assert_eq!((never.status, &never.body["code"]), (404, &json!("unknown-trigger")), "{never:?}");
    let never = fixture.get("/v1/triggers/never");
    assert_eq!((never.status, &never.body["code"]), (404, &json!("unknown-trigger")), "{never:?}");
    fixture.end();
}

#[test]
fn a_trigger_is_changed_only_in_the_version_that_was_read() {
    let fixture = ApiFixture::start("api-patch");
    let first = fixture.register(merged(
        fixture.for_topic("tea"),
        json!({"delaySeconds": 3600, "name": "Tea", "payload": {"cups": 1}}),
    ));
    let patch = |fields: Value, tag: &str| {
        let headers = [("if-match", tag)];
        fixture.request_with(Method::PATCH, "/v1/triggers/tea", Some(fields), &headers)
    };
    let changed = patch(json!({"name": "Green tea"}), &format!("\"{first}\""));
    assert_eq!(changed.status, 200, "{changed:?}");
    let second = changed.body["revision"].as_u64().unwrap();
    assert!(second != first && changed.header("etag") == format!("\"{second}\""));
    assert_eq!(changed.body["generation"], first, "it is the same trigger");
    let found = fixture.get("/v1/triggers/tea").body;
    assert_eq!((&found["name"], &found["payload"]), (&json!("Green tea"), &json!({"cups": 1})));
    assert_eq!(found["fireAt"], changed.body["fireAt"], "its time stays");

    let late = patch(json!({"name": "Black tea"}), &format!("\"{first}\""));
    assert_eq!((late.status, &late.body["revision"]), (412, &json!(second)), "{late:?}");
    let wrong = patch(json!({"nam": "x"}), "*");
    assert_eq!(wrong.body["errors"][0]["pointer"], "/nam", "{wrong:?}");

    let soon = patch(json!({"delaySeconds": 0, "payload": null}), "*");
    assert_eq!(soon.status, 200, "{soon:?}");
    let _fired = fixture.wait_for_status("tea", "FIRED");
    let settled = patch(json!({"name": "No tea"}), "*");
    assert_eq!((settled.status, &settled.body["code"]), (409, &json!("settled")), "{settled:?}");
    fixture.end();
}

#[test]
fn commands_and_executions_are_visible() {
    let fixture = ApiFixture::start("api-commands");
    let hourly = json!({"schedule": {"every": "1h", "start": "2030-01-01T00:00:00Z"}});
    fixture
        .register(merged(fixture.for_topic("hourly"), merged(hourly, json!({"maxExecutions": 3}))));
    assert_eq!(fixture.get("/v1/triggers/hourly").body["status"], "SCHEDULED");
    let next = fixture.get("/v1/triggers/hourly/next?count=2");
    let ats: Vec<_> = next.body["items"].as_array().unwrap().iter().map(|i| &i["at"]).collect();
    assert_eq!(ats, ["2030-01-01T00:00:00Z", "2030-01-01T01:00:00Z"], "{next:?}");

    let command = |verb: &str| fixture.post(&format!("/v1/triggers/hourly:{verb}"), json!({}));
    assert_eq!(command("pause").body["paused"], true);
    assert_eq!(fixture.get("/v1/triggers/hourly").body["status"], "PAUSED");
    assert_eq!(command("resume").body["resumed"], true);
    assert_eq!(command("fireNow").body["called"], true);
    assert_eq!(command("dance").status, 404);
    for id in ["called-1", "called-2", "called-3"] {
        fixture.register(merged(fixture.for_topic(id), json!({"delaySeconds": 9_000})));
        let called = fixture.post(&format!("/v1/triggers/{id}:fireNow"), json!({}));
        assert_eq!(called.status, 200, "{called:?}");
        assert_eq!(fixture.get(&format!("/v1/triggers/{id}")).body["status"], "FIRED");
    }

    let url = fixture.endpoint.url("flaky");
    fixture.register(json!({"triggerId": "call", "callbackUrl": url, "delaySeconds": 0,
                         "retry": {"delays": ["100ms"], "jitter": 0}}));
    let call = fixture.wait_for_status("call", "COMPLETED");
    assert_eq!(call["last"]["httpStatus"], 200, "{call}");
    let executions = fixture.get("/v1/triggers/call/executions").body;
    let statuses: Vec<_> =
        executions["items"].as_array().unwrap().iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, ["COMPLETED", "RETRYING"], "{executions}");
    let failed = fixture.get("/v1/triggers/call/executions?status=RETRYING").body;
    assert_eq!(failed["items"].as_array().unwrap().len(), 1, "{failed}");
    assert_eq!(fixture.get("/v1/triggers/never/executions").status, 404);
    let circuits = fixture.get("/v1/circuits");
    assert_eq!((circuits.status, circuits.body["items"].is_array()), (200, true), "{circuits:?}");
    let unsettled = fixture.get("/v1/unsettled");
    assert_eq!((unsettled.status, &unsettled.body["items"]), (200, &json!([])), "{unsettled:?}");
    fixture.end();
}

#[test]
fn a_batch_returns_a_result_for_each_item() {
    let fixture = ApiFixture::start("api-batch");
    let extract = merged(fixture.for_topic("extract"), json!({"delaySeconds": 0, "retain": "1h"}));
    let load =
        merged(fixture.for_topic("load"), json!({"after": ["extract"], "payload": {"n": 1}}));
    let answer = fixture.post("/v1/triggers:batch", json!({"triggers": [extract, load]}));
    assert_eq!(answer.status, 200, "{answer:?}");
    let items = answer.body["items"].as_array().unwrap();
    let answers: Vec<_> = items.iter().map(|item| (&item["triggerId"], &item["outcome"])).collect();
    let accepted = json!("ACCEPTED");
    assert_eq!(answers, [(&json!("extract"), &accepted), (&json!("load"), &accepted)]);
    let _fired = fixture.wait_for_status("load", "FIRED");
    let fires = until("both to fire", DEADLINE, || {
        let fires = fixture.cluster.fires();
        (fires.len() == 2).then_some(fires)
    });
    assert_eq!(fires.len(), 2);

    let wrong = fixture.for_topic("wrong");
    let answer =
        fixture.post("/v1/triggers:batch", json!({"triggers": [fixture.for_topic("a"), wrong]}));
    assert_eq!(answer.status, 422);
    assert_eq!(answer.body["errors"][0]["pointer"], "/triggers/0/fireAt", "{answer:?}");
    fixture.end();
}
