//! The role that a route requires: one extractor per role.
//!
//! Invariant: a handler without one of these is open to every client. The caller has the role of
//! the credential, which a token may have reduced.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;

use super::{AuthError, Authenticator};
use crate::callers::{Caller, CallerRole};

/// A caller that may read: every caller, its own triggers.
#[derive(Debug)]
pub struct Viewer(pub Arc<Caller>);

/// A caller that may register, cancel and command: every role except read-only.
#[derive(Debug)]
pub struct Registrant(pub Arc<Caller>);

/// A caller that may act on the triggers of every caller.
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

/// The caller, if it has this role or a higher one.
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
