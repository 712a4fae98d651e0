//! The engine's decisions, asserted as data, and its protocol under random crashes.

mod decisions;
mod protocol;
pub(crate) mod world;
