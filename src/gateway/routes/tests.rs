//! The router compared with the OpenAPI document, without a cluster.

use std::collections::BTreeSet;
use std::path::Path;

use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{Method, Request};
use axum::middleware;
use axum::response::Response;
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt as _;

use super::*;
use crate::callers::Callers;
use crate::client::RegistrationValidator;
use crate::client::TriggerClient;
use crate::config::{Layers, Settings};
use crate::gateway::api::VIEW_WAIT_MAX;
use crate::gateway::auth::Authenticator;
use crate::gateway::http::request_id;
use crate::gateway::idempotency::InFlightRequests;
use crate::gateway::write_positions::WritePositions;
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::view::View;

/// Paths that are not in the OpenAPI document.
const UNDESCRIBED: [&str; 6] =
    ["/docs", "/docs/", "/docs/{file}", "/openapi.json", "/problems", "/problems/{code}"];
const METHODS: [Method; 6] =
    [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];

/// A gateway without a cluster.
struct GatewayFixture {
    router: Router,
    description: Value,
    _folder: TempDir,
    _shutdown: DropGuard,
}

impl GatewayFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let overrides = vec![
            "kafka.bootstrap.servers=127.0.0.1:1".to_owned(),
            "gateway.answer_timeout=10ms".to_owned(),
            format!("gateway.view_dir={}", folder.path().display()),
        ];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let (health, shutdown) = (Health::new("gateway"), CancellationToken::new());
        let timeout = settings.gateway.answer_timeout;
        let client =
            TriggerClient::open(&settings, timeout, Arc::clone(&health), shutdown.clone()).unwrap();
        let view = View::open(&settings, Arc::clone(&health), shutdown.clone()).unwrap();
        let callers = Callers::watch(&settings, Arc::clone(&health), shutdown.clone()).unwrap();
        let api = Api {
            in_flight: InFlightRequests::default(),
            client,
            view,
            view_wait_max: VIEW_WAIT_MAX,
            write_positions: WritePositions::default(),
            dead_letter_actions: crate::dead_letters::DeadLetterActions::new(&settings),
            names: Names::new(&settings.topics.prefix),
            validator: RegistrationValidator::new(),
            authenticator: Authenticator::open(&settings, callers.clone()).unwrap(),
            callers,
            guard: Guard::new(&settings),
            settings,
            health,
        };
        let (router, description) = routes();
        let router = router.with_state(Arc::new(api));
        let router = router.layer(middleware::from_fn(request_id::track_request));
        Self { router, description, _folder: folder, _shutdown: shutdown.drop_guard() }
    }

    async fn send(&self, method: Method, path: &str, body: &str) -> Response {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_owned())).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// Every path that is described, and its methods.
    fn described_paths(&self) -> Vec<(String, BTreeSet<Method>)> {
        let paths = self.description["paths"].as_object().unwrap().iter();
        let method = |name: &String| name.to_uppercase().parse().unwrap();
        paths
            .map(|(path, methods)| {
                (path.clone(), methods.as_object().unwrap().keys().map(method).collect())
            })
            .collect()
    }
}

async fn json_of(response: Response) -> Value {
    let body = axum::body::to_bytes(response.into_body(), 10_000_000).await.unwrap();
    serde_json::from_slice(&body).unwrap_or_default()
}

#[tokio::test]
async fn what_is_described_is_served() {
    let gateway = GatewayFixture::new();
    for (path, methods) in gateway.described_paths() {
        for method in methods {
            let path = path.replace("{id}", "tea");
            let response = gateway.send(method.clone(), &path, "{}").await;
            let problem = json_of(response).await;
            let code = problem["code"].as_str().unwrap_or_default();
            let missing = ["no-such-route", "method-not-allowed"].contains(&code);
            assert!(!missing, "{method} {path}: {problem}");
        }
    }
}

