//! Whose triggers a caller may see and change.
//!
//! Invariant: only its own, unless it is an operator.

use crate::callers::{Caller, CallerRole};
pub use crate::view::Scope;

/// The scope of a caller. Without a file of callers it is all triggers.
#[must_use]
pub fn scope_of(caller: &Caller) -> Scope {
    match caller.role {
        Some(CallerRole::Operator) => Scope::All,
        Some(CallerRole::Caller | CallerRole::ReadOnly) | None => Scope::Caller(caller.id.clone()),
    }
}
