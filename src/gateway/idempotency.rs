//! `Idempotency-Key`: a repeated request creates one trigger, and fires it once, whichever gateway
//! serves it and whichever process fails in between
//! (draft-ietf-httpapi-idempotency-key-header-07).
//!
//! Invariant: it does not depend on the gateway's memory. The id of a single trigger is derived
//! from caller and key, its owner keeps the first registration for [`RETENTION_MS`] after it has
//! settled, and that registration has a fingerprint of the first request. The record of a batch or
//! of a `fire-now` has a key derived from caller and key, and the owners of its triggers remember
//! it.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::Value;

use crate::gateway::http::{ErrorCode, Problem};
use crate::model::limits::KEY_RETENTION_MS;
use crate::model::{Millis, Offset, Timestamp};
pub(super) use crate::view::FINGERPRINT_HEADER;

/// The header.
pub(super) const HEADER: &str = "idempotency-key";
/// How long a key is kept after its trigger has settled, in ms.
pub(super) const RETENTION_MS: Millis = KEY_RETENTION_MS;
/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 255;
/// How much of a digest is in an id, in bytes: as much as in a UUID.
const ID_BYTES: usize = 16;

/// A client's key for one of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Reads the header: a string in double quotes as the draft has it, or the bare text that most
    /// clients send, whatever that begins with.
    pub(super) fn read(value: &[u8]) -> Result<Self, &'static str> {
        const EXPECTED: &str = "write 1 to 255 printable ASCII characters, best a UUID, in double \
                               quotes or bare";
        let text = std::str::from_utf8(value).map_err(|_| EXPECTED)?.trim();
        let quoted = text.strip_prefix('"').and_then(unquote).filter(|text| !text.is_empty());
        let text = quoted.unwrap_or_else(|| text.to_owned());
        let is_legal = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if text.is_empty() || text.len() > KEY_BYTES_MAX || !is_legal {
            return Err(EXPECTED);
        }
        Ok(Self(text))
    }

    /// The id of the trigger that requests with this key create, for this caller.
    pub(super) fn trigger_id(&self, caller: &str) -> String {
        self.digest(["orloj trigger of key", caller])
    }

    /// The key of a record that fires this trigger, by which its owner recognises a repetition.
    pub(super) fn fire_now_key(&self, caller: &str, trigger: &str) -> String {
        self.digest(["orloj fire-now of key", caller, trigger])
    }

    /// The key of a batch with this fingerprint: with another body it is another request, because
    /// its triggers have ids of their own.
    pub(super) fn batch_key(&self, caller: &str, fingerprint: &str) -> String {
        self.digest(["orloj batch of key", caller, fingerprint])
    }

    fn digest<const N: usize>(&self, parts: [&str; N]) -> String {
        let mut digest = Context::new(&SHA256);
        for part in parts.into_iter().chain([&*self.0]) {
            // The lengths make different splits of the same bytes different.
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
        format!("key-{}", hex(&digest.finish().as_ref()[..ID_BYTES]))
    }
}

/// The inside of a structured field's string, after its opening quote (RFC 9651, 4.2.5).
fn unquote(text: &str) -> Option<String> {
    let mut inside = String::with_capacity(text.len());
    let mut rest = text.chars();
    loop {
        match rest.next()? {
            '"' => break,
            '\\' => inside.push(rest.next().filter(|c| matches!(c, '"' | '\\'))?),
            c => inside.push(c),
        }
    }
    rest.next().is_none().then_some(inside)
}

/// A digest of a body: the same for bodies that differ only in the order of fields and in white
/// space.
pub(super) fn fingerprint(body: &Value) -> String {
    // The library keeps objects in the order of their keys.
    hex(aws_lc_rs::digest::digest(&SHA256, body.to_string().as_bytes()).as_ref())
}

/// The first request with a key, as the trigger's registration has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OriginalRequest {
    /// Its fingerprint; `None` for a registration without a key.
    pub(super) fingerprint: Option<String>,
    /// The generation that it created.
    pub(super) generation: Offset,
    /// When that was due, in ms since the epoch.
    pub(super) fire_at: Timestamp,
}

impl OriginalRequest {
    /// From the header of the registration of `generation`, first due at `fire_at`.
    pub(super) fn from_header(
        header: Option<&str>,
        generation: Offset,
        fire_at: Timestamp,
    ) -> Self {
        let parsed = header.and_then(|text| {
            let mut parts = text.split(';');
            let fingerprint = parts.next()?.to_owned();
            let (generation, fire_at) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            Some(Self { fingerprint: Some(fingerprint), generation, fire_at })
        });
        parsed.unwrap_or_else(|| Self {
            fingerprint: header.map(str::to_owned),
            generation,
            fire_at,
        })
    }