#[tokio::test]
async fn what_is_served_is_described() {
    let gateway = GatewayFixture::new();
    let described = gateway.described_paths();
    let of_path = |path: &str| described.iter().find(|(known, _)| known == path);
    // Axum shows the paths of a router only in its `Debug` output.
    let shown = format!("{:?}", gateway.router);
    let is_path = |text: &&str| text.starts_with("/v1/") || UNDESCRIBED.contains(text);
    let is_fallback = |text: &&str| *text == "/" || text.starts_with("/{*__private__");
    let served: BTreeSet<_> = shown
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|text| text.starts_with('/') && !is_fallback(text))
        .collect();
    assert!(served.iter().all(is_path), "{served:?}");
    assert!(served.len() > 10, "{shown}");
    for path in &served {
        assert!(UNDESCRIBED.contains(path) || of_path(path).is_some(), "{path} is not described");
    }
    for (path, _) in &described {
        let without_verb = path.rsplit_once("}:").map(|(before, _)| format!("{before}}}"));
        let route = without_verb.as_deref().unwrap_or(path);
        assert!(served.contains(route), "{path} is not served");
    }
    for (path, methods) in &described {
        if path.contains("}:") {
            continue;
        }
        for method in METHODS.iter().filter(|method| !methods.contains(*method)) {
            // Commands are described by their own paths.
            if *method == Method::POST && path.ends_with("/{id}") {
                continue;
            }
            let response = gateway.send(method.clone(), &path.replace("{id}", "tea"), "{}").await;
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            let allow = response.headers()[ALLOW].to_str().unwrap().to_owned();
            for method in methods {
                assert!(allow.contains(method.as_str()), "{path}: {allow}");
            }
        }
    }
    for path in ["/v1/triggers/tea:pause", "/v1/dead-letters/3-41:replay"] {
        let response = gateway.send(Method::PUT, path, "{}").await;
        assert_eq!(response.headers()[ALLOW], "POST", "{path}");
    }
    for path in ["/", "/v1", "/v1/tea", "/v1/triggers/tea/teapot", "/v1/triggers/"] {
        let response = gateway.send(Method::GET, path, "").await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert_eq!(json_of(response).await["code"], "no-such-route");
    }
    for path in ["/v1/triggers/tea", "/v1/triggers/tea:stop", "/v1/dead-letters/3-41:eat"] {
        let problem = json_of(gateway.send(Method::POST, path, "").await).await;
        assert_eq!(problem["code"], "no-such-route", "{path}");
    }
}

#[tokio::test]
async fn an_error_is_a_problem_with_a_code_and_the_request_id() {
    let gateway = GatewayFixture::new();
    let request = |accept: &str, kind: &str| {
        let request = Request::builder().method(Method::POST).uri("/v1/triggers");
        let request = request.header("x-request-id", "order-7").header("accept", accept);
        request.header(CONTENT_TYPE, kind).body(Body::from("{}")).unwrap()
    };
    for (accept, kind, status, code) in [
        ("text/html", "application/json", 406, "not-acceptable"),
        ("*/*", "text/plain", 415, "unsupported-media-type"),
        ("*/*", "application/json", 422, "contradiction"),
    ] {
        let response = gateway.router.clone().oneshot(request(accept, kind)).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{code}");
        assert_eq!(response.headers()["x-request-id"], "order-7");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        let problem = json_of(response).await;
        assert_eq!((&problem["code"], &problem["requestId"]), (&json!(code), &json!("order-7")));
    }
    let body = r#"{"topic": "t", "delaySeconds": 1}"#;
    let unavailable = gateway.send(Method::POST, "/v1/triggers", body).await;
    assert_eq!(unavailable.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(unavailable.headers()["retry-after"], "5");
    let long = format!(r#"{{"topic": "t", "payload": "{}"}}"#, "x".repeat(200_000));
    let long = gateway.send(Method::POST, "/v1/triggers", &long).await;
    assert_eq!(json_of(long).await["code"], "payload-too-large");
}

#[test]
fn security_and_every_error_status_are_described() {
    let (_router, document) = routes();
    assert_eq!(document["security"], json!([{ "bearer": [] }, { "apiKey": [] }, {}]));
    let components = &document["components"];
    let schemes: Vec<_> = components["securitySchemes"].as_object().unwrap().keys().collect();
    assert_eq!(schemes, ["apiKey", "bearer"]);
    let words = components["schemas"]["ProblemCode"]["enum"].as_array().unwrap();
    assert_eq!(words.len(), ErrorCode::all().count());
    for status in ["429", "503"] {
        let headers = &components["responses"][format!("Problem{status}")]["headers"];
        assert_eq!(headers["Retry-After"]["schema"]["type"], "integer", "{status}");
    }
    let changeable = &components["schemas"]["TriggerPatch"]["properties"];
    assert!(changeable.get("name").is_some() && changeable.get("triggerId").is_none());
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let has_body = operation.get("requestBody").is_some();
            for (status, is_expected) in [
                ("404", path.contains("{id}")),
                ("409", method != "get" && path != "/v1/schedules:next"),
                ("412", method == "patch"),
                ("413", has_body),
                ("415", has_body),
            ] {
                let is_described = operation["responses"].get(status).is_some();
                assert_eq!(is_described, is_expected, "{method} {path}: {status}");
            }
            visit(&operation["parameters"], &mut |value| {
                assert_ne!(value.get("type"), Some(&json!("null")), "{method} {path}: {value}");
                let kinds = value.get("type").and_then(Value::as_array);
                assert!(!kinds.is_some_and(|kinds| kinds.contains(&json!("null"))), "{value}");
            });
        }
    }
}

