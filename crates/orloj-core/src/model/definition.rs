//! What a trigger does when it is due: the part of a registration that stays the same over all
//! its occurrences and attempts. It travels in rows, fires, signals and the ledger.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::Millis;
use super::avro_long;
use super::limits::POOL_BYTES_MAX;
use super::retry::RetryPolicy;
use super::text::Text;

/// Target, payload and policies of a trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Where the fire goes.
    pub target: Target,
    /// Delivered verbatim to a topic, as the body's `payload` to a callback. `None` is a null
    /// value: a tombstone on a compacted target topic.
    pub payload: Option<Bytes>,
    /// Carried to the target unchanged, in order (tracing context, content type, …).
    pub headers: Vec<Header>,
    /// The trigger's own retry policy, never [empty](RetryPolicy::is_empty); `None` means the
    /// worker's, as nearly always.
    pub retry: Option<Box<RetryPolicy>>,
    /// The caller that registered it, from the `orloj-caller` header.
    pub caller: Option<Text>,
}

impl Definition {
    /// The bytes of its payload and headers.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, Bytes::len) + Header::bytes_of(&self.headers)
    }
}

/// A header carried to the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The name.
    pub name: Text,
    /// The value; `None` is Kafka's null.
    pub value: Option<Bytes>,
}

impl Header {
    /// The bytes of the names and values of headers.
    #[must_use]
    pub fn bytes_of(headers: &[Self]) -> usize {
        let bytes = |it: &Self| it.name.bytes().len() + it.value.as_ref().map_or(0, Bytes::len);
        headers.iter().map(bytes).sum()
    }
}

/// Where a fire goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    /// A topic of the user's, written in the owner's transaction.
    Topic(TopicTarget),
    /// An HTTP callback, made by a worker that reads the fire.
    Http(Box<HttpTarget>),
}

impl Target {
    /// Whether a worker delivers it, so that a delivery can be in flight after the fire.
    #[must_use]
    pub fn is_http(&self) -> bool {
        matches!(self, Self::Http(_))
    }
}

/// A topic and the key of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicTarget {
    /// The topic's name.
    pub topic: Text,
    /// The record's key; `None` means the trigger id, so that order per trigger holds.
    pub key: Option<Bytes>,
}

/// A callback: which request to make, and which pool makes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpTarget {
    /// An absolute `http` or `https` URL.
    pub url: Text,
    /// The method; `POST` unless the trigger says otherwise.
    pub method: Text,
    /// The pool whose workers make it; `None` is the default one.
    pub pool: Option<Text>,
    /// How long an attempt may take, in ms; `None` is the worker's default, and its maximum holds.
    #[serde(default, rename = "timeoutMs", with = "avro_long::option")]
    pub timeout: Option<Millis>,
}

/// A callback is on the heap: most triggers fire into topics, and each is moved a few times.
impl From<HttpTarget> for Target {
    fn from(target: HttpTarget) -> Self {
        Self::Http(Box::new(target))
    }
}

impl HttpTarget {
    /// A POST to `url`, and the worker's defaults for everything else.
    #[must_use]
    pub fn post(url: &str) -> Self {
        Self { url: url.into(), method: "POST".into(), pool: None, timeout: None }
    }
}

/// Whether `name` can be a pool's: letters, digits, underscores and dashes.
#[must_use]
pub fn is_pool_name(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    (1..=POOL_BYTES_MAX).contains(&name.len()) && name.bytes().all(legal)
}
