//! What to do: pure decisions about one partition.
//!
//! Invariant: no clock, no randomness, no I/O, no async. Time and rows come in as arguments; a
//! [`PartitionStep`](step::PartitionStep) goes out as data.
//!
//! ```text
//!   assigned ─► Takeover ─► Start ─► Partition
//!
//!   triggers[p], signals[p] ──► ingest ──┐
//!        rows of the index ─────┘        ├──► seal ──► Step { emits, rows, cursor } ──► shell
//!   wheel.due(watermark) ──────► fire  ──┘
//! ```

pub mod assignment;
pub mod cancel;
pub mod catalog;
pub mod command;
pub mod cursor;
pub mod dependencies;
pub mod dispatch;
pub mod id_filter;
pub mod index_row;
pub mod lifecycle;
pub mod local_checkpoint;
pub mod offset_bitmap;
pub mod partition;
pub mod prefetch;
pub mod recurrence;
pub mod registration;
pub mod replay;
pub mod replay_from;
pub mod signals;
pub mod standby;
pub mod step;
pub mod takeover;
pub mod takeover_error;
pub mod watermark;
pub mod wheel;
pub mod write_buffer;

#[cfg(test)]
pub(crate) mod tests;
