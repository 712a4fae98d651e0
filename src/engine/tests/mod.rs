//! The engine's decisions, asserted as data, and its protocol under random crashes.

mod decisions;
mod firing;
mod protocol;
mod scene;
mod takeover;
pub(crate) mod world;
