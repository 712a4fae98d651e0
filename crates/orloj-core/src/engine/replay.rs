//! The replay rule: how a store is rebuilt from the ledger and the log.
//!
//! Invariant: for a record of `triggers` below N — marked `~skip`: ignored; of an id that is in the
//! ledger: the ledger already contains its effect; of a kind that is always in the ledger: settled;
//! a plain registration: insert if its key is above W and its due time not above S, as it is
//! settled otherwise; a cancel removes. All but the marked ones, changes and commands remove older
//! generations of their id. The ledger is read first, completely; a record whose registration it
//! contains is not read at all ([`OffsetBitmap`]).

use std::collections::BTreeSet;
use std::ops::Range;

use super::id_filter::IdBloomFilter;
use super::index_row::{IdHash, IdMap, IndexEntry, IndexEntryKind, IndexRow};
use super::offset_bitmap::OffsetBitmap;
use super::prefetch::IndexRows;
use super::registration::first_row;
use super::row_op::RowOp;
use crate::codec::row::{self, RowBytes};
use crate::model::entry::{Entry, Row};
use crate::model::input::{Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Offset, Timestamp};

/// Rebuilds a store, batch by batch.
#[derive(Debug)]
pub struct Replay {
    fired_through: TimelineKey,
    /// S: an entry that is due later was written to the ledger when it was ingested. If it is not
    /// in the ledger any more, it is settled, even if the record that settled it comes later.
    replay_horizon: Timestamp,
    /// The latest due time of what was inserted from the log, in ms since the epoch.
    pub max_inserted_due: Timestamp,
    /// Marks of ignored records.
    pub skips: BTreeSet<Offset>,
    /// The broker timestamp of the last record replayed, in ms since the epoch.
    pub last_timestamp: Timestamp,
    /// The ids that a store which was empty may have; `None` if it was not empty.
    id_filter: Option<IdBloomFilter>,
    covered: OffsetBitmap,
    rows: Vec<RowOp>,
    changed: IdMap<IndexRow>,
    /// Where rows are encoded.
    scratch: Vec<u8>,
}

impl Replay {
    /// Starts with the committed W and S, the part of the log that will be replayed,
    /// and the marks that the local store has.
    #[must_use]
    pub fn new(
        fired_through: TimelineKey,
        replay_horizon: Timestamp,
        log: Range<Offset>,
        skips: BTreeSet<Offset>,
    ) -> Self {
        Self {
            fired_through,
            replay_horizon,
            max_inserted_due: 0,
            skips,
            last_timestamp: 0,
            id_filter: None,
            covered: OffsetBitmap::empty(log),
            rows: Vec::new(),
            changed: IdMap::default(),
            scratch: Vec::new(),
        }
    }

    /// The store is empty, and about `expected` ids will be read: the store need not be read for an
    /// id that is read for the first time.
    #[must_use]
    pub fn with_empty_store(self, expected: u64) -> Self {
        Self { id_filter: Some(IdBloomFilter::with_capacity(expected)), ..self }
    }

