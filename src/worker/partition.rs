//! A partition of fires that this worker owns: its progress, which results still count, and which
//! callbacks other workers may have started.
//!
//! Invariant: the result of a callback is accepted only in the epoch in which the callback started.
//! A partition that was lost, or whose transaction failed, starts a new epoch from its committed
//! progress. And no callback starts at an offset that no commit has reserved: so the next owner of
//! a partition knows which callbacks never started, even if this process continues and does not
//! know yet that it has lost the partition.
//!
//! ```text
//!   a commit says:   finished ▪▪▪▪ · ▪ · ▪  next ..................| reserved
//!   the next epoch:  may have started: made, cancelled or not  | never started: can be withdrawn
//! ```

use crate::model::Offset;
use crate::worker::progress::{FireProgress, OPEN_MAX, ProgressError};

/// How many offsets a commit reserves ahead of what is read. If more are read within a
/// `worker.commit_interval`, a commit happens earlier; after a crash so many fires cannot be
/// withdrawn.
const RESERVE_AHEAD: Offset = 500;
/// In the metadata of a commit, between progress and reservation.
const SEPARATOR: char = ';';

/// An owned partition.
#[derive(Debug)]
pub(super) struct WorkerPartition {
    /// Unique in this process: no other assignment or restart of a partition has the same.
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
    /// The offset after the last record that was admitted, or ignored.
    next_read: Offset,
    /// Callbacks below may have been started in another epoch, by this worker or another.
    uncertain_end: Offset,
    /// Callbacks below may be started: a commit has reserved them.
    reserved_end: Offset,
    /// Everything that was read lies below.
    read_end: Offset,
    /// Every callback started in this epoch lies below.
    started_end: Offset,
    /// No further callback starts.
    is_final_commit: bool,
}

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordAdmission {
    /// Deliver it.
    Deliver,
    /// Skip it: it is finished, or reading has stopped before it.
    Ignore,
    /// The window is full: stop reading; [`RunningPartition::take_resume_offset`] says where to
    /// resume.
    WindowFull,
    /// The same, because no commit has reserved it.
    NotReserved,
}

impl WorkerPartition {
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch, running: None }
    }

    /// The running partition, if `epoch` is still the current one.
    pub(super) fn in_epoch(&mut self, epoch: u64) -> Option<&mut RunningPartition> {
        self.running.as_mut().filter(|_| self.epoch == epoch)
    }
}

impl RunningPartition {
    /// From what was committed. If that reserves nothing, an older version or a person wrote it:
    /// then every callback up to `end`, the end of the log, may have been started.
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
            next_read: 0,
            uncertain_end: reserved_end,
            reserved_end,
            read_end: 0,
            started_end: 0,
            is_final_commit: false,
        })
    }

    /// Offset and metadata of a commit, which reserves what is read next.
    pub(super) fn next_commit(&mut self) -> (Offset, String) {
        self.reserved_end = if self.is_final_commit {
            self.uncertain_end.max(self.started_end)
        } else {
            self.reserved_end.max(self.read_end + RESERVE_AHEAD)
        };
        let progress = self.progress.metadata();
        (self.progress.commit_offset(), format!("{progress}{SEPARATOR}{}", self.reserved_end))
    }

    /// Whether to commit although no callback has ended.
    pub(super) fn needs_commit(&self) -> bool {
        self.is_final_commit || self.read_end + RESERVE_AHEAD / 2 > self.reserved_end
    }

    /// The record at `offset` is next. Returns whether it is reserved: if not, commit first.
    pub(super) fn on_record(&mut self, offset: Offset) -> bool {
        self.read_end = self.read_end.max(offset + 1);
        offset < self.reserved_end
    }

    /// A callback starts.
    pub(super) fn start(&mut self, offset: Offset) {
        assert!(
            offset < self.reserved_end && !self.is_final_commit,
            "a callback starts only at a reserved offset"
        );
        self.started_end = self.started_end.max(offset + 1);
    }

    /// Whether no worker has ever started the callback of a fire that waits.
    pub(super) fn was_never_started(&self, offset: Offset) -> bool {
        offset >= self.uncertain_end
    }

    /// No further callback starts: the next commit is the last.
    pub(super) fn prepare_final_commit(&mut self) {
        self.is_final_commit = true;
    }

    /// Decides about the next record that was read.
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
        self.next_read = offset + 1;
        if self.progress.start(offset) { RecordAdmission::Deliver } else { RecordAdmission::Ignore }
    }

    /// From where it is read on; `None` if reading has stopped.
    pub(super) fn position(&self) -> Option<Offset> {
        self.paused_at.is_none().then(|| self.next_read.max(self.progress.commit_offset()))
    }

    /// Where to resume reading, once there is room for many records: each start costs a fetch.
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
