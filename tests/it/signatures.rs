//! What we sign, checked by those who wrote the rules: the official Standard Webhooks libraries of
//! Python, JavaScript and Go, against requests that a real worker has made.
//!
//! Invariant: the libraries are the published ones, at the versions that `tests/signatures` pins.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orloj::callers::{KeyHash, NewSecret, new_key};
use serde_json::{Value, json};

use crate::callers::{CallersScenario, Delivery};
use crate::command::run_to_end;

/// It needs programs that a build does not need, and downloads packages: it has a target of its
/// own.
#[test]
#[ignore = "make test-signatures"]
fn the_official_libraries_verify_our_signatures() {
    let packages = run_to_end(Command::new("scripts/packages.sh").args(["node", "signatures"]));
    let packages = Path::new(packages.trim()).join("node_modules");
    let go = run_to_end(Command::new("scripts/packages.sh").args(["go", "signatures"]));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("deliveries.json");
    std::fs::write(&file, Value::from(deliveries()).to_string()).unwrap();

    let python = run_to_end(Command::new("scripts/packages.sh").args(["python", "signatures"]));
    let mut programs = [Command::new(python.trim()), Command::new("node"), Command::new(go.trim())];
    programs[0].arg("verify.py");
    programs[1].arg("verify.cjs").env("NODE_PATH", packages);
    for mut program in programs {
        let said = run_to_end(program.arg(&file).current_dir("tests/signatures"));
        eprintln!("{}", said.trim());
    }
}

/// Requests with one secret, with two while one takes the other's place, and with a pair beside.
fn deliveries() -> Vec<Value> {
    let fixture = CallersScenario::new("signatures", "1h");
    let shared = [(); 2].map(|()| NewSecret::shared().unwrap().secret);
    let pair = NewSecret::pair().unwrap();
    let key = [(); 3].map(|()| new_key().unwrap());
    let caller = |name: &str, key: &str, secrets: &[&String]| {
        let secrets: Vec<_> = secrets.iter().map(|s| format!("{{ secret = \"{s}\" }}")).collect();
        let (hash, secrets) = (KeyHash::of(key), secrets.join(", "));
        format!("[callers.{name}]\nkeys = [\"{hash}\"]\nrole = \"caller\"\nsecrets = [{secrets}]\n")
    };
    let file = [
        caller("one", &key[0], &[&shared[0]]),
        caller("two", &key[1], &[&shared[1], &shared[0]]),
        caller("three", &key[2], &[&pair.secret, &shared[0]]),
    ];
    fixture.write("callers.toml", &file.concat());
    let running = fixture.start();
    let sent = [
        running.deliver(&key[0], "plain", &json!({"n": 1})),
        running.deliver(&key[0], "order.7/é ü", &json!("ünïcödé ☕, \"quoted\"\n")),
        running.deliver(&key[1], "rotated", &json!([1.50, null])),
        running.deliver(&key[2], "with-a-pair", &json!({"deep": {"er": true}})),
    ];
    running.end();
    let [first, second] = [&shared[0], &shared[1]].map(|secret| json!({ "shared": secret }));
    let public = json!({ "public": pair.public });
    vec![
        expected(&sent[0], &[&first]),
        expected(&sent[1], &[&first]),
        expected(&sent[2], &[&first, &second]),
        expected(&sent[3], &[&first, &public]),
    ]
}

/// A request, and the keys of which each must verify it.
fn expected(delivery: &Delivery, keys: &[&Value]) -> Value {
    let headers = delivery.headers.iter();
    let headers = headers.filter(|(name, _)| name.as_str().starts_with("webhook-"));
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()));
    json!({
        "headers": headers.collect::<serde_json::Map<String, Value>>(),
        "body": STANDARD.encode(&delivery.body),
        "keys": keys,
    })
}
