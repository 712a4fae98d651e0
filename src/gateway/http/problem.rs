//! Errors of the HTTP API: RFC 9457 problem details, with the field and what to do.
//!
//! Invariant: every error has a code of [`ErrorCode`], whose meaning never changes. Texts for
//! people may change, what programs read may not.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::error_code::ErrorCode;
use crate::client::ValidationError;
use crate::view::ViewError;

/// Seconds after which to try again when the brokers cannot be reached: librdkafka reconnects
/// within one, and a broker that restarts takes a few.
const RETRY_AFTER_SECONDS: u64 = 5;

/// The member that says whether a request that was answered 503 may be executed all the same.
const MAY_BE_WRITTEN: &str = "mayBeWritten";

/// A response that is not a success.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    status: StatusCode,
    code: ErrorCode,
    detail: String,
    /// In seconds.
    retry_after: Option<u64>,
    members: Map<String, Value>,
}

/// What is wrong with one part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    /// Which part: a JSON pointer (RFC 6901); empty for the whole.
    pub(crate) pointer: String,
    /// What is wrong, and what to write.
    pub(crate) reason: String,
}

/// A part of a body that does not have the required form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError(pub(crate) FieldError);

impl Problem {
    /// A problem with the most general code of this status.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let problem = Self::of(ErrorCode::from_status(status), detail);
        Self { status, ..problem }
    }

    /// A problem without further members.
    pub(crate) fn of(code: ErrorCode, detail: impl Into<String>) -> Self {
        let (status, detail) = (code.status(), detail.into());
        Self { status, code, detail, retry_after: None, members: Map::new() }
    }

    /// Whether the state of a trigger refuses the request, as far as the view knows it.
    pub(crate) fn is_of_state(&self) -> bool {
        let codes = [ErrorCode::UnknownTrigger, ErrorCode::Settled, ErrorCode::GenerationDiffers];
        codes.contains(&self.code)
    }

    /// Whether it is of this kind.
    pub(crate) fn has_code(&self, code: ErrorCode) -> bool {
        self.code == code
    }

    /// Why, for people.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The gateway cannot do it now, and has written nothing; the client shall try again.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        let problem = Self::of(ErrorCode::Unavailable, detail).with(MAY_BE_WRITTEN, json!(false));
        Self { retry_after: Some(RETRY_AFTER_SECONDS), ..problem }
    }

    /// The cluster has not acknowledged what was written: it is done now, later or not at all.
    pub(crate) fn unacknowledged(detail: impl Into<String>) -> Self {
        let problem = Self::unavailable(detail).with(MAY_BE_WRITTEN, json!(true));
        problem.hint(
            "it may be done all the same: look whether it is, before you repeat the \
            request without the same Idempotency-Key",
        )
    }

    /// The client's rate limit is exceeded; it shall try again `after` that time.
    pub(crate) fn rate_limited(caller: &str, per_second: NonZeroU32, after: Duration) -> Self {
        let detail = format!("{caller} may make {per_second} requests a second");
        let problem = Self::of(ErrorCode::TooManyRequests, detail);
        Self { retry_after: Some(after.as_secs() + 1), ..problem }
    }

    /// A part of the body is wrong.
    pub(crate) fn at(code: ErrorCode, error: FieldError) -> Self {
        let FieldError { pointer, reason } = error;
        let errors = json!([{ "pointer": pointer, "detail": reason }]);
        Self::of(code, reason).with("errors", errors)
    }

    /// Adds the time after which the client shall try again.
    #[must_use]
    pub(crate) fn retry_after_seconds(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Adds an extension member.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.members.insert(name.to_owned(), value);
        self
    }

    /// Prepends the JSON pointer `place` to the pointers of the errors.
    #[must_use]
    pub(crate) fn with_pointer_prefix(mut self, place: &str) -> Self {
        let errors = self.members.get_mut("errors").and_then(Value::as_array_mut);
        for error in errors.into_iter().flatten() {
            let pointer = error["pointer"].as_str().unwrap_or_default();
            error["pointer"] = json!(format!("{place}{pointer}"));
        }
        self
    }

    /// Replaces the hint of the code.
    #[must_use]
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        self.with("hint", Value::String(hint.into()))
    }

    /// The body; `request` is the request's id.
    fn body(self, request: Option<&str>) -> String {
        let mut body = self.members;
        body.insert("type".to_owned(), json!(self.code.page_path()));
        body.insert("title".to_owned(), json!(self.code.title()));
        body.insert("status".to_owned(), json!(self.status.as_u16()));
        body.insert("code".to_owned(), json!(self.code.as_str()));
        body.insert("detail".to_owned(), json!(self.detail));
        if let Some(hint) = self.code.hint() {
            let _given = body.entry("hint").or_insert(json!(hint));
        }
        body.extend(request.map(|id| ("requestId".to_owned(), json!(id))));
        Value::from(body).to_string()
    }
}

