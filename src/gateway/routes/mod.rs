//! Every path of the API, and the handler of each of its methods.
//!
//! Law: the router and the description are made from the same list. What is not described is the
//! description itself and its pages.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::Value;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::code::Code;
use super::problem::Problem;
use super::{
    batch, circuits, commands, dead_letters, description, docs, patch, schedules, triggers,
};

/// Every route, and what is told of them.
pub(super) fn routes() -> (Router<Arc<Api>>, Value) {
    let (router, mut api) = OpenApiRouter::with_openapi(description::frame())
        .routes(routes!(triggers::register, triggers::list))
        .routes(routes!(triggers::get, patch::patch, commands::cancel))
        .routes(routes!(triggers::executions))
        .routes(routes!(schedules::next))
        .routes(routes!(batch::register))
        .routes(routes!(schedules::preview))
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::get))
        .routes(routes!(dead_letters::replay_all))
        .routes(routes!(dead_letters::archive_all))
        .routes(routes!(circuits::list))
        .routes(routes!(circuits::unsettled))
        // A path cannot end in a word behind a parameter: these are described by name.
        .route("/v1/triggers/{id}", post(commands::command))
        .route("/v1/dead-letters/{id}", post(dead_letters::verb))
        .split_for_parts();
    api.merge(commands::Described::openapi());
    api.merge(dead_letters::Described::openapi());
    let document = description::complete(&api);
    let text: Arc<str> = document.to_string().into();
    let served = move || async move { ([(CONTENT_TYPE, "application/json")], text.to_string()) };
    let router = router
        .route("/openapi.json", get(served))
        .merge(docs::routes())
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found);
    (router, document)
}

async fn not_found() -> impl IntoResponse {
    Problem::new(StatusCode::NOT_FOUND, "there is nothing here")
}

async fn method_not_allowed() -> impl IntoResponse {
    Problem::of(Code::MethodNotAllowed, "this path does not take this method")
}

#[cfg(test)]
mod tests;
