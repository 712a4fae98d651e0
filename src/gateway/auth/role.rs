//! What a route asks of whoever uses it: an extractor a role.
//!
//! Invariant: a handler that takes none of these is open to everybody. The caller that it gets has
//! the role that the request showed, which a token may have made less than the caller's own.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;

use super::{AuthError, Authenticator};
use crate::config::callers::{Caller, CallerRole};

/// Who may look: every caller, at what is its own.
#[derive(Debug)]
pub struct Viewer(pub Arc<Caller>);

/// Who may register, cancel and command: every caller but those that only look.
#[derive(Debug)]
pub struct Registrant(pub Arc<Caller>);

/// Who may do what concerns everybody.
#[derive(Debug)]
pub struct Operator(pub Arc<Caller>);

impl<S: Send + Sync> FromRequestParts<S> for Viewer
where
    Authenticator: FromRef<S>,
{
    type Rejection = AuthError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AuthError> {
        caller_with_role(CallerRole::ReadOnly, parts, state).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Registrant
where
    Authenticator: FromRef<S>,
{
    type Rejection = AuthError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AuthError> {
        caller_with_role(CallerRole::Caller, parts, state).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Operator
where
    Authenticator: FromRef<S>,
{
    type Rejection = AuthError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, AuthError> {
        caller_with_role(CallerRole::Operator, parts, state).await.map(Self)
    }
}

/// Who asks, if its role is that or one above.
async fn caller_with_role<S>(
    needed: CallerRole,
    parts: &mut Parts,
    state: &S,
) -> Result<Arc<Caller>, AuthError>
where
    Authenticator: FromRef<S>,
{
    let caller = Authenticator::from_ref(state).identify(parts).await?;
    if caller.role >= Some(needed) {
        return Ok(caller);
    }
    let has = caller.role.map_or("has no role", |role| match role {
        CallerRole::ReadOnly => "may only look",
        CallerRole::Caller | CallerRole::Operator => "may do that only with what is its own",
    });
    Err(AuthError::Forbidden(format!(
        "{} {has}; this needs the role {}",
        caller.id,
        needed.as_str()
    )))
}
