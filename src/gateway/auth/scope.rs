//! Whose triggers a caller may see and change.
//!
//! Invariant: its own and nobody else's, unless it is an operator.

use crate::config::callers::{Caller, CallerRole};
pub use crate::view::Scope;

/// The scope of whoever was found to ask. Without a file of callers that is everyone.
#[must_use]
pub fn scope_of(caller: &Caller) -> Scope {
    match caller.role {
        Some(CallerRole::Operator) => Scope::All,
        Some(CallerRole::Caller | CallerRole::ReadOnly) | None => Scope::Caller(caller.id.clone()),
    }
}
