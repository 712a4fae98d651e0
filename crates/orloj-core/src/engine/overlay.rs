//! What is decided and not in the store yet: the newest state of ids, and the entries that came and
//! went. It is to the store what a memtable is to a log-structured tree.
//!
//! Law: what is here is newer than the store. It leaves in whole deltas, oldest first, and a delta
//! holds everything decided since the one before: so a trigger that comes and fires between two
//! spills costs the store nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use foldhash::fast::FixedState;

use super::known::{IdHash, IdMap, Known};
use super::step::RowOp;
use crate::codec::row::RowBytes;
use crate::model::Offset;
use crate::model::timeline::TimelineKey;

/// What an entry costs in memory besides the bytes of its row.
const ENTRY_BYTES: usize = size_of::<(TimelineKey, Option<RowBytes>)>();
/// What an id costs: its place in a map that is three quarters full.
const ID_BYTES: usize = size_of::<(IdHash, Held)>() * 4 / 3;

/// Everything between the store and what is decided.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    /// Of steps since the last spill, and of the draft.
    active: Delta,
    /// On their way into the store, with the number of the step they go up to; oldest first.
    spilling: VecDeque<(u64, Arc<Delta>)>,
    /// Memory of those, in bytes.
    spilling_bytes: usize,
    /// Where rows stand in the active delta, as far as somebody has asked.
    places: Places,
    /// Whether any trigger with a course has ever been here.
    has_courses: bool,
}

/// The newest change of each key in the first `known` changes of a delta.
#[derive(Debug, Default)]
struct Places {
    at: HashMap<TimelineKey, usize, FixedState>,
    known: usize,
}

impl Places {
    /// Reads on to the end of `timeline`.
    fn extend(&mut self, timeline: &[(TimelineKey, Option<RowBytes>)]) {
        let news = timeline.iter().enumerate().skip(self.known);
        self.at.extend(news.map(|(place, (key, _))| (*key, place)));
        self.known = timeline.len();
    }
}

/// Changes of the store, in memory.
#[derive(Debug)]
pub struct Delta {
    /// Entries that came, or (`None`) went; in the order of the decisions.
    timeline: Vec<(TimelineKey, Option<RowBytes>)>,
    index: IdMap<Held>,
    skips: Vec<(Offset, bool)>,
    bytes: usize,
    /// What stands at or below is decided and wants no row. Set when the delta is closed.
    w: TimelineKey,
    /// Where rows stand, once it is closed and somebody has asked.
    places: OnceLock<Places>,
}

/// What is known of an id.
#[derive(Clone, Debug)]
struct Held {
    known: Known,
    /// The store may have an older row of it, which must then be replaced.
    stored: bool,
}

impl Overlay {
    /// Whether what is here may be about a trigger with a course.
    pub(super) fn has_courses(&self) -> bool {
        self.has_courses
    }

    /// Whether the store's row would be stale.
    pub(super) fn contains(&self, hash: IdHash) -> bool {
        self.get(hash).is_some()
    }

    /// What is known of an id, if a delta has it.
    pub(super) fn get(&self, hash: IdHash) -> Option<&Known> {
        self.deltas().find_map(|delta| delta.index.get(&hash)).map(|held| &held.known)
    }

    /// From now on this is known of an id. `stored`: the store has a row of it.
    pub(super) fn know(&mut self, hash: IdHash, known: Known, stored: bool) {
        self.has_courses |= known.slots.iter().any(|slot| slot.course);
        if let Some(held) = self.active.index.get_mut(&hash) {
            held.known = known;
            return;
        }
        let stored = stored || self.spilling.iter().any(|(_, d)| d.index.contains_key(&hash));
        self.active.bytes += ID_BYTES;
        let _none = self.active.index.insert(hash, Held { known, stored });
    }

    pub(super) fn put(&mut self, key: TimelineKey, row: RowBytes) {
        self.active.bytes += ENTRY_BYTES + row.len();
        self.active.timeline.push((key, Some(row)));
    }

    pub(super) fn delete(&mut self, key: TimelineKey) {
        self.active.bytes += ENTRY_BYTES;
        self.active.timeline.push((key, None));
    }

    pub(super) fn mark(&mut self, skipped: Offset, marked: bool) {
        self.active.skips.push((skipped, marked));
    }

    /// The row that stands at `key`, if it came lately.
    pub(super) fn row(&mut self, key: TimelineKey) -> Option<RowBytes> {
        self.places.extend(&self.active.timeline);
        if let Some(place) = self.places.at.get(&key) {
            return self.active.timeline[*place].1.clone();
        }
        self.spilling.iter().rev().find_map(|(_, delta)| delta.change(key)).cloned().flatten()
    }

    /// Entries that came or went and that the store may not show yet, in the order of decisions.
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

    pub(super) fn is_clean(&self) -> bool {
        let Delta { timeline, index, skips, .. } = &self.active;
        timeline.is_empty() && index.is_empty() && skips.is_empty()
    }

    /// Closes the active delta with step `number`, after which W stands at `w`.
    pub(super) fn spill(&mut self, number: u64, w: TimelineKey) -> Arc<Delta> {
        self.places = Places::default();
        let delta = Arc::new(Delta { w, ..std::mem::take(&mut self.active) });
        self.spilling_bytes += delta.bytes;
        self.spilling.push_back((number, Arc::clone(&delta)));
        delta
    }

