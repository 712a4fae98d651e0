//! The domain's values: triggers, entries, fires, signals, outcomes, without any I/O.
//!
//! Invariant: nothing here reads a clock, draws a random number or touches I/O. Times are
//! milliseconds since the Unix epoch, sizes are bytes, offsets are Kafka offsets.
//!
//! ```text
//!  Registration ──► Entry (timeline) ──► Fire ──► Signal ──► Entry …
//!                      │                   └──► Outcome, DeadLetter
//!                      └──► LedgerRecord (what outlives the replay tail)
//! ```

pub mod attempt;
pub(crate) mod avro_long;
pub mod callback_url;
pub mod dead_letter;
pub mod definition;
pub mod entry;
pub(crate) mod field;
pub mod fire;
pub mod fire_id;
pub mod http_header;
pub mod input;
pub mod ledger;
pub mod lifecycle;
pub mod limits;
pub mod names;
pub(crate) mod object_fields;
pub mod outcome;
pub mod partitioner;
pub mod pattern;
pub mod retry;
pub mod schedule;
pub mod signal;
pub mod text;
pub mod time;
pub mod timeline;
pub(crate) mod work;

/// Milliseconds since the Unix epoch.
pub type Timestamp = u64;
/// A span in milliseconds.
pub type Millis = u64;
/// A Kafka offset; never negative here.
pub type Offset = u64;
/// A Kafka partition number.
pub type PartitionId = i32;
/// The number of a Kafka broker.
pub type BrokerId = i32;
