//! What a route asks of whoever uses it: an extractor a role.
//!
//! Law: a handler that takes none of these is open to everybody. The caller that it gets has the
//! role that the request showed, which a token may have made less than the caller's own.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;

use super::{Denied, Identity};
use crate::config::callers::{Caller, Role};

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
    Identity: FromRef<S>,
{
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Denied> {
        in_role(Role::ReadOnly, parts, state).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Registrant
where
    Identity: FromRef<S>,
{
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Denied> {
        in_role(Role::Caller, parts, state).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Operator
where
    Identity: FromRef<S>,
{
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Denied> {
        in_role(Role::Operator, parts, state).await.map(Self)
    }
}

/// Who asks, if its role is that or one above.
async fn in_role<S>(needed: Role, parts: &mut Parts, state: &S) -> Result<Arc<Caller>, Denied>
where
    Identity: FromRef<S>,
{
    let caller = Identity::from_ref(state).identify(parts).await?;
    if caller.role >= Some(needed) {
        return Ok(caller);
    }
    let has = caller.role.map_or("has no role", |role| match role {
        Role::ReadOnly => "may only look",
        Role::Caller | Role::Operator => "may do that only with what is its own",
    });
    Err(Denied::Forbidden(format!("{} {has}; this needs the role {}", caller.id, needed.as_str())))
}
