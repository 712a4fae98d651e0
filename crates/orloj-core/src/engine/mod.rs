//! What to do: pure decisions about one partition.
//!
//! Law: no clock, no randomness, no I/O, no async. Time and rows come in as arguments; a
//! [`Step`](step::Step) goes out as data.
//!
//! ```text
//!   assigned ─► Takeover ─► Start ─► Partition
//!
//!   triggers[p], signals[p] ──► ingest ──┐
//!        what the index knows ──┘        ├──► seal ──► Step { emits, rows, cursor } ──► shell
//!   wheel.due(watermark) ──────► fire  ──┘
//! ```

pub mod cancel;
pub mod catalog;
pub mod command;
pub mod course;
pub mod cursor;
pub mod depend;
pub mod dispatch;
pub mod follow;
pub mod held;
pub mod known;
pub mod local;
pub mod low_water;
pub mod overlay;
pub mod partition;
pub mod refusal;
pub mod register;
pub mod replay;
pub mod retry;
pub mod rows;
pub mod seen;
pub mod series;
pub mod step;
pub mod takeover;
pub mod tenure;
pub mod watermark;
pub mod wheel;

#[cfg(test)]
pub(crate) mod tests;
