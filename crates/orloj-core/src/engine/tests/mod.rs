//! The engine's decisions, asserted as data. Its protocol under faults: `tests/core/simulation`.

mod callers;
mod dead_letter_replay;
mod decisions;
mod dependencies;
mod documented;
mod downtime;
mod fire_sizes;
mod firing;
pub(super) mod fixture;
pub(crate) mod harness;
mod held;
mod late_entries;
mod lifecycle;
mod partition;
mod regressions;
mod replay;
mod retries;
mod scenario;
mod standby;
mod state;
mod takeover;
mod takeover_cursor;
mod wheel;
