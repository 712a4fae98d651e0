//! The callers: who registers triggers, what each may do, and what signs their callbacks.
//!
//! Invariant: a table is read whole or refused whole. A secret is in memory alone: no error, no log
//! line and no `Debug` shows one, and an API key is known by its hash only.
//!
//! ```text
//!  callers.toml ──► file (strict) ──► CallerTable ◄── by_key, issuer ── gateway: who asks?
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

/// The id of whoever is nobody else: a record without `orloj-caller`, or with one that the file
/// does not have.
pub const ANONYMOUS: &str = "anonymous";

/// One who registers triggers.
#[derive(Clone, Debug)]
pub struct Caller {
    /// What records call it in `orloj-caller`.
    pub id: String,
    /// What its keys and tokens allow; `None` for one whom neither can name.
    pub role: Option<CallerRole>,
    /// Base URLs under which its callbacks must lie; `None` for any.
    pub urls: Option<Vec<Url>>,
    /// Patterns of topics that its triggers may fire into; `None` for whatever `targets.allow` has.
    pub topics: Option<Vec<String>>,
    /// What signs its callbacks, in the order of the file; with none they are not signed.
    pub secrets: Arc<[SigningSecret]>,
    /// How much it may use.
    pub limits: CallerLimits,
    /// Whom to tell of its failures.
    pub notify: NotifyPolicy,
}

/// What a key or a token allows; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallerRole {
    /// Looking at what is its own.
    ReadOnly,
    /// Registering, cancelling and commanding, too.
    Caller,
    /// All of that to what is anybody's.
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
    /// Callbacks under way at once in a worker; `None` for what the worker's settings say.
    pub concurrent: Option<NonZeroUsize>,
    /// Callbacks that wait in a worker; `None` for what the worker's settings say.
    pub waiting: Option<NonZeroUsize>,
    /// Callbacks begun in a second by a worker, 0 for as many as there are; `None` for what the
    /// worker's settings say.
    pub dispatch_rate_max: Option<u32>,
    /// Pending triggers.
    pub pending: NonZeroU64,
    /// Requests to a gateway in a second.
    pub requests_per_second: NonZeroU32,
    /// Largest payload over HTTP, in bytes.
    pub payload: ByteSize,
}

/// Whom to tell of failures. Neither address nor URL: nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyPolicy {
    /// Addresses of mail.
    pub email: Vec<Address>,
    /// Where a message is posted.
    pub webhook: Option<Url>,
    /// Between two messages, at least.
    pub interval: Duration,
}

/// Everyone who is known, as one reading of the file has them.
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
    /// Whether it is whoever is nobody else.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.id == ANONYMOUS
    }

    /// Whether its triggers may fire into `topic`, as far as this is the caller's own affair.
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

    /// Whether there is no file: then nobody needs a key.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whose record it is; the anonymous caller's, if it names none or one that is not known.
    #[must_use]
    pub fn by_id(&self, id: Option<&str>) -> &Arc<Caller> {
        id.and_then(|id| self.by_id.get(id)).unwrap_or(&self.anonymous)
    }

    /// Whose API key this is. It takes as long for a wrong key as for any right one.
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

    /// Who is called so, the anonymous caller not counted.
    #[must_use]
    pub fn registered(&self, id: &str) -> Option<&Arc<Caller>> {
        self.by_id.get(id).filter(|caller| !caller.is_anonymous())
    }

    /// All whose tokens are believed.
    #[must_use]
    pub fn issuers(&self) -> &[Arc<Issuer>] {
        &self.issuers
    }

    /// The one of whom `iss` of a token speaks.
    #[must_use]
    pub fn issuer(&self, iss: &str) -> Option<&Arc<Issuer>> {
        self.issuers.iter().find(|issuer| issuer.issuer == iss)
    }

    /// How many there are, the anonymous one not counted.
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