    /// The header that a change of the trigger must keep; `None` without a key.
    pub(super) fn to_header(&self) -> Option<String> {
        let fingerprint = self.fingerprint.as_ref()?;
        Some(format!("{fingerprint};{};{}", self.generation, self.fire_at))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The requests with a key in progress: the draft wants their repetitions refused.
#[derive(Debug, Default)]
pub(super) struct InFlightRequests(Mutex<HashSet<String>>);

/// A request in progress, until dropped.
#[derive(Debug)]
pub(super) struct InFlightGuard<'a> {
    in_flight: &'a InFlightRequests,
    id: String,
}

impl InFlightRequests {
    /// Starts the request that creates this trigger, or has this key, unless another one is in
    /// progress.
    pub(super) fn begin(&self, id: &str) -> Result<InFlightGuard<'_>, Problem> {
        if self.lock().insert(id.to_owned()) {
            return Ok(InFlightGuard { in_flight: self, id: id.to_owned() });
        }
        let detail = "another request with this Idempotency-Key is being worked on";
        Err(Problem::of(ErrorCode::RequestInFlight, detail).retry_after_seconds(1))
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        let _was_there = self.in_flight.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::limits::REQUEST_BYTES_MAX;

    fn key(text: &str) -> Option<String> {
        IdempotencyKey::read(text.as_bytes()).ok().map(|key| key.0)
    }

    #[test]
    fn a_key_is_a_quoted_string_or_bare_text() {
        let long = "k".repeat(255);
        for (text, read) in [
            ("8e03978e-40d5-43e8-bc93-6894a57f9324", Some("8e03978e-40d5-43e8-bc93-6894a57f9324")),
            (r#""8e03""#, Some("8e03")),
            (r#" "a \"b\" \\c" "#, Some(r#"a "b" \c"#)),
            (&long, Some(&*long)),
            ("", None),
            (r#""""#, Some(r#""""#)),
            (r#""open"#, Some(r#""open"#)),
            (r#""a"b"#, Some(r#""a"b"#)),
            (r#""a\b""#, Some(r#""a\b""#)),
            ("ü", None),
            (&format!("{long}k"), None),
        ] {
            assert_eq!(key(text).as_deref(), read, "{text}");
        }
    }

    #[test]
    fn an_id_follows_from_caller_and_key() {
        let id = |caller: &str, text: &str| {
            IdempotencyKey::read(text.as_bytes()).unwrap().trigger_id(caller)
        };
        assert_eq!(id("billing", "a"), id("billing", r#""a""#));
        assert_ne!(id("billing", "a"), id("billing", "b"));
        assert_ne!(id("billing", "a"), id("shop", "a"));
        assert_ne!(id("ab", "c"), id("a", "bc"));
        assert_eq!(id("billing", "a").len(), 4 + 32);
        let key = IdempotencyKey("a".to_owned());
        let fire_now = key.fire_now_key("billing", "tea");
        assert_ne!(fire_now, key.fire_now_key("billing", "milk"));
        assert_ne!(fire_now, key.batch_key("billing", "tea"));
        assert!(fire_now.len() <= REQUEST_BYTES_MAX, "the owner takes it");
    }

    #[test]
    fn a_fingerprint_ignores_field_order_and_white_space() {
        let read = |text: &str| fingerprint(&serde_json::from_str(text).unwrap());
        assert_eq!(read(r#"{"a": 1, "b": [1, 2]}"#), read(r#"{"b":[1,2],"a":1}"#));
        assert_ne!(fingerprint(&json!({"a": 1})), fingerprint(&json!({"a": 2})));
        assert_ne!(fingerprint(&json!([1, 2])), fingerprint(&json!([2, 1])));
    }

    #[test]
    fn the_original_request_survives_changes() {
        let first = OriginalRequest::from_header(Some("abc"), 7, 1_000);
        assert_eq!((first.generation, first.fire_at), (7, 1_000));
        let carried = first.to_header().unwrap();
        assert_eq!(OriginalRequest::from_header(Some(&carried), 9, 2_000), first, "of the change");
        let again = OriginalRequest::from_header(Some(&carried), 9, 2_000).to_header();
        assert_eq!(
            OriginalRequest::from_header(again.as_deref(), 12, 3_000),
            first,
            "of the change after that"
        );
        assert_eq!(OriginalRequest::from_header(None, 9, 2_000).to_header(), None);
    }

    #[test]
    fn one_request_of_a_key_is_in_flight_at_a_time() {
        let in_flight = InFlightRequests::default();
        let guard = in_flight.begin("a");
        assert!(guard.is_ok());
        assert!(in_flight.begin("a").is_err());
        assert!(in_flight.begin("a").is_err(), "a refused request does not end the first one");
        assert!(in_flight.begin("b").is_ok());
        drop(guard);
        assert!(in_flight.begin("a").is_ok());
    }
}
