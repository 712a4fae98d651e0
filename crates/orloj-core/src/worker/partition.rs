//! A partition of fires that this worker owns: its progress, which results still count, and which
//! callbacks other workers may have started.
//!
//! Invariant: the result of a callback is accepted only in the epoch in which the callback started.
//! A partition that was lost starts a new epoch from its committed progress. Nothing is finished
//! and nothing reserved before a transaction with it is known to be committed. And no callback
//! starts at an offset that no commit has reserved: so the next owner of a partition knows which
//! callbacks never started, even if this process continues and does not know yet that it has lost
//! the partition.
//!
//! ```text
//!   a commit says:   finished ▪▪▪▪ · ▪ · ▪  next ..................| reserved
//!   the next epoch:  may have started: made, cancelled or not  | never started: can be withdrawn
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fetched_record::FetchedRecord;
use super::progress::{FireProgress, OPEN_MAX, ProgressError};
use crate::model::{Offset, Timestamp};

/// How many offsets a commit reserves ahead of what is read. If more are read within a
/// `worker.commit_interval`, a commit happens earlier; after a crash so many fires cannot be
/// withdrawn.
const RESERVE_AHEAD: Offset = 500;
/// Records that were read and wait for a commit that reserves them: a fetch has more than that, and
/// reading that stops costs another one.
const UNRESERVED_MAX: usize = 1_000;
/// Their bytes.
const UNRESERVED_BYTES_MAX: usize = 4 << 20;
/// After the window was full, reading resumes when there is room for so many fires: each start
/// costs a fetch.
pub(crate) const RESUME_ROOM: usize = OPEN_MAX / 2;
/// In the metadata of a commit, between progress, reservation, and what is unknown, if anything is.
const SEPARATOR: char = ';';
/// In what is unknown, between time and offset.
const UNKNOWN_SEPARATOR: char = ',';

/// An owned partition.
#[derive(Debug)]
pub(crate) struct WorkerPartition {
    /// Unique in this process: no other assignment or restart of a partition has the same.
    pub(crate) epoch: u64,
    /// `None` until its committed progress is known.
    pub(crate) running: Option<RunningPartition>,
    /// Records that were read and that no commit has reserved.
    pub(crate) unreserved: VecDeque<FetchedRecord>,
    /// Set when the epoch has ended.
    pub(crate) has_ended: Arc<AtomicBool>,
    /// The log was seen to end here, below what was read: it is read from here on in a new epoch.
    pub(crate) cut_end: Option<Offset>,
}

impl Drop for WorkerPartition {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }
}

/// The progress of a partition as a transaction commits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionCommit {
    pub(crate) epoch: u64,
    pub(crate) offset: Offset,
    pub(crate) metadata: String,
    /// Callbacks below may be started once it is committed.
    reserved_end: Offset,
    /// What was committed before.
    pub(crate) before: Option<(Offset, String)>,
    /// The offsets that are finished with it.
    finished: Vec<Offset>,
    /// No callback starts after it.
    is_final: bool,
}

impl PartitionCommit {
    /// Whether the broker can tell whether it is committed.
    pub(crate) fn is_distinct(&self) -> bool {
        let before = self.before.as_ref().map(|(offset, text)| (*offset, text.as_str()));
        before != Some((self.offset, self.metadata.as_str()))
    }
}

/// An owned partition that is read.
#[derive(Debug)]
pub(crate) struct RunningPartition {
    pub(crate) progress: FireProgress,
    /// Reading has stopped.
    pause: Option<Pause>,
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
    /// That is committed.
    is_final_committed: bool,
    /// More is committed as read than the log has.
    is_cut: bool,
    /// What is committed, as far as is known.
    committed: Option<(Offset, String)>,
    /// It is committed too, until all fires below this offset are finished.
    unknown: Option<UnknownFires>,
}

/// Where reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    at: Offset,
    /// For how many fires there must be room to read on, a count.
    room: usize,
}

/// Fires of which it is not known whether their callbacks were made, because the committed offsets
/// have expired: those that were written before `time`, in ms since the epoch, and lie below `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnknownFires {
    time: Timestamp,
    end: Offset,
}

impl Pause {
    /// A pause that a commit ends. If the window is full then, that is found when the record there
    /// is read again: only then is what waits sent back, so that there is room.
    fn until_reserved(at: Offset) -> Self {
        Self { at, room: 0 }
    }
}

impl UnknownFires {
    fn parse(text: &str) -> Option<Self> {
        let (time, end) = text.split_once(UNKNOWN_SEPARATOR)?;
        Some(Self { time: time.parse().ok()?, end: end.parse().ok()? })
    }
}

/// What was deleted from the log although it was not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeletedRecords {
    /// Fires that were to be made again, a count.
    pub(crate) known: usize,
    /// Offsets of which no worker had read the records.
    pub(crate) unread: u64,
    /// Nothing is left in the log.
    pub(crate) are_all: bool,
}

