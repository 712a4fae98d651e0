//! Errors of the HTTP API: RFC 9457 problem details, which name the field and the way out.
//!
//! Law: every error has a code of [`Code`], which means the same for ever. What people read may
//! change, what programs read may not.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::code::Code;
use super::submission::Refusal;

/// Seconds after which to try again when the brokers are away: librdkafka reconnects within one,
/// and a broker that restarts takes a few.
const RETRY_AFTER_SECONDS: u64 = 5;

/// An answer that is not a success.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Problem {
    status: StatusCode,
    code: Code,
    detail: String,
    /// In seconds.
    retry_after: Option<u64>,
    members: Map<String, Value>,
}

/// What is wrong with one part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Which part: a JSON pointer (RFC 6901); empty for the whole.
    pub(super) pointer: String,
    /// What is wrong, and what is right.
    pub(super) reason: String,
}

/// A part of a body that has not the form that it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misread(pub(super) Fault);

impl Problem {
    /// A problem of the code that this status has if nothing more is known.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let problem = Self::of(Code::of_status(status), detail);
        Self { status, ..problem }
    }

    /// A problem without further members.
    pub(super) fn of(code: Code, detail: impl Into<String>) -> Self {
        let (status, detail) = (code.status(), detail.into());
        Self { status, code, detail, retry_after: None, members: Map::new() }
    }

    /// The service cannot do it now; the client shall come back.
    pub(super) fn unavailable(detail: impl Into<String>) -> Self {
        let problem = Self::of(Code::Unavailable, detail);
        Self { retry_after: Some(RETRY_AFTER_SECONDS), ..problem }
    }

    /// The client shall come back `after` its share of requests is worked off.
    pub(super) fn too_many(caller: &str, per_second: NonZeroU32, after: Duration) -> Self {
        let detail = format!("{caller} may make {per_second} requests a second");
        let problem = Self::of(Code::TooManyRequests, detail);
        Self { retry_after: Some(after.as_secs() + 1), ..problem }
    }

    /// A part of the body is wrong.
    pub(super) fn at(code: Code, fault: Fault) -> Self {
        let Fault { pointer, reason } = fault;
        let errors = json!([{ "pointer": pointer, "detail": reason }]);
        Self::of(code, reason).with("errors", errors)
    }

    /// The same, with when the client shall come back.
    #[must_use]
    pub(super) fn retry_after_seconds(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Adds an extension member.
    #[must_use]
    pub(super) fn with(mut self, name: &str, value: Value) -> Self {
        self.members.insert(name.to_owned(), value);
        self
    }

    /// The same of a part of the body that is itself at `place`, a JSON pointer.
    #[must_use]
    pub(super) fn within(mut self, place: &str) -> Self {
        let errors = self.members.get_mut("errors").and_then(Value::as_array_mut);
        for error in errors.into_iter().flatten() {
            let pointer = error["pointer"].as_str().unwrap_or_default();
            error["pointer"] = json!(format!("{place}{pointer}"));
        }
        self
    }

    /// The same, with another hint than its code's.
    #[must_use]
    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        self.with("hint", Value::String(hint.into()))
    }

    /// The body; `request` is what the request is called in logs.
    fn body(self, request: Option<&str>) -> String {
        let mut body = self.members;
        body.insert("type".to_owned(), json!(self.code.page()));
        body.insert("title".to_owned(), json!(self.code.title()));
        body.insert("status".to_owned(), json!(self.status.as_u16()));
        body.insert("code".to_owned(), json!(self.code.word()));
        body.insert("detail".to_owned(), json!(self.detail));
        if let Some(hint) = self.code.hint() {
            let _given = body.entry("hint").or_insert(json!(hint));
        }
        body.extend(request.map(|id| ("requestId".to_owned(), json!(id))));
        Value::from(body).to_string()
    }
}

impl Fault {
    /// What is wrong with `field`, which is directly in the body.
    pub(super) fn of(field: &str, reason: impl Into<String>) -> Self {
        Self { pointer: format!("/{field}"), reason: reason.into() }
    }
}

/// The owner's reading says `schedule.cron is …`, and that is `/schedule/cron`.
impl From<Refusal> for Fault {
    fn from(Refusal { field, reason }: Refusal) -> Self {
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
impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        // All that can be wrong with a payload is its size.
        let code = match fault.pointer.as_str() {
            "/payload" => Code::PayloadTooLarge,
            _ => Code::Contradiction,
        };
        Self::at(code, fault)
    }
}

