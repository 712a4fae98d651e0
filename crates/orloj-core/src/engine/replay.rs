//! The replay rule: how a store is brought back from the ledger and the log.
//!
//! Law: for a record of `triggers` below N — marked `~skip`: as if it had never been; of an id
//! the ledger holds: the ledger already contains its effect; of a kind that the ledger holds in any
//! case: settled; a plain registration: insert if its key is above W and its due time not above S,
//! as it is settled otherwise; a cancel removes. All but the marked ones and the commands remove
//! older generations of their id. The ledger is read first, whole; a record whose very registration
//! it holds is not even looked at ([`Held`]).

use std::collections::BTreeSet;
use std::ops::Range;

use super::held::Held;
use super::known::{IdHash, IdMap, Known, Slot, SlotKind};
use super::partition::Fetched;
use super::register::first_row;
use super::seen::Seen;
use super::step::RowOp;
use crate::codec::row::{self, RowBytes};
use crate::fault::{Bug, planted};
use crate::model::entry::{Entry, Row};
use crate::model::input::{Registration, Request, TriggerRecord};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::text::Text;
use crate::model::timeline::{Source, TimelineKey, rank};
use crate::model::{Offset, Timestamp};

/// Brings a store back, batch by batch.
#[derive(Debug)]
pub struct Replay {
    w: TimelineKey,
    /// S: what is due later went into the ledger when it was ingested. If the ledger does not hold
    /// it any more, it is settled, even if what settled it has not been replayed yet.
    horizon: Timestamp,
    /// The latest due time of what was inserted from the log, in ms since the epoch.
    pub inserted_until: Timestamp,
    /// Marks of ignored records.
    pub skips: BTreeSet<Offset>,
    /// The broker timestamp of the last record replayed, in ms since the epoch.
    pub last_timestamp: Timestamp,
    /// What a store that began empty can know; `None` where it did not.
    seen: Option<Seen>,
    held: Held,
    rows: Vec<RowOp>,
    touched: IdMap<Known>,
    /// Where rows are encoded.
    scratch: Vec<u8>,
}

impl Replay {
    /// Starts with the committed `w` and `horizon` (S), the part of the log that will be replayed,
    /// and the marks that the local store has.
    #[must_use]
    pub fn new(
        w: TimelineKey,
        horizon: Timestamp,
        log: Range<Offset>,
        skips: BTreeSet<Offset>,
    ) -> Self {
        Self {
            w,
            horizon,
            inserted_until: 0,
            skips,
            last_timestamp: 0,
            seen: None,
            held: Held::none_of(log),
            rows: Vec::new(),
            touched: IdMap::default(),
            scratch: Vec::new(),
        }
    }

    /// The store is empty, and about `expected` ids will come: it need not be asked for those that
    /// come for the first time.
    #[must_use]
    pub fn of_empty_store(self, expected: u64) -> Self {
        Self { seen: Some(Seen::none_of(expected)), ..self }
    }

