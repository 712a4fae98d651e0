//! What identity promises to the routes: a role is a role, whose is whose, and a request counts
//! once.

use std::num::NonZeroU32;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware;
use axum::response::Response;
use axum::routing::get;
use tower::ServiceExt as _;

use super::*;
use crate::callers::{CallerRole, KeyHash};
use crate::config::Layers;
use crate::gateway::rate_limiter;
use crate::model::definition::TopicTarget;

const ROUTES: [&str; 3] = ["/look", "/register", "/operate"];

fn settings(file: Option<&str>) -> (tempfile::TempDir, Settings) {
    let folder = tempfile::tempdir().unwrap();
    let mut overrides = vec!["targets.deny=[\"secret\"]".to_owned()];
    if let Some(text) = file {
        let path = folder.path().join("callers.toml");
        std::fs::write(&path, text).unwrap();
        overrides.push(format!("callers.file={}", path.display()));
    }
    let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
    (folder, settings)
}

fn authenticator(file: Option<&str>) -> Authenticator {
    let (_folder, settings) = settings(file);
    Authenticator::open(&settings, Callers::fixed(CallerTable::read(&settings).unwrap())).unwrap()
}

fn routes(identity: Authenticator) -> Router {
    Router::new()
        .route("/look", get(async |Viewer(caller): Viewer| scope(&caller)))
        .route("/register", get(async |Registrant(caller): Registrant| scope(&caller)))
        .route("/operate", get(async |Operator(caller): Operator| scope(&caller)))
        .route("/twice", get(async |_: Viewer, Registrant(caller): Registrant| scope(&caller)))
        .with_state(identity)
        .layer(middleware::from_fn(rate_limiter::add_headers))
}

fn scope(caller: &Caller) -> String {
    format!("{:?}", scope_of(caller))
}

async fn send(routes: &Router, path: &str, key: &str) -> Response {
    let request = Request::get(path).header("x-api-key", key).body(Body::empty()).unwrap();
    routes.clone().oneshot(request).await.unwrap()
}

async fn body(response: Response) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn three_callers() -> String {
    let caller = |role: CallerRole| {
        let (name, key) = (role.as_str(), KeyHash::of(role.as_str()));
        format!("[callers.{name}]\nrole = \"{name}\"\nkeys = [\"{key}\"]\n")
    };
    [CallerRole::ReadOnly, CallerRole::Caller, CallerRole::Operator].map(caller).concat()
}

#[tokio::test]
async fn each_role_includes_those_below_it_and_sees_its_own() {
    let routes = routes(authenticator(Some(&three_callers())));
    for (key, statuses, scope) in [
        ("read-only", [200, 403, 403], "Caller(\"read-only\")"),
        ("caller", [200, 200, 403], "Caller(\"caller\")"),
        ("operator", [200, 200, 200], "All"),
        ("unknown", [401, 401, 401], ""),
    ] {
        for (path, status) in ROUTES.into_iter().zip(statuses) {
            let response = send(&routes, path, key).await;
            assert_eq!(response.status().as_u16(), status, "{key}: {path}");
            let body = body(response).await;
            match status {
                200 => assert_eq!(body, scope, "{key}: {path}"),
                403 => assert!(body.contains(&format!("{key} may")), "{body}"),
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn without_a_file_everyone_is_an_operator() {
    let routes = routes(authenticator(None));
    for path in ROUTES {
        let response = send(&routes, path, "whatever").await;
        assert!(!response.headers().contains_key("ratelimit"), "without callers there is no limit");
        assert_eq!((response.status().as_u16(), body(response).await.as_str()), (200, "All"));
    }
}

#[tokio::test]
async fn a_request_counts_once_for_any_role() {
    let two = |role: &str| format!("role = \"{role}\"\nlimits.requests_per_second = 2");
    let limited = ["read-only", "caller"].into_iter().fold(three_callers(), |file, role| {
        file.replace(&format!("role = \"{role}\""), &two(role))
    });
    let routes = routes(authenticator(Some(&limited)));
    for (key, status) in [("read-only", 403), ("caller", 200)] {
        for left in [1, 0] {
            let response = send(&routes, "/twice", key).await;
            assert_eq!(response.status().as_u16(), status, "{key}, {left} left");
            assert_eq!(response.headers()["ratelimit-policy"], "\"default\";q=2;w=1");
        }
    }
}

#[test]
fn a_topic_is_checked_against_the_callers_patterns_and_the_global_ones() {
    let identity = authenticator(Some(
        &three_callers().replace("caller\"\nkeys", "caller\"\ntopics = [\"s*\"]\nkeys"),
    ));
    let callers = identity.inner.callers.current();
    let caller = callers.registered("caller").unwrap();
    let check = |topic: &str| {
        let target = TopicTarget { topic: topic.into(), key: None };
        identity.check_target(caller, &Target::Topic(target)).err()
    };
    let refused = |code, detail: &str| Some(Problem::at(code, FieldError::of("topic", detail)));
    assert_eq!(check("soup"), None);
    assert_eq!(check("tea"), refused(ErrorCode::Forbidden, "caller may not fire into tea"));
    let closed = "topic secret is not allowed: see targets.allow and targets.deny";
    assert_eq!(check("secret"), refused(ErrorCode::TargetForbidden, closed));
    assert_eq!(caller.limits.requests_per_second, NonZeroU32::new(1_000).unwrap());
}
