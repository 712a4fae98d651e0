//! `/docs`: the OpenAPI document as a web page, and a page for each problem.
//!
//! Invariant: every byte comes from this process, and its headers forbid the browser to load
//! anything else.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{
    CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use utoipa_swagger_ui::Config;

use crate::gateway::http::ErrorCode;
use crate::gateway::http::Problem;

/// What a browser may load for these pages. The viewer sets styles on its elements.
const BROWSER_POLICY: &str = "default-src 'none'; script-src 'self'; \
                      style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      font-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The routes, which do not use the gateway's state.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let config =
        Arc::new(Config::from("/openapi.json").try_it_out_enabled(false).validator_url("none"));
    let index = Arc::clone(&config);
    Router::new()
        .route("/docs", get(|| async { Redirect::permanent("/docs/") }))
        .route("/docs/", get(move || async move { file("", index) }))
        .route(
            "/docs/{file}",
            get(move |Path(name): Path<String>| async move { file(&name, config) }),
        )
        .route(
            "/problems",
            get(|| async { with_security_headers(Html(all_problems_page()).into_response()) }),
        )
        .route(
            "/problems/{code}",
            get(|Path(word): Path<String>| async move { problem_page(&word) }),
        )
}

/// A file of the viewer.
fn file(name: &str, config: Arc<Config<'static>>) -> Response {
    match utoipa_swagger_ui::serve(name, config) {
        Ok(Some(file)) => {
            let mut response = file.bytes.into_owned().into_response();
            let headers = response.headers_mut();
            if let Ok(kind) = HeaderValue::from_str(&file.content_type) {
                headers.insert(CONTENT_TYPE, kind);
            }
            if file.gzpipped {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            with_security_headers(response)
        }
        Ok(None) => Problem::new(StatusCode::NOT_FOUND, "there is nothing here").into_response(),
        Err(error) => Problem::of(ErrorCode::Internal, error.to_string()).into_response(),
    }
}

fn problem_page(word: &str) -> Response {
    match ErrorCode::by_name(word) {
        Some(code) => with_security_headers(Html(page(word, &section(code))).into_response()),
        None => Problem::new(StatusCode::NOT_FOUND, "there is no such problem").into_response(),
    }
}

fn all_problems_page() -> String {
    page("Problems", &ErrorCode::all().map(section).collect::<String>())
}

/// The section of a code.
fn section(code: ErrorCode) -> String {
    let (word, status, title) = (code.as_str(), code.status(), code.title());
    let mut text = format!("<h2 id=\"{word}\"><code>{word}</code></h2>\n<p>{title}.</p>\n");
    let _infallible = writeln!(text, "<p>Status: {status}.</p>");
    if let Some(hint) = code.hint() {
        let _infallible = writeln!(text, "<p>What to do: {}.</p>", escape_html(hint));
    }
    text
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title>\
         </head>\n<body>\n{body}<p><a href=\"/problems\">All problems</a>, \
         <a href=\"/docs/\">the API</a></p>\n</body>\n</html>\n"
    )
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Adds the headers that limit what a browser loads.
fn with_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(BROWSER_POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(response: Response) -> String {
        let body = axum::body::to_bytes(response.into_body(), 10_000_000).await.unwrap();
        String::from_utf8_lossy(&body).into_owned()
    }

    #[tokio::test]
    async fn the_pages_load_nothing_from_elsewhere() {
        let config = Arc::new(Config::from("/openapi.json"));
        let index = file("", Arc::clone(&config));
        let policy = index.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("http"), "{policy}");
        let header = |name| index.headers()[name].to_str().unwrap();
        assert_eq!(header(X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(header(REFERRER_POLICY), "no-referrer");
        assert!(header(CONTENT_TYPE).starts_with("text/html"), "{}", header(CONTENT_TYPE));
        let index = text(index).await;
        assert!(!index.contains("http://") && !index.contains("https://"), "{index}");
        // What the policy forbids: a script within the page.
        assert!(!index.contains("<script>") && index.contains("swagger-initializer.js"), "{index}");
        let initializer = text(file("swagger-initializer.js", Arc::clone(&config))).await;
        assert!(initializer.contains("/openapi.json"), "{initializer}");
        assert_eq!(file("../secret", config).status(), StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn every_problem_has_a_page() {
        for code in ErrorCode::all() {
            let response = problem_page(code.as_str());
            assert_eq!(response.status(), StatusCode::OK, "{}", code.as_str());
            assert!(text(response).await.contains(code.title()));
            assert!(all_problems_page().contains(code.as_str()));
        }
        assert_eq!(problem_page("nothing").status(), StatusCode::NOT_FOUND);
    }
}
