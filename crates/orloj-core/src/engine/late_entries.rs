//! Late entries: at or below W when they were ingested; they fire in the step that ingested them.
//!
//! Invariant: they fire in the order in which they were added; one is found by its key, however
//! many there are.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::due_entries::cost_of;
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
    /// About how many bytes they write.
    bytes: usize,
}

impl LateEntries {
    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// About how many bytes they write.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
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
        self.bytes += cost_of(&row).bytes;
        self.entries.push((key, Some(row)));
    }

    pub(super) fn remove(&mut self, key: TimelineKey) {
        work::count(1);
        if let Some(position) = self.positions.remove(&key)
            && let Some(row) = self.entries[position].1.take()
        {
            self.bytes -= cost_of(&row).bytes;
        }
    }

    /// Takes all of them, in the order in which they were added.
    pub(super) fn take(&mut self) -> Vec<(TimelineKey, RowBytes)> {
        self.positions.clear();
        self.bytes = 0;
        let taken = std::mem::take(&mut self.entries);
        taken.into_iter().filter_map(|(key, row)| Some((key, row?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::timeline::Source;

    #[test]
    fn they_are_taken_in_the_order_in_which_they_were_added_without_those_removed() {
        let keys = [3, 1, 2].map(|offset| TimelineKey {
            due: 1_000 - offset,
            priority: 0,
            source: Source::Triggers,
            offset,
        });
        let row = |key: TimelineKey| RowBytes::from(vec![7; key.offset as usize]);
        let mut late = LateEntries::default();
        assert!(late.is_empty());
        for key in keys {
            late.add(key, row(key));
        }
        late.remove(keys[1]);
        let found = keys.map(|key| (late.contains(key), late.row(key).cloned()));
        assert_eq!(found, [(true, Some(row(keys[0]))), (false, None), (true, Some(row(keys[2])))]);
        assert!(!late.is_empty());
        assert_eq!(late.take(), [keys[0], keys[2]].map(|key| (key, row(key))));
        assert!(late.is_empty() && late.take().is_empty() && late.row(keys[0]).is_none());
    }
}
