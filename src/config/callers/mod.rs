//! The callers: which clients register triggers, what each may do, and what signs its callbacks.
//!
//! Invariant: a table is read completely or refused. A secret is only in memory: no error, no log
//! line and no `Debug` shows one, and an API key is known by its hash only.
//!
//! ```text
//!  callers.toml ──► file (strict) ──► CallerTable ◄── by_key, issuer ── gateway: whose request?
//!     └─ file: env: ──► secret ─────────┘  ◄──── by_id ─── worker: whose fire is this?
//! ```

mod file;

pub mod issuer;
pub mod key;
pub mod secret;

use std::collections::HashMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::Digest;
use lettre::Address;
use reqwest::Url;
use serde::Deserialize;

use super::{ByteSize, ConfigError, Settings};
use crate::model::pattern;
use issuer::Issuer;
use key::KeyHash;
use secret::SigningSecret;

/// The id of the caller of records without `orloj-caller`, or with one that the file does not
/// have.
pub const ANONYMOUS: &str = "anonymous";

/// A client that registers triggers.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The value of `orloj-caller` in its records.
    pub id: String,
    /// What its keys and tokens allow; `None` for a caller that has neither.
    pub role: Option<CallerRole>,
    /// Base URLs under which its callbacks must lie; `None` for any.
    pub urls: Option<Vec<Url>>,
    /// Patterns of topics that its triggers may fire into; `None` for all of `targets.allow`.
    pub topics: Option<Vec<String>>,
    /// What signs its callbacks, in the order of the file; with none they are not signed.
    pub secrets: Arc<[SigningSecret]>,
    /// How much it may use.
    pub limits: CallerLimits,
    /// Who is notified of its failures.
    pub notify: NotifyPolicy,
}

/// What a key or a token allows; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallerRole {
    /// Reading its own triggers.
    ReadOnly,
    /// Also registering, cancelling and commanding them.
    Caller,
    /// All of that for the triggers of every caller.
    Operator,
}

impl CallerRole {
    /// As the file and tokens write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Caller => "caller",
            Self::Operator => "operator",
        }
    }

    /// The role of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::ReadOnly, Self::Caller, Self::Operator].into_iter().find(|r| r.as_str() == name)
    }
}

/// How much a caller may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerLimits {
    /// Callbacks in flight at once in a worker; `None` for what the worker's settings say.
    pub concurrent: Option<NonZeroUsize>,
    /// Fires queued in a worker; `None` for what the worker's settings say.
    pub waiting: Option<NonZeroUsize>,
    /// Callbacks started per second by a worker, 0 for no limit; `None` for what the worker's
    /// settings say.
    pub dispatch_rate_max: Option<u32>,
    /// Pending triggers.
    pub pending: NonZeroU64,
    /// Requests per second to a gateway.
    pub requests_per_second: NonZeroU32,
    /// Largest payload over HTTP, in bytes.
    pub payload: ByteSize,
}

/// Who is notified of failures: without address and URL there is no notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyPolicy {
    /// Addresses of mail.
    pub email: Vec<Address>,
    /// Where a message is posted.
    pub webhook: Option<Url>,
    /// Minimum time between two messages.
    pub interval: Duration,
}

/// All callers of one reading of the file.
pub struct CallerTable {
    by_id: HashMap<String, Arc<Caller>>,
    by_key: Vec<(KeyHash, Arc<Caller>)>,
    issuers: Vec<Arc<Issuer>>,
    anonymous: Arc<Caller>,
    is_open: bool,
    /// Of everything that was read, secrets included.
    version: Digest,
}

impl Caller {
    /// Whether it is the caller of records that name no known caller.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.id == ANONYMOUS
    }

    /// Whether the caller's own patterns allow its triggers to fire into `topic`.
    #[must_use]
    pub fn may_fire_into(&self, topic: &str) -> bool {
        let allows = |patterns: &Vec<String>| patterns.iter().any(|p| pattern::matches(p, topic));
        self.topics.as_ref().is_none_or(allows)
    }
}

impl CallerTable {
    /// Reads the file that the settings name, and the secrets that it refers to.
    pub fn read(settings: &Settings) -> Result<Self, ConfigError> {
        if settings.callers.file.as_os_str().is_empty() {
            return Ok(file::open_table(settings));
        }
        let variable = |name: &str| std::env::var(name).ok();
        file::read(settings, &variable)
    }

    /// Whether there is no file: then no request needs a key.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The caller of that id; the anonymous caller for no id or an unknown one.
    #[must_use]
    pub fn by_id(&self, id: Option<&str>) -> &Arc<Caller> {
        id.and_then(|id| self.by_id.get(id)).unwrap_or(&self.anonymous)
    }

    /// The caller of an API key. The time taken does not depend on whether the key is known.
    #[must_use]
    pub fn by_key(&self, key: &str) -> Option<&Arc<Caller>> {
        let presented = KeyHash::of(key);
        let mut found = None;
        for (hash, caller) in &self.by_key {
            if hash.matches(&presented) {
                found = Some(caller);
            }
        }
        found
    }

    /// The caller of that id, except the anonymous one.
    #[must_use]
    pub fn registered(&self, id: &str) -> Option<&Arc<Caller>> {
        self.by_id.get(id).filter(|caller| !caller.is_anonymous())
    }

    /// All issuers whose tokens are accepted.
    #[must_use]
    pub fn issuers(&self) -> &[Arc<Issuer>] {
        &self.issuers
    }

    /// The issuer that the claim `iss` of a token names.
    #[must_use]
    pub fn issuer(&self, iss: &str) -> Option<&Arc<Issuer>> {
        self.issuers.iter().find(|issuer| issuer.issuer == iss)
    }

    /// How many callers there are, without the anonymous one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_id.values().filter(|caller| !caller.is_anonymous()).count()
    }

    /// Whether both were read from the same bytes.
    #[must_use]
    pub fn has_same_version(&self, other: &Self) -> bool {
        self.version.as_ref() == other.version.as_ref()
    }
}

impl fmt::Debug for CallerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_id.keys()).finish()
    }
}

#[cfg(test)]
mod tests;
