//! Taking over a partition: from assignment to active, as a state machine without I/O.
//!
//! Invariant: stable offsets first, then a barrier with our own generation, then the ledger until
//! our own nonce is read, then the log up to N. Only then may anything fire.
//!
//! ```text
//!  Offsets ─► (Mirror) ─► Barrier ─► Confirm ─► Ledger ─► Triggers ─► Done
//! ```

use std::collections::BTreeSet;

use super::cursor::{Cursor, MetadataError};
use super::index_row::IdHash;
use super::local_checkpoint::LocalCheckpoint;
use super::mirror_search::{MirrorError, MirrorSearch, REPLAY_HORIZON_UNKNOWN};
use super::offset_bitmap::OffsetBitmap;
use super::partition::PartitionStart;
pub use super::partition_offsets::{CutSignals, NewRecords, OffsetGap, PartitionOffsets};
use super::prefetch::IndexRows;
use super::replay::Replay;
use super::row_op::RowOp;
pub use super::takeover_error::TakeoverError;
use crate::model::input::TriggerRecord;
use crate::model::ledger::{LedgerRecord, LedgerValue};
use crate::model::names::Names;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, PartitionId, Timestamp};

/// What the takeover needs from the shell next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeoverRequest {
    /// The partition's committed offset and metadata, read stable, and the topics' bounds.
    Offsets,
    /// All ledger records below `until`, to find the mirror of the cursor.
    Mirror {
        /// The first offset to read.
        from: Offset,
        /// The end of the ledger when the offsets were read.
        until: Offset,
    },
    /// A transaction with a `~barrier` record and this unchanged offset and metadata.
    Barrier {
        /// The committed offset of `triggers`.
        offset: Offset,
        /// The commit metadata.
        metadata: String,
        /// Fresh; proves that the barrier that is read is ours.
        nonce: u64,
    },
    /// Ledger records from here on, until the next request is a different one.
    Ledger {
        /// The first offset to read.
        from: Offset,
    },
    /// Records of `triggers` below `until`.
    Triggers {
        /// The first offset to read.
        from: Offset,
        /// N: the first one that is live.
        until: Offset,
    },
    /// Nothing: the partition can be active.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeoverPhase {
    Offsets,
    Mirror,
    Barrier,
    Confirm,
    Ledger,
    Triggers,
    Done,
}

/// One partition on its way from assigned to active.
#[derive(Debug)]
pub struct Takeover {
    partition: PartitionId,
    topic: String,
    signals: String,
    owner: String,
    nonce: u64,
    phase: TakeoverPhase,
    checkpoint: Option<LocalCheckpoint>,
    offsets: PartitionOffsets,
    mirror_search: MirrorSearch,
    cursor: Cursor,
    ledger_position: Offset,
    replay: Replay,
    /// The parts of the logs that were deleted too early.
    pub gaps: Vec<OffsetGap>,
    /// `signals` was cut, and is read again from where it was.
    pub cut_signals: Option<CutSignals>,
}

