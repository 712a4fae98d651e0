//! Which headers of a trigger a callback carries.
//!
//! Invariant: a trigger cannot set them. What frames a message, belongs to a connection
//! or says who asks is ours to write: set by a trigger it could smuggle a second request past a
//! receiver, or claim to be someone else.

/// What frames a message or belongs to a connection, and what names the sender of a request.
const RESERVED_NAMES: [&str; 16] = [
    "connection",
    "content-length",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-real-ip",
];

/// Prefixes of headers that identify the sender.
const RESERVED_PREFIXES: [&str; 5] =
    ["orloj-", "webhook-", "x-forwarded-", "x-idempotency-key", "x-trigger-"];

/// Why a callback does not carry a header, for people; `None` if it does.
#[must_use]
pub fn rejection_reason(name: &str, value: &[u8]) -> Option<&'static str> {
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Some("HTTP has no headers of that name");
    }
    if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Some("its value has control characters");
    }
    let name = name.to_ascii_lowercase();
    let reserved = RESERVED_NAMES.contains(&name.as_str())
        || RESERVED_PREFIXES.iter().any(|beginning| name.starts_with(beginning));
    reserved.then_some("it belongs to the connection or says who calls, which Orloj does itself")
}

/// Whether a byte may stand in a header's name (RFC 9110, 5.6.2).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_and_malformed_headers_are_not_carried() {
        for (name, value) in [
            ("Host", "internal"),
            ("TRANSFER-ENCODING", "chunked"),
            ("content-length", "0"),
            ("Connection", "x-trigger-id"),
            ("Proxy-Connection", "close"),
            ("Expect", "100-continue"),
            ("X-Forwarded-For", "127.0.0.1"),
            ("X-Trigger-Id", "another"),
            ("webhook-signature", "forged"),
            ("x", "a\r\nb: c"),
            ("x", "a\nb"),
            ("x", "a\0"),
            ("x\r\ny", "z"),
            ("x y", "z"),
            ("x:", "z"),
            ("ü", "z"),
            ("", "z"),
        ] {
            assert!(rejection_reason(name, value.as_bytes()).is_some(), "{name:?}: {value:?}");
        }
        for name in ["traceparent", "Content-Type", "Authorization", "x-forward", "hosts"] {
            assert_eq!(rejection_reason(name, b"a value,\twith \xFF"), None, "{name}");
        }
    }
}
