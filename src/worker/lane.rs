//! A partition of fires that is ours: how far it is, whose results still count, and what others may
//! have begun of it.
//!
//! Law: what a callback reports is taken only in the life in which it was begun. A partition that
//! was lost, or whose transaction failed, begins a new one from its committed progress. And nothing
//! is begun at an offset that no commit has reserved: so whoever reads a partition after us knows
//! what was never begun, even if we live on and do not know yet that it is ours no longer.
//!
//! ```text
//!   a commit says:  finished ▪▪▪▪ · ▪ · ▪  next ..................| reserved
//!   the next life:  perhaps begun before: made, cancelled or not  | untouched: can be withdrawn
//! ```

use crate::model::Offset;
use crate::worker::progress::{OPEN_MAX, Progress, ProgressError};

/// How many offsets a commit reserves ahead of what is read. With more than so many a
/// `worker.commit_interval`, a commit comes in between; after a crash so many cannot be withdrawn.
const RESERVED: Offset = 500;
/// In the metadata of a commit, between progress and reservation.
const SEPARATOR: char = ';';

/// An owned partition.
#[derive(Debug)]
pub(super) struct Lane {
    /// Unlike that of every other lane of this process, before or now.
    pub(super) life: u64,
    /// `None` until its committed progress is known.
    pub(super) running: Option<Running>,
}

/// An owned partition that is read.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) progress: Progress,
    /// Where reading stopped because the window was full, or nothing could be reserved.
    parked: Option<Offset>,
    /// What lies below may have been begun in another life, here or elsewhere.
    doubtful: Offset,
    /// What lies below may be begun: a commit has said so.
    reserved: Offset,
    /// All that was read lies below.
    met: Offset,
    /// All that was begun in this life lies below.
    begun: Offset,
    /// Nothing more is begun.
    parting: bool,
}

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Deliver it.
    Deliver,
    /// It is finished, or reading has stopped before it.
    Ignore,
    /// The window is full: stop reading; [`Running::unpark`] says where to go on.
    Stop,
    /// The same, because no commit has reserved it.
    Unreserved,
}

impl Lane {
    pub(super) fn new(life: u64) -> Self {
        Self { life, running: None }
    }

    /// The running lane, if this is still the life in question.
    pub(super) fn in_life(&mut self, life: u64) -> Option<&mut Running> {
        self.running.as_mut().filter(|_| self.life == life)
    }
}

impl Running {
    /// From what was committed. Where that reserves nothing, an older version or a person wrote it:
    /// then all that is in the log by now, up to `end`, may have been begun.
    pub(super) fn restore(
        offset: Offset,
        metadata: &str,
        end: Offset,
    ) -> Result<Self, ProgressError> {
        let (progress, reserved) = match metadata.split_once(SEPARATOR) {
            Some((progress, reserved)) => {
                (progress, reserved.parse().map_err(|_| ProgressError(metadata.to_owned()))?)
            }
            None => (metadata, end),
        };
        Ok(Self {
            progress: Progress::restore(offset, progress)?,
            parked: None,
            doubtful: reserved,
            reserved,
            met: 0,
            begun: 0,
            parting: false,
        })
    }

    /// Offset and metadata of a commit, which reserves what is read next.
    pub(super) fn next_commit(&mut self) -> (Offset, String) {
        self.reserved = if self.parting {
            self.doubtful.max(self.begun)
        } else {
            self.reserved.max(self.met + RESERVED)
        };
        let progress = self.progress.metadata();
        (self.progress.floor(), format!("{progress}{SEPARATOR}{}", self.reserved))
    }

    /// Whether a commit is worth it though nothing has ended.
    pub(super) fn wants_commit(&self) -> bool {
        self.parting || self.met + RESERVED / 2 > self.reserved
    }

    /// The record at `offset` comes next. Says whether it is reserved: if not, commit first.
    pub(super) fn meet(&mut self, offset: Offset) -> bool {
        self.met = self.met.max(offset + 1);
        offset < self.reserved
    }

    /// A callback begins.
    pub(super) fn begin(&mut self, offset: Offset) {
        assert!(offset < self.reserved && !self.parting, "what is begun was reserved");
        self.begun = self.begun.max(offset + 1);
    }

    /// Whether a fire that waits was never begun by anyone.
    pub(super) fn is_untouched(&self, offset: Offset) -> bool {
        offset >= self.doubtful
    }

    /// Nothing more is begun: the next commit is the last.
    pub(super) fn part(&mut self) {
        self.parting = true;
    }

    /// Judges the next record that was read.
    pub(super) fn admit(&mut self, offset: Offset) -> Admission {
        if self.parked.is_some() {
            return Admission::Ignore;
        }
        if !self.progress.has_room(offset) {
            self.parked = Some(offset);
            return Admission::Stop;
        }
        if offset >= self.reserved {
            self.parked = Some(offset);
            return Admission::Unreserved;
        }
        if self.progress.begin(offset) { Admission::Deliver } else { Admission::Ignore }
    }

    /// Where to read on, once there is room for many: starting costs a fetch.
    pub(super) fn unpark(&mut self) -> Option<Offset> {
        let parked = self.parked?;
        let is_worth_it = self.progress.room(parked) >= OPEN_MAX / 2 && parked < self.reserved;
        self.parked.take_if(|_| is_worth_it)
    }
}

#[cfg(test)]
#[path = "lane/tests.rs"]
mod tests;