/// A body has not the right form.
impl From<Misread> for Problem {
    fn from(Misread(fault): Misread) -> Self {
        Self::at(Code::InvalidBody, fault)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Fault::from(refusal).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, retry_after) = (self.status, self.retry_after);
        let mut response = (status, self.clone().body(None)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            // What is left of the body is not read: the connection is of no more use.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"orloj\""));
        }
        // Whoever knows what the request is called writes the body again.
        response.extensions_mut().insert(self);
        response
    }
}

/// Says in a problem's body which request it answers.
pub(super) fn name_request(response: &mut Response, request: &str) {
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        *response.body_mut() = Body::from(problem.body(Some(request)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_a_code_a_page_and_the_request() {
        let problem = Problem::of(Code::NotPending, "tea has fired").with("fired", json!(7));
        let body: Value = serde_json::from_str(&problem.body(Some("r-1"))).unwrap();
        assert_eq!(body["type"], "/problems/not-pending");
        assert_eq!((&body["status"], &body["code"]), (&json!(409), &json!("not-pending")));
        assert_eq!((&body["requestId"], &body["fired"]), (&json!("r-1"), &json!(7)));
        assert_eq!(body["detail"], "tea has fired");
    }

    #[test]
    fn a_status_alone_has_a_code_and_stays_what_it_is() {
        let problem = Problem::new(StatusCode::BAD_GATEWAY, "x");
        assert_eq!((problem.status, problem.code), (StatusCode::BAD_GATEWAY, Code::Internal));
        let problem = Problem::new(StatusCode::FORBIDDEN, "x");
        assert_eq!(problem.code, Code::Forbidden);
    }

    #[test]
    fn what_the_owner_says_of_a_part_points_to_it() {
        let pointer =
            |field, reason: &str| Fault::from(Refusal { field, reason: reason.to_owned() }).pointer;
        assert_eq!(pointer("schedule", "schedule.cron is \"x\": y"), "/schedule/cron");
        assert_eq!(pointer("schedule", "schedule.monthly.on is 32"), "/schedule/monthly/on");
        assert_eq!(pointer("retain", "retain is \"2y\": z"), "/retain");
        assert_eq!(pointer("topic", "topic.of.mine is not yours"), "/topic/of/mine");
        assert_eq!(pointer("body", "not JSON"), "");
        assert_eq!(pointer("batch", "a is in it twice"), "");
    }

    #[test]
    fn a_part_of_a_batch_is_named_from_its_beginning() {
        let fault = Fault::of("schedule", "x");
        let problem = Problem::at(Code::Contradiction, fault).within("/triggers/7");
        assert_eq!(problem.members["errors"][0]["pointer"], "/triggers/7/schedule");
    }

    #[test]
    fn what_is_misread_has_another_code_than_what_cannot_be() {
        for (problem, code) in [
            (Problem::from(Misread(Fault::of("payload", "x"))), Code::InvalidBody),
            (Problem::from(Fault::of("schedule", "x")), Code::Contradiction),
            (Problem::from(Fault::of("payload", "x")), Code::PayloadTooLarge),
        ] {
            assert_eq!((problem.code, problem.status), (code, code.status()));
        }
    }

    #[test]
    fn a_hint_of_its_own_stands_before_the_codes() {
        let hint = |problem: Problem| {
            let body: Value = serde_json::from_str(&problem.body(None)).unwrap();
            body["hint"].clone()
        };
        assert_eq!(hint(Problem::of(Code::NotReplayable, "x")), "archive it");
        assert_eq!(hint(Problem::of(Code::NotReplayable, "x").hint("leave it")), "leave it");
    }

    #[test]
    fn an_answer_says_what_to_do_about_it() {
        let four = NonZeroU32::new(4).unwrap();
        let too_many = Problem::too_many("billing", four, Duration::from_millis(1_250));
        for (problem, header, value) in [
            (too_many, RETRY_AFTER, "2"),
            (Problem::unavailable("x"), RETRY_AFTER, "5"),
            (Problem::of(Code::Conflict, "x").retry_after_seconds(1), RETRY_AFTER, "1"),
            (Problem::of(Code::Unauthenticated, "x"), WWW_AUTHENTICATE, "Bearer realm=\"orloj\""),
            (Problem::from(Fault::of("payload", "x")), CONNECTION, "close"),
        ] {
            let response = problem.into_response();
            assert_eq!(response.headers()[&header], value, "{header}");
        }
    }
}