impl FieldError {
    /// What is wrong with `field`, which is directly in the body.
    pub(crate) fn of(field: &str, reason: impl Into<String>) -> Self {
        Self { pointer: format!("/{field}"), reason: reason.into() }
    }
}

/// A reason of the validator starts with `schedule.cron is …`: the pointer is `/schedule/cron`.
impl From<ValidationError> for FieldError {
    fn from(ValidationError { field, reason }: ValidationError) -> Self {
        if matches!(field, "body" | "batch") {
            return Self { pointer: String::new(), reason };
        }
        let first = reason.split(' ').next().unwrap_or_default();
        let inner = first.strip_prefix(field).and_then(|rest| rest.strip_prefix('.'));
        let is_path = |text: &&str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
        let pointer = match inner.filter(is_path) {
            Some(inner) => format!("/{field}/{}", inner.replace('.', "/")),
            None => format!("/{field}"),
        };
        Self { pointer, reason }
    }
}

/// A body has the right form, and what it says cannot be.
impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        // All that can be wrong with a payload is its size.
        let code = match error.pointer.as_str() {
            "/payload" => ErrorCode::PayloadTooLarge,
            _ => ErrorCode::Contradiction,
        };
        Self::at(code, error)
    }
}

/// A body has not the right form.
impl From<ParseError> for Problem {
    fn from(ParseError(error): ParseError) -> Self {
        Self::at(ErrorCode::InvalidBody, error)
    }
}

impl From<ValidationError> for Problem {
    fn from(refusal: ValidationError) -> Self {
        FieldError::from(refusal).into()
    }
}

/// The view cannot be read now, or has not given out the page token.
impl From<ViewError> for Problem {
    fn from(error: ViewError) -> Self {
        match error {
            ViewError::InvalidToken(error) => {
                Self::of(ErrorCode::UnknownPageToken, error.to_string())
                    .with("parameter", json!("page_token"))
            }
            error => Self::unavailable(format!("the view cannot be read: {error}")),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, retry_after) = (self.status, self.retry_after);
        let mut response = (status, self.clone().body(None)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            // The rest of the body is not read, so the connection cannot be reused.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"orloj\""));
        }
        // `set_request_id` writes the body again, with the request's id.
        response.extensions_mut().insert(self);
        response
    }
}

