//! `/v1/dead-letters`: reading dead letters, replaying and archiving them.

pub(crate) mod actions;
pub(crate) mod read;

mod resource;
