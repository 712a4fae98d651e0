//! One owned partition: the cursor, the wheel, and the step being drafted.
//!
//! Law: ingest and fire add to the draft; [`Partition::seal`] closes it into a [`Step`]. The
//! state here runs ahead of what is committed; if a commit fails, the whole partition is dropped
//! and taken over again, so nothing is ever undone by hand.

use std::collections::BTreeSet;

use super::cursor::Cursor;
use super::known::{IdHash, IdMap, Known};
use super::low_water::LowWater;
use super::overlay::Overlay;
use super::rows::Stored;
use super::series::Pace;
use super::step::{Emit, InputTopics, Step};
use super::watermark::Watermark;
use super::wheel::{Load, Wheel};
use crate::codec::row::{self, RowBytes, RowError};
use crate::fault::{Bug, planted};
use crate::model::entry::Row;
use crate::model::fire::Withdrawal;
use crate::model::input::{SignalRecord, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::partitioner::Partitioner;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// Index rows read from the store for the ids of a batch.
pub type Fetched = IdMap<Known>;

/// W this far behind the clock means that the partition is catching up, in ms.
const CATCHING_UP_MS: Millis = 1_000;

/// The settings that decisions depend on.
#[derive(Clone, Debug)]
pub struct Rules {
    /// An entry still pending this long after its ingest is moved to the ledger.
    pub ledger_after: Millis,
    /// How long a cancel is remembered that may yet have to stop a retry.
    pub veto_ttl: Millis,
    /// How often the low-water mark is sampled.
    pub sample_interval: Millis,
    /// How long a step without emits stays open at most.
    pub idle_commit: Millis,
    /// How often the cursor is mirrored in the ledger.
    pub mirror_interval: Millis,
    /// Records taken in by a step at most; an open draft is sealed when it has as many.
    pub ingest_max: usize,
    /// Changes go to the store when they take up as much memory as this, in bytes.
    pub spill_bytes: usize,
    /// Changes go to the store at least this often.
    pub spill_interval: Millis,
    /// A cancel written at least this long before its trigger is due is never too late.
    pub cancel_grace: Millis,
    /// How long a fire waits whose target topic cannot be reached just now.
    pub park: Millis,
    /// How long a worker's word on how a callback ended is waited for.
    pub open_ttl: Millis,
    /// An occurrence of a recurring trigger later than this is missed: its misfire rule decides.
    pub misfire_grace: Millis,
    /// Missed occurrences made up for in a second at most.
    pub catch_up_rate: u32,
    /// The hash that says where the owner of a trigger reads.
    pub partitioner: Partitioner,
    /// How many partitions our topics have.
    pub partitions: i32,
    /// The pools, beside the default one, that a callback may have gone to.
    pub pools: Vec<Text>,
    /// Whose transactions these are: the transactional id in the commit metadata.
    pub owner: String,
    /// The names dead letters give to where they came from.
    pub topics: InputTopics,
}

/// What a takeover found, and where a partition starts from.
#[derive(Clone, Debug)]
pub struct Start {
    /// The committed cursor.
    pub cursor: Cursor,
    /// The broker timestamp of the last record replayed, in ms since the epoch; 0 if none was.
    pub last_timestamp: Timestamp,
    /// Every record of `triggers` from here on is reflected in the store.
    pub seen_from: Offset,
    /// Marks of ignored records that the low-water mark has not passed yet.
    pub skips: BTreeSet<Offset>,
}

/// An input, in the order of its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A record of `triggers`.
    Trigger(TriggerRecord),
    /// A record of `signals`.
    Signal(SignalRecord),
    /// The reader has met the end of `triggers` at this offset (exclusive): what lies between the
    /// last record and there are markers and aborted records.
    TriggersEnd(Offset),
}

/// Entries whose time has come.
#[derive(Clone, Debug)]
pub struct Due {
    /// Registered at or below W: they fire first, in offset order, and do not move W.
    pub late: Vec<(TimelineKey, RowBytes)>,
    /// Off the timeline, in key order.
    pub entries: Vec<(TimelineKey, RowBytes)>,
    /// Of what has fired before: they go out first, to every pool.
    pub(super) withdrawals: Vec<Withdrawal>,
    /// Those pools, if there are withdrawals.
    pub(super) pools: Vec<Text>,
    /// Where W stands once these have fired.
    pub(super) w: TimelineKey,
}

