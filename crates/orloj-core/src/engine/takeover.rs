//! Taking over a partition: from assignment to active, as a state machine without I/O.
//!
//! Law: stable offsets first, then a barrier under our own generation, then the ledger until our
//! own nonce comes back, then the log up to N. Only then may anything fire.
//!
//! ```text
//!  Offsets ─► (Mirror) ─► Barrier ─► Confirm ─► Ledger ─► Triggers ─► Done
//! ```

use std::collections::BTreeSet;

use super::cursor::{Cursor, MetadataError, next_lineage};
use super::held::Held;
use super::known::IdHash;
use super::local::Local;
use super::partition::{Fetched, Start};
pub use super::refusal::Refusal;
use super::replay::Replay;
use super::step::RowOp;
use crate::fault::{Bug, planted};
use crate::model::input::TriggerRecord;
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, PartitionId, Timestamp};

/// What the takeover wants from the shell next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The partition's committed offset and metadata, read stable, and the topics' bounds.
    Committed,
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
        /// Fresh; proves that what comes back is ours.
        nonce: u64,
    },
    /// Ledger records from here on, until the takeover asks for something else.
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

/// S of a cursor that an operator has moved past its mirror: a replay without a local store finds
/// it out.
const S_UNKNOWN: Timestamp = Timestamp::MAX;

/// What the broker says of the partition's offset.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// The group's offset of `triggers[p]` and its metadata, if any was ever committed.
    pub offset: Option<(Offset, String)>,
    /// The first offset of `triggers[p]` still there.
    pub triggers_low: Offset,
    /// The end of `triggers[p]`.
    pub triggers_end: Offset,
    /// The first offset of `signals[p]` still there.
    pub signals_low: Offset,
    /// The end of `signals[p]`.
    pub signals_end: Offset,
    /// The first offset of `ledger[p]` still there.
    pub ledger_low: Offset,
    /// The end of `ledger[p]`.
    pub ledger_end: Offset,
}

/// Part of the log was deleted before it was read: an operator must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// `triggers`, `signals` or `ledger`.
    pub topic: &'static str,
    /// The first offset that was needed.
    pub from: Offset,
    /// The first offset that is there.
    pub until: Offset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
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
    owner: String,
    nonce: u64,
    phase: Phase,
    local: Option<Local>,
    committed: Committed,
    mirror: Option<(String, Offset, bool)>,
    /// The highest number of a step that was seen while the mirror was looked for.
    last_step: Option<u64>,
    cursor: Cursor,
    ledger_position: Offset,
    replay: Replay,
    /// What of the log was deleted too early.
    pub gaps: Vec<Gap>,
}

impl Takeover {
    /// Begins with the local store, if it is valid, and its skip marks. `nonce` must be fresh.
    #[must_use]
    pub fn new(
        partition: PartitionId,
        topic: &str,
        owner: &str,
        nonce: u64,
        local: Option<(Local, BTreeSet<Offset>)>,
    ) -> Self {
        let (local, skips) = local.map_or((None, BTreeSet::new()), |(l, s)| (Some(l), s));
        Self {
            partition,
            topic: topic.to_owned(),
            owner: owner.to_owned(),
            nonce,
            phase: Phase::Offsets,
            local,
            committed: Committed::default(),
            mirror: None,
            last_step: local.map(|local| local.step),
            cursor: Cursor::fresh(0, 0),
            ledger_position: 0,
            replay: Replay::new(TimelineKey::MIN, 0, 0..0, skips),
            gaps: Vec::new(),
        }
    }

    /// What to do next.
    #[must_use]
    pub fn ask(&self) -> Ask {
        match self.phase {
            Phase::Offsets | Phase::Confirm => Ask::Committed,
            Phase::Mirror => {
                let Committed { ledger_low, ledger_end, .. } = self.committed;
                Ask::Mirror { from: ledger_low, until: ledger_end }
            }
            Phase::Barrier => Ask::Barrier {
                offset: self.cursor.triggers,
                metadata: self.cursor.to_metadata(&self.owner),
                nonce: self.nonce,
            },
            // A read from below what is still there would never begin.
            Phase::Ledger => {
                Ask::Ledger { from: self.ledger_read().max(self.committed.ledger_low) }
            }
            Phase::Triggers => {
                Ask::Triggers { from: self.replay_from(), until: self.cursor.triggers }
            }
            Phase::Done => Ask::Nothing,
        }
    }

