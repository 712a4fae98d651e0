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
use crate::config::Layers;
use crate::config::callers::Role;
use crate::config::callers::key::KeyHash;
use crate::gateway::rate;
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

fn identity(file: Option<&str>) -> Identity {
    let (_folder, settings) = settings(file);
    Identity::open(&settings, Callers::of(CallerTable::read(&settings).unwrap())).unwrap()
}

fn routes(identity: Identity) -> Router {
    Router::new()
        .route("/look", get(async |Viewer(caller): Viewer| scope(&caller)))
        .route("/register", get(async |Registrant(caller): Registrant| scope(&caller)))
        .route("/operate", get(async |Operator(caller): Operator| scope(&caller)))
        .route("/twice", get(async |_: Viewer, Registrant(caller): Registrant| scope(&caller)))
        .with_state(identity)
        .layer(middleware::from_fn(rate::tell))
}

fn scope(caller: &Caller) -> String {
    format!("{:?}", scope_of(caller))
}

async fn ask(routes: &Router, path: &str, key: &str) -> Response {
    let request = Request::get(path).header("x-api-key", key).body(Body::empty()).unwrap();
    routes.clone().oneshot(request).await.unwrap()
}

async fn body(response: Response) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn three() -> String {
    let caller = |role: Role| {
        let (name, key) = (role.as_str(), KeyHash::of(role.as_str()));
        format!("[callers.{name}]\nrole = \"{name}\"\nkeys = [\"{key}\"]\n")
    };
    [Role::ReadOnly, Role::Caller, Role::Operator].map(caller).concat()
}

#[tokio::test]
async fn each_role_includes_those_below_it_and_sees_its_own() {
    let routes = routes(identity(Some(&three())));
    for (key, statuses, scope) in [
        ("read-only", [200, 403, 403], "Caller(\"read-only\")"),
        ("caller", [200, 200, 403], "Caller(\"caller\")"),
        ("operator", [200, 200, 200], "All"),
        ("stranger", [401, 401, 401], ""),
    ] {
        for (path, status) in ROUTES.into_iter().zip(statuses) {
            let response = ask(&routes, path, key).await;
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
    let routes = routes(identity(None));
    for path in ROUTES {
        let response = ask(&routes, path, "whatever").await;
        assert!(!response.headers().contains_key("ratelimit"), "nobody is known");
        assert_eq!((response.status().as_u16(), body(response).await.as_str()), (200, "All"));
    }
}

#[tokio::test]
async fn a_request_counts_once_whoever_asks() {
    let two = |role: &str| format!("role = \"{role}\"\nlimits.requests_per_second = 2");
    let limited = ["read-only", "caller"]
        .into_iter()
        .fold(three(), |file, role| file.replace(&format!("role = \"{role}\""), &two(role)));
    let routes = routes(identity(Some(&limited)));
    for (key, status) in [("read-only", 403), ("caller", 200)] {
        for left in [1, 0] {
            let response = ask(&routes, "/twice", key).await;
            assert_eq!(response.status().as_u16(), status, "{key}, {left} left");
            assert_eq!(response.headers()["ratelimit-policy"], "\"default\";q=2;w=1");
        }
    }
}

#[test]
fn a_target_is_judged_by_its_callers_list_and_by_everybodys() {
    let identity =
        identity(Some(&three().replace("caller\"\nkeys", "caller\"\ntopics = [\"s*\"]\nkeys")));
    let callers = identity.shared.callers.now();
    let caller = callers.known("caller").unwrap();
    let check = |topic: &str| {
        let target = TopicTarget { topic: topic.into(), key: None };
        identity.check_target(caller, &Target::Topic(target)).err()
    };
    let refused = |code, detail: &str| Some(Problem::at(code, Fault::of("topic", detail)));
    assert_eq!(check("soup"), None);
    assert_eq!(check("tea"), refused(Code::Forbidden, "caller may not fire into tea"));
    let closed = "topic secret is not allowed: see targets.allow and targets.deny";
    assert_eq!(check("secret"), refused(Code::TargetForbidden, closed));
    assert_eq!(caller.limits.requests_per_second, NonZeroU32::new(1_000).unwrap());
}