/// A stored row that cannot be read: rebuild the partition's store from Kafka.
#[derive(Debug, thiserror::Error)]
#[error("the stored row at {key:?} cannot be read: {reason}")]
pub struct CorruptRow {
    pub(super) key: TimelineKey,
    pub(super) reason: RowError,
}

/// One owned partition.
#[derive(Debug)]
pub struct Partition {
    pub(super) id: PartitionId,
    pub(super) rules: Rules,
    pub(super) cursor: Cursor,
    /// `max(previous, wall)`: never runs backwards.
    pub(super) clock: Timestamp,
    pub(super) wheel: Wheel,
    pub(super) overlay: Overlay,
    pub(super) skips: BTreeSet<Offset>,
    pub(super) draft: Draft,
    /// What the index says of older generations may be incomplete: later ones may be missing.
    pub(super) seen_from: Offset,
    /// N when entries last fired: what came since and was due already waits for the next firing.
    pub(super) fired_from: Offset,
    /// When the next missed occurrence may be made up for.
    pub(super) pace: Pace,
    watermark: Watermark,
    low_water: LowWater,
    sealed: Sealed,
    /// Where rows are encoded.
    scratch: Vec<u8>,
}

/// The step being drafted.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) emits: Vec<Emit>,
    pub(super) late: Vec<(TimelineKey, RowBytes)>,
    pub(super) withdrawals: Vec<Withdrawal>,
    /// The latest time at which a command has fired something in it, in ms since the epoch.
    pub(super) called_at: Timestamp,
    ingested: usize,
}

/// The last step that was sealed.
#[derive(Debug)]
struct Sealed {
    cursor: Cursor,
    at: Timestamp,
    mirrored_at: Timestamp,
    spilled_at: Timestamp,
    /// The next spill is due even if it holds no row.
    outgrown: bool,
}

impl Partition {
    /// An active partition, from what the takeover found. `wheel` stands at the cursor's W.
    #[must_use]
    pub fn new(id: PartitionId, rules: Rules, start: Start, wheel: Wheel) -> Self {
        let Start { cursor, last_timestamp, seen_from, skips } = start;
        let watermark = Watermark::new(cursor.triggers, last_timestamp, rules.cancel_grace);
        let by_clock = planted(Bug::LowWaterByClock);
        let horizon = if by_clock { cursor.w.due + rules.ledger_after } else { cursor.horizon };
        let low_water = LowWater::new(horizon, cursor.triggers, rules.sample_interval);
        Self {
            id,
            rules,
            cursor,
            clock: 0,
            wheel,
            overlay: Overlay::default(),
            skips,
            draft: Draft::default(),
            seen_from,
            fired_from: cursor.triggers,
            pace: Pace::default(),
            watermark,
            low_water,
            sealed: Sealed { cursor, at: 0, mirrored_at: 0, spilled_at: 0, outgrown: false },
            scratch: Vec::new(),
        }
    }

    /// The cursor as drafted: ahead of what is committed.
    #[must_use]
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Which partition this is.
    #[must_use]
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// The wall clock says `now` (ms since the epoch), or will before what is decided from here on
    /// is committed: an owner may decide a little ahead, if it commits no step before its W.
    /// Returns by how many ms it is behind what an earlier owner decided by; unless that is 0 the
    /// partition must wait, however long, because it would fire early.
    pub fn observe(&mut self, now: Timestamp) -> Millis {
        self.clock = self.clock.max(now);
        if planted(Bug::ClockRunsBack) {
            self.clock = now;
            return 0;
        }
        self.cursor.w.due.saturating_sub(self.clock)
    }

    /// Records that the open draft will write; the shell stops adding at its own limit.
    #[must_use]
    pub fn drafted(&self) -> usize {
        self.draft.emits.len()
    }

