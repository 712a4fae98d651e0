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
mod batch_room;
mod cancel;
pub mod catalog;
mod catch_up_limiter;
mod change;
mod command;
pub mod config;
pub mod cursor;
mod dependencies;
mod dispatch;
mod draft;
pub mod due_entries;
mod firing;
pub mod id_filter;
pub mod index_row;
mod ingest;
pub mod interrupted_transaction;
mod late_entries;
mod lifecycle;
pub mod local_checkpoint;
mod mirror_search;
pub mod offset_bitmap;
pub mod parked_schemas;
pub mod partition;
pub mod partition_offsets;
pub mod prefetch;
mod recurrence;
mod registration;
pub mod replay;
pub mod replay_from;
mod retry;
pub mod row_op;
pub mod standby;
pub mod state;
pub mod step;
pub mod takeover;
pub mod takeover_error;
mod trigger_handler;
pub mod watermark;
pub mod wheel;
pub mod write_buffer;

#[cfg(test)]
pub(crate) mod tests;
