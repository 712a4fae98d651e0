//! Who asks: the API key of a request, and what it allows.
//!
//! Law: with callers configured nothing of a request is read before its key is known, and what a
//! request says of its caller by other means counts for nothing.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};

use super::api::Api;
use super::problem::Problem;
use crate::clock;
use crate::config::callers::{Caller, Role};

/// The other header that may hold a key.
const API_KEY: &str = "x-api-key";

/// Who may register and cancel. Without callers it is everyone.
#[derive(Debug)]
pub(super) struct Registrant(pub(super) Arc<Caller>);

/// Who may look: every caller, at what is its own.
#[derive(Debug)]
pub(super) struct Viewer(pub(super) Arc<Caller>);

/// Who may do what concerns everybody.
#[derive(Debug)]
pub(super) struct Operator(pub(super) Arc<Caller>);

impl FromRequestParts<Arc<Api>> for Viewer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        in_role(Role::ReadOnly, parts, api).map(Self)
    }
}

impl FromRequestParts<Arc<Api>> for Registrant {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        in_role(Role::Caller, parts, api).map(Self)
    }
}

impl FromRequestParts<Arc<Api>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, Problem> {
        in_role(Role::Operator, parts, api).map(Self)
    }
}

/// Who asks, if its role is that or one above.
fn in_role(needed: Role, parts: &mut Parts, api: &Arc<Api>) -> Result<Arc<Caller>, Problem> {
    let callers = api.callers.now();
    if callers.is_open() {
        return Ok(Arc::clone(callers.by_id(None)));
    }
    let Some(key) = presented(&parts.headers) else {
        let way_out = "send your API key as `Authorization: Bearer KEY` or `X-Api-Key: KEY`";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, way_out));
    };
    let Some(caller) = callers.by_key(key) else {
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "nobody has this API key"));
    };
    if caller.role < Some(needed) {
        let detail = format!("the keys of {} do not allow this", caller.id);
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    let per_second = caller.limits.requests_per_second;
    let admitted = api.rates.admit(&caller.id, per_second, clock::monotonic());
    admitted.map_err(|too_early| Problem::too_many(&caller.id, per_second, too_early))?;
    Ok(Arc::clone(caller))
}

fn presented(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get(API_KEY)?.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_in_one_of_two_headers() {
        for (name, value, key) in [
            ("authorization", "Bearer k", Some("k")),
            ("authorization", "bearer  k", Some("k")),
            ("authorization", "Basic k", None),
            ("authorization", "k", None),
            ("x-api-key", "k", Some("k")),
            ("orloj-caller", "k", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(presented(&headers), key, "{name}: {value}");
        }
        assert_eq!(presented(&HeaderMap::new()), None);
    }
}
