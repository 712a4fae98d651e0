//! What to do: pure decisions about one partition.
//!
//! Law: no clock, no randomness, no I/O, no async. Time and rows come in as arguments; a
//! [`Step`](step::Step) goes out as data.
//!
//! ```text
//!   triggers[p], signals[p] ──► ingest ──┐
//!        what the index knows ──┘        ├──► Step { emits, rows, cursor } ──► shell
//!   wheel.due(watermark) ──────► fire  ──┘
//! ```

pub mod cursor;
pub mod known;
pub mod step;
