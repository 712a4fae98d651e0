//! The engine's decisions, asserted as data. Its protocol under faults: `tests/it/simulation`.

mod claims;
mod course;
mod decisions;
mod depend;
mod documented;
mod firing;
mod found;
mod play;
mod replayed;
mod scene;
mod takeover;
pub(crate) mod world;
