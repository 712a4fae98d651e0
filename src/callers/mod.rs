//! The callers: which clients register triggers, what each may do, and what signs its callbacks.
//!
//! Invariant: a table is read completely or refused. A secret is only in memory: no error, no log
//! line and no `Debug` shows one, and an API key is known by its hash only.
//!
//! ```text
//!  callers.toml ──► file (strict) ──► CallerTable ◄── by_key, issuer ── gateway: whose request?
//!     └─ file: env: ──► secret ─────────┘  ◄──── by_id ─── worker: whose fire is this?
//! ```

mod caller;
mod file;
mod issuer;
mod key;
mod secret;
mod table;
mod watch;

pub mod signature;

pub use caller::{ANONYMOUS, Caller, CallerLimits, CallerRole, NotifyPolicy};
pub use issuer::Issuer;
pub use key::{KeyHash, new_key};
pub use secret::{NewSecret, SigningKey, SigningSecret};
pub use table::CallerTable;
pub use watch::Callers;

#[cfg(test)]
mod tests;