    /// The ids whose index rows must be fetched for these records of the ledger.
    pub fn ids_in_ledger<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a LedgerRecord>,
    ) -> Vec<IdHash> {
        self.ids_to_fetch(records.into_iter().filter_map(|record| record.key.trigger()))
    }

    /// The ids whose index rows must be fetched for these records of `triggers`.
    pub fn ids_in_triggers(&mut self, records: &[TriggerRecord]) -> Vec<IdHash> {
        self.ids_to_fetch(records.iter().filter_map(TriggerRecord::trigger))
    }

    fn ids_to_fetch<'a>(&mut self, ids: impl Iterator<Item = &'a Text>) -> Vec<IdHash> {
        let may_be_known =
            |id: &IdHash| self.id_filter.as_mut().is_none_or(|seen| seen.check_and_insert(*id));
        ids.map(IdHash::of).filter(may_be_known).collect()
    }

    /// Applies ledger records in order; `fetched` has the store's index rows of their ids.
    pub fn apply_ledger(&mut self, records: Vec<LedgerRecord>, fetched: &IndexRows) -> Vec<RowOp> {
        for record in records {
            self.apply_ledger_record(record, fetched);
        }
        self.take_rows()
    }

    /// Whether the record of `triggers` at `offset` need not be replayed, because the ledger
    /// contains what it has registered.
    #[must_use]
    pub fn is_covered(&self, offset: Offset) -> bool {
        self.covered.contains(offset)
    }

    /// The records of which the ledger holds what they have registered; it has been read whole.
    pub fn take_covered(&mut self) -> OffsetBitmap {
        std::mem::take(&mut self.covered)
    }

    /// Records of `triggers` that need no replay were written until `timestamp`, in ms since the
    /// epoch.
    pub fn observe_timestamp(&mut self, timestamp: Timestamp) {
        self.last_timestamp = self.last_timestamp.max(timestamp);
    }

    /// Replays records of `triggers` in order; `fetched` has the index rows of their ids.
    pub fn apply_triggers(
        &mut self,
        records: Vec<TriggerRecord>,
        fetched: &IndexRows,
    ) -> Vec<RowOp> {
        for record in records {
            self.observe_timestamp(record.timestamp);
            if self.skips.contains(&record.offset) {
                continue;
            }
            match record.request {
                Request::Register(registration) => {
                    self.apply_registration(record.offset, record.timestamp, registration, fetched);
                }
                Request::Cancel { id, .. } => {
                    self.update_index_row(&id, fetched, |replay, index_row| {
                        if !index_row.is_main_in_ledger(replay.fired_through) {
                            replay.remove_main(index_row);
                        }
                    })
                }
                // A trigger that one of them has changed is in the ledger, or was settled there.
                Request::Change(_)
                | Request::Command { .. }
                | Request::Batch(_)
                | Request::Forward(_)
                | Request::Unreadable(_) => {}
            }
        }
        self.take_rows()
    }

    fn apply_registration(
        &mut self,
        offset: Offset,
        at: Timestamp,
        new: Registration,
        fetched: &IndexRows,
    ) {
        let id = new.id.clone();
        self.update_index_row(&id, fetched, |replay, index_row| {
            if index_row.is_main_in_ledger(replay.fired_through) {
                return;
            }
            replay.remove_main(index_row);
            let (due, priority, source) = (new.fire_at, rank(new.priority), Source::Triggers);
            let key = TimelineKey { due, priority, source, offset };
            let kept = new.needs_ledger();
            if key <= replay.fired_through || due > replay.replay_horizon || kept {
                return; // it has fired, or was settled: it needs no row
            }
            replay.max_inserted_due = replay.max_inserted_due.max(due);
            let row = first_row(offset, at, new);
            index_row.entries.push(IndexEntry::for_row(key, &row));
            let row = replay.encode(&Row::Fire(row));
            replay.rows.push(RowOp::Put { key, row });
        });
    }

    fn apply_ledger_record(&mut self, record: LedgerRecord, fetched: &IndexRows) {
        let marked = record.value == Some(LedgerValue::Skip);
        let entry = match record.value {
            Some(LedgerValue::Entry(entry)) => Some(entry),
            Some(LedgerValue::Skip | LedgerValue::Cursor { .. } | LedgerValue::Barrier { .. })
            | None => None,
        };
        match record.key {
            LedgerKey::Main(id) => self.update_index_row(&id, fetched, |replay, index_row| {
                if entry.is_some() || index_row.is_main_in_ledger(replay.fired_through) {
                    replay.remove_main(index_row);
                }
                replay.insert_entry(index_row, entry);
            }),
            LedgerKey::Retry { trigger, generation, occurrence } => {
                self.update_index_row(&trigger, fetched, |replay, index_row| {
                    replay.remove_matching(index_row, |entry| {
                        entry.is_retry_of(generation, occurrence)
                    });
                    replay.insert_entry(index_row, entry);
                });
            }
            LedgerKey::Veto(id) => self.update_index_row(&id, fetched, |replay, index_row| {
                replay.remove_matching(index_row, |entry| entry.kind == IndexEntryKind::Veto);
                replay.insert_entry(index_row, entry);
            }),
            LedgerKey::Skip(offset) => {
                let _changed =
                    if marked { self.skips.insert(offset) } else { self.skips.remove(&offset) };
                self.rows.push(RowOp::Skip { offset, marked });
            }
            LedgerKey::Cursor | LedgerKey::Barrier => {}
        }
    }

    /// Puts an entry of the ledger on the timeline.
    fn insert_entry(&mut self, index_row: &mut IndexRow, entry: Option<Entry>) {
        let Some(Entry { key, row }) = entry else { return };
        let entry = match &row {
            Row::Fire(row) => IndexEntry { in_ledger: true, ..IndexEntry::for_row(key, row) },
            Row::Veto { cancel, .. } => IndexEntry::for_veto(key, *cancel),
            Row::Watch { .. } => IndexEntry::for_watch(key),
        };
        if key > self.fired_through {
            if is_main(&entry) && matches!(row, Row::Fire(_)) {
                self.covered.insert(entry.generation);
            }
            let row = self.encode(&row);
            self.rows.push(RowOp::Put { key, row });
        }
        index_row.entries.push(entry);
    }

    fn encode(&mut self, row: &Row) -> RowBytes {
        row::to_bytes(row, &mut self.scratch)
    }

    fn remove_main(&mut self, index_row: &mut IndexRow) {
        self.remove_matching(index_row, is_main);
    }

    fn remove_matching(
        &mut self,
        index_row: &mut IndexRow,
        predicate: impl Fn(&IndexEntry) -> bool,
    ) {
        for entry in index_row.extract_if(predicate) {
            if entry.key > self.fired_through {
                self.rows.push(RowOp::Delete { key: entry.key });
            }
            if is_main(&entry) {
                self.covered.remove(entry.generation);
            }
        }
    }

    fn update_index_row(
        &mut self,
        id: &Text,
        fetched: &IndexRows,
        update: impl FnOnce(&mut Self, &mut IndexRow),
    ) {
        let hash = IdHash::of(id);
        let changed_before = self.changed.remove(&hash);
        let stored = fetched.get(&hash);
        let is_touched = changed_before.is_some();
        let mut index_row = changed_before.or_else(|| stored.cloned()).unwrap_or_default();
        update(self, &mut index_row);
        // Most records of the log repeat what the ledger contains.
        let is_stored = stored.map_or(index_row.entries.is_empty(), |stored| *stored == index_row);
        if is_touched || !is_stored {
            let _previous = self.changed.insert(hash, index_row);
        }
    }

    fn take_rows(&mut self) -> Vec<RowOp> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.extend(self.changed.drain().map(|(hash, index_row)| {
            let index_row = (!index_row.entries.is_empty()).then_some(index_row);
            RowOp::Index { hash, row: index_row }
        }));
        rows.sort_by_key(RowOp::sort_key);
        rows
    }
}

/// Whether a registration replaces it and a cancel removes it.
fn is_main(entry: &IndexEntry) -> bool {
    matches!(entry.kind, IndexEntryKind::Main | IndexEntryKind::Remembered)
}
