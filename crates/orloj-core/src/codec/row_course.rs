//! A course in the bytes of a row: JSON, because few rows have one and it says what it is.
//!
//! Law: what is not wholly understood is not read.

use super::row::RowError;
use crate::model::course::Course;

/// The bytes of a course.
pub(super) fn encode(course: &Course) -> Vec<u8> {
    serde_json::to_vec(course).expect("a course is plain data")
}

/// Reads one.
pub(super) fn decode(bytes: &[u8]) -> Result<Box<Course>, RowError> {
    let course: Course = serde_json::from_slice(bytes).map_err(|_| RowError::Corrupt)?;
    course.some().ok_or(RowError::Corrupt)
}