/// Adds the request's id to the body of a problem.
pub(crate) fn set_request_id(response: &mut Response, request: &str) {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        *response.body_mut() = Body::from(problem.body(Some(request)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_a_code_a_page_and_the_request() {
        let problem = Problem::of(ErrorCode::NotPending, "tea has fired").with("fired", json!(7));
        let body: Value = serde_json::from_str(&problem.body(Some("r-1"))).unwrap();
        assert_eq!(body["type"], "/problems/not-pending");
        assert_eq!((&body["status"], &body["code"]), (&json!(409), &json!("not-pending")));
        assert_eq!((&body["requestId"], &body["fired"]), (&json!("r-1"), &json!(7)));
        assert_eq!(body["detail"], "tea has fired");
    }

    #[test]
    fn a_status_alone_has_a_code_and_stays_what_it_is() {
        let problem = Problem::new(StatusCode::BAD_GATEWAY, "x");
        assert_eq!((problem.status, problem.code), (StatusCode::BAD_GATEWAY, ErrorCode::Internal));
        let problem = Problem::new(StatusCode::FORBIDDEN, "x");
        assert_eq!(problem.code, ErrorCode::Forbidden);
    }

    #[test]
    fn a_validation_error_has_the_pointer_of_its_field() {
        let pointer = |field, reason: &str| {
            FieldError::from(ValidationError { field, reason: reason.to_owned() }).pointer
        };
        assert_eq!(pointer("schedule", "schedule.cron is \"x\": y"), "/schedule/cron");
        assert_eq!(pointer("schedule", "schedule.monthly.on is 32"), "/schedule/monthly/on");
        assert_eq!(pointer("retain", "retain is \"2y\": z"), "/retain");
        assert_eq!(pointer("topic", "topic.of.mine is not yours"), "/topic/of/mine");
        assert_eq!(pointer("body", "not JSON"), "");
        assert_eq!(pointer("batch", "a is in it twice"), "");
    }

    #[test]
    fn a_pointer_in_a_batch_begins_at_the_batch() {
        let error = FieldError::of("schedule", "x");
        let problem =
            Problem::at(ErrorCode::Contradiction, error).with_pointer_prefix("/triggers/7");
        assert_eq!(problem.members["errors"][0]["pointer"], "/triggers/7/schedule");
    }

    #[test]
    fn a_parse_error_has_another_code_than_a_contradiction() {
        for (problem, code) in [
            (Problem::from(ParseError(FieldError::of("payload", "x"))), ErrorCode::InvalidBody),
            (Problem::from(FieldError::of("schedule", "x")), ErrorCode::Contradiction),
            (Problem::from(FieldError::of("payload", "x")), ErrorCode::PayloadTooLarge),
        ] {
            assert_eq!((problem.code, problem.status), (code, code.status()));
        }
    }

    #[test]
    fn a_hint_of_a_problem_replaces_that_of_its_code() {
        let hint = |problem: Problem| {
            let body: Value = serde_json::from_str(&problem.body(None)).unwrap();
            body["hint"].clone()
        };
        assert_eq!(hint(Problem::of(ErrorCode::NotReplayable, "x")), "archive it");
        assert_eq!(hint(Problem::of(ErrorCode::NotReplayable, "x").hint("leave it")), "leave it");
    }

    #[test]
    fn an_unavailable_problem_says_whether_the_record_may_be_written() {
        let body =
            |problem: Problem| -> Value { serde_json::from_str(&problem.body(None)).unwrap() };
        assert_eq!(body(Problem::unavailable("x"))["mayBeWritten"], false);
        let unacknowledged = Problem::unacknowledged("x");
        assert_eq!(unacknowledged.retry_after, Some(RETRY_AFTER_SECONDS));
        let unacknowledged = body(unacknowledged);
        assert_eq!(unacknowledged["mayBeWritten"], true);
        assert!(unacknowledged["hint"].as_str().unwrap().contains("Idempotency-Key"));
    }

    #[test]
    fn a_problem_sets_the_headers_of_its_status() {
        let four = NonZeroU32::new(4).unwrap();
        let too_many = Problem::rate_limited("billing", four, Duration::from_millis(1_250));
        for (problem, header, value) in [
            (too_many, RETRY_AFTER, "2"),
            (Problem::unavailable("x"), RETRY_AFTER, "5"),
            (Problem::of(ErrorCode::Conflict, "x").retry_after_seconds(1), RETRY_AFTER, "1"),
            (
                Problem::of(ErrorCode::Unauthenticated, "x"),
                WWW_AUTHENTICATE,
                "Bearer realm=\"orloj\"",
            ),
            (Problem::from(FieldError::of("payload", "x")), CONNECTION, "close"),
        ] {
            let response = problem.into_response();
            assert_eq!(response.headers()[&header], value, "{header}");
        }
    }
}
