//! The responses to requests that fail authentication, authorisation or a rate limit.
//!
//! Invariant: it says what is wrong and what to do, and repeats nothing of a credential. A request
//! without a credential is asked for one; a wrong credential is described as RFC 6750 requires.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::gateway::http::Problem;

/// How to send a credential.
const CREDENTIAL_HINT: &str = "send your API key as `Authorization: Bearer KEY` or \
                               `X-Api-Key: KEY`, or a token as `Authorization: Bearer TOKEN`";

/// Why a request is refused.
#[derive(Debug)]
pub enum AuthError {
    /// 401: send a key or a token.
    NoCredential,
    /// 401: send another one, because no caller has it.
    InvalidCredential(Cow<'static, str>),
    /// 403: the caller is known and may not do this.
    Forbidden(String),
    /// 503: try again when the keys of the token's issuer may be read again.
    KeysUnavailable(Duration),
    /// 429: too many unknown keys were sent from this address; try again after that time.
    TooManyFailures(Duration),
    /// 429: the caller has sent too many requests.
    RateLimited {
        /// Whose limit is exceeded.
        caller: String,
        /// Its limit, in requests per second.
        per_second: NonZeroU32,
        /// After which time a request is allowed.
        retry_after: Duration,
    },
}

impl IntoResponse for AuthError {
    fn into_response(self) -> Response {
        match self {
            Self::NoCredential => {
                Problem::new(StatusCode::UNAUTHORIZED, CREDENTIAL_HINT).into_response()
            }
            Self::InvalidCredential(reason) => {
                let problem = Problem::new(StatusCode::UNAUTHORIZED, reason.clone());
                with_header(problem, WWW_AUTHENTICATE.as_str(), challenge(&reason))
            }
            Self::Forbidden(reason) => Problem::new(StatusCode::FORBIDDEN, reason).into_response(),
            Self::KeysUnavailable(wait) => {
                let detail = "the keys of the token's issuer cannot be read; the log says why";
                let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
                with_header(problem, RETRY_AFTER.as_str(), seconds(wait))
            }
            Self::TooManyFailures(wait) => {
                let detail = "too many unknown keys were sent from your address";
                let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
                with_header(problem, RETRY_AFTER.as_str(), seconds(wait))
            }
            Self::RateLimited { caller, per_second, retry_after } => {
                Problem::rate_limited(&caller, per_second, retry_after).into_response()
            }
        }
    }
}

fn with_header(problem: Problem, name: &'static str, value: HeaderValue) -> Response {
    let mut response = problem.into_response();
    let _before = response.headers_mut().insert(name, value);
    response
}

/// Whole seconds, rounded up.
fn seconds(wait: Duration) -> HeaderValue {
    HeaderValue::from(wait.as_secs() + 1)
}

/// RFC 6750 has no quotes and no backslashes in a description, and nothing beyond ASCII.
fn challenge(reason: &str) -> HeaderValue {
    let is_legal = |c: &char| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
    let reason: String = reason.chars().filter(is_legal).collect();
    let text =
        format!(r#"Bearer realm="orloj", error="invalid_token", error_description="{reason}""#);
    HeaderValue::from_str(&text).expect("what is visible in ASCII is legal in a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_of(denied: AuthError) -> (u16, Option<String>, Option<String>) {
        let response = denied.into_response();
        let text = |name| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        (response.status().as_u16(), text(WWW_AUTHENTICATE), text(RETRY_AFTER))
    }

    #[test]
    fn every_auth_error_says_what_to_do() {
        let bare = "Bearer realm=\"orloj\"".to_owned();
        assert_eq!(response_of(AuthError::NoCredential), (401, Some(bare.clone()), None));
        let described = "error=\"invalid_token\", error_description=\"it lacks `exp`, or so\"";
        let invalid = AuthError::InvalidCredential("it \"lacks\\ `exp`,\n or so\u{e9}".into());
        assert_eq!(response_of(invalid), (401, Some(format!("{bare}, {described}")), None));
        assert_eq!(response_of(AuthError::Forbidden("no".to_owned())), (403, None, None));
        let wait = Duration::from_millis(2_500);
        assert_eq!(
            response_of(AuthError::KeysUnavailable(wait)),
            (503, None, Some("3".to_owned()))
        );
        assert_eq!(
            response_of(AuthError::TooManyFailures(wait)),
            (429, None, Some("3".to_owned()))
        );
    }
}
