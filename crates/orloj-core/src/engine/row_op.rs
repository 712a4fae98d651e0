//! A change of the store, as data.
//!
//! Invariant: applying a change twice has the same effect as once; of several changes of a key the
//! last one counts.

use super::index_row::{IdHash, IndexRow};
use crate::codec::row::RowBytes;
use crate::model::Offset;
use crate::model::timeline::TimelineKey;

/// A change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowOp {
    /// Put an entry on the timeline; `row` is its encoding.
    Put {
        /// Its key.
        key: TimelineKey,
        /// The encoded row.
        row: RowBytes,
    },
    /// Delete an entry of the timeline.
    Delete {
        /// Its key.
        key: TimelineKey,
    },
    /// The new index row of an id; `None` deletes it.
    Index {
        /// The id.
        hash: IdHash,
        /// The row.
        row: Option<IndexRow>,
    },
    /// Put or delete the mark of a record of `triggers` that was ignored for reasons of state.
    Skip {
        /// The record's offset.
        offset: Offset,
        /// Put, or delete.
        marked: bool,
    },
}

impl RowOp {
    /// Its place in the store: the family, then the key. A batch in this order is inserted
    /// fastest, because the memtable finds each place next to the last one. Sort stably: of
    /// several rows for one key the last one counts.
    #[must_use]
    pub fn sort_key(&self) -> (u8, TimelineKey, IdHash) {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => (0, *key, IdHash(0)),
            Self::Index { hash, .. } => (1, TimelineKey::MIN, *hash),
            Self::Skip { .. } => (2, TimelineKey::MIN, IdHash(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::timeline::Source;

    #[test]
    fn rows_come_before_index_rows_and_marks_each_in_key_order() {
        let key = |due| TimelineKey { due, priority: 0, source: Source::Triggers, offset: 1 };
        let ordered = [
            RowOp::Put { key: key(1), row: RowBytes::from(*b"row") },
            RowOp::Delete { key: key(2) },
            RowOp::Put { key: key(3), row: RowBytes::from(*b"row") },
            RowOp::Index { hash: IdHash(1), row: None },
            RowOp::Index { hash: IdHash(2), row: Some(IndexRow::default()) },
            RowOp::Skip { offset: 0, marked: true },
        ];
        let mut sorted = ordered.clone();
        sorted.reverse();
        sorted.sort_by_key(RowOp::sort_key);
        assert_eq!(sorted, ordered);
    }
}
