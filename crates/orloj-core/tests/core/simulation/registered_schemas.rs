//! What the schema registry of a run has under each id.
//!
//! Invariant: it never changes.

use std::time::Duration;

/// The schema that the registry has under each of [`KNOWN`].
pub(super) const SCHEMA: &str = r#"{"type": "record", "name": "Trigger", "fields": [
    {"name": "priority", "type": "int"},
    {"name": "fireAt", "type": "long"},
    {"name": "payload", "type": "bytes"},
    {"name": "onConflict",
     "type": {"type": "enum", "name": "OnConflict", "symbols": ["replace", "keep"]}},
    {"name": "topic", "type": ["null", "string"]},
    {"name": "callbackUrl", "type": ["null", "string"]}]}"#;

/// The ids that are registered.
pub(super) const KNOWN: [u32; 3] = [1, 2, 3];
/// An id to which the registry denies access.
pub(super) const DENIED: u32 = 4;
/// For how long a process waits for that one.
pub(super) const DENIED_PATIENCE: Duration = Duration::from_millis(40);
/// An id that the registry refuses to give.
pub(super) const REFUSED: u32 = 5;
/// An id that is not registered.
pub(super) const UNKNOWN: u32 = 7;