impl Takeover {
    /// Starts with the local store, if it is valid, and its skip marks. `nonce` must be fresh.
    #[must_use]
    pub fn new(
        partition: PartitionId,
        names: &Names,
        owner: &str,
        nonce: u64,
        checkpoint: Option<(LocalCheckpoint, BTreeSet<Offset>)>,
    ) -> Self {
        let (checkpoint, skips) = checkpoint.map_or((None, BTreeSet::new()), |(l, s)| (Some(l), s));
        Self {
            partition,
            topic: names.triggers(),
            signals: names.signals(),
            owner: owner.to_owned(),
            nonce,
            phase: TakeoverPhase::Offsets,
            checkpoint,
            offsets: PartitionOffsets::default(),
            mirror_search: MirrorSearch::new(checkpoint.map(|local| local.step)),
            cursor: Cursor::initial(0, 0),
            ledger_position: 0,
            replay: Replay::new(TimelineKey::MIN, 0, 0..0, skips),
            gaps: Vec::new(),
            cut_signals: None,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn next_request(&self) -> TakeoverRequest {
        match self.phase {
            TakeoverPhase::Offsets | TakeoverPhase::Confirm => TakeoverRequest::Offsets,
            TakeoverPhase::Mirror => {
                let PartitionOffsets { ledger_low, ledger_end, .. } = self.offsets;
                TakeoverRequest::Mirror { from: ledger_low, until: ledger_end }
            }
            TakeoverPhase::Barrier => TakeoverRequest::Barrier {
                offset: self.cursor.next_offset,
                metadata: self.cursor.to_metadata(&self.owner),
                nonce: self.nonce,
            },
            // A read from below the first offset would never begin.
            TakeoverPhase::Ledger => TakeoverRequest::Ledger {
                from: self.ledger_resume_offset().max(self.offsets.ledger_low),
            },
            TakeoverPhase::Triggers => TakeoverRequest::Triggers {
                from: self.replay_start(),
                until: self.cursor.next_offset,
            },
            TakeoverPhase::Done => TakeoverRequest::Nothing,
        }
    }

    /// Whether the local store is invalid and must be wiped before it is written.
    #[must_use]
    pub fn must_wipe(&self) -> bool {
        self.checkpoint.is_none()
    }

    /// The answer to [`TakeoverRequest::Offsets`].
    pub fn on_offsets(&mut self, offsets: PartitionOffsets) -> Result<(), TakeoverError> {
        if self.phase == TakeoverPhase::Confirm {
            return self.confirm(&offsets);
        }
        assert_eq!(self.phase, TakeoverPhase::Offsets, "the offsets were not requested");
        self.offsets = offsets;
        let Some((offset, metadata)) = &self.offsets.committed else {
            return self.start_mirror_search();
        };
        match Cursor::from_metadata(*offset, metadata) {
            Ok((cursor, _owner)) => self.resume_from(cursor),
            Err(MetadataError::Foreign) => self.start_mirror_search(),
            Err(newer @ MetadataError::Newer(_)) => Err(TakeoverError::NewerMetadata(newer)),
        }
    }

    /// The answer to [`TakeoverRequest::Barrier`]: the transaction is committed.
    pub fn on_barrier(&mut self) {
        assert_eq!(self.phase, TakeoverPhase::Barrier, "no barrier was requested");
        self.phase = TakeoverPhase::Confirm;
    }

    /// Ledger records, for [`TakeoverRequest::Mirror`] and [`TakeoverRequest::Ledger`] alike;
    /// `position` is the offset after the last one. Returns the rows to apply.
    pub fn on_ledger(
        &mut self,
        records: Vec<LedgerRecord>,
        position: Offset,
        fetched: &IndexRows,
    ) -> Result<Vec<RowOp>, TakeoverError> {
        match self.phase {
            TakeoverPhase::Mirror => {
                self.mirror_search.read(records);
                if position >= self.offsets.ledger_end {
                    self.on_mirror_read()?;
                }
                Ok(Vec::new())
            }
            TakeoverPhase::Ledger => Ok(self.read_ledger(records, position, fetched)),
            _ => Ok(Vec::new()),
        }
    }

    /// The ids whose index rows [`on_ledger`](Self::on_ledger) needs for these records.
    pub fn ids_in_ledger(&mut self, records: &[LedgerRecord]) -> Vec<IdHash> {
        self.replay.ids_in_ledger(records)
    }

    /// The ids whose index rows [`on_triggers`](Self::on_triggers) needs for these records.
    pub fn ids_in_triggers(&mut self, records: &[TriggerRecord]) -> Vec<IdHash> {
        self.replay.ids_in_triggers(records)
    }

    /// Whether the record of `triggers` at `offset` need not be passed to
    /// [`on_triggers`](Self::on_triggers): the ledger contains what it has registered.
    #[must_use]
    pub fn is_covered(&self, offset: Offset) -> bool {
        self.replay.is_covered(offset)
    }

    /// The records for which [`is_covered`](Self::is_covered) is true, for a reader that continues
    /// while records are applied elsewhere.
    pub fn take_covered(&mut self) -> OffsetBitmap {
        assert_eq!(self.phase, TakeoverPhase::Triggers, "the ledger is not read completely");
        self.replay.take_covered()
    }

    /// The marks of records that changed no trigger of the partition.
    #[must_use]
    pub fn marks_of_ignored(&self) -> &BTreeSet<Offset> {
        &self.replay.skips
    }

    /// Covered records were written until `timestamp`, in ms since the epoch.
    pub fn on_covered(&mut self, timestamp: Timestamp) {
        self.replay.observe_timestamp(timestamp);
    }

    /// Records of `triggers` for [`TakeoverRequest::Triggers`], all below its `until`. Returns the
    /// rows to apply.
    pub fn on_triggers(&mut self, records: Vec<TriggerRecord>, fetched: &IndexRows) -> Vec<RowOp> {
        assert_eq!(self.phase, TakeoverPhase::Triggers, "no triggers were requested");
        self.replay.apply_triggers(records, fetched)
    }

    /// The reader's position on `triggers` has passed N.
    pub fn on_triggers_end(&mut self) {
        assert_eq!(self.phase, TakeoverPhase::Triggers, "no triggers were requested");
        self.phase = TakeoverPhase::Done;
    }

    /// The committed cursor; known once the barrier is requested.
    #[must_use]
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// The final commit if the partition is given up before it was active: our barrier may be its
    /// last commit. `None` while the cursor is still the earlier owner's.
    #[must_use]
    pub fn final_commit(&self) -> Option<(Offset, String)> {
        let ours = !matches!(
            self.phase,
            TakeoverPhase::Offsets | TakeoverPhase::Mirror | TakeoverPhase::Barrier
        );
        ours.then(|| (self.cursor.next_offset, self.cursor.to_final_metadata(&self.owner)))
    }

    /// The checkpoint of the local store to write with the rows, given that records of `triggers`
    /// below `applied` are applied. The step counts only once the ledger was read completely.
    #[must_use]
    pub fn checkpoint(&self, applied: Offset) -> LocalCheckpoint {
        let read = matches!(self.phase, TakeoverPhase::Triggers | TakeoverPhase::Done);
        let before = self.checkpoint.unwrap_or(LocalCheckpoint {
            applied_until: 0,
            step: 0,
            ledger_position: 0,
            fired_through: TimelineKey::MIN,
        });
        if read {
            let ledger_position = self.ledger_position;
            LocalCheckpoint {
                applied_until: applied.min(self.cursor.decided_until()),
                step: self.cursor.step,
                ledger_position,
                fired_through: self.cursor.fired_through,
            }
        } else {
            before
        }
    }

    /// The offset of `triggers` from which the replay starts.
    #[must_use]
    pub fn replay_start(&self) -> Offset {
        let applied = self.checkpoint.map_or(0, |local| local.applied_until);
        self.cursor.replay_from.max(applied).min(self.cursor.next_offset)
    }

    /// Where the partition starts from.
    #[must_use]
    pub fn finish(&mut self) -> PartitionStart {
        assert_eq!(self.phase, TakeoverPhase::Done, "the takeover is not finished");
        if self.cursor.replay_horizon == REPLAY_HORIZON_UNKNOWN {
            self.cursor.replay_horizon = self.replay.max_inserted_due;
        }
        PartitionStart {
            cursor: self.cursor,
            last_timestamp: self.replay.last_timestamp,
            index_complete_from: self.replay_start(),
            skips: std::mem::take(&mut self.replay.skips),
        }
    }

    /// What distinguishes this takeover from every other.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    fn start_mirror_search(&mut self) -> Result<(), TakeoverError> {
        self.phase = TakeoverPhase::Mirror;
        let PartitionOffsets { ledger_low, ledger_end, .. } = self.offsets;
        if ledger_low == ledger_end { self.on_mirror_read() } else { Ok(()) }
    }

    /// The local store contains the ledger below this.
    fn ledger_resume_offset(&self) -> Offset {
        self.checkpoint.map_or(0, |local| local.ledger_position)
    }

    /// The ledger was searched for the mirror: decide the cursor.
    fn on_mirror_read(&mut self) -> Result<(), TakeoverError> {
        let local = self.checkpoint.as_ref();
        let cursor =
            self.mirror_search.cursor(&self.offsets, local).map_err(|error| match error {
                MirrorError::Newer(newer) => TakeoverError::NewerMetadata(newer),
                MirrorError::NotClean { offset, due: mirror_due } => TakeoverError::CursorLost {
                    partition: self.partition,
                    topic: self.topic.clone(),
                    offset,
                    mirror_due,
                },
            })?;
        self.resume_from(cursor)
    }

    fn resume_from(&mut self, mut cursor: Cursor) -> Result<(), TakeoverError> {
        self.check_ends(&cursor)?;
        let ledger_end = self.offsets.ledger_end;
        // S follows from what is replayed: that must be everything then.
        let is_known = cursor.replay_horizon != REPLAY_HORIZON_UNKNOWN;
        self.checkpoint =
            self.checkpoint.filter(|local| is_known && local.agrees_with(&cursor, ledger_end));
        if self.checkpoint.is_none() {
            self.replay.skips.clear();
        }
        self.cut_signals = self.offsets.return_to_cut(&mut cursor, &self.signals);
        let gaps = self.offsets.skip_deleted(&mut cursor, self.checkpoint.as_ref());
        self.gaps.extend(gaps);
        self.cursor = cursor;
        let skips = std::mem::take(&mut self.replay.skips);
        let log = self.replay_start()..cursor.next_offset;
        let replay = Replay::new(cursor.fired_through, cursor.replay_horizon, log, skips);
        self.replay =
            if self.must_wipe() { replay.with_empty_store(self.records_max()) } else { replay };
        self.phase = TakeoverPhase::Barrier;
        Ok(())
    }

    /// How many records there are to read at most.
    fn records_max(&self) -> u64 {
        let ledger = self.offsets.ledger_end.saturating_sub(self.offsets.ledger_low);
        ledger + self.cursor.next_offset.saturating_sub(self.replay_start())
    }

    fn check_ends(&self, cursor: &Cursor) -> Result<(), TakeoverError> {
        let (offsets, offset) = (&self.offsets, cursor.next_offset);
        let (partition, topic, end) = (self.partition, self.topic.clone(), offsets.triggers_end);
        if end < offset {
            return Err(TakeoverError::TopicTruncated { partition, topic, end, offset });
        }
        let Some(new) = offsets.new_records_of(&topic) else { return Ok(()) };
        // What was new then has been read by another owner since.
        let offset = new.offset.min(offset);
        if new.first < offset && !self.is_moved() {
            return Err(TakeoverError::WrittenAgain { partition, topic, end: new.end, offset });
        }
        Ok(())
    }

    /// Whether an operator has moved the offset: the new one is accepted as it is.
    fn is_moved(&self) -> bool {
        self.phase == TakeoverPhase::Mirror && self.offsets.committed.is_some()
    }

    fn confirm(&mut self, offsets: &PartitionOffsets) -> Result<(), TakeoverError> {
        let wanted = (self.cursor.next_offset, self.cursor.to_metadata(&self.owner));
        if offsets.committed.as_ref() != Some(&wanted) {
            let found = offsets.committed.as_ref();
            return Err(match found.map(|(n, metadata)| Cursor::from_metadata(*n, metadata)) {
                Some(Ok(_)) => TakeoverError::TakenOverByOther { partition: self.partition },
                _ => TakeoverError::MetadataDropped,
            });
        }
        self.offsets.ledger_low = offsets.ledger_low;
        self.ledger_position = self.ledger_resume_offset();
        self.phase = TakeoverPhase::Ledger;
        Ok(())
    }

    /// Records after our barrier are a later owner's: parts of steps, and ahead of our cursor. The
    /// owner that resumes this store reads them again.
    fn read_ledger(
        &mut self,
        mut records: Vec<LedgerRecord>,
        position: Offset,
        fetched: &IndexRows,
    ) -> Vec<RowOp> {
        let applied = self.checkpoint.map_or(0, |local| local.step);
        let ours = Some(LedgerValue::Barrier { nonce: self.nonce });
        let barrier = records.iter().position(|record| record.value == ours);
        let read = barrier.map_or(records.len(), |at| at + 1);
        if records.drain(read..).next().is_none() {
            self.ledger_position = position;
        }
        for record in &records {
            self.cursor.step = self.cursor.step.max(record.step);
        }
        let new_records = records.into_iter().filter(|record| record.step > applied).collect();
        let rows = self.replay.apply_ledger(new_records, fetched);
        if barrier.is_some() {
            self.phase = TakeoverPhase::Triggers;
        }
        rows
    }
}