#[test]
fn the_openapi_document_is_complete() {
    let (_router, document) = routes();
    assert_eq!(document["openapi"], "3.1.0");
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut unresolved = Vec::new();
    let mut named = BTreeSet::new();
    visit(&document, &mut |value| {
        let Some(reference) = value.get("$ref").and_then(Value::as_str) else { return };
        if document.pointer(reference.trim_start_matches('#')).is_none() {
            unresolved.push(reference.to_owned());
        }
        named.extend(reference.strip_prefix("#/components/schemas/").map(str::to_owned));
    });
    assert_eq!(unresolved, Vec::<String>::new());
    let all: BTreeSet<_> = schemas.keys().cloned().collect();
    assert_eq!(all.difference(&named).collect::<Vec<_>>(), Vec::<&String>::new(), "unused schemas");
    for name in ["NewTrigger", "TriggerPatch", "BatchBody", "LettersOrder", "LetterOrder"] {
        let closed = &schemas[name]["additionalProperties"];
        assert_eq!(closed, &json!(false), "{name} accepts unknown fields");
    }
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let what = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{what}");
            let summary = operation["summary"].as_str().unwrap_or_default();
            assert!(
                summary.ends_with(|c: char| c.is_alphabetic() || c == '.'),
                "{what}: {summary:?}"
            );
            for status in ["400", "401", "403", "429", "503"] {
                assert!(operation["responses"].get(status).is_some(), "{what}: {status}");
            }
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            for parameter in parameters {
                let description = parameter["description"].as_str().unwrap_or_default();
                assert!(!description.is_empty(), "{what}: {parameter}");
            }
        }
    }
}

/// Shows every object within `value`.
fn visit(value: &Value, each: &mut impl FnMut(&Value)) {
    each(value);
    match value {
        Value::Object(fields) => fields.values().for_each(|value| visit(value, each)),
        Value::Array(items) => items.iter().for_each(|value| visit(value, each)),
        _ => {}
    }
}

/// Texts for people: they may change, everything else is what clients are generated from.
const TEXTS: [&str; 6] = ["description", "summary", "title", "detail", "hint", "note"];

#[test]
fn the_openapi_document_equals_the_golden_file() {
    let (_router, mut document) = routes();
    remove_texts(&mut document);
    let document = format!("{document:#}\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/openapi.json");
    if std::env::var("ORLOJ_GOLDEN").is_ok_and(|what| what == "write") {
        std::fs::write(&path, &document).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let mut lines = (1..).zip(document.lines().zip(golden.lines()));
    let first = lines.find(|(_, (line, golden))| line != golden);
    assert!(
        document == golden,
        "openapi.json differs from the golden file, first at {first:?}; if that is meant, \
         ORLOJ_GOLDEN=write renews it"
    );
}

/// An object under one of these names is a field, and stays.
fn remove_texts(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| !(TEXTS.contains(&name.as_str()) && value.is_string()));
            fields.values_mut().for_each(remove_texts);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_texts),
        _ => {}
    }
}
