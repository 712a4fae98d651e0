//! A lifecycle in the bytes of a row: JSON, because few rows have one and it is self-describing.
//!
//! Invariant: a lifecycle with an unknown field is refused as a whole.

use super::row_bytes::RowError;
use crate::model::lifecycle::Lifecycle;

/// The bytes of a lifecycle.
pub(super) fn encode(lifecycle: &Lifecycle) -> Vec<u8> {
    serde_json::to_vec(lifecycle).expect("a lifecycle is plain data")
}

/// Reads one.
pub(super) fn decode(bytes: &[u8]) -> Result<Box<Lifecycle>, RowError> {
    let lifecycle: Lifecycle = serde_json::from_slice(bytes).map_err(|_| RowError::Corrupt)?;
    lifecycle.boxed_unless_default().ok_or(RowError::Corrupt)
}
