//! A caller: what it may do, how much it may use, and what signs its callbacks.
//!
//! Invariant: every limit has a value, from the file or from the settings, except those for which
//! the worker has a setting of its own.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use lettre::Address;
use reqwest::Url;
use serde::Deserialize;

use super::secret::SigningSecret;
use crate::config::ByteSize;
use crate::model::pattern;

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
