//! `docs/reference/api.md`, held true: each of its requests is made as it stands there, and
//! answered as it says.
//!
//! Invariant: only the address, names of topics and hosts of callbacks differ. `…` in a documented
//! answer stands for anything; what is not shown may be there too.

use std::process::Command;

use serde_json::Value;

use super::fixture::{ApiFixture, DEADLINE};
use crate::wait::within;

const PAGE: &str = include_str!("../../../docs/reference/api.md");
/// What stands for anything.
const ANYTHING: &str = "…";

/// A request, and what is to come of it.
struct DocumentedRequest {
    command: String,
    status: u16,
    answer: Value,
}

#[test]
fn the_documented_requests_are_answered_as_documented() {
    let site = ApiFixture::start("api-documented");
    let examples = examples();
    assert!(examples.len() >= 12, "the page has only {} examples", examples.len());
    for DocumentedRequest { command, status, answer } in examples {
        let command = command
            .replace("localhost:8470", &site.gateway.address())
            .replace("\"kitchen\"", &format!("{:?}", site.cluster.target().1))
            .replace("https://shop.example.com/hooks/tea", &site.endpoint.url("broken"))
            .replace("\"shop.example.com\"", "\"127.0.0.1\"");
        let expected = replace(answer, &site);
        // What follows of a write by itself shows a moment later.
        let mut last = (0, Value::Null);
        let is_read = !command.contains("-X") && !command.contains("--json");
        let found = within(DEADLINE, || {
            last = run(&command);
            (!is_read || (last.0 == status && matches(&last.1, &expected))).then_some(())
        });
        assert_eq!((last.0, found), (status, Some(())), "{command}\n{:#}", last.1);
        assert!(matches(&last.1, &expected), "{command}\n{:#}\nis not\n{expected:#}", last.1);
    }
    site.end();
}

/// Each block of `sh` with a block of `json` behind it that begins with its status.
fn examples() -> Vec<DocumentedRequest> {
    let mut examples = Vec::new();
    let mut rest = PAGE;
    while let Some((_, after)) = rest.split_once("```sh\n") {
        let (command, after) = after.split_once("```").unwrap();
        rest = after;
        let Some(answer) = after.trim_start().strip_prefix("```json\n") else { continue };
        let (answer, _) = answer.split_once("```").unwrap();
        let (status, answer) = answer.split_once('\n').unwrap();
        let status = status.trim_start_matches("// ").trim().parse().unwrap();
        let answer = serde_json::from_str(answer).unwrap_or_else(|e| panic!("{answer}: {e}"));
        examples.push(DocumentedRequest { command: command.trim().to_owned(), status, answer });
    }
    examples
}

fn replace(value: Value, site: &ApiFixture) -> Value {
    let text = value.to_string().replace("\"kitchen\"", &format!("{:?}", site.cluster.target().1));
    let text = text.replace("https://shop.example.com/hooks/tea", &site.endpoint.url("broken"));
    serde_json::from_str(&text.replace("\"shop.example.com\"", "\"127.0.0.1\"")).unwrap()
}

fn run(command: &str) -> (u16, Value) {
    let command = command.replacen("curl ", "curl -s -w '\\n%{http_code}' ", 1);
    let done = Command::new("sh").args(["-c", &command]).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    let (body, status) = said.rsplit_once('\n').unwrap_or(("", &said));
    let error = String::from_utf8_lossy(&done.stderr);
    let status = status.parse().unwrap_or_else(|_| panic!("{command}\n{said}\n{error}"));
    (status, serde_json::from_str(body).unwrap_or_default())
}

/// Whether everything that is expected is there.
fn matches(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (_, Value::String(text)) if text == ANYTHING => !found.is_null(),
        (Value::Object(found), Value::Object(expected)) => expected
            .iter()
            .all(|(name, expected)| found.get(name).is_some_and(|found| matches(found, expected))),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| matches(found, expected))
        }
        (found, expected) => found == expected,
    }
}
