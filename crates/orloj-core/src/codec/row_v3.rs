//! A course in the bytes of a row: JSON, because few rows have one and it says what it is.
//!
//! Invariant: what is not wholly understood is not read.

use super::row::RowError;
use crate::model::lifecycle::Lifecycle;

/// The bytes of a course.
pub(super) fn encode(lifecycle: &Lifecycle) -> Vec<u8> {
    serde_json::to_vec(lifecycle).expect("a course is plain data")
}

/// Reads one.
pub(super) fn decode(bytes: &[u8]) -> Result<Box<Lifecycle>, RowError> {
    let lifecycle: Lifecycle = serde_json::from_slice(bytes).map_err(|_| RowError::Corrupt)?;
    lifecycle.boxed_unless_default().ok_or(RowError::Corrupt)
}
