//! What is decided and not in the store yet: the newest index rows, and the entries that were added
//! and removed. It is to the store what a memtable is to a log-structured tree.
//!
//! Invariant: what is here is newer than the store. It is spilled in whole deltas, oldest first; a
//! delta has everything decided since the one before: so a trigger that is registered and fires
//! between two spills costs the store nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use foldhash::fast::FixedState;

use super::index_row::{IdHash, IdMap, IndexRow};
use super::row_op::RowOp;
use crate::codec::row::RowBytes;
use crate::model::Offset;
use crate::model::timeline::TimelineKey;

/// What an entry costs in memory besides the bytes of its row.
const ENTRY_BYTES: usize = size_of::<(TimelineKey, Option<RowBytes>)>();
/// What an id costs besides the heap of its row: its slot in a map that is three quarters full.
const ID_BYTES: usize = size_of::<(IdHash, IndexChange)>() * 4 / 3;

/// The changes that are decided and not in the store yet.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer {
    /// Changes of steps since the last spill, and of the draft.
    active: Delta,
    /// Being written to the store, each with the number of its last step; oldest first.
    spilling: VecDeque<(u64, Arc<Delta>)>,
    /// Memory of those, in bytes.
    spilling_bytes: usize,
    /// The positions of rows in the active delta, as far as they were looked up.
    positions: RowPositions,
    /// Whether it has ever had a trigger with a lifecycle.
    has_lifecycles: bool,
}

/// The newest change of each key in the first `indexed` changes of a delta.
#[derive(Debug, Default)]
struct RowPositions {
    newest: HashMap<TimelineKey, usize, FixedState>,
    indexed: usize,
}

impl RowPositions {
    /// Indexes the rest of `timeline`.
    fn extend(&mut self, timeline: &[(TimelineKey, Option<RowBytes>)]) {
        let new_changes = timeline.iter().enumerate().skip(self.indexed);
        self.newest.extend(new_changes.map(|(place, (key, _))| (*key, place)));
        self.indexed = timeline.len();
    }
}

/// Changes of the store, in memory.
#[derive(Debug)]
pub struct Delta {
    /// Entries that were added, or (`None`) removed; in the order of the decisions.
    timeline: Vec<(TimelineKey, Option<RowBytes>)>,
    index: IdMap<IndexChange>,
    skips: Vec<(Offset, bool)>,
    bytes: usize,
    /// W: entries at or below it have fired and need no row. Set when the delta is closed.
    fired_through: TimelineKey,
    /// The positions of rows, once it is closed and one was looked up.
    positions: OnceLock<RowPositions>,
}

/// The newest index row of an id.
#[derive(Clone, Debug)]
struct IndexChange {
    row: IndexRow,
    /// The store may have an older row of it, which must then be replaced.
    may_be_in_store: bool,
}

impl WriteBuffer {
    /// Whether it may have a trigger with a lifecycle.
    pub(super) fn has_lifecycles(&self) -> bool {
        self.has_lifecycles
    }

    /// Whether it has an index row, which is newer than the store's.
    pub(super) fn contains(&self, hash: IdHash) -> bool {
        self.index_row(hash).is_some()
    }

    /// The newest index row of an id, if a delta has it.
    pub(super) fn index_row(&self, hash: IdHash) -> Option<&IndexRow> {
        self.deltas().find_map(|delta| delta.index.get(&hash)).map(|change| &change.row)
    }

    /// Sets the index row of an id. `may_be_in_store`: the store has a row of it.
    pub(super) fn put_index_row(&mut self, hash: IdHash, row: IndexRow, may_be_in_store: bool) {
        self.has_lifecycles |= row.entries.iter().any(|entry| entry.has_lifecycle);
        self.active.bytes += row.heap_bytes();
        if let Some(change) = self.active.index.get_mut(&hash) {
            self.active.bytes -= change.row.heap_bytes();
            change.row = row;
            return;
        }
        let may_be_in_store =
            may_be_in_store || self.spilling.iter().any(|(_, d)| d.index.contains_key(&hash));
        self.active.bytes += ID_BYTES;
        let _none = self.active.index.insert(hash, IndexChange { row, may_be_in_store });
    }

    pub(super) fn put_row(&mut self, key: TimelineKey, row: RowBytes) {
        self.active.bytes += ENTRY_BYTES + row.len();
        self.active.timeline.push((key, Some(row)));
    }

