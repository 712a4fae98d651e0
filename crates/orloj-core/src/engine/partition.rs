//! One owned partition: what the shell calls, in which order, and when a step is sealed.
//!
//! Invariant: ingest and fire add to the draft; [`Partition::seal`] closes it into a
//! [`PartitionStep`]. The state here runs ahead of what is committed; if a step cannot be
//! committed, the whole partition is dropped and taken over again, so no decision is ever rolled
//! back.

use std::collections::BTreeSet;

use super::catalog::{CachingCatalog, TopicCatalog};
pub use super::config::PartitionConfig;
use super::config::PartitionContext;
use super::cursor::Cursor;
use super::draft::{RECORD_BYTES, StepDraft};
pub use super::due_entries::{DueEntries, LIFECYCLE_COST};
use super::firing::FireHandler;
use super::index_row::IdHash;
use super::ingest::IngestHandler;
pub use super::prefetch::{IndexRows, Input, ParkedRecord};
use super::prefetch::{Prefetched, TimelineRows};
use super::replay_from::ReplayFromTracker;
pub use super::state::CorruptRow;
use super::state::EngineState;
use super::step::{Emit, PartitionStep};
use super::watermark::Watermark;
use super::wheel::{FiringCost, LoadRequest, Wheel};
use crate::codec::row::RowBytes;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// W this far behind the clock means that the partition is catching up, in ms.
const CATCHING_UP_MS: Millis = 1_000;

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

/// One owned partition.
#[derive(Debug)]
pub struct Partition {
    context: PartitionContext,
    state: EngineState,
    draft: StepDraft,
    watermark: Watermark,
    replay_from_tracker: ReplayFromTracker,
    last_step: LastStep,
}