impl DeletedRecords {
    /// Whether fires may be among them: the last offset of a log is the end of a transaction, which
    /// is no record, and is never read.
    pub(crate) fn may_be_fires(self) -> bool {
        self.known > 0 || self.unread > u64::from(self.are_all)
    }
}

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordAdmission {
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
    pub(crate) fn new(epoch: u64) -> Self {
        let (running, unreserved) = (None, VecDeque::new());
        Self { epoch, running, unreserved, has_ended: Arc::default(), cut_end: None }
    }

    /// Keeps a record until a commit has reserved it. If there are too many, they are read again
    /// later: returns whether reading must stop.
    pub(crate) fn await_reservation(&mut self, record: FetchedRecord) -> bool {
        let Some(running) = &mut self.running else { return false };
        if running.pause.is_some() {
            return false;
        }
        let first = self.unreserved.front().map_or(record.offset, |first| first.offset);
        self.unreserved.push_back(record);
        let bytes: usize = self.unreserved.iter().map(FetchedRecord::bytes).sum();
        let is_full = self.unreserved.len() > UNRESERVED_MAX || bytes > UNRESERVED_BYTES_MAX;
        if is_full {
            running.pause = Some(Pause::until_reserved(first));
            self.unreserved.clear();
        }
        is_full
    }

    /// Whether a commit must reserve something before anything more can start.
    pub(crate) fn awaits_reservation(&self) -> bool {
        let running = self.running.as_ref();
        !self.unreserved.is_empty()
            || running.is_some_and(|running| {
                running.pause.is_some_and(|pause| pause.at >= running.reserved_end)
            })
    }

    /// The next record that was kept, and is reserved now.
    pub(crate) fn next_reserved(&mut self) -> Option<FetchedRecord> {
        let running = self.running.as_ref()?;
        if running.pause.is_some() {
            self.unreserved.clear(); // they are read again from there
        }
        self.unreserved.pop_front_if(|record| record.offset < running.reserved_end)
    }

    /// The running partition, if `epoch` is still the current one.
    pub(crate) fn in_epoch(&mut self, epoch: u64) -> Option<&mut RunningPartition> {
        self.running.as_mut().filter(|_| self.epoch == epoch)
    }
}

impl RunningPartition {
    /// From what was committed. If that reserves nothing, an older version or a person wrote it:
    /// then every callback up to `end`, the end of the log, may have been started.
    pub(crate) fn restore(
        offset: Offset,
        metadata: &str,
        end: Offset,
    ) -> Result<Self, ProgressError> {
        let newer = || ProgressError(metadata.to_owned());
        let mut parts = metadata.splitn(3, SEPARATOR);
        let progress = parts.next().unwrap_or_default();
        let reserved_end = match parts.next() {
            Some(reserved) => reserved.parse().map_err(|_| newer())?,
            None => end,
        };
        let unknown = match parts.next() {
            Some(unknown) => Some(UnknownFires::parse(unknown).ok_or_else(newer)?),
            None => None,
        };
        Ok(Self {
            committed: None,
            unknown,
            progress: FireProgress::restore(offset, progress)?,
            pause: None,
            next_read: 0,
            uncertain_end: reserved_end,
            reserved_end,
            read_end: 0,
            started_end: 0,
            is_final_commit: false,
            is_final_committed: false,
            is_cut: false,
        })
    }

    /// This is committed.
    pub(crate) fn set_committed(&mut self, committed: Option<(Offset, String)>) {
        self.committed = committed;
    }

    /// It is not known of fires that were written before `time`, and lie below `end`, whether their
    /// callbacks were made.
    pub(crate) fn set_unknown(&mut self, time: Timestamp, end: Offset) {
        self.unknown = Some(UnknownFires { time, end });
    }

    /// Whether it is not known if the callback of this record was made.
    pub(crate) fn is_unknown(&self, offset: Offset, time: Timestamp) -> bool {
        self.unknown.is_some_and(|unknown| time < unknown.time && offset < unknown.end)
    }

    /// A commit after which these offsets are finished. It reserves what is read next.
    pub(crate) fn prepare_commit(&self, epoch: u64, finished: Vec<Offset>) -> PartitionCommit {
        let reserved_end = if self.is_final_commit {
            self.uncertain_end.max(self.started_end)
        } else {
            self.reserved_end.max(self.read_end + RESERVE_AHEAD)
        };
        let mut progress = self.progress.clone();
        finished.iter().for_each(|offset| progress.finish(*offset));
        let (offset, before) = (progress.commit_offset(), self.committed.clone());
        let mut metadata = format!("{}{SEPARATOR}{reserved_end}", progress.metadata());
        if let Some(UnknownFires { time, end }) = self.unknown.filter(|it| offset < it.end) {
            metadata.push_str(&format!("{SEPARATOR}{time}{UNKNOWN_SEPARATOR}{end}"));
        }
        let is_final = self.is_final_commit;
        PartitionCommit { epoch, offset, metadata, reserved_end, before, finished, is_final }
    }

