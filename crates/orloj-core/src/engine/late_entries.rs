//! Late entries: at or below W when they were ingested; they fire in the step that ingested them.
//!
//! Invariant: they fire in the order in which they were added; one is found by its key, however
//! many there are.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::codec::row::RowBytes;
use crate::model::timeline::TimelineKey;
use crate::model::work;

/// The late entries of the step being drafted.
#[derive(Debug, Default)]
pub(super) struct LateEntries {
    /// In the order of their records; removed ones are `None`.
    entries: Vec<(TimelineKey, Option<RowBytes>)>,
    /// Where in `entries` those are that were not removed.
    positions: HashMap<TimelineKey, usize, FixedState>,
}

impl LateEntries {
    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    pub(super) fn contains(&self, key: TimelineKey) -> bool {
        work::count(1);
        self.positions.contains_key(&key)
    }

    /// The row of an entry.
    pub(super) fn row(&self, key: TimelineKey) -> Option<&RowBytes> {
        work::count(1);
        let position = *self.positions.get(&key)?;
        self.entries[position].1.as_ref()
    }

    pub(super) fn add(&mut self, key: TimelineKey, row: RowBytes) {
        let before = self.positions.insert(key, self.entries.len());
        assert_eq!(before, None, "a record makes at most one entry");
        self.entries.push((key, Some(row)));
    }

    pub(super) fn remove(&mut self, key: TimelineKey) {
        work::count(1);
        if let Some(position) = self.positions.remove(&key) {
            self.entries[position].1 = None;
        }
    }

    /// Takes all of them, in the order in which they were added.
    pub(super) fn take(&mut self) -> Vec<(TimelineKey, RowBytes)> {
        self.positions.clear();
        let taken = std::mem::take(&mut self.entries);
        taken.into_iter().filter_map(|(key, row)| Some((key, row?))).collect()
    }
}