    pub(super) fn delete_row(&mut self, key: TimelineKey) {
        self.active.bytes += ENTRY_BYTES;
        self.active.timeline.push((key, None));
    }

    pub(super) fn put_skip_mark(&mut self, skipped: Offset, marked: bool) {
        self.active.skips.push((skipped, marked));
    }

    /// The row of `key`, if it is not in the store yet.
    pub(super) fn row(&mut self, key: TimelineKey) -> Option<RowBytes> {
        self.positions.extend(&self.active.timeline);
        if let Some(place) = self.positions.newest.get(&key) {
            return self.active.timeline[*place].1.clone();
        }
        self.spilling
            .iter()
            .rev()
            .find_map(|(_, delta)| delta.newest_change(key))
            .cloned()
            .flatten()
    }

    /// Entries that were added or removed and may not be in the store yet, in decision order.
    pub(super) fn timeline(&self) -> impl Iterator<Item = &(TimelineKey, Option<RowBytes>)> {
        let spilling = self.spilling.iter().map(|(_, delta)| delta.as_ref());
        spilling.chain([&self.active]).flat_map(|delta| &delta.timeline)
    }

    /// Memory since the last spill, in bytes.
    pub(super) fn active_bytes(&self) -> usize {
        self.active.bytes
    }

    /// Memory altogether, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.active.bytes + self.spilling_bytes
    }

    pub(super) fn is_active_empty(&self) -> bool {
        let Delta { timeline, index, skips, .. } = &self.active;
        timeline.is_empty() && index.is_empty() && skips.is_empty()
    }

    /// Closes the active delta with step `number`, after which W is `fired_through`.
    pub(super) fn spill(&mut self, number: u64, fired_through: TimelineKey) -> Arc<Delta> {
        self.positions = RowPositions::default();
        let delta = Arc::new(Delta { fired_through, ..std::mem::take(&mut self.active) });
        self.spilling_bytes += delta.bytes;
        self.spilling.push_back((number, Arc::clone(&delta)));
        delta
    }

    /// The delta of step `number` and all before it are in the store now.
    pub(super) fn on_applied(&mut self, number: u64) {
        while let Some((_, delta)) = self.spilling.pop_front_if(|(of, _)| *of <= number) {
            self.spilling_bytes -= delta.bytes;
        }
    }

    /// Newest first.
    fn deltas(&self) -> impl Iterator<Item = &Delta> {
        [&self.active].into_iter().chain(self.spilling.iter().rev().map(|(_, d)| d.as_ref()))
    }
}

impl Default for Delta {
    fn default() -> Self {
        let (timeline, index, skips) = (Vec::new(), IdMap::default(), Vec::new());
        let (fired_through, positions) = (TimelineKey::MIN, OnceLock::new());
        Self { timeline, index, skips, bytes: 0, fired_through, positions }
    }
}

impl Delta {
    /// The newest change of `key`, once the delta is closed.
    fn newest_change(&self, key: TimelineKey) -> Option<&Option<RowBytes>> {
        let positions = self.positions.get_or_init(|| {
            let mut positions = RowPositions::default();
            positions.extend(&self.timeline);
            positions
        });
        positions.newest.get(&key).map(|place| &self.timeline[*place].1)
    }

    /// What the store must write: timeline in key order, index in order of hashes, marks. What
    /// was added and removed in between is not included, nor what has fired already.
    #[must_use]
    pub fn rows(&self) -> Vec<RowOp> {
        let mut rows = Vec::with_capacity(self.timeline.len() + self.index.len());
        self.timeline_rows(&mut rows);
        let first = rows.len();
        rows.extend(
            self.index.iter().filter_map(|(hash, held)| held.to_row_op(*hash, self.fired_through)),
        );
        rows[first..].sort_unstable_by_key(RowOp::sort_key);
        let mark = |&(offset, marked)| RowOp::Skip { offset, marked };
        rows.extend(self.skips.iter().map(mark));
        rows
    }

