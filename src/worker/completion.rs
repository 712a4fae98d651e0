//! Results of fires that wait to be committed.
//!
//! Invariant: plain values. A fire ends here once: its record of the log is finished with the
//! transaction that contains its result.

use super::disposition::CallbackResponse;
use super::report::UnreadableRecord;
use crate::model::entry::FireId;
use crate::model::fire::Fire;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// A record of `fires` that is finished once this is committed.
#[derive(Debug)]
pub(super) struct CompletedFire {
    pub(super) partition: PartitionId,
    pub(super) epoch: u64,
    pub(super) offset: Offset,
    pub(super) at: Timestamp,
    pub(super) completion: Completion,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Completion {
    /// The attempt was made, or could not be; it took so many ms.
    Attempt(Box<Fire>, CallbackResponse, Millis),
    /// It goes back to its owner until `due`; no attempt was made.
    Deferred { fire: Box<Fire>, due: Timestamp, reason: &'static str },
    /// It was cancelled before any worker had started it.
    Withdrawn {
        /// The withdrawn fire.
        id: FireId,
        /// Whether the owner must be notified.
        report_end: bool,
    },
    /// It was a withdrawal of other fires.
    WithdrawalProcessed,
    /// It cannot be decoded.
    Unreadable(UnreadableRecord),
}