/// The last step that was sealed.
#[derive(Debug)]
struct LastStep {
    cursor: Cursor,
    sealed_at: Timestamp,
    mirrored_at: Timestamp,
    /// When the first step was sealed that is not in the mirror.
    unmirrored_since: Option<Timestamp>,
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
        let replay_from_tracker = ReplayFromTracker::new(
            cursor.replay_horizon,
            cursor.next_offset,
            config.sample_interval,
        );
        Self {
            context: PartitionContext { id, config, clock: 0 },
            state: EngineState::new(cursor, wheel, skips, index_complete_from),
            draft: StepDraft::default(),
            watermark,
            replay_from_tracker,
            last_step: LastStep {
                cursor,
                sealed_at: 0,
                mirrored_at: 0,
                unmirrored_since: None,
                spilled_at: 0,
                spill_requested: false,
            },
        }
    }

    /// The cursor as drafted: ahead of what is committed.
    #[must_use]
    pub fn cursor(&self) -> &Cursor {
        self.state.cursor()
    }

    /// Which partition this is.
    #[must_use]
    pub fn id(&self) -> PartitionId {
        self.context.id
    }

    /// The wall clock is at `now` (ms since the epoch), or will be before the following decisions
    /// are committed: an owner may decide a little ahead, if it commits no step before its W.
    /// Returns by how many ms it is behind the clock of an earlier owner; unless that is 0 the
    /// partition must wait, however long, because it would fire early.
    pub fn observe_clock(&mut self, now: Timestamp) -> Millis {
        self.context.clock = self.context.clock.max(now);
        self.state.fired_through().due.saturating_sub(self.context.clock)
    }

    /// The records that the open draft will write.
    #[must_use]
    pub fn drafted(&self) -> &[Emit] {
        self.draft.emits()
    }

    /// Whether something in the open draft would not have fired at `now` (ms since the epoch): the
    /// partition must be taken over again instead.
    #[must_use]
    pub fn is_draft_late(&self, now: Timestamp) -> bool {
        self.draft.in_time_until().is_some_and(|until| until < now)
    }

    /// How many they are; the shell stops at its own limit.
    #[must_use]
    pub fn drafted_records(&self) -> usize {
        self.drafted().len()
    }

    /// About how many bytes the open draft will write, with the late entries that fire in it.
    fn drafted_bytes(&self) -> usize {
        self.draft.bytes() + self.state.late_bytes()
    }

    /// Whether ingest should pause until a step is committed or the store has caught up. Half of
    /// the bytes of a step are for what is due: however much is written, it fires.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let config = &self.context.config;
        self.drafted_bytes() >= config.bytes_per_step_max.div_ceil(2)
            || self.draft.ingested().max(self.draft.emits().len()) >= config.records_per_step_max
            || self.state.write_buffer().bytes() >= config.spill_bytes.saturating_mul(2)
    }

    /// Whether input is known to be unread.
    #[must_use]
    pub fn has_unread_input(&self) -> bool {
        self.watermark.has_unread_input()
    }

    /// Below this offset all of `triggers` is read.
    #[must_use]
    pub fn triggers_read_until(&self) -> Offset {
        self.watermark.read_until()
    }

    /// Whether `triggers` was longer than `end` when its end was asked for before, and that end is
    /// not reached.
    #[must_use]
    pub fn were_triggers_longer(&self, end: Offset) -> bool {
        self.watermark.was_longer(end)
    }

    /// `triggers` is read again from `offset` on, where no record was read yet: the log may have
    /// lost markers there.
    pub fn read_triggers_again_from(&mut self, offset: Offset) {
        self.watermark.read_again_from(offset);
    }

    /// At `at` (ms since the epoch, by this process's clock) `triggers` ended at `end`
    /// (exclusive): everything written before is read once that offset is reached.
    pub fn on_end_offset(&mut self, end: Offset, at: Timestamp) {
        self.watermark.on_end_offset(end, at);
    }

    /// Whether the store's index row of `hash` must be read before a record of that id is ingested.
    #[must_use]
    pub fn needs_index_row(&self, hash: IdHash) -> bool {
        !self.state.write_buffer().contains(hash)
    }

    /// The rows of the store that [`ingest`](Self::ingest) needs for these inputs. `fetched` has
    /// the index rows of their triggers.
    #[must_use]
    pub fn rows_to_prefetch(&self, inputs: &[Input], fetched: &IndexRows) -> Vec<TimelineKey> {
        self.state.rows_to_prefetch(inputs, fetched)
    }

    /// Whether an input is ingested in the open step: it is not full, or the input belongs to a
    /// record that was released from parking, of which all are ingested in one step.
    #[must_use]
    pub fn accepts(&self, input: &Input) -> bool {
        let is_released = || match input {
            Input::Trigger(record) => record.offset < self.state.cursor().next_offset,
            Input::Unparked { .. } => true,
            _ => false,
        };
        !self.is_full() || is_released()
    }

    /// Ingests records in log order. `prefetched` has the store's index rows of the ids that
    /// [`needs_index_row`](Self::needs_index_row) named, where an id that is absent is unknown to
    /// the store, and the rows that [`rows_to_prefetch`](Self::rows_to_prefetch) named.
    pub fn ingest(
        &mut self,
        inputs: Vec<Input>,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        inputs.into_iter().try_for_each(|input| self.ingest_one(input, prefetched))
    }

    /// The same with the first `count` inputs, until the step is full.
    pub fn ingest_some(
        &mut self,
        inputs: &mut std::vec::IntoIter<Input>,
        count: usize,
        prefetched: Prefetched<'_>,
    ) -> Result<(), CorruptRow> {
        for _ in 0..count {
            if !inputs.as_slice().first().is_some_and(|input| self.accepts(input)) {
                break;
            }
            let Some(input) = inputs.next() else { break };
            self.ingest_one(input, prefetched)?;
        }
        Ok(())
    }

    fn ingest_one(&mut self, input: Input, prefetched: Prefetched<'_>) -> Result<(), CorruptRow> {
        let (context, state, output) = (&self.context, &mut self.state, &mut self.draft);
        let mut handler = IngestHandler { context, state, output, prefetched };
        match input {
            Input::Trigger(record) => {
                self.watermark.on_record(record.offset, record.timestamp);
                handler.ingest_trigger(record)?;
            }
            Input::Signal(record) => handler.ingest_signal(record)?,
            Input::TriggersEnd(end) => self.watermark.read_up_to(end),
            Input::TriggersDeleted(low) => {
                handler.state.set_next_offset(low);
                self.watermark.read_up_to(low);
            }
            Input::SignalsDeleted(low) => handler.state.set_next_signal_offset(low),
            Input::Parked(record) => {
                self.watermark.on_record(record.offset, record.timestamp);
                handler.ingest_parked(&record);
            }
            Input::Unparked { ids, schemas } => handler.state.unpark(&ids, schemas),
        }
        Ok(())
    }

    /// Records of these triggers were parked by an earlier owner, and are again.
    pub fn hold(&mut self, ids: impl IntoIterator<Item = IdHash>) {
        ids.into_iter().for_each(|id| self.state.hold(id));
    }

    /// The time up to which entries may fire: see [`Watermark`].
    #[must_use]
    pub fn watermark(&self) -> Timestamp {
        self.watermark.at(self.context.clock)
    }

    /// What the shell should read from the store into the wheel, if anything.
    #[must_use]
    pub fn load_request(&self) -> Option<LoadRequest> {
        self.state.wheel().load_request(self.context.clock)
    }

    /// Rows read from the store for [`load_request`](Self::load_request), in key order, complete up
    /// to `reached` (exclusive). Changes that are not in the store yet are added here.
    pub fn load(&mut self, entries: Vec<(TimelineKey, RowBytes)>, reached: TimelineKey) {
        self.state.load(entries, reached);
    }

    /// Takes what is due now off the timeline, as long as some of `budget` is left: a plain fire
    /// takes 1 of it, an entry with a lifecycle [`LIFECYCLE_COST`]. They must be fired next. This
    /// call and [`fire`](Self::fire) together take time in proportion to the budget, however much
    /// is due: with a small one, and a look at the clock between two calls, a turn of the loop has
    /// an upper bound. While [`next_wakeup`](Self::next_wakeup) is not later than the clock, more
    /// may be due.
    ///
    /// Nor is more taken than fits in the step, in bytes; of an empty step one entry does.
    ///
    /// Late entries, which fire in the step that ingested them, are taken in any case.
    pub fn take_due(&mut self, budget: usize) -> DueEntries {
        let bytes = self.context.config.bytes_per_step_max.saturating_sub(self.drafted_bytes());
        let budget = FiringCost { fires: budget, bytes };
        let (entries, fired_through) = self.state.take_due(self.watermark(), budget);
        let withdrawals = self.draft.take_withdrawals();
        let pools =
            if withdrawals.is_empty() { Vec::new() } else { self.context.config.pools.clone() };
        let late = self.state.take_late();
        let held = self.state.held_among(late.iter().chain(&entries).map(|(_, row)| row));
        DueEntries { late, entries, held, withdrawals, pools, fired_through }
    }

    /// Fires what [`take_due`](Self::take_due) returned, and moves W past it. `catalog` has the
    /// topics they name; `fetched` has the index rows of those that must wait.
    pub fn fire(
        &mut self,
        due: DueEntries,
        catalog: &TopicCatalog,
        fetched: &IndexRows,
    ) -> Result<(), CorruptRow> {
        let rows = TimelineRows::default();
        let handler = FireHandler {
            context: &self.context,
            state: &mut self.state,
            output: &mut self.draft,
            topics: CachingCatalog::new(catalog),
            prefetched: Prefetched { index: fetched, rows: &rows },
        };
        handler.fire(due)
    }

    /// When the next entry may be due if no record arrives before, in ms since the epoch.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        self.state.wheel().next_due()
    }

    /// Closes the draft into a step if it is time to commit it.
    pub fn seal(&mut self) -> Option<PartitionStep> {
        assert!(!self.state.has_late(), "late entries fire in the step that ingested them");
        assert!(!self.draft.has_withdrawals(), "withdrawals are sent in the step of the cancel");
        self.should_seal().then(|| self.close_step(false))
    }

    /// Whether it is time to commit what is drafted: it emits something, is full, or has been open
    /// for a long time.
    pub fn should_seal(&mut self) -> bool {
        self.advance_replay_from();
        let (cursor, sealed) = (self.state.cursor(), &self.last_step.cursor);
        let config = &self.context.config;
        let moved = (cursor.next_offset, cursor.next_signal_offset, cursor.replay_from)
            != (sealed.next_offset, sealed.next_signal_offset, sealed.replay_from)
            || cursor.parked != sealed.parked;
        let waited = self.context.clock >= self.last_step.sealed_at + config.idle_commit;
        let full = self.draft.ingested() >= config.records_per_step_max;
        let urgent = !self.draft.emits().is_empty();
        let has_rows = !self.state.write_buffer().is_active_empty();
        let stale = (has_rows || self.last_step.spill_requested) && self.should_spill();
        let unmirrored = self.last_step.unmirrored_since;
        let behind = unmirrored
            .is_some_and(|since| self.context.clock >= since + config.cursor_copy_interval);
        urgent || full || stale || behind || (moved && waited)
    }

    /// The final step of an owner: everything that is drafted, and the mirror marked clean.
    pub fn seal_final(&mut self) -> PartitionStep {
        self.advance_replay_from();
        self.close_step(true)
    }

    /// Bytes of the triggers that are due soon, and of the decisions that are not in the store yet.
    #[must_use]
    pub fn memory(&self) -> (usize, usize) {
        (self.state.wheel().bytes(), self.state.write_buffer().bytes())
    }

    /// The cursor of the last step. It is the committed one while no transaction is open.
    #[must_use]
    pub fn last_cursor(&self) -> &Cursor {
        &self.last_step.cursor
    }

    /// The ledger has grown by more than a restart should read again: a spill updates the store's
    /// checkpoint, even if nothing else has happened since the last one.
    pub fn request_spill(&mut self) {
        self.last_step.spill_requested = true;
    }

    /// The store has rows that are not flushed, and the mirror may lack the last steps of the owner
    /// before. Both are made up for after their intervals, even if nothing happens until then.
    pub fn on_taken_over(&mut self) {
        let clock = self.context.clock;
        (self.last_step.spilled_at, self.last_step.unmirrored_since) = (clock, Some(clock));
        self.request_spill();
    }

    /// The spill of step `number`, and all before it, are in the store.
    pub fn on_applied(&mut self, number: u64) {
        self.state.on_applied(number);
    }

    /// Moves L as far as W allows. After a record was parked for hours that passes millions of
    /// marks: half of a step may delete some, and the next one goes on.
    fn advance_replay_from(&mut self) {
        let decided_until = self.state.cursor().decided_until();
        let fired_through = self.state.fired_through().due;
        let replay_from = self.replay_from_tracker.advance_to(fired_through, decided_until);
        if replay_from > self.state.cursor().replay_from {
            let config = &self.context.config;
            let room = config.bytes_per_step_max.saturating_sub(self.draft.bytes()) / RECORD_BYTES;
            let records_max = config.records_per_step_max.div_ceil(2);
            let marks_max = records_max.min(self.draft.marks_deleted() + room).max(1);
            self.state.advance_replay_from(replay_from, marks_max, &mut self.draft);
        }
    }

    /// While the partition catches up, most entries in memory fire with the next steps and would
    /// be written for nothing: then twice as much is kept in memory.
    fn should_spill(&self) -> bool {
        let (clock, config) = (self.context.clock, &self.context.config);
        let buffer = self.state.write_buffer();
        let catches_up = self.state.fired_through().due + CATCHING_UP_MS < clock;
        let most = config.spill_bytes;
        let room = catches_up && buffer.bytes() < most.saturating_mul(2);
        let full = buffer.active_bytes() >= most && !room;
        full || clock >= self.last_step.spilled_at + config.spill_interval
    }

    fn close_step(&mut self, clean: bool) -> PartitionStep {
        let number = self.state.next_step();
        let (clock, cursor) = (self.context.clock, *self.state.cursor());
        // If the offset is lost or moved, only the mirror tells which records are parked.
        let parked = cursor.parked != self.last_step.cursor.parked;
        let interval = self.context.config.cursor_copy_interval;
        if clean || parked || clock >= self.last_step.mirrored_at + interval {
            let mirror = self.mirror_emit(clean);
            self.draft.emit(mirror);
            (self.last_step.mirrored_at, self.last_step.unmirrored_since) = (clock, None);
        } else {
            let _since = self.last_step.unmirrored_since.get_or_insert(clock);
        }
        self.replay_from_tracker.sample(clock, cursor.replay_horizon, cursor.next_offset);
        let spill = (clean || self.should_spill()).then(|| {
            (self.last_step.spilled_at, self.last_step.spill_requested) = (clock, false);
            self.state.spill(number)
        });
        self.last_step.cursor = cursor;
        self.last_step.sealed_at = clock;
        let commit_not_before = cursor.fired_through.due.max(self.draft.fired_by_command_at());
        let (is_final, in_time_until) = (clean, self.draft.in_time_until());
        let (emits, bytes, ingested) = self.draft.take();
        PartitionStep {
            number,
            emits,
            bytes,
            commit_not_before,
            in_time_until,
            spill,
            cursor,
            is_final,
            ingested,
        }
    }

    fn mirror_emit(&self, clean: bool) -> Emit {
        let cursor = self.state.cursor();
        let metadata = cursor.to_metadata(&self.context.config.owner);
        let value = LedgerValue::Cursor { metadata, offset: cursor.next_offset, clean };
        Emit::Ledger { key: LedgerKey::Cursor, value: Some(Box::new(value)) }
    }
}

#[cfg(test)]
impl Partition {
    /// The settings, for tests that change one.
    pub(super) fn config_mut(&mut self) -> &mut PartitionConfig {
        &mut self.context.config
    }

    /// The wheel, for tests that corrupt a row in it.
    pub(super) fn wheel_mut(&mut self) -> &mut Wheel {
        self.state.wheel_mut()
    }
}