    /// Whether the local store turned out to be of no use and must be wiped before it is written.
    #[must_use]
    pub fn must_wipe(&self) -> bool {
        self.local.is_none()
    }

    /// The answer to [`Ask::Committed`].
    pub fn on_committed(&mut self, committed: Committed) -> Result<(), Refusal> {
        if self.phase == Phase::Confirm {
            return self.confirm(&committed);
        }
        assert_eq!(self.phase, Phase::Offsets, "nobody asked for the offsets");
        self.committed = committed;
        let Some((offset, metadata)) = &self.committed.offset else {
            return self.seek_mirror();
        };
        match Cursor::from_metadata(*offset, metadata) {
            Ok((cursor, _owner)) => self.stand_at(cursor),
            Err(MetadataError::Foreign) => self.seek_mirror(),
            Err(newer @ MetadataError::Newer(_)) => Err(Refusal::Newer(newer)),
        }
    }

    /// The answer to [`Ask::Barrier`]: the transaction is committed.
    pub fn on_barrier(&mut self) {
        assert_eq!(self.phase, Phase::Barrier, "nobody asked for a barrier");
        self.phase = Phase::Confirm;
    }

    /// Ledger records, for [`Ask::Mirror`] and [`Ask::Ledger`] alike; `position` is the offset
    /// after the last one. Returns the rows to apply.
    pub fn on_ledger(
        &mut self,
        records: Vec<LedgerRecord>,
        position: Offset,
        fetched: &Fetched,
    ) -> Result<Vec<RowOp>, Refusal> {
        match self.phase {
            Phase::Mirror => {
                self.find_mirror(records);
                if position >= self.committed.ledger_end {
                    self.on_mirror()?;
                }
                Ok(Vec::new())
            }
            Phase::Ledger => Ok(self.read_ledger(records, position, fetched)),
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

    /// Whether the record of `triggers` at `offset` need not be given to
    /// [`on_triggers`](Self::on_triggers): the ledger holds what it has registered.
    #[must_use]
    pub fn holds(&self, offset: Offset) -> bool {
        self.replay.holds(offset)
    }

    /// The records that [`holds`](Self::holds) says, for a reader that goes on while records are
    /// applied elsewhere.
    pub fn take_held(&mut self) -> Held {
        assert_eq!(self.phase, Phase::Triggers, "the ledger is not read whole");
        self.replay.take_held()
    }

    /// Records that are held were written until `timestamp`, in ms since the epoch.
    pub fn on_held(&mut self, timestamp: Timestamp) {
        self.replay.passed(timestamp);
    }

    /// Records of `triggers` for [`Ask::Triggers`], all below its `until`. Returns the rows to
    /// apply.
    pub fn on_triggers(&mut self, records: Vec<TriggerRecord>, fetched: &Fetched) -> Vec<RowOp> {
        assert_eq!(self.phase, Phase::Triggers, "nobody asked for triggers");
        self.replay.triggers(records, fetched)
    }

    /// The reader's position on `triggers` has passed N.
    pub fn on_triggers_end(&mut self) {
        assert_eq!(self.phase, Phase::Triggers, "nobody asked for triggers");
        self.phase = Phase::Done;
    }

    /// The committed cursor; known once the barrier is asked for.
    #[must_use]
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// What to commit when the partition goes before it was active: our barrier may be the last
    /// word on it. `None` while the cursor is still the earlier owner's.
    #[must_use]
    pub fn farewell(&self) -> Option<(Offset, String)> {
        let ours = !matches!(self.phase, Phase::Offsets | Phase::Mirror | Phase::Barrier);
        ours.then(|| (self.cursor.triggers, self.cursor.to_farewell(&self.owner)))
    }

    /// How far the local store is, given that `applied` records of `triggers` are: what to store
    /// with the rows. The step counts only once the ledger has been read whole.
    #[must_use]
    pub fn local(&self, applied: Offset) -> Local {
        let read = matches!(self.phase, Phase::Triggers | Phase::Done);
        let before = self.local.unwrap_or(Local {
            applied: 0,
            step: 0,
            ledger_position: 0,
            w: TimelineKey::MIN,
        });
        if read {
            let ledger_position = self.ledger_position;
            Local { applied, step: self.cursor.step, ledger_position, w: self.cursor.w }
        } else {
            before
        }
    }

    /// From which offset of `triggers` the replay starts.
    #[must_use]
    pub fn replay_from(&self) -> Offset {
        let applied = self.local.map_or(0, |local| local.applied);
        if planted(Bug::ReplayFromN) {
            return self.cursor.triggers;
        }
        self.cursor.low_water.max(applied).min(self.cursor.triggers)
    }

    /// Where the partition starts from.
    #[must_use]
    pub fn finish(&mut self) -> Start {
        assert_eq!(self.phase, Phase::Done, "the takeover is not finished");
        if planted(Bug::ReplaySignals) {
            self.cursor.signals = self.cursor.signals.saturating_sub(5);
        }
        if self.cursor.horizon == S_UNKNOWN {
            self.cursor.horizon = self.replay.inserted_until;
        }
        Start {
            cursor: self.cursor,
            last_timestamp: self.replay.last_timestamp,
            seen_from: self.replay_from(),
            skips: std::mem::take(&mut self.replay.skips),
        }
    }

    /// What tells this takeover from every other.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    fn seek_mirror(&mut self) -> Result<(), Refusal> {
        self.phase = Phase::Mirror;
        let Committed { ledger_low, ledger_end, .. } = self.committed;
        if ledger_low == ledger_end { self.on_mirror() } else { Ok(()) }
    }

    /// The local store holds the ledger below this.
    fn ledger_read(&self) -> Offset {
        self.local.map_or(0, |local| local.ledger_position)
    }

    fn find_mirror(&mut self, records: Vec<LedgerRecord>) {
        for record in records {
            self.last_step = self.last_step.max(Some(record.step));
            if let (LedgerKey::Cursor, Some(LedgerValue::Cursor { metadata, offset, clean })) =
                (record.key, record.value)
            {
                self.mirror = Some((metadata, offset, clean));
            }
        }
    }

    /// The ledger was searched for the mirror: decide where to stand.
    fn on_mirror(&mut self) -> Result<(), Refusal> {
        let mirror = match &self.mirror {
            None => None,
            Some((metadata, offset, clean)) => match Cursor::from_metadata(*offset, metadata) {
                Ok((cursor, _owner)) => Some((cursor, *clean)),
                Err(newer) => return Err(Refusal::Newer(newer)),
            },
        };
        let moved_to = self.committed.offset.as_ref().map(|(offset, _)| *offset);
        let (low, signals) = (self.committed.triggers_low, self.committed.signals_low);
        let step = self.last_step.map_or(0, next_lineage);
        let cursor = match (mirror, moved_to) {
            (None, moved_to) => Cursor { step, ..Cursor::fresh(moved_to.unwrap_or(low), signals) },
            (Some((cursor, false)), None) if !planted(Bug::MirrorAlwaysClean) => {
                return Err(Refusal::CursorLost {
                    partition: self.partition,
                    topic: self.topic.clone(),
                    offset: cursor.triggers,
                    mirror_due: cursor.w.due,
                });
            }
            (Some((cursor, _)), None) => cursor,
            (Some((cursor, _)), Some(offset)) => self.moved(Cursor { step, ..cursor }, offset),
        };
        self.stand_at(cursor)
    }

    /// An operator moved the offset: everything from there on counts as new. W stays.
    fn moved(&self, mirror: Cursor, offset: Offset) -> Cursor {
        let w = self.local.map_or(mirror.w, |local| local.w.max(mirror.w));
        // What was ingested since the mirror was written may be due later than its S.
        let horizon = if offset > mirror.triggers { S_UNKNOWN } else { mirror.horizon };
        let low_water = mirror.low_water.min(offset);
        Cursor { w, triggers: offset, low_water, horizon, ..mirror }
    }

    fn stand_at(&mut self, mut cursor: Cursor) -> Result<(), Refusal> {
        self.check_ends(&cursor)?;
        let ledger_end = self.committed.ledger_end;
        self.local = self.local.filter(|local| local.agrees_with(&cursor, ledger_end));
        if self.local.is_none() {
            self.replay.skips.clear();
        }
        self.skip_gaps(&mut cursor);
        self.cursor = cursor;
        let skips = std::mem::take(&mut self.replay.skips);
        let log = self.replay_from()..cursor.triggers;
        let replay = Replay::new(cursor.w, cursor.horizon, log, skips);
        self.replay = if self.must_wipe() { replay.of_empty_store(self.records()) } else { replay };
        self.phase = if planted(Bug::NoBarrier) { Phase::Ledger } else { Phase::Barrier };
        Ok(())
    }

    /// How many records there are to read at most.
    fn records(&self) -> u64 {
        let ledger = self.committed.ledger_end.saturating_sub(self.committed.ledger_low);
        ledger + self.cursor.triggers.saturating_sub(self.replay_from())
    }

    fn check_ends(&self, cursor: &Cursor) -> Result<(), Refusal> {
        let committed = &self.committed;
        let signals = self.topic.replace("triggers", "signals");
        let ends = [
            (self.topic.clone(), committed.triggers_end, cursor.triggers),
            (signals, committed.signals_end, cursor.signals),
        ];
        match ends.into_iter().find(|(_, end, offset)| end < offset) {
            None => Ok(()),
            Some((topic, end, offset)) => {
                Err(Refusal::TopicShorter { partition: self.partition, topic, end, offset })
            }
        }
    }

    /// What retention has deleted cannot be read: say so, and go on with what is there.
    fn skip_gaps(&mut self, cursor: &mut Cursor) {
        let applied = self.local.map_or(0, |local| local.applied);
        let needed = cursor.low_water.max(applied).min(cursor.triggers);
        let (low, signals_low) = (self.committed.triggers_low, self.committed.signals_low);
        if needed < low {
            self.gaps.push(Gap { topic: "triggers", from: needed, until: low });
            cursor.low_water = cursor.low_water.max(low);
            cursor.triggers = cursor.triggers.max(low);
        }
        if cursor.signals < signals_low {
            self.gaps.push(Gap { topic: "signals", from: cursor.signals, until: signals_low });
            cursor.signals = signals_low;
        }
        let (read, until) = (self.ledger_read(), self.committed.ledger_low);
        if read < until {
            self.gaps.push(Gap { topic: "ledger", from: read, until });
        }
    }

    fn confirm(&mut self, committed: &Committed) -> Result<(), Refusal> {
        let wanted = (self.cursor.triggers, self.cursor.to_metadata(&self.owner));
        if committed.offset.as_ref() != Some(&wanted) {
            let found = committed.offset.as_ref();
            return Err(match found.map(|(n, metadata)| Cursor::from_metadata(*n, metadata)) {
                Some(Ok(_)) => Refusal::Overtaken { partition: self.partition },
                _ => Refusal::MetadataDropped,
            });
        }
        self.committed.ledger_low = committed.ledger_low;
        self.ledger_position = self.ledger_read();
        self.phase = Phase::Ledger;
        Ok(())
    }

    /// What follows our barrier is a later owner's: it would be of steps that we see in part, and
    /// say more than our cursor. It is read again by whoever resumes this store.
    fn read_ledger(
        &mut self,
        mut records: Vec<LedgerRecord>,
        position: Offset,
        fetched: &Fetched,
    ) -> Vec<RowOp> {
        let applied = self.local.map_or(0, |local| local.step);
        let ours = Some(LedgerValue::Barrier { nonce: self.nonce });
        let barrier = records.iter().position(|record| record.value == ours);
        let read = barrier.map_or(records.len(), |at| at + 1);
        if records.drain(read..).next().is_none() {
            self.ledger_position = position;
        }
        for record in &records {
            self.cursor.step = self.cursor.step.max(record.step);
        }
        let news = records.into_iter().filter(|record| record.step > applied).collect();
        let rows = self.replay.ledger(news, fetched);
        if barrier.is_some() || planted(Bug::NoBarrier) {
            self.phase = Phase::Triggers;
        }
        rows
    }
}
