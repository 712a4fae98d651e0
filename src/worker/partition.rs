//! A partition of fires that is ours: how far it is, whose results still count, and what others may
//! have begun of it.
//!
//! Invariant: what a callback reports is taken only in the life in which it was begun. A partition
//! that was lost, or whose transaction failed, begins a new one from its committed progress. And
//! nothing is begun at an offset that no commit has reserved: so whoever reads a partition after us
//! knows what was never begun, even if we live on and do not know yet that it is ours no longer.
//!
//! ```text
//!   a commit says:  finished ▪▪▪▪ · ▪ · ▪  next ..................| reserved
//!   the next life:  perhaps begun before: made, cancelled or not  | untouched: can be withdrawn
//! ```

use crate::model::Offset;
use crate::worker::progress::{FireProgress, OPEN_MAX, ProgressError};

/// How many offsets a commit reserves ahead of what is read. With more than so many a
/// `worker.commit_interval`, a commit comes in between; after a crash so many cannot be withdrawn.
const RESERVE_AHEAD: Offset = 500;
/// In the metadata of a commit, between progress and reservation.
const SEPARATOR: char = ';';

/// An owned partition.
#[derive(Debug)]
pub(super) struct WorkerPartition {
    /// Unlike that of every other lane of this process, before or now.
    pub(super) epoch: u64,
    /// `None` until its committed progress is known.
    pub(super) running: Option<RunningPartition>,
}

/// An owned partition that is read.
#[derive(Debug)]
pub(super) struct RunningPartition {
    pub(super) progress: FireProgress,
    /// Where reading stopped because the window was full, or nothing could be reserved.
    paused_at: Option<Offset>,
    /// What lies below may have been begun in another life, here or elsewhere.
    uncertain_end: Offset,
    /// What lies below may be begun: a commit has said so.
    reserved_end: Offset,
    /// All that was read lies below.
    read_end: Offset,
    /// All that was begun in this life lies below.
    begun_end: Offset,
    /// Nothing more is begun.
    is_final_commit: bool,
}

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordAdmission {
    /// Deliver it.
    Deliver,
    /// It is finished, or reading has stopped before it.
    Ignore,
    /// The window is full: stop reading; [`RunningPartition::unpark`] says where to go on.
    WindowFull,
    /// The same, because no commit has reserved it.
    NotReserved,
}

impl WorkerPartition {
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch, running: None }
    }

    /// The running lane, if this is still the life in question.
    pub(super) fn in_epoch(&mut self, epoch: u64) -> Option<&mut RunningPartition> {
        self.running.as_mut().filter(|_| self.epoch == epoch)
    }
}

impl RunningPartition {
    /// From what was committed. Where that reserves nothing, an older version or a person wrote it:
    /// then all that is in the log by now, up to `end`, may have been begun.
    pub(super) fn restore(
        offset: Offset,
        metadata: &str,
        end: Offset,
    ) -> Result<Self, ProgressError> {
        let (progress, reserved_end) = match metadata.split_once(SEPARATOR) {
            Some((progress, reserved)) => {
                (progress, reserved.parse().map_err(|_| ProgressError(metadata.to_owned()))?)
            }
            None => (metadata, end),
        };
        Ok(Self {
            progress: FireProgress::restore(offset, progress)?,
            paused_at: None,
            uncertain_end: reserved_end,
            reserved_end,
            read_end: 0,
            begun_end: 0,
            is_final_commit: false,
        })
    }

    /// Offset and metadata of a commit, which reserves what is read next.
    pub(super) fn next_commit(&mut self) -> (Offset, String) {
        self.reserved_end = if self.is_final_commit {
            self.uncertain_end.max(self.begun_end)
        } else {
            self.reserved_end.max(self.read_end + RESERVE_AHEAD)
        };
        let progress = self.progress.metadata();
        (self.progress.commit_offset(), format!("{progress}{SEPARATOR}{}", self.reserved_end))
    }

    /// Whether a commit is worth it though nothing has ended.
    pub(super) fn needs_commit(&self) -> bool {
        self.is_final_commit || self.read_end + RESERVE_AHEAD / 2 > self.reserved_end
    }

    /// The record at `offset` comes next. Says whether it is reserved: if not, commit first.
    pub(super) fn on_record(&mut self, offset: Offset) -> bool {
        self.read_end = self.read_end.max(offset + 1);
        offset < self.reserved_end
    }

    /// A callback begins.
    pub(super) fn begin(&mut self, offset: Offset) {
        assert!(offset < self.reserved_end && !self.is_final_commit, "what is begun was reserved");
        self.begun_end = self.begun_end.max(offset + 1);
    }

    /// Whether a fire that waits was never begun by anyone.
    pub(super) fn was_never_begun(&self, offset: Offset) -> bool {
        offset >= self.uncertain_end
    }

    /// Nothing more is begun: the next commit is the last.
    pub(super) fn prepare_final_commit(&mut self) {
        self.is_final_commit = true;
    }

    /// Judges the next record that was read.
    pub(super) fn admit(&mut self, offset: Offset) -> RecordAdmission {
        if self.paused_at.is_some() {
            return RecordAdmission::Ignore;
        }
        if !self.progress.has_room(offset) {
            self.paused_at = Some(offset);
            return RecordAdmission::WindowFull;
        }
        if offset >= self.reserved_end {
            self.paused_at = Some(offset);
            return RecordAdmission::NotReserved;
        }
        if self.progress.begin(offset) { RecordAdmission::Deliver } else { RecordAdmission::Ignore }
    }

    /// Where to read on, once there is room for many: starting costs a fetch.
    pub(super) fn take_resume_offset(&mut self) -> Option<Offset> {
        let paused_at = self.paused_at?;
        let has_room =
            self.progress.room(paused_at) >= OPEN_MAX / 2 && paused_at < self.reserved_end;
        self.paused_at.take_if(|_| has_room)
    }
}

#[cfg(test)]
#[path = "partition/tests.rs"]
mod tests;