    /// The delta of step `number` and all before it are in the store now.
    pub(super) fn applied(&mut self, number: u64) {
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
        let (w, places) = (TimelineKey::MIN, OnceLock::new());
        Self { timeline, index, skips, bytes: 0, w, places }
    }
}

impl Delta {
    /// The newest change of `key`, once the delta is closed.
    fn change(&self, key: TimelineKey) -> Option<&Option<RowBytes>> {
        let places = self.places.get_or_init(|| {
            let mut places = Places::default();
            places.extend(&self.timeline);
            places
        });
        places.at.get(&key).map(|place| &self.timeline[*place].1)
    }

    /// What the store must write: timeline in key order, index in order of hashes, marks. What
    /// came and went in between is not among it, nor what has fired already.
    #[must_use]
    pub fn rows(&self) -> Vec<RowOp> {
        let mut rows = Vec::with_capacity(self.timeline.len() + self.index.len());
        self.timeline_rows(&mut rows);
        let first = rows.len();
        rows.extend(self.index.iter().filter_map(|(hash, held)| held.row(*hash, self.w)));
        rows[first..].sort_unstable_by_key(RowOp::place);
        let mark = |&(offset, marked)| RowOp::Skip { offset, marked };
        rows.extend(self.skips.iter().map(mark));
        rows
    }

    fn timeline_rows(&self, rows: &mut Vec<RowOp>) {
        let mut pending: Vec<_> = self.timeline.iter().filter(|(key, _)| *key > self.w).collect();
        // Stable: of several changes of a key the last one counts.
        pending.sort_by_key(|(key, _)| *key);
        for changes in pending.chunk_by(|a, b| a.0 == b.0) {
            let (first, last) = (changes[0], changes[changes.len() - 1]);
            let key = first.0;
            match &last.1 {
                Some(row) => rows.push(RowOp::Put { key, row: row.clone() }),
                // A key is put once: if that was here, the store has never seen it.
                None if first.1.is_some() => {}
                None => rows.push(RowOp::Delete { key }),
            }
        }
    }
}

impl Held {
    fn row(&self, hash: IdHash, w: TimelineKey) -> Option<RowOp> {
        let Self { known, stored } = self;
        let known = known.clone().pruned(w);
        if known.slots.is_empty() {
            return stored.then_some(RowOp::Index { hash, known: None });
        }
        Some(RowOp::Index { hash, known: Some(known) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::known::{Claim, Slot, SlotKind};
    use crate::model::timeline::Source;

    const A: IdHash = IdHash(1);
    const B: IdHash = IdHash(2);

    fn key(due: u64) -> TimelineKey {
        TimelineKey { due, priority: 0, source: Source::Triggers, offset: due }
    }

    fn known(due: u64) -> Known {
        let kind = SlotKind::Main;
        let (in_ledger, http, course) = (false, false, false);
        let slot = Slot {
            key: key(due),
            kind,
            generation: due,
            in_ledger,
            http,
            course,
            claim: Claim::Free,
        };
        Known { slots: [slot].into() }
    }

    fn put(due: u64) -> RowOp {
        RowOp::Put { key: key(due), row: RowBytes::from(*b"row") }
    }

    fn register(overlay: &mut Overlay, hash: IdHash, due: u64) {
        overlay.put(key(due), RowBytes::from(*b"row"));
        overlay.know(hash, known(due), false);
    }

    #[test]
    fn what_came_and_went_between_two_spills_is_not_written() {
        let mut overlay = Overlay::default();
        register(&mut overlay, A, 10);
        overlay.delete(key(10));
        overlay.know(A, Known::default(), false);
        assert_eq!(overlay.spill(1, TimelineKey::MIN).rows(), []);
    }

    #[test]
    fn the_row_of_what_has_fired_is_not_written() {
        let mut overlay = Overlay::default();
        register(&mut overlay, A, 10);
        register(&mut overlay, B, 20);
        let index = |hash, due| RowOp::Index { hash, known: Some(known(due)) };
        // The index still says for a while that it has fired.
        let expected = [put(20), index(A, 10), index(B, 20)];
        assert_eq!(overlay.spill(1, key(15)).rows(), expected);
    }

    #[test]
    fn what_an_earlier_spill_has_written_is_deleted_by_the_next() {
        let mut overlay = Overlay::default();
        register(&mut overlay, A, 10);
        let first = overlay.spill(1, TimelineKey::MIN);
        overlay.delete(key(10));
        overlay.know(A, Known::default(), false);
        assert_eq!(first.rows().len(), 2);
        let gone = [RowOp::Delete { key: key(10) }, RowOp::Index { hash: A, known: None }];
        assert_eq!(overlay.spill(2, TimelineKey::MIN).rows(), gone);
    }

    #[test]
    fn it_answers_until_the_store_can() {
        let mut overlay = Overlay::default();
        register(&mut overlay, A, 10);
        let _first = overlay.spill(1, TimelineKey::MIN);
        register(&mut overlay, B, 20);
        assert_eq!((overlay.get(A), overlay.timeline().count()), (Some(&known(10)), 2));
        let bytes = overlay.bytes();
        overlay.applied(1);
        assert_eq!((overlay.get(A), overlay.contains(B)), (None, true));
        assert_eq!((overlay.timeline().count(), overlay.bytes()), (1, bytes / 2));
    }
}
