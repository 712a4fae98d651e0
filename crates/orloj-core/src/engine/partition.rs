//! One owned partition: the cursor, the wheel, and the step being drafted.
//!
//! Invariant: ingest and fire add to the draft; [`Partition::seal`] closes it into a
//! [`PartitionStep`]. The state here runs ahead of what is committed; if a commit fails, the whole
//! partition is dropped and taken over again, so no decision is ever rolled back.

use std::collections::BTreeSet;

use super::cursor::Cursor;
use super::index_row::{IdHash, IdMap, IndexRow};
use super::prefetch::Prefetched;
use super::recurrence::CatchUpLimiter;
use super::replay_from::ReplayFromTracker;
use super::step::{Emit, InputTopics, PartitionStep};
use super::watermark::Watermark;
use super::wheel::{LoadRequest, Wheel};
use super::write_buffer::WriteBuffer;
use crate::codec::row::{self, RowBytes, RowError};
use crate::fault::{Mutation, is_active};
use crate::model::entry::Row;
use crate::model::fire::Withdrawal;
use crate::model::input::{SignalRecord, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::partitioner::Partitioner;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// Index rows read from the store for the ids of a batch.
pub type IndexRows = IdMap<IndexRow>;

/// W this far behind the clock means that the partition is catching up, in ms.
const CATCHING_UP_MS: Millis = 1_000;

/// The settings that decisions depend on.
#[derive(Clone, Debug)]
pub struct PartitionConfig {
    /// An entry still pending this long after its ingest is moved to the ledger.
    pub ledger_after: Millis,
    /// How long a cancel is remembered that may still have to stop a retry.
    pub veto_ttl: Millis,
    /// How often the low-water mark is sampled.
    pub sample_interval: Millis,
    /// How long a step without emits stays open at most.
    pub idle_commit: Millis,
    /// How often the cursor is mirrored in the ledger.
    pub mirror_interval: Millis,
    /// Records ingested by a step at most; an open draft is sealed when it has as many.
    pub ingest_max: usize,
    /// Changes go to the store when they take up as much memory as this, in bytes.
    pub spill_bytes: usize,
    /// Changes go to the store at least this often.
    pub spill_interval: Millis,
    /// A cancel written at least this long before its trigger is due is never too late.
    pub cancel_grace: Millis,
    /// How long a fire waits whose target topic cannot be reached now.
    pub park_interval: Millis,
    /// How long the owner waits for a worker's report of how a callback ended.
    pub callback_result_timeout: Millis,
    /// An occurrence of a recurring trigger later than this is missed: its misfire rule applies.
    pub misfire_grace: Millis,
    /// Missed occurrences that are fired late, per second at most.
    pub catch_up_rate: u32,
    /// The hash that selects the partition of a trigger.
    pub partitioner: Partitioner,
    /// How many partitions our topics have.
    pub partitions: i32,
    /// The pools, besides the default one, that a callback may have been sent to.
    pub pools: Vec<Text>,
    /// The owner's transactional id, for the commit metadata.
    pub owner: String,
    /// The names of the input topics, for the origins of dead letters.
    pub topics: InputTopics,
}

/// The result of a takeover: where a partition starts from.
#[derive(Clone, Debug)]
pub struct PartitionStart {
    /// The committed cursor.
    pub cursor: Cursor,
    /// The broker timestamp of the last record replayed, in ms since the epoch; 0 if none was.
    pub last_timestamp: Timestamp,
    /// Every record of `triggers` from here on is reflected in the store.
    pub index_complete_from: Offset,
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
    /// The reader has reached the end of `triggers` at this offset (exclusive): between the last
    /// record and the end are only markers and aborted records.
    TriggersEnd(Offset),
}

/// Entries that are due.
#[derive(Clone, Debug)]
pub struct DueEntries {
    /// Registered at or below W: they fire first, in offset order, and do not move W.
    pub late: Vec<(TimelineKey, RowBytes)>,
    /// Off the timeline, in key order.
    pub entries: Vec<(TimelineKey, RowBytes)>,
    /// Withdrawals of earlier fires: they are sent first, to every pool.
    pub(super) withdrawals: Vec<Withdrawal>,
    /// The pools to send them to, if there are withdrawals.
    pub(super) pools: Vec<Text>,
    /// W once these have fired.
    pub(super) fired_through: TimelineKey,
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
    pub(super) config: PartitionConfig,
    pub(super) cursor: Cursor,
    /// `max(previous, wall)`: never moves back.
    pub(super) clock: Timestamp,
    pub(super) wheel: Wheel,
    pub(super) write_buffer: WriteBuffer,
    pub(super) skips: BTreeSet<Offset>,
    pub(super) draft: StepDraft,
    /// Index rows of generations below this may be incomplete: later generations may be missing.
    pub(super) index_complete_from: Offset,
    /// N when entries last fired: later records that were due already wait for the next firing.
    pub(super) next_offset_at_last_fire: Offset,
    /// When the next missed occurrence may fire.
    pub(super) catch_up_limiter: CatchUpLimiter,
    watermark: Watermark,
    replay_from_tracker: ReplayFromTracker,
    last_step: LastStep,
    /// The buffer in which rows are encoded.
    scratch: Vec<u8>,
}

/// The step being drafted.
#[derive(Debug, Default)]
pub(super) struct StepDraft {
    pub(super) emits: Vec<Emit>,
    pub(super) late: Vec<(TimelineKey, RowBytes)>,
    pub(super) withdrawals: Vec<Withdrawal>,
    /// The latest time at which a command has fired something in it, in ms since the epoch.
    pub(super) fired_by_command_at: Timestamp,
    ingested: usize,
}

/// The last step that was sealed.
#[derive(Debug)]
struct LastStep {
    cursor: Cursor,
    sealed_at: Timestamp,
    mirrored_at: Timestamp,
    spilled_at: Timestamp,
    /// The next spill is due even if it holds no row.
    spill_requested: bool,
}

impl Partition {
    /// An active partition, from the result of the takeover. `wheel` is at the cursor's W.
    #[must_use]
    pub fn new(
        id: PartitionId,
        config: PartitionConfig,
        start: PartitionStart,
        wheel: Wheel,
    ) -> Self {
        let PartitionStart { cursor, last_timestamp, index_complete_from, skips } = start;
        let watermark = Watermark::new(cursor.next_offset, last_timestamp, config.cancel_grace);
        let by_clock = is_active(Mutation::ReplayHorizonByClock);
        let replay_horizon = if by_clock {
            cursor.fired_through.due + config.ledger_after
        } else {
            cursor.replay_horizon
        };
        let replay_from_tracker =
            ReplayFromTracker::new(replay_horizon, cursor.next_offset, config.sample_interval);
        Self {
            id,
            config,
            cursor,
            clock: 0,
            wheel,
            write_buffer: WriteBuffer::default(),
            skips,
            draft: StepDraft::default(),
            index_complete_from,
            next_offset_at_last_fire: cursor.next_offset,
            catch_up_limiter: CatchUpLimiter::default(),
            watermark,
            replay_from_tracker,
            last_step: LastStep {
                cursor,
                sealed_at: 0,
                mirrored_at: 0,
                spilled_at: 0,
                spill_requested: false,
            },
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

    /// The wall clock is at `now` (ms since the epoch), or will be before the following decisions
    /// are committed: an owner may decide a little ahead, if it commits no step before its W.
    /// Returns by how many ms it is behind the clock of an earlier owner; unless that is 0 the
    /// partition must wait, however long, because it would fire early.
    pub fn observe_clock(&mut self, now: Timestamp) -> Millis {
        self.clock = self.clock.max(now);
        if is_active(Mutation::ClockMovesBack) {
            self.clock = now;
            return 0;
        }
        self.cursor.fired_through.due.saturating_sub(self.clock)
    }

    /// Records that the open draft will write; the shell stops at its own limit.
    #[must_use]
    pub fn drafted_records(&self) -> usize {
        self.draft.emits.len()
    }

    /// Whether ingest should pause until a step is committed or the store has caught up.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.draft.ingested.max(self.draft.emits.len()) >= self.config.ingest_max
            || self.write_buffer.bytes() >= self.config.spill_bytes.saturating_mul(2)
    }

    /// Whether input is known to be unread.
    #[must_use]
    pub fn has_unread_input(&self) -> bool {
        self.watermark.has_unread_input()
    }

    /// At `at` (ms since the epoch, by this process's clock) `triggers` ended at `end`
    /// (exclusive): everything written before is read once that offset is reached.
    pub fn on_end_offset(&mut self, end: Offset, at: Timestamp) {
        self.watermark.on_end_offset(end, at);
    }

    /// Whether the store's index row of `hash` must be read before a record of that id is ingested.
    #[must_use]
    pub fn needs_index_row(&self, hash: IdHash) -> bool {
        !self.write_buffer.contains(hash)
    }

    /// Ingests records in log order. `prefetched` has the store's index rows of the ids that
    /// [`needs_index_row`](Self::needs_index_row) named, where an id that is absent is unknown to
    /// the store, and the rows that [`rows_to_prefetch`](Self::rows_to_prefetch) named.
    pub fn ingest(
        &mut self,
        inputs: Vec<Input>,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        for input in inputs {
            match input {
                Input::Trigger(record) => {
                    self.cursor.next_offset = record.offset + 1;
                    self.watermark.on_record(record.offset, record.timestamp);
                    self.draft.ingested += 1;
                    self.ingest_trigger(record, prefetched)?;
                }
                Input::Signal(record) => {
                    self.cursor.next_signal_offset = record.offset + 1;
                    self.draft.ingested += 1;
                    self.ingest_signal(record, prefetched)?;
                }
                Input::TriggersEnd(end) => self.watermark.read_up_to(end),
            }
        }
        Ok(())
    }

    /// The time up to which entries may fire: see [`Watermark`].
    #[must_use]
    pub fn watermark(&self) -> Timestamp {
        self.watermark.at(self.clock)
    }

    /// What the shell should read from the store into the wheel, if anything.
    #[must_use]
    pub fn load_request(&self) -> Option<LoadRequest> {
        self.wheel.load_request(self.clock)
    }

    /// Rows read from the store for [`load_request`](Self::load_request), in key order, complete up
    /// to `reached` (exclusive). Changes that are not in the store yet are added here.
    pub fn load(&mut self, entries: Vec<(TimelineKey, RowBytes)>, reached: TimelineKey) {
        let from = self.wheel.loaded_until();
        self.wheel.load(entries, reached);
        for (key, row) in
            self.write_buffer.timeline().filter(|(key, _)| (from..reached).contains(key))
        {
            match row {
                Some(row) => {
                    let _loaded = self.wheel.insert(*key, row.clone());
                }
                None => self.wheel.remove(*key),
            }
        }
    }

    /// Takes what is due now, at most `max` entries off the timeline. They must be fired next.
    pub fn take_due(&mut self, max: usize) -> DueEntries {
        let watermark = self.watermark();
        let mut rows = Vec::new();
        self.wheel.take_due(TimelineKey::last_at(watermark), max, &mut rows);
        let loaded = self.wheel.loaded_until() > TimelineKey::last_at(watermark);
        let complete = rows.len() < max && (loaded || is_active(Mutation::AdvancePastUnloaded));
        let mut fired_through = rows.last().map_or(self.cursor.fired_through, |(key, _)| *key);
        if complete {
            fired_through = fired_through.max(TimelineKey::last_at(watermark.saturating_sub(1)));
        }
        let withdrawals = std::mem::take(&mut self.draft.withdrawals);
        let pools = if withdrawals.is_empty() { Vec::new() } else { self.config.pools.clone() };
        DueEntries {
            late: std::mem::take(&mut self.draft.late),
            entries: rows,
            withdrawals,
            pools,
            fired_through,
        }
    }

    /// When the next entry may be due if no record arrives before, in ms since the epoch.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        self.wheel.next_due()
    }

    /// Closes the draft into a step if it is time to commit it.
    pub fn seal(&mut self) -> Option<PartitionStep> {
        assert!(self.draft.late.is_empty(), "late entries fire in the step that ingested them");
        assert!(
            self.draft.withdrawals.is_empty(),
            "withdrawals are sent in the step of the cancel"
        );
        self.should_seal().then(|| self.close_step(false))
    }

    /// Whether it is time to commit what is drafted: it emits something, is full, or has been open
    /// for a long time.
    pub fn should_seal(&mut self) -> bool {
        self.advance_replay_from();
        let (cursor, sealed) = (&self.cursor, &self.last_step.cursor);
        let moved = (cursor.next_offset, cursor.next_signal_offset, cursor.replay_from)
            != (sealed.next_offset, sealed.next_signal_offset, sealed.replay_from);
        let waited = self.clock >= self.last_step.sealed_at + self.config.idle_commit;
        let full = self.draft.ingested >= self.config.ingest_max;
        let urgent = !self.draft.emits.is_empty();
        let stale = (!self.write_buffer.is_active_empty() || self.last_step.spill_requested)
            && self.should_spill();
        urgent || full || stale || (moved && waited)
    }

    /// The final step of an owner: everything that is drafted, and the mirror marked clean.
    pub fn seal_final(&mut self) -> PartitionStep {
        self.advance_replay_from();
        self.close_step(true)
    }

    /// The ledger has grown by more than a restart should read again: a spill updates the store's
    /// checkpoint, even if nothing else has happened since the last one.
    pub fn request_spill(&mut self) {
        self.last_step.spill_requested = true;
    }

    /// The spill of step `number`, and all before it, are in the store.
    pub fn on_applied(&mut self, number: u64) {
        self.write_buffer.on_applied(number);
    }

    /// Moves L as far as W allows and deletes the marks it has passed.
    fn advance_replay_from(&mut self) {
        let mut replay_from = self.replay_from_tracker.advance_to(self.cursor.fired_through.due);
        if is_active(Mutation::ReplayFromEqualsNextOffset) {
            replay_from = Some(self.cursor.next_offset);
        }
        let Some(replay_from) = replay_from else { return };
        self.cursor.replay_from = self.cursor.replay_from.max(replay_from);
        while let Some(offset) = self.skips.first().copied() {
            if offset >= self.cursor.replay_from {
                break;
            }
            let _forgotten = self.skips.pop_first();
            self.draft.emits.push(Emit::Ledger { key: LedgerKey::Skip(offset), value: None });
            self.write_buffer.put_skip_mark(offset, false);
        }
    }

    /// While the partition catches up, most entries in memory fire with the next steps and would
    /// be written for nothing: then twice as much is kept in memory.
    fn should_spill(&self) -> bool {
        let catches_up = self.cursor.fired_through.due + CATCHING_UP_MS < self.clock;
        let most = self.config.spill_bytes;
        let room = catches_up && self.write_buffer.bytes() < most.saturating_mul(2);
        let full = self.write_buffer.active_bytes() >= most && !room;
        full || self.clock >= self.last_step.spilled_at + self.config.spill_interval
    }

    fn close_step(&mut self, clean: bool) -> PartitionStep {
        self.cursor.step += 1;
        let number = self.cursor.step;
        if clean || self.clock >= self.last_step.mirrored_at + self.config.mirror_interval {
            let mirror = self.mirror_emit(clean);
            self.draft.emits.push(mirror);
            self.last_step.mirrored_at = self.clock;
        }
        self.replay_from_tracker.sample(
            self.clock,
            self.cursor.replay_horizon,
            self.cursor.next_offset,
        );
        let spill = (clean || self.should_spill()).then(|| {
            (self.last_step.spilled_at, self.last_step.spill_requested) = (self.clock, false);
            self.write_buffer.spill(number, self.cursor.fired_through)
        });
        self.last_step.cursor = self.cursor;
        self.last_step.sealed_at = self.clock;
        let StepDraft { emits, ingested, fired_by_command_at, .. } =
            std::mem::take(&mut self.draft);
        let commit_not_before = self.cursor.fired_through.due.max(fired_by_command_at);
        PartitionStep {
            number,
            emits,
            commit_not_before,
            spill,
            cursor: self.cursor,
            is_final: clean,
            ingested,
        }
    }

    fn mirror_emit(&self, clean: bool) -> Emit {
        let metadata = self.cursor.to_metadata(&self.config.owner);
        let value = LedgerValue::Cursor { metadata, offset: self.cursor.next_offset, clean };
        Emit::Ledger { key: LedgerKey::Cursor, value: Some(Box::new(value)) }
    }

    /// The index row of an id: the newest decided one, else the store's.
    pub(super) fn index_row(&self, hash: IdHash, fetched: &IndexRows) -> IndexRow {
        let index_row = self.write_buffer.index_row(hash).or_else(|| fetched.get(&hash));
        index_row.cloned().unwrap_or_default()
    }

    /// Sets the index row of an id.
    pub(super) fn put_index_row(&mut self, hash: IdHash, index_row: IndexRow, fetched: &IndexRows) {
        let stored = fetched.contains_key(&hash);
        self.write_buffer.put_index_row(hash, index_row.pruned(self.cursor.fired_through), stored);
    }

    /// Puts an entry on the timeline, and into the wheel if it is due soon.
    pub(super) fn put_row(&mut self, key: TimelineKey, row: RowBytes) {
        assert!(key > self.cursor.fired_through, "no step inserts a row at or below its own W");
        let _loaded = self.wheel.insert(key, row.clone());
        self.write_buffer.put_row(key, row);
    }

    /// The bytes of a row.
    pub(super) fn encode(&mut self, row: &Row) -> RowBytes {
        row::to_bytes(row, &mut self.scratch)
    }

    /// Removes an entry from the timeline.
    pub(super) fn delete_row(&mut self, key: TimelineKey) {
        self.wheel.remove(key);
        self.write_buffer.delete_row(key);
    }

    /// A record was ignored for reasons of state: a replay must ignore it too.
    pub(super) fn mark_skipped(&mut self, offset: Offset) {
        let key = LedgerKey::Skip(offset);
        let value = Some(Box::new(LedgerValue::Skip));
        self.draft.emits.push(Emit::Ledger { key, value });
        self.write_buffer.put_skip_mark(offset, true);
        let _new = self.skips.insert(offset);
    }
}
