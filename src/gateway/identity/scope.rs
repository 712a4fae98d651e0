//! Whose triggers a caller may see and change.
//!
//! Law: its own and nobody else's, unless it is an operator.

use crate::config::callers::{Caller, Role};
pub use crate::view::Scope;

/// The scope of whoever was found to ask. Without a file of callers that is everyone.
#[must_use]
pub fn scope_of(caller: &Caller) -> Scope {
    match caller.role {
        Some(Role::Operator) => Scope::All,
        Some(Role::Caller | Role::ReadOnly) | None => Scope::Caller(caller.id.clone()),
    }
}
