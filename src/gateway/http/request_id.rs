//! The id of a request, and what every route requires of a request.
//!
//! Invariant: a client's own id is used if it is safe in a log and a header, else a new one is
//! made. Every response and every problem has it.

use axum::extract::{MatchedPath, Request};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

use super::error_code::ErrorCode;
use super::problem::{Problem, set_request_id};
use crate::{clock, telemetry};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Bytes of a client's id.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Gives the request its id, refuses clients that do not accept JSON, and measures.
pub(crate) async fn track_request(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("none", MatchedPath::as_str).to_owned();
    let name = request_id_of(request.headers());
    let started = clock::monotonic();
    let _in_progress = RequestInProgress::begin();
    let mut response = match check_accept(request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    set_request_id(&mut response, &name);
    if let Ok(name) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(REQUEST_ID, name);
    }
    if response.status().is_server_error() {
        let status = response.status().as_u16();
        tracing::warn!(request = %name, route, status, "request failed");
    }
    let status = response.status().as_u16().to_string();
    metrics::counter!(telemetry::REQUESTS, "route" => route, "status" => status).increment(1);
    metrics::histogram!(telemetry::REQUEST_DURATION).record(clock::monotonic() - started);
    response
}

/// Counts a request until it is answered, or its connection is closed.
struct RequestInProgress(metrics::Gauge);

impl RequestInProgress {
    fn begin() -> Self {
        let gauge = metrics::gauge!(telemetry::REQUESTS_IN_PROGRESS);
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

fn request_id_of(headers: &HeaderMap) -> String {
    let is_sane = |name: &&str| {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"._:-+/=".contains(&b);
        (1..=REQUEST_ID_BYTES_MAX).contains(&name.len()) && name.bytes().all(legal)
    };
    let given = headers.get(REQUEST_ID).and_then(|name| name.to_str().ok()).filter(is_sane);
    given.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// Paths under `/v1/` answer in JSON.
fn check_accept(path: &str, headers: &HeaderMap) -> Result<(), Problem> {
    let is_of_api = path.starts_with("/v1/") || path == "/openapi.json";
    if !is_of_api || !headers.contains_key(ACCEPT) {
        return Ok(());
    }
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let takes = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let refused = parts.any(|part| {
            let weight = part.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok());
            weight == Some(0.0)
        });
        let kinds = ["*/*", "application/*", "application/json", "application/problem+json"];
        !refused && (kind.is_empty() || kinds.contains(&kind.as_str()))
    };
    if ranges.flat_map(|list| list.split(',')).any(takes) {
        return Ok(());
    }
    Err(Problem::of(ErrorCode::NotAcceptable, "the request's Accept has no form of JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_request_id_is_kept_and_any_other_replaced() {
        let name = |given: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(given.as_bytes()).unwrap());
            request_id_of(&headers)
        };
        for good in ["order-7/retry:2", &"x".repeat(128)] {
            assert_eq!(name(good), good);
        }
        for bad in ["", "a b", "<script>", "ü", &"x".repeat(129)] {
            assert_eq!(name(bad).len(), 36, "{bad}");
        }
        assert_eq!(request_id_of(&HeaderMap::new()).len(), 36);
    }

    #[test]
    fn only_requests_that_accept_json_are_answered() {
        let check = |path: &str, accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            check_accept(path, &headers).is_ok()
        };
        for accept in ["*/*", "Application/JSON", "text/html, application/*;q=0.5", ""] {
            assert!(check("/v1/triggers", accept), "{accept}");
        }
        for accept in ["text/html", "application/xml", "application/json;q=0"] {
            assert!(!check("/v1/triggers", accept), "{accept}");
        }
        assert!(check("/docs/", "text/html"));
        assert!(check_accept("/v1/triggers", &HeaderMap::new()).is_ok());
    }
}
