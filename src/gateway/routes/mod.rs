//! Every path of the API, and the handler of each of its methods.
//!
//! Invariant: the router and the OpenAPI document are made from the same list. Only the document
//! itself and its pages are not described.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::gateway::api::Api;
use crate::gateway::http::ErrorCode;
use crate::gateway::http::Problem;
use crate::gateway::triggers::{batch, commands, create, patch, read};
use crate::gateway::{circuits, dead_letters, docs, openapi, schedules, unsettled};

/// Every route, and the OpenAPI document.
pub(super) fn routes() -> (Router<Arc<Api>>, Value) {
    let (router, mut api) = OpenApiRouter::with_openapi(openapi::base_document())
        .routes(routes!(create::register, read::list))
        .routes(routes!(read::get, patch::patch, commands::cancel))
        .routes(routes!(read::executions))
        .routes(routes!(schedules::next))
        .routes(routes!(batch::register))
        .routes(routes!(schedules::preview))
        .routes(routes!(dead_letters::read::list))
        .routes(routes!(dead_letters::read::get))
        .routes(routes!(dead_letters::actions::replay_all))
        .routes(routes!(dead_letters::actions::archive_all))
        .routes(routes!(circuits::list))
        .routes(routes!(unsettled::list))
        // A path cannot have a suffix after a parameter: these are described separately.
        .route("/v1/triggers/{id}", post(commands::command))
        .route("/v1/dead-letters/{id}", post(dead_letters::actions::run_action))
        .split_for_parts();
    api.merge(commands::CommandPaths::openapi());
    api.merge(dead_letters::actions::DeadLetterActionPaths::openapi());
    let document = openapi::complete_document(&api);
    let text: Arc<str> = document.to_string().into();
    let serve_document =
        move || async move { ([(CONTENT_TYPE, "application/json")], text.to_string()) };
    let router = router
        .route("/openapi.json", get(serve_document))
        .merge(docs::routes())
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found);
    (router, document)
}

async fn not_found() -> impl IntoResponse {
    Problem::new(StatusCode::NOT_FOUND, "there is nothing here")
}

async fn method_not_allowed(uri: Uri) -> Response {
    let problem = Problem::of(ErrorCode::MethodNotAllowed, "this path does not take this method");
    let mut response = problem.into_response();
    if let Some(methods) = methods_of(uri.path()) {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    }
    response
}

/// The methods of a path that shares its route with another one: the router knows only both
/// together.
fn methods_of(path: &str) -> Option<&'static str> {
    let (resource, id) = path.strip_prefix("/v1/")?.split_once('/')?;
    let (verbs, methods) = match resource {
        "triggers" => (&["pause", "resume", "fireNow"][..], "GET,HEAD,PATCH,DELETE"),
        "dead-letters" => (&["replay", "archive"][..], "GET,HEAD"),
        _ => return None,
    };
    let verb = id.rsplit_once(':').map(|(_, verb)| verb);
    match verb {
        _ if id.contains('/') => None,
        Some(verb) if verbs.contains(&verb) => Some("POST"),
        _ => Some(methods),
    }
}

#[cfg(test)]
mod tests;