    /// The ids whose index rows must be at hand for these records of the ledger.
    pub fn ids_in_ledger<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a LedgerRecord>,
    ) -> Vec<IdHash> {
        self.wanted(records.into_iter().filter_map(|record| record.key.trigger()))
    }

    /// The ids whose index rows must be at hand for these records of `triggers`.
    pub fn ids_in_triggers(&mut self, records: &[TriggerRecord]) -> Vec<IdHash> {
        self.wanted(records.iter().filter_map(TriggerRecord::trigger))
    }

    fn wanted<'a>(&mut self, ids: impl Iterator<Item = &'a Text>) -> Vec<IdHash> {
        let known = |id: &IdHash| self.seen.as_mut().is_none_or(|seen| seen.note(*id));
        ids.map(IdHash::of).filter(known).collect()
    }

    /// Applies ledger records in order; `fetched` has the store's index rows of their ids.
    pub fn ledger(&mut self, records: Vec<LedgerRecord>, fetched: &Fetched) -> Vec<RowOp> {
        for record in records {
            self.apply_ledger(record, fetched);
        }
        self.take_rows()
    }

    /// Whether there is nothing to do for the record of `triggers` at `offset`, because the ledger
    /// holds what it has registered.
    #[must_use]
    pub fn holds(&self, offset: Offset) -> bool {
        self.held.contains(offset) && !planted(Bug::ReplayHeld)
    }

    /// The records of which the ledger holds what they have registered; it has been read whole.
    pub fn take_held(&mut self) -> Held {
        std::mem::take(&mut self.held)
    }

    /// Records of `triggers` that need no replay were written until `timestamp`, in ms since the
    /// epoch.
    pub fn passed(&mut self, timestamp: Timestamp) {
        self.last_timestamp = self.last_timestamp.max(timestamp);
    }

    /// Replays records of `triggers` in order; `fetched` has the index rows of their ids.
    pub fn triggers(&mut self, records: Vec<TriggerRecord>, fetched: &Fetched) -> Vec<RowOp> {
        for record in records {
            self.passed(record.timestamp);
            if self.skips.contains(&record.offset) {
                continue;
            }
            match record.request {
                Request::Register(registration) => {
                    self.register(record.offset, record.timestamp, registration, fetched);
                }
                Request::Cancel { id, .. } => self.change(&id, fetched, |replay, known| {
                    if !known.held_main(replay.w) || planted(Bug::ReplayHeld) {
                        replay.drop_main(known);
                    }
                }),
                // What a command has touched is in the ledger, or was settled there.
                Request::Command { .. }
                | Request::Batch(_)
                | Request::Forward(_)
                | Request::Unreadable(_) => {}
            }
        }
        self.take_rows()
    }

    fn register(&mut self, offset: Offset, at: Timestamp, new: Registration, fetched: &Fetched) {
        let id = new.id.clone();
        self.change(&id, fetched, |replay, known| {
            if known.held_main(replay.w) && !planted(Bug::ReplayHeld) {
                return;
            }
            replay.drop_main(known);
            let (due, priority, source) = (new.fire_at, rank(new.priority), Source::Triggers);
            let key = TimelineKey { due, priority, source, offset };
            let kept = new.is_kept() && !planted(Bug::ReplayKept);
            if key <= replay.w || due > replay.horizon || kept {
                return; // it has fired, or was settled: nothing of it is worth a row
            }
            replay.inserted_until = replay.inserted_until.max(due);
            let row = first_row(offset, at, new);
            known.slots.push(Slot::of(key, &row));
            let row = replay.encode(&Row::Fire(row));
            replay.rows.push(RowOp::Put { key, row });
        });
    }

    fn apply_ledger(&mut self, record: LedgerRecord, fetched: &Fetched) {
        let marked = record.value == Some(LedgerValue::Skip);
        let entry = match record.value {
            Some(LedgerValue::Entry(entry)) => Some(entry),
            Some(LedgerValue::Skip | LedgerValue::Cursor { .. } | LedgerValue::Barrier { .. })
            | None => None,
        };
        match record.key {
            LedgerKey::Main(id) => self.change(&id, fetched, |replay, known| {
                if entry.is_some() || known.held_main(replay.w) {
                    replay.drop_main(known);
                }
                replay.hold(known, entry);
            }),
            LedgerKey::Retry { trigger, generation, occurrence } => {
                self.change(&trigger, fetched, |replay, known| {
                    replay.drop(known, |slot| slot.retries(generation, occurrence));
                    replay.hold(known, entry);
                });
            }
            LedgerKey::Veto(id) => self.change(&id, fetched, |replay, known| {
                replay.drop(known, |slot| slot.kind == SlotKind::Veto);
                replay.hold(known, entry);
            }),
            LedgerKey::Skip(offset) => {
                let _changed =
                    if marked { self.skips.insert(offset) } else { self.skips.remove(&offset) };
                self.rows.push(RowOp::Skip { offset, marked });
            }
            LedgerKey::Cursor | LedgerKey::Barrier => {}
        }
    }

    /// What the ledger holds goes on the timeline.
    fn hold(&mut self, known: &mut Known, entry: Option<Entry>) {
        let Some(Entry { key, mut row }) = entry else { return };
        if let Row::Fire(row) = &mut row
            && planted(Bug::CountLost)
        {
            row.id.occurrence = 0;
        }
        let slot = match &row {
            Row::Fire(row) => Slot { in_ledger: true, ..Slot::of(key, row) },
            Row::Veto { cancel, .. } => Slot::of_veto(key, *cancel),
            Row::Watch { .. } => Slot::of_watch(key),
        };
        if key > self.w {
            if is_main(&slot) && matches!(row, Row::Fire(_)) {
                self.held.insert(slot.generation);
            }
            let row = self.encode(&row);
            self.rows.push(RowOp::Put { key, row });
        }
        known.slots.push(slot);
    }

    fn encode(&mut self, row: &Row) -> RowBytes {
        row::to_bytes(row, &mut self.scratch)
    }

    fn drop_main(&mut self, known: &mut Known) {
        self.drop(known, is_main);
    }

    fn drop(&mut self, known: &mut Known, condemned: impl Fn(&Slot) -> bool) {
        for slot in known.take(condemned) {
            if slot.key > self.w {
                self.rows.push(RowOp::Delete { key: slot.key });
            }
            if is_main(&slot) && !planted(Bug::HeldForGood) {
                self.held.remove(slot.generation);
            }
        }
    }

    fn change(&mut self, id: &Text, fetched: &Fetched, change: impl FnOnce(&mut Self, &mut Known)) {
        let hash = IdHash::of(id);
        let touched = self.touched.remove(&hash);
        let stored = fetched.get(&hash);
        let is_touched = touched.is_some();
        let mut known = touched.or_else(|| stored.cloned()).unwrap_or_default();
        change(self, &mut known);
        // Most records of the log say again what the ledger holds.
        let is_stored = stored.map_or(known.slots.is_empty(), |stored| *stored == known);
        if is_touched || !is_stored {
            let _previous = self.touched.insert(hash, known);
        }
    }

    fn take_rows(&mut self) -> Vec<RowOp> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.extend(self.touched.drain().map(|(hash, known)| {
            let known = (!known.slots.is_empty()).then_some(known);
            RowOp::Index { hash, known }
        }));
        rows.sort_by_key(RowOp::place);
        rows
    }
}

/// What a registration replaces and a cancel removes.
fn is_main(slot: &Slot) -> bool {
    matches!(slot.kind, SlotKind::Main | SlotKind::Past)
}