    fn timeline_rows(&self, rows: &mut Vec<RowOp>) {
        let mut pending: Vec<_> =
            self.timeline.iter().filter(|(key, _)| *key > self.fired_through).collect();
        // Stable: of several changes of a key the last one counts.
        pending.sort_by_key(|(key, _)| *key);
        for changes in pending.chunk_by(|a, b| a.0 == b.0) {
            let (first, last) = (changes[0], changes[changes.len() - 1]);
            let key = first.0;
            match &last.1 {
                Some(row) => rows.push(RowOp::Put { key, row: row.clone() }),
                // A key is put once: if that was in this delta, the store has never had it.
                None if first.1.is_some() => {}
                None => rows.push(RowOp::Delete { key }),
            }
        }
    }
}

impl IndexChange {
    fn to_row_op(&self, hash: IdHash, fired_through: TimelineKey) -> Option<RowOp> {
        let Self { row, may_be_in_store } = self;
        let row = row.clone().pruned(fired_through);
        if row.entries.is_empty() {
            return may_be_in_store.then_some(RowOp::Index { hash, row: None });
        }
        Some(RowOp::Index { hash, row: Some(row) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::index_row::{IndexEntry, IndexEntryKind, TriggerCaller};
    use crate::model::timeline::Source;

    const A: IdHash = IdHash(1);
    const B: IdHash = IdHash(2);

    fn key(due: u64) -> TimelineKey {
        TimelineKey { due, priority: 0, source: Source::Triggers, offset: due }
    }

    fn known(due: u64) -> IndexRow {
        let kind = IndexEntryKind::Main;
        let (in_ledger, is_http, has_lifecycle) = (false, false, false);
        let entry = IndexEntry {
            key: key(due),
            kind,
            generation: due,
            in_ledger,
            is_http,
            has_lifecycle,
            caller: TriggerCaller::NotATrigger,
        };
        IndexRow { entries: [entry].into() }
    }

    fn put(due: u64) -> RowOp {
        RowOp::Put { key: key(due), row: RowBytes::from(*b"row") }
    }

    fn register(buffer: &mut WriteBuffer, hash: IdHash, due: u64) {
        buffer.put_row(key(due), RowBytes::from(*b"row"));
        buffer.put_index_row(hash, known(due), false);
    }

    #[test]
    fn an_entry_added_and_deleted_between_two_spills_is_not_written() {
        let mut buffer = WriteBuffer::default();
        register(&mut buffer, A, 10);
        buffer.delete_row(key(10));
        buffer.put_index_row(A, IndexRow::default(), false);
        assert_eq!(buffer.spill(1, TimelineKey::MIN).rows(), []);
    }

    #[test]
    fn the_row_of_a_fired_entry_is_not_written() {
        let mut buffer = WriteBuffer::default();
        register(&mut buffer, A, 10);
        register(&mut buffer, B, 20);
        let index = |hash, due| RowOp::Index { hash, row: Some(known(due)) };
        // The index still says for a while that it has fired.
        let expected = [put(20), index(A, 10), index(B, 20)];
        assert_eq!(buffer.spill(1, key(15)).rows(), expected);
    }

    #[test]
    fn a_row_written_by_one_spill_is_deleted_by_the_next() {
        let mut buffer = WriteBuffer::default();
        register(&mut buffer, A, 10);
        let first = buffer.spill(1, TimelineKey::MIN);
        buffer.delete_row(key(10));
        buffer.put_index_row(A, IndexRow::default(), false);
        assert_eq!(first.rows().len(), 2);
        let deletions = [RowOp::Delete { key: key(10) }, RowOp::Index { hash: A, row: None }];
        assert_eq!(buffer.spill(2, TimelineKey::MIN).rows(), deletions);
    }

    #[test]
    fn an_index_row_counts_with_all_its_entries() {
        let mut buffer = WriteBuffer::default();
        buffer.put_index_row(A, known(10), false);
        let one = buffer.bytes();
        let entries = (0..1_000).map(|due| known(due).entries.remove(0)).collect();
        buffer.put_index_row(A, IndexRow { entries }, false);
        assert!(buffer.bytes() >= one + 1_000 * size_of::<IndexEntry>(), "{}", buffer.bytes());
        buffer.put_index_row(A, known(10), false);
        assert_eq!(buffer.bytes(), one, "what it has replaced counts no more");
    }

    #[test]
    fn it_serves_reads_until_the_store_has_the_rows() {
        let mut buffer = WriteBuffer::default();
        register(&mut buffer, A, 10);
        let _first = buffer.spill(1, TimelineKey::MIN);
        register(&mut buffer, B, 20);
        assert_eq!((buffer.index_row(A), buffer.timeline().count()), (Some(&known(10)), 2));
        let bytes = buffer.bytes();
        buffer.on_applied(1);
        assert_eq!((buffer.index_row(A), buffer.contains(A)), (None, false));
        assert_eq!((buffer.index_row(B), buffer.contains(B)), (Some(&known(20)), true));
        assert_eq!((buffer.timeline().count(), buffer.bytes()), (1, bytes / 2));
    }

    #[test]
    fn the_memory_of_each_change_counts_until_the_store_has_it() {
        let mut buffer = WriteBuffer::default();
        assert_eq!((buffer.active_bytes(), buffer.bytes()), (0, 0));
        register(&mut buffer, A, 10);
        let first = ENTRY_BYTES + b"row".len() + ID_BYTES;
        assert_eq!((buffer.active_bytes(), buffer.bytes()), (first, first));
        let _delta = buffer.spill(1, TimelineKey::MIN);
        assert_eq!((buffer.active_bytes(), buffer.bytes()), (0, first));
        buffer.delete_row(key(10));
        buffer.put_index_row(A, known(11), false);
        buffer.put_index_row(A, known(12), false);
        let second = ENTRY_BYTES + ID_BYTES;
        assert_eq!((buffer.active_bytes(), buffer.bytes()), (second, first + second));
        let _delta = buffer.spill(2, TimelineKey::MIN);
        for (applied, left) in [(0, first + second), (1, second), (2, 0)] {
            buffer.on_applied(applied);
            assert_eq!(buffer.bytes(), left);
        }
    }

    #[test]
    fn a_row_an_index_row_or_a_mark_is_something_to_write() {
        let changes: [fn(&mut WriteBuffer); 4] = [
            |buffer| buffer.put_row(key(10), RowBytes::from(*b"row")),
            |buffer| buffer.delete_row(key(10)),
            |buffer| buffer.put_index_row(A, known(10), false),
            |buffer| buffer.put_skip_mark(7, true),
        ];
        for change in changes {
            let mut buffer = WriteBuffer::default();
            assert!(buffer.is_active_empty());
            change(&mut buffer);
            assert!(!buffer.is_active_empty());
            assert_eq!(buffer.spill(1, TimelineKey::MIN).rows().len(), 1);
            assert!(buffer.is_active_empty());
        }
    }

    #[test]
    fn the_newest_change_of_a_row_is_read() {
        let row = |text: &[u8; 1]| Some(RowBytes::from(*text));
        let mut buffer = WriteBuffer::default();
        for key in [1, 2, 3].map(key) {
            buffer.put_row(key, RowBytes::from(*b"a"));
        }
        assert_eq!(buffer.row(key(1)), row(b"a"));
        buffer.put_row(key(1), RowBytes::from(*b"b"));
        assert_eq!(buffer.row(key(1)), row(b"b"));
        let _delta = buffer.spill(1, TimelineKey::MIN);
        buffer.delete_row(key(2));
        let _delta = buffer.spill(2, TimelineKey::MIN);
        buffer.put_row(key(3), RowBytes::from(*b"c"));
        assert_eq!([1, 2, 3].map(|due| buffer.row(key(due))), [row(b"b"), None, row(b"c")]);
        assert_eq!(buffer.row(key(4)), None);
    }

    #[test]
    fn what_is_due_at_w_has_fired_and_is_not_written() {
        let mut buffer = WriteBuffer::default();
        buffer.delete_row(key(15));
        for due in [16, 15] {
            buffer.put_row(key(due), RowBytes::from(*b"row"));
        }
        assert_eq!(buffer.spill(1, key(15)).rows(), [put(16)]);
    }

    #[test]
    fn it_has_lifecycles_from_the_first_one_on() {
        let mut buffer = WriteBuffer::default();
        buffer.put_index_row(A, known(10), false);
        assert!(!buffer.has_lifecycles());
        let mut with_lifecycle = known(20);
        with_lifecycle.entries[0].has_lifecycle = true;
        for row in [with_lifecycle.clone(), with_lifecycle, known(30)] {
            buffer.put_index_row(B, row, false);
            assert!(buffer.has_lifecycles());
        }
    }
}
