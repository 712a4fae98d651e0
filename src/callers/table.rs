//! All callers, found by id, by API key and by issuer.
//!
//! Invariant: a table never changes, and every record has a caller in it, if only the anonymous
//! one.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::Digest;

use super::caller::Caller;
use super::issuer::Issuer;
use super::key::KeyHash;

/// All callers of one reading of the file.
pub struct CallerTable {
    pub(super) by_id: HashMap<String, Arc<Caller>>,
    pub(super) by_key: Vec<(KeyHash, Arc<Caller>)>,
    pub(super) issuers: Vec<Arc<Issuer>>,
    pub(super) anonymous: Arc<Caller>,
    pub(super) is_open: bool,
    /// Of everything that was read, secrets included.
    pub(super) version: Digest,
}

impl CallerTable {
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

    /// All callers; the anonymous one may be there twice.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Caller>> {
        self.by_id.values().chain([&self.anonymous])
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
