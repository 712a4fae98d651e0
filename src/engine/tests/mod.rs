//! The engine's decisions, asserted as data. Its protocol under faults: `tests/it/simulation`.

mod decisions;
mod firing;
mod replayed;
mod scene;
mod takeover;
pub(crate) mod world;
