//! Filters, pages, and whose triggers may be seen.
//!
//! Invariant: a page token contains the hash of its query and is refused by every other query, so
//! that no caller continues a list that it may not start.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use xxhash_rust::xxh3::xxh3_64;

use super::results::{LetterState, Status};
use crate::model::Timestamp;

/// Items of a page at most.
pub const PAGE_MAX: u32 = 1_000;
/// Items of a page by default.
pub const PAGE_DEFAULT: u32 = 50;

/// Whose triggers may be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everyone's.
    All,
    /// This caller's.
    Caller(String),
}

/// Which part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Items at most; clamped to 1 to [`PAGE_MAX`].
    pub size: u32,
    /// Where the last page ended.
    pub token: Option<PageToken>,
}

impl Default for Page {
    fn default() -> Self {
        Self { size: PAGE_DEFAULT, token: None }
    }
}

impl Page {
    pub(super) fn len(&self) -> usize {
        self.size.clamp(1, PAGE_MAX) as usize
    }
}

/// A part of a list, and how it continues. A short page with a token is not the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// The items.
    pub items: Vec<T>,
    /// The token of the next page; `None` at the end.
    pub next: Option<PageToken>,
}

/// Conditions on triggers that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TriggerFilter {
    /// One of these; any, if there are none.
    pub statuses: Vec<Status>,
    /// Of this caller.
    pub caller: Option<String>,
    /// To this host (without a port) or topic.
    pub target: Option<String>,
    /// Due then or later, in ms since the epoch.
    pub from: Option<Timestamp>,
    /// Due before, in ms since the epoch.
    pub until: Option<Timestamp>,
    /// All of these labels.
    pub labels: Vec<(String, String)>,
    /// All of these words in id, name, labels or target.
    pub text: Option<String>,
}

/// Conditions on dead letters that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// One of these; any, if there are none.
    pub states: Vec<LetterState>,
    /// Of this caller.
    pub caller: Option<String>,
    /// To this host.
    pub host: Option<String>,
    /// Of this trigger.
    pub trigger: Option<String>,
    /// Whose reason contains this text, case-insensitive.
    pub reason: Option<String>,
    /// Given up then or later, in ms since the epoch.
    pub since: Option<Timestamp>,
    /// Given up before, in ms since the epoch.
    pub until: Option<Timestamp>,
}

/// Where a page ended: opaque to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageToken {
    query: u64,
    /// The sort key of the last item that was read.
    major: i64,
    /// The tie-breaker of items with an equal sort key.
    minor: i64,
}

/// The token is not one of this query: start at the first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a page token of this query; omit it to start from the first page")]
pub struct InvalidPageToken;

impl PageToken {
    pub(super) fn new(query: u64, (major, minor): (i64, i64)) -> Self {
        Self { query, major, minor }
    }

    /// Where the list continues, if the token is of this query.
    pub(super) fn position(&self, query: u64) -> Result<(i64, i64), InvalidPageToken> {
        if self.query == query { Ok((self.major, self.minor)) } else { Err(InvalidPageToken) }
    }
}

/// A hash that differs between queries.
pub(super) fn query_hash(query: &impl fmt::Debug) -> u64 {
    xxh3_64(format!("{query:?}").as_bytes())
}

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.query.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.major.to_be_bytes());
        bytes.extend_from_slice(&self.minor.to_be_bytes());
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_be_bytes());
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for PageToken {
    type Err = InvalidPageToken;

    fn from_str(text: &str) -> Result<Self, InvalidPageToken> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidPageToken)?;
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(InvalidPageToken)?;
        let ([query, major, minor], []) = body.as_chunks::<8>() else {
            return Err(InvalidPageToken);
        };
        if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
            return Err(InvalidPageToken);
        }
        let (major, minor) = (i64::from_be_bytes(*major), i64::from_be_bytes(*minor));
        Ok(Self { query: u64::from_be_bytes(*query), major, minor })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn page_tokens_survive_a_round_trip(query: u64, major: i64, minor: i64, text: String) {
            let token = PageToken::new(query, (major, minor));
            prop_assert_eq!(token.to_string().parse(), Ok(token));
            prop_assert_eq!(text.parse::<PageToken>(), Err(InvalidPageToken));
        }
    }

    #[test]
    fn a_page_token_is_valid_for_its_own_query_only() {
        let mine = query_hash(&(Scope::Caller("a".to_owned()), TriggerFilter::default()));
        let others = query_hash(&(Scope::All, TriggerFilter::default()));
        let token = PageToken::new(mine, (3, 4));
        assert_eq!(token.position(mine), Ok((3, 4)));
        assert_eq!(token.position(others), Err(InvalidPageToken));
        let mut changed = token.to_string();
        changed.replace_range(0..1, if changed.starts_with('A') { "B" } else { "A" });
        assert_eq!(changed.parse::<PageToken>(), Err(InvalidPageToken));
    }
}