    /// A commit of this epoch is committed.
    pub(crate) fn on_committed(&mut self, commit: &PartitionCommit) {
        self.reserved_end = commit.reserved_end;
        (self.is_cut, self.is_final_committed) = (false, commit.is_final);
        self.committed = Some((commit.offset, commit.metadata.clone()));
        commit.finished.iter().for_each(|offset| self.progress.finish(*offset));
    }

    /// Prepares a commit, and takes it as committed.
    #[cfg(test)]
    fn next_commit(&mut self) -> (Offset, String) {
        let commit = self.prepare_commit(0, Vec::new());
        self.on_committed(&commit);
        (commit.offset, commit.metadata)
    }

    /// Whether to commit although no callback has ended.
    pub(crate) fn needs_commit(&self) -> bool {
        let is_near_end = self.read_end + RESERVE_AHEAD / 2 > self.reserved_end;
        let is_due = if self.is_final_commit { !self.is_final_committed } else { is_near_end };
        is_due || self.is_cut || self.is_behind_log_start()
    }

    /// Whether deleted records are committed as unfinished: without a further record, nothing else
    /// would commit that none of them is.
    fn is_behind_log_start(&self) -> bool {
        let committed = self.committed.as_ref().map_or(0, |(offset, _)| *offset);
        committed < self.progress.log_start() && committed < self.progress.commit_offset()
    }

    /// The record at `offset` is next. Returns whether it is reserved: if not, commit first.
    pub(crate) fn on_record(&mut self, offset: Offset) -> bool {
        self.read_end = self.read_end.max(offset + 1);
        offset < self.reserved_end
    }

    /// A callback starts.
    pub(crate) fn start(&mut self, offset: Offset) {
        assert!(
            offset < self.reserved_end && !self.is_final_commit,
            "a callback starts only at a reserved offset"
        );
        self.started_end = self.started_end.max(offset + 1);
    }

    /// Whether no worker has ever started the callback of a fire that waits.
    pub(crate) fn was_never_started(&self, offset: Offset) -> bool {
        offset >= self.uncertain_end
    }

    /// No further callback starts: the next commit is the last.
    pub(crate) fn prepare_final_commit(&mut self) {
        self.is_final_commit = true;
    }

    /// Decides about the next record that was read.
    pub(crate) fn admit(&mut self, offset: Offset) -> RecordAdmission {
        if self.pause.is_some() || self.is_final_commit {
            return RecordAdmission::Ignore;
        }
        if !self.progress.has_room(offset) {
            self.pause = Some(Pause { at: offset, room: RESUME_ROOM });
            return RecordAdmission::WindowFull;
        }
        if offset >= self.reserved_end {
            self.pause = Some(Pause::until_reserved(offset));
            return RecordAdmission::NotReserved;
        }
        self.next_read = offset + 1;
        if self.progress.start(offset) { RecordAdmission::Deliver } else { RecordAdmission::Ignore }
    }

    /// The log starts at `low` now and ends at `end`, and this worker has read nothing from
    /// `position` on.
    pub(crate) fn skip_deleted(
        &mut self,
        position: Offset,
        (low, end): (Offset, Offset),
    ) -> DeletedRecords {
        self.next_read = self.next_read.max(low);
        let unread = low.saturating_sub(position.max(self.progress.read_end()));
        let known = self.progress.drop_unread(position, low);
        DeletedRecords { known, unread, are_all: low == end }
    }

    /// The log ends at `end`: returns whether more than that was read, by any worker.
    pub(crate) fn cut(&mut self, end: Offset) -> bool {
        self.is_cut = self.progress.cut(end);
        self.is_cut
    }

    /// Nothing from here on was read, by any worker.
    pub(crate) fn read_end(&self) -> Offset {
        self.read_end.max(self.progress.read_end())
    }

    /// From where it is read on; `None` if reading has stopped.
    pub(crate) fn position(&self) -> Option<Offset> {
        self.pause.is_none().then(|| self.next_read.max(self.progress.commit_offset()))
    }

    /// Where to resume reading, once that is possible.
    pub(crate) fn take_resume_offset(&mut self) -> Option<Offset> {
        let Pause { at, room } = self.pause.filter(|_| !self.is_final_commit)?;
        let has_room = self.progress.room(at) >= room && at < self.reserved_end;
        self.pause.take_if(|_| has_room).map(|pause| pause.at)
    }
}

#[cfg(test)]
#[path = "partition/tests.rs"]
mod tests;
