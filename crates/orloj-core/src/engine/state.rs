//! The state of a partition: its cursor, the wheel, what is not in the store yet, and late entries.
//!
//! Invariant: it runs ahead of what is committed, and only in decisions; no row is put at or below
//! W.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::catch_up_limiter::CatchUpLimiter;
use super::cursor::Cursor;
use super::draft::StepDraft;
use super::due_entries::{cost_of, trigger_hash};
use super::index_row::{IdHash, IndexEntry, IndexEntryKind, IndexRow};
use super::late_entries::LateEntries;
use super::parked_schemas::ParkedSchemas;
use super::prefetch::{IndexRows, Input, RowsNeeded, TimelineRows, rows_needed, trigger_of};
use super::step::Emit;
use super::wheel::{FiringCost, Wheel};
use super::write_buffer::{Delta, WriteBuffer};
use crate::codec::row::{self, RowBytes, RowError};
use crate::model::entry::{Entry, Row};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, Timestamp, work};

/// A stored row that cannot be read: rebuild the partition's store from Kafka.
#[derive(Debug, thiserror::Error)]
#[error("the stored row at {key:?} cannot be read: {reason}")]
pub struct CorruptRow {
    pub(super) key: TimelineKey,
    pub(super) reason: RowError,
}

/// The state that decisions change.
#[derive(Debug)]
pub(super) struct EngineState {
    cursor: Cursor,
    wheel: Wheel,
    write_buffer: WriteBuffer,
    skips: BTreeSet<Offset>,
    late: LateEntries,
    /// Index rows of generations below this may be incomplete: later generations may be missing.
    index_complete_from: Offset,
    /// The triggers of which a record is parked. What that record does is not known: nothing of
    /// them fires before. With the time from which something of them is put off, if it is.
    held: HashMap<IdHash, Option<Timestamp>>,
    /// When the next missed occurrence may fire.
    catch_up_limiter: CatchUpLimiter,
    /// The buffer in which rows are encoded.
    scratch: Vec<u8>,
}

impl EngineState {
    pub(super) fn new(
        cursor: Cursor,
        wheel: Wheel,
        skips: BTreeSet<Offset>,
        index_complete_from: Offset,
    ) -> Self {
        Self {
            cursor,
            wheel,
            write_buffer: WriteBuffer::default(),
            skips,
            late: LateEntries::default(),
            index_complete_from,
            held: HashMap::new(),
            catch_up_limiter: CatchUpLimiter::default(),
            scratch: Vec::new(),
        }
    }

    pub(super) fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// W.
    pub(super) fn fired_through(&self) -> TimelineKey {
        self.cursor.fired_through
    }

    pub(super) fn wheel(&self) -> &Wheel {
        &self.wheel
    }

    #[cfg(test)]
    pub(super) fn wheel_mut(&mut self) -> &mut Wheel {
        &mut self.wheel
    }

    pub(super) fn write_buffer(&self) -> &WriteBuffer {
        &self.write_buffer
    }

    /// The spill of step `number`, and all before it, are in the store.
    pub(super) fn on_applied(&mut self, number: u64) {
        self.write_buffer.on_applied(number);
    }

    /// Everything in `triggers` below `next` is ingested.
    pub(super) fn set_next_offset(&mut self, next: Offset) {
        // A record that was parked is ingested after later ones.
        self.cursor.next_offset = self.cursor.next_offset.max(next);
    }

    /// A record of the trigger is parked.
    pub(super) fn hold(&mut self, id: IdHash) {
        let _since = self.held.entry(id).or_default();
    }

    /// Since when entries of a held trigger are put off, if one is put off at `now`.
    pub(super) fn held_since(&mut self, id: IdHash, now: Timestamp) -> Timestamp {
        *self.held.entry(id).or_default().get_or_insert(now)
    }

    /// The record at `offset` is parked.
    pub(super) fn park(&mut self, offset: Offset, id: &Text, schemas: ParkedSchemas) {
        self.set_next_offset(offset + 1);
        self.hold(IdHash::of(id));
        self.cursor.parked = schemas;
    }

    /// No record of these triggers is parked any more, and of others those that `schemas` tells.
    pub(super) fn unpark(&mut self, ids: &[Text], schemas: ParkedSchemas) {
        for id in ids {
            let _held = self.held.remove(&IdHash::of(id));
        }
        self.cursor.parked = schemas;
    }

