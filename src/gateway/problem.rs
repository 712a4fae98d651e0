//! Errors of the HTTP API: RFC 9457 problem details, which name the field and the way out.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::submission::Refusal;

/// Seconds after which to try again when the brokers are away: librdkafka reconnects within one,
/// and a broker that restarts takes a few.
const RETRY_AFTER_SECONDS: u64 = 5;

/// An answer that is not a success.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
    /// In seconds.
    retry_after: Option<u64>,
    members: Map<String, Value>,
}

impl Problem {
    /// A problem without further members.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after: None, members: Map::new() }
    }

    /// The service cannot do it now; the client shall come back.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        Self { retry_after: Some(RETRY_AFTER_SECONDS), ..problem }
    }

    /// The client shall come back `after` its share of requests is worked off.
    pub(super) fn too_many(caller: &str, per_second: NonZeroU32, after: Duration) -> Self {
        let detail = format!("{caller} may make {per_second} requests a second");
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, detail);
        Self { retry_after: Some(after.as_secs() + 1), ..problem }
    }

    /// Adds an extension member.
    #[must_use]
    pub(super) fn with(mut self, name: &str, value: Value) -> Self {
        self.members.insert(name.to_owned(), value);
        self
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        // All that can be wrong with a payload is its size.
        let status = match refusal.field {
            "payload" => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self::new(status, refusal.reason).with("field", json!(refusal.field))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = self.members;
        // Without a `type` of its own a problem is what its status says (RFC 9457, 4.2.1).
        body.insert("type".to_owned(), json!("about:blank"));
        body.insert("title".to_owned(), json!(self.status.canonical_reason()));
        body.insert("status".to_owned(), json!(self.status.as_u16()));
        body.insert("detail".to_owned(), json!(self.detail));
        let mut response = (self.status, Value::from(body).to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"orloj\""));
        }
        response
    }
}