    /// Whether more should be taken in only when a step is committed, or the store has caught up.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.draft.ingested.max(self.draft.emits.len()) >= self.rules.ingest_max
            || self.overlay.bytes() >= self.rules.spill_bytes.saturating_mul(2)
    }

    /// Whether input is known to be unread.
    #[must_use]
    pub fn lags(&self) -> bool {
        self.watermark.lags()
    }

    /// At `at` (ms since the epoch, by this process's clock) `triggers` ended at `end`
    /// (exclusive): what was written before is read once that offset is.
    pub fn input_known(&mut self, end: Offset, at: Timestamp) {
        self.watermark.end_was(end, at);
    }

    /// Whether the store must be asked about `hash` before a record of that id is ingested.
    #[must_use]
    pub fn needs(&self, hash: IdHash) -> bool {
        !self.overlay.contains(hash)
    }

    /// Records in log order. `stored` has the store's index rows of the ids that
    /// [`needs`](Self::needs) named, where an id that is absent is unknown to the store, and the
    /// rows that [`rows_wanted`](Self::rows_wanted) named.
    pub fn ingest(&mut self, inputs: Vec<Input>, stored: Stored<'_>) -> Result<(), CorruptRow> {
        for input in inputs {
            match input {
                Input::Trigger(record) => {
                    self.cursor.triggers = record.offset + 1;
                    self.watermark.read(record.offset, record.timestamp);
                    self.draft.ingested += 1;
                    self.ingest_trigger(record, stored)?;
                }
                Input::Signal(record) => {
                    self.cursor.signals = record.offset + 1;
                    self.draft.ingested += 1;
                    self.ingest_signal(record, stored)?;
                }
                Input::TriggersEnd(end) => self.watermark.read_up_to(end),
            }
        }
        Ok(())
    }

    /// Up to when entries may fire: see [`Watermark`].
    #[must_use]
    pub fn watermark(&self) -> Timestamp {
        self.watermark.at(self.clock)
    }

    /// What the shell should read from the store into the wheel, if anything.
    #[must_use]
    pub fn wants(&self) -> Option<Load> {
        self.wheel.wants(self.clock)
    }

    /// Rows read from the store for [`wants`](Self::wants), in key order, complete up to
    /// `reached` (exclusive). What the store does not show yet is added here.
    pub fn load(&mut self, entries: Vec<(TimelineKey, RowBytes)>, reached: TimelineKey) {
        let from = self.wheel.loaded_until();
        self.wheel.load(entries, reached);
        for (key, row) in self.overlay.timeline().filter(|(key, _)| (from..reached).contains(key)) {
            match row {
                Some(row) => {
                    let _loaded = self.wheel.insert(*key, row.clone());
                }
                None => self.wheel.remove(*key),
            }
        }
    }

    /// Takes what is due now, at most `max` entries off the timeline. They must be fired next.
    pub fn take_due(&mut self, max: usize) -> Due {
        let watermark = self.watermark();
        let mut rows = Vec::new();
        self.wheel.take_due(TimelineKey::last_of(watermark), max, &mut rows);
        let loaded = self.wheel.loaded_until() > TimelineKey::last_of(watermark);
        let complete = rows.len() < max && (loaded || planted(Bug::PastUnloaded));
        let mut w = rows.last().map_or(self.cursor.w, |(key, _)| *key);
        if complete {
            w = w.max(TimelineKey::last_of(watermark.saturating_sub(1)));
        }
        let withdrawals = std::mem::take(&mut self.draft.withdrawals);
        let pools = if withdrawals.is_empty() { Vec::new() } else { self.rules.pools.clone() };
        Due { late: std::mem::take(&mut self.draft.late), entries: rows, withdrawals, pools, w }
    }

    /// When to look again if no record arrives before, in ms since the epoch.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        self.wheel.next_due()
    }

    /// Closes the draft into a step if it is time to commit it.
    pub fn seal(&mut self) -> Option<Step> {
        assert!(self.draft.late.is_empty(), "late entries fire in the step that ingested them");
        assert!(self.draft.withdrawals.is_empty(), "withdrawals go out in the step of the cancel");
        self.is_ripe().then(|| self.close(false))
    }

    /// Whether it is time to commit what is drafted: it emits something, is full, or has been open
    /// for long.
    pub fn is_ripe(&mut self) -> bool {
        self.raise_low_water();
        let (cursor, sealed) = (&self.cursor, &self.sealed.cursor);
        let moved = (cursor.triggers, cursor.signals, cursor.low_water)
            != (sealed.triggers, sealed.signals, sealed.low_water);
        let waited = self.clock >= self.sealed.at + self.rules.idle_commit;
        let full = self.draft.ingested >= self.rules.ingest_max;
        let urgent = !self.draft.emits.is_empty();
        let stale = (!self.overlay.is_clean() || self.sealed.outgrown) && self.must_spill();
        urgent || full || stale || (moved && waited)
    }

    /// The last step of an owner that leaves: whatever is drafted, and the mirror marked clean.
    pub fn seal_clean(&mut self) -> Step {
        self.raise_low_water();
        self.close(true)
    }

    /// The ledger has grown by more than a restart should read again: a spill is to say how far
    /// the store is, though nothing else has happened since the last one.
    pub fn ledger_grew(&mut self) {
        self.sealed.outgrown = true;
    }

    /// What step `number` spilled, and all before it, is in the store.
    pub fn applied(&mut self, number: u64) {
        self.overlay.applied(number);
    }

    /// Moves L to where W allows and forgets the marks it has passed.
    fn raise_low_water(&mut self) {
        let mut passed = self.low_water.passed(self.cursor.w.due);
        if planted(Bug::NoLowWater) {
            passed = Some(self.cursor.triggers);
        }
        let Some(passed) = passed else { return };
        self.cursor.low_water = self.cursor.low_water.max(passed);
        while let Some(offset) = self.skips.first().copied() {
            if offset >= self.cursor.low_water {
                break;
            }
            let _forgotten = self.skips.pop_first();
            self.draft.emits.push(Emit::Ledger { key: LedgerKey::Skip(offset), value: None });
            self.overlay.mark(offset, false);
        }
    }

    /// While the partition catches up, most of what is in memory fires with the next steps and
    /// would be written for nothing: then as much is kept as there may be.
    fn must_spill(&self) -> bool {
        let catches_up = self.cursor.w.due + CATCHING_UP_MS < self.clock;
        let most = self.rules.spill_bytes;
        let room = catches_up && self.overlay.bytes() < most.saturating_mul(2);
        let full = self.overlay.active_bytes() >= most && !room;
        full || self.clock >= self.sealed.spilled_at + self.rules.spill_interval
    }

    fn close(&mut self, clean: bool) -> Step {
        self.cursor.step += 1;
        let number = self.cursor.step;
        if clean || self.clock >= self.sealed.mirrored_at + self.rules.mirror_interval {
            let mirror = self.mirror(clean);
            self.draft.emits.push(mirror);
            self.sealed.mirrored_at = self.clock;
        }
        self.low_water.sample(self.clock, self.cursor.horizon, self.cursor.triggers);
        let spill = (clean || self.must_spill()).then(|| {
            (self.sealed.spilled_at, self.sealed.outgrown) = (self.clock, false);
            self.overlay.spill(number, self.cursor.w)
        });
        self.sealed.cursor = self.cursor;
        self.sealed.at = self.clock;
        let Draft { emits, ingested, called_at, .. } = std::mem::take(&mut self.draft);
        let time = self.cursor.w.due.max(called_at);
        Step { number, emits, time, spill, cursor: self.cursor, last: clean, ingested }
    }

    fn mirror(&self, clean: bool) -> Emit {
        let metadata = self.cursor.to_metadata(&self.rules.owner);
        let value = LedgerValue::Cursor { metadata, offset: self.cursor.triggers, clean };
        Emit::Ledger { key: LedgerKey::Cursor, value: Some(Box::new(value)) }
    }

    /// What is known of an id: the newest decided, else the store's.
    pub(super) fn known(&self, hash: IdHash, fetched: &Fetched) -> Known {
        let known = self.overlay.get(hash).or_else(|| fetched.get(&hash));
        known.cloned().unwrap_or_default()
    }

    /// Decides what the index knows of an id from now on.
    pub(super) fn know(&mut self, hash: IdHash, known: Known, fetched: &Fetched) {
        let stored = fetched.contains_key(&hash);
        self.overlay.know(hash, known.pruned(self.cursor.w), stored);
    }

    /// Puts an entry on the timeline, in memory too if its time is near.
    pub(super) fn put(&mut self, key: TimelineKey, row: RowBytes) {
        assert!(key > self.cursor.w, "no step inserts a row at or below its own W");
        let _loaded = self.wheel.insert(key, row.clone());
        self.overlay.put(key, row);
    }

    /// The bytes in which a row waits.
    pub(super) fn encode(&mut self, row: &Row) -> RowBytes {
        row::to_bytes(row, &mut self.scratch)
    }

    /// Takes an entry off the timeline.
    pub(super) fn delete(&mut self, key: TimelineKey) {
        self.wheel.remove(key);
        self.overlay.delete(key);
    }

    /// A record was ignored for reasons of state: a replay must ignore it too.
    pub(super) fn skip(&mut self, offset: Offset) {
        let key = LedgerKey::Skip(offset);
        let value = Some(Box::new(LedgerValue::Skip));
        self.draft.emits.push(Emit::Ledger { key, value });
        self.overlay.mark(offset, true);
        let _new = self.skips.insert(offset);
    }
}
