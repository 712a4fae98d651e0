//! One tenant at every door of another: each route of the API's own description, tried with the
//! other one's ids and a valid key.
//!
//! Invariant: the routes are read off the description, so that one that is added is tried as well.

use std::fs;

use orloj::callers::{KeyHash, new_key};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::endpoint::Endpoint;
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

/// What stands in everything that is the first tenant's.
const SECRET: &str = "for-alice-only";
const TRIGGER: &str = "hers";

struct TenantsFixture {
    gateway: OrlojProcess,
    client: Client,
    runtime: Runtime,
}

impl TenantsFixture {
    fn call(&self, key: &str, method: Method, path: &str, body: Option<&Value>) -> (u16, String) {
        let url = format!("http://{}{path}", self.gateway.address());
        let request = self.client.request(method, url).bearer_auth(key);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        self.runtime.block_on(async {
            let answer = request.send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        })
    }

    fn look(&self, key: &str, path: &str) -> Value {
        let (status, text) = self.call(key, Method::GET, path, None);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }
}

#[test]
fn no_route_reads_or_changes_what_belongs_to_another_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("callers.toml");
    let [alice, mallory] = [(); 2].map(|()| new_key().unwrap());
    let caller = |name: &str, key: &str| {
        format!("[callers.{name}]\nkeys = [\"{}\"]\nrole = \"caller\"\n", KeyHash::of(key))
    };
    fs::write(&file, caller("alice", &alice) + &caller("mallory", &mallory)).unwrap();
    let cluster = TestCluster::new("tenants")
        .set("worker.allow_addresses", "any")
        .set("callers.file", file.to_str().unwrap());
    let mut scheduler = cluster.scheduler("scheduler");
    let (mut worker, mut gateway) = (cluster.start("worker", "w"), cluster.start("gateway", "g"));
    for process in [&mut scheduler, &mut worker, &mut gateway] {
        process.wait_until_ready(READY_DEADLINE);
    }
    let fixture =
        TenantsFixture { gateway, client: Client::new(), runtime: Runtime::new().unwrap() };
    let endpoint = Endpoint::start();
    let letter = create_resources(&fixture, &alice, cluster.target().1, &endpoint);
    let before = fixture.look(&alice, &format!("/v1/triggers/{TRIGGER}"));

    let description = fixture.look(&alice, "/openapi.json");
    let mut tried = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        let id = if path.contains("dead-letters") { letter.as_str() } else { TRIGGER };
        let place = path.replace("{id}", id);
        for method in methods.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let method: Method = method.to_uppercase().parse().unwrap();
            let body = body_of(&method, path, cluster.target().1);
            let (status, said) = fixture.call(&mallory, method.clone(), &place, body.as_ref());
            assert!(!said.contains(SECRET), "{method} {path}: {said}");
            if path.contains("{id}") || (path == "/v1/triggers" && method == Method::POST) {
                assert!(matches!(status, 403 | 404), "{method} {path}: {status} {said}");
            } else {
                assert!(status < 500, "{method} {path}: {status} {said}");
            }
            tried += 1;
        }
    }
    assert!(tried >= 18, "{tried} routes");

    let after = fixture.look(&alice, &format!("/v1/triggers/{TRIGGER}"));
    assert_eq!(after["generation"], before["generation"], "{after}");
    assert_eq!((&after["status"], &after["name"]), (&json!("PENDING"), &json!(SECRET)));
    let letters = fixture.look(&alice, "/v1/dead-letters");
    assert_eq!(letters["items"][0]["state"], json!("OPEN"), "{letters}");
    let seen = fixture.look(&mallory, "/v1/triggers");
    assert_eq!(seen["items"], json!([]));
    for process in [fixture.gateway, worker, scheduler] {
        assert!(!process.panicked());
        process.terminate();
    }
}

/// Gives the first tenant a trigger and a dead letter; returns the letter's id.
fn create_resources(
    fixture: &TenantsFixture,
    key: &str,
    topic: &str,
    endpoint: &Endpoint,
) -> String {
    let payload = json!({ "words": SECRET });
    let pending = json!({
        "triggerId": TRIGGER, "name": SECRET, "labels": {"of": SECRET}, "topic": topic,
        "payload": payload, "delaySeconds": 3600,
    });
    let failing = json!({
        "triggerId": format!("{SECRET}-fails"), "callbackUrl": endpoint.url("broken"),
        "payload": payload, "delaySeconds": 0, "retry": {"attempts": 1},
    });
    for body in [&pending, &failing] {
        let (status, said) = fixture.call(key, Method::POST, "/v1/triggers", Some(body));
        assert_eq!(status, 201, "{said}");
    }
    until("the dead letter", READY_DEADLINE, || {
        let letters = fixture.look(key, "/v1/dead-letters");
        Some(letters["items"][0]["id"].as_str()?.to_owned())
    })
}

/// What is good enough to come as far as the question whose it is.
fn body_of(method: &Method, path: &str, topic: &str) -> Option<Value> {
    let trigger = json!({ "triggerId": TRIGGER, "topic": topic, "delaySeconds": 60 });
    match (method.as_str(), path) {
        ("POST", "/v1/triggers") => Some(trigger),
        ("POST", "/v1/triggers:batch") => Some(json!({ "triggers": [trigger] })),
        ("PATCH", _) => Some(json!({ "name": "mine" })),
        ("POST", "/v1/schedules:next") => Some(json!({ "schedule": {"every": "1h"} })),
        ("POST", "/v1/dead-letters:replay" | "/v1/dead-letters:archive") => {
            Some(json!({ "count": 1 }))
        }
        _ => None,
    }
}
