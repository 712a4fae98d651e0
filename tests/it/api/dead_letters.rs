//! Dead letters over HTTP, on letters that died for real.

use serde_json::json;

use super::fixture::{ApiFixture, DEADLINE};
use crate::wait::until;

/// Callbacks to an endpoint that is broken until it is repaired.
const BROKEN: usize = 5;

#[test]
fn dead_letters_are_listed_replayed_and_archived_over_http() {
    let fixture = ApiFixture::start("api-letters");
    for n in 0..BROKEN {
        let url = fixture.endpoint.url("broken");
        fixture.register(json!({"triggerId": format!("broken-{n}"), "callbackUrl": url,
                             "delaySeconds": 0, "retry": {"attempts": 1}}));
    }
    let letters = until("all of them to die", DEADLINE, || {
        let items = fixture.get("/v1/dead-letters").body["items"].as_array()?.clone();
        (items.len() == BROKEN).then_some(items)
    });
    let id = letters[0]["id"].as_str().unwrap();
    let trigger = letters[0]["triggerId"].as_str().unwrap();
    assert_eq!((&letters[0]["lastStatus"], &letters[0]["state"]), (&json!(500), &json!("OPEN")));
    let one = fixture.get(&format!("/v1/dead-letters/{id}"));
    assert_eq!((one.status, &one.body["host"]), (200, &json!("127.0.0.1")), "{one:?}");
    assert_eq!(fixture.get("/v1/dead-letters/0-999999").body["code"], "unknown-dead-letter");
    let _failed = fixture.wait_for_status(trigger, "FAILED");

    fixture.endpoint.recover();
    let done = fixture.post(&format!("/v1/dead-letters/{id}:replay"), json!({}));
    assert_eq!((done.status, &done.body["dealt"]), (200, &json!(1)), "{done:?}");
    // What this gateway has done, it sees at once.
    let letter = fixture.get(&format!("/v1/dead-letters/{id}")).body;
    assert_eq!((&letter["state"], &letter["replays"]), (&json!("REPLAYED"), &json!(1)), "{letter}");
    let again = fixture.post(&format!("/v1/dead-letters/{id}:archive"), json!({}));
    assert_eq!((again.status, &again.body["state"]), (409, &json!("REPLAYED")), "{again:?}");
    let _delivered = fixture.wait_for_status(trigger, "COMPLETED");

    let some = json!({"trigger": "broken-1", "dryRun": true});
    let count = fixture.post("/v1/dead-letters:archive", some).body["matching"].as_u64();
    let host = |more| super::fixture::merged(json!({"host": "127.0.0.1"}), more);
    let asked = fixture.post("/v1/dead-letters:archive", host(json!({"dryRun": true})));
    let left = BROKEN - 1;
    assert_eq!((asked.status, &asked.body["matching"]), (200, &json!(left)), "{asked:?}");
    assert_eq!(asked.body["dealt"], 0);
    assert!(count.is_some_and(|count| count <= 1));
    let wrong = fixture.post("/v1/dead-letters:archive", host(json!({"count": left + 1})));
    assert_eq!((wrong.status, &wrong.body["code"]), (409, &json!("count-differs")), "{wrong:?}");
    let unsaid = fixture.post("/v1/dead-letters:archive", host(json!({})));
    assert_eq!(unsaid.body["errors"][0]["pointer"], "/count", "{unsaid:?}");
    let done = fixture.post("/v1/dead-letters:archive", host(json!({"count": left, "note": "x"})));
    assert_eq!((done.status, &done.body["dealt"]), (200, &json!(left)), "{done:?}");
    assert_eq!(fixture.get("/v1/dead-letters").body["items"], json!([]));
    let all = fixture.get("/v1/dead-letters?state=ARCHIVED&state=REPLAYED").body;
    assert_eq!(all["items"].as_array().unwrap().len(), BROKEN, "{all}");
    // Each was requested once by its fire, and one of them once more.
    assert_eq!(fixture.endpoint.requests().len(), BROKEN + 1);
    fixture.end();
}