    /// The triggers of these rows of which a record is parked.
    pub(super) fn held_among<'a>(&self, rows: impl Iterator<Item = &'a RowBytes>) -> Vec<IdHash> {
        if self.held.is_empty() {
            return Vec::new(); // nearly always
        }
        rows.filter_map(trigger_hash).filter(|id| self.held.contains_key(id)).collect()
    }

    /// Everything in `signals` below `next` is ingested.
    pub(super) fn set_next_signal_offset(&mut self, next: Offset) {
        self.cursor.next_signal_offset = next;
    }

    /// The number of the step that is closed now.
    pub(super) fn next_step(&mut self) -> u64 {
        self.cursor.step += 1;
        self.cursor.step
    }

    /// Closes what is not in the store yet with step `number`.
    pub(super) fn spill(&mut self, number: u64) -> Arc<Delta> {
        self.write_buffer.spill(number, self.cursor.fired_through)
    }

    /// Moves L to `replay_from` and deletes the marks that it passes; or less far, if the step has
    /// deleted `marks_max` of them.
    pub(super) fn advance_replay_from(
        &mut self,
        replay_from: Offset,
        marks_max: usize,
        output: &mut StepDraft,
    ) {
        let mut reached = replay_from;
        while let Some(offset) = self.skips.first().copied().filter(|it| *it < replay_from) {
            if output.marks_deleted() >= marks_max {
                reached = offset;
                break;
            }
            let _forgotten = self.skips.pop_first();
            output.delete_skip_mark(offset);
            self.write_buffer.put_skip_mark(offset, false);
        }
        self.cursor.replay_from = self.cursor.replay_from.max(reached);
    }

    /// An entry due at `due` is on the timeline and not in the ledger.
    pub(super) fn extend_replay_horizon(&mut self, due: Timestamp) {
        self.cursor.replay_horizon = self.cursor.replay_horizon.max(due);
    }

    /// Moves W to `fired_through`: entries that follow from a fire are scheduled after it.
    pub(super) fn begin_fire(&mut self, fired_through: TimelineKey) {
        assert!(fired_through >= self.cursor.fired_through, "W never moves back");
        self.cursor.fired_through = fired_through;
    }

    /// Everything up to W has fired.
    pub(super) fn end_fire(&mut self) {
        self.wheel.advance(self.cursor.fired_through);
    }

    /// Limits the rate at which missed occurrences of this partition fire.
    pub(super) fn catch_up_limiter(&mut self) -> &mut CatchUpLimiter {
        &mut self.catch_up_limiter
    }

    /// The earliest time at which a row may be put: no step inserts at or below its own W.
    pub(super) fn min_due(&self) -> Timestamp {
        self.cursor.fired_through.due + 1
    }

    /// Loads rows of the store into the wheel, and the changes that are not in the store yet.
    pub(super) fn load(&mut self, entries: Vec<(TimelineKey, RowBytes)>, reached: TimelineKey) {
        let from = self.wheel.loaded_until();
        self.wheel.load(entries, reached);
        let is_loaded = |(key, _): &&(TimelineKey, Option<RowBytes>)| {
            work::count(1);
            (from..reached).contains(key)
        };
        for (key, row) in self.write_buffer.timeline().filter(is_loaded) {
            match row {
                Some(row) => {
                    let _loaded = self.wheel.insert(*key, row.clone());
                }
                None => self.wheel.remove(*key),
            }
        }
    }

    /// Whether it is a pending occurrence of the trigger, or what is remembered of one.
    pub(super) fn is_live(&self, entry: &IndexEntry) -> bool {
        let is_remembered =
            entry.kind == IndexEntryKind::Remembered && entry.key > self.cursor.fired_through;
        is_remembered || self.is_pending(entry)
    }

    /// Whether the trigger's occurrence has not fired yet. One that was due when it was ingested is
    /// late, and pending until the next firing: its topic may be unavailable, and then it waits.
    pub(super) fn is_pending(&self, entry: &IndexEntry) -> bool {
        entry.kind == IndexEntryKind::Main && self.has_not_fired(entry)
    }

    /// The same of a retry.
    pub(super) fn is_pending_retry(&self, entry: &IndexEntry) -> bool {
        matches!(entry.kind, IndexEntryKind::Retry { .. }) && self.has_not_fired(entry)
    }

    fn has_not_fired(&self, entry: &IndexEntry) -> bool {
        entry.key > self.cursor.fired_through || self.late.contains(entry.key)
    }

    /// The entry that is known to have fired last.
    pub(super) fn last_fired(&self, index_row: &IndexRow) -> Option<IndexEntry> {
        let fired = index_row.fired_main(self.cursor.fired_through);
        fired.filter(|entry| entry.generation >= self.index_complete_from).cloned()
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

    /// The row of an entry.
    pub(super) fn read_row(
        &mut self,
        entry: &IndexEntry,
        fetched: &TimelineRows,
    ) -> Result<Row, CorruptRow> {
        let key = entry.key;
        let late = self.late.row(key).cloned();
        let found =
            late.or_else(|| self.write_buffer.row(key)).or_else(|| fetched.get(&key).cloned());
        let bytes = found.ok_or(CorruptRow { key, reason: RowError::Corrupt })?;
        row::decode(&bytes).map_err(|reason| CorruptRow { key, reason })
    }

    /// The rows of the store that must be fetched before these inputs are ingested. `fetched` has
    /// the index rows of their triggers.
    pub(super) fn rows_to_prefetch(
        &self,
        inputs: &[Input],
        fetched: &IndexRows,
    ) -> Vec<TimelineKey> {
        let has_lifecycle =
            |index_row: &IndexRow| index_row.entries.iter().any(|entry| entry.has_lifecycle);
        let some_lifecycles =
            self.write_buffer.has_lifecycles() || fetched.values().any(has_lifecycle);
        let mut wanted = Vec::new();
        for input in inputs {
            // Most inputs are about plain triggers, which need no rows.
            let is_relevant = some_lifecycles || rows_needed(input) == RowsNeeded::All;
            let Some(id) = trigger_of(input).filter(|_| is_relevant) else { continue };
            let hash = IdHash::of(id);
            let Some(index_row) = self.write_buffer.index_row(hash).or_else(|| fetched.get(&hash))
            else {
                continue;
            };
            let needed = rows_needed(input);
            let entries = index_row.entries.iter().filter(|entry| {
                self.is_live(entry)
                    && entry.key > self.cursor.fired_through
                    && (entry.has_lifecycle || needed == RowsNeeded::All)
            });
            wanted.extend(entries.map(|entry| entry.key));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// The bytes of a row.
    pub(super) fn encode(&mut self, row: &Row) -> RowBytes {
        row::to_bytes(row, &mut self.scratch)
    }

    /// Puts an entry on the timeline, and into the ledger if its row says so.
    pub(super) fn schedule(&mut self, entry: Entry, output: &mut StepDraft) {
        let row = self.encode(&entry.row);
        let bytes = row.len();
        self.put_row(entry.key, row);
        if let Some(key) = LedgerKey::of_row(&entry.row) {
            let value = Some(Box::new(LedgerValue::Entry(entry)));
            output.emit_large(Emit::Ledger { key, value }, bytes);
        }
    }

    /// Puts an entry on the timeline, and into the wheel if it is due soon.
    pub(super) fn put_row(&mut self, key: TimelineKey, row: RowBytes) {
        assert!(key > self.cursor.fired_through, "no step inserts a row at or below its own W");
        let _loaded = self.wheel.insert(key, row.clone());
        self.write_buffer.put_row(key, row);
    }

    /// Removes an entry from the timeline.
    pub(super) fn delete_row(&mut self, key: TimelineKey) {
        self.wheel.remove(key);
        self.write_buffer.delete_row(key);
    }

    /// Adds an entry at or below W, which fires in this step.
    pub(super) fn add_late(&mut self, key: TimelineKey, row: &Row) {
        let row = self.encode(row);
        self.late.add(key, row);
    }

    pub(super) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// About how many bytes the late entries write.
    pub(super) fn late_bytes(&self) -> usize {
        self.late.bytes()
    }

    pub(super) fn take_late(&mut self) -> Vec<(TimelineKey, RowBytes)> {
        self.late.take()
    }

    /// Removes an entry from the timeline or from the late ones.
    pub(super) fn remove_entry(&mut self, key: TimelineKey) {
        if key > self.cursor.fired_through {
            self.delete_row(key);
        } else {
            self.late.remove(key);
        }
    }

    /// A record was ignored for reasons of state: a replay must ignore it too.
    pub(super) fn mark_skipped(&mut self, offset: Offset, output: &mut StepDraft) {
        let value = Some(Box::new(LedgerValue::Skip));
        output.emit(Emit::Ledger { key: LedgerKey::Skip(offset), value });
        self.write_buffer.put_skip_mark(offset, true);
        let _new = self.skips.insert(offset);
    }

    /// Takes entries up to `watermark` as long as some of `budget` is left. Returns them, and W
    /// once they have fired.
    pub(super) fn take_due(
        &mut self,
        watermark: Timestamp,
        budget: FiringCost,
    ) -> (Vec<(TimelineKey, RowBytes)>, TimelineKey) {
        let (until, mut rows) = (TimelineKey::last_at(watermark), Vec::new());
        let took_all = self.wheel.take_due(until, budget, cost_of, &mut rows);
        let loaded = self.wheel.loaded_until() > until;
        let complete = took_all && loaded;
        let mut fired_through = rows.last().map_or(self.cursor.fired_through, |(key, _)| *key);
        if complete {
            fired_through = fired_through.max(TimelineKey::last_at(watermark.saturating_sub(1)));
        }
        (rows, fired_through)
    }
}
