//! What the disk of a node holds of one partition.
//!
//! Invariant: rows and state are one; a crash takes both back to the last flush.

use std::collections::{BTreeMap, BTreeSet};

use orloj_core::engine::partition::IndexRows;
use orloj_core::engine::prefetch::TimelineRows;

use orloj_core::codec::row::RowBytes;
use orloj_core::engine::step::RowOp;
use orloj_core::engine::wheel::{ENTRY_BYTES, LoadRequest};
use orloj_core::environment::store::LocalState;
use orloj_core::model::Offset;
use orloj_core::model::timeline::TimelineKey;

/// A store as it stands at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedRows {
    timeline: BTreeMap<TimelineKey, RowBytes>,
    pub(super) index: IndexRows,
    pub(super) skips: BTreeSet<Offset>,
    /// How far it is.
    pub(super) state: Option<LocalState>,
}

impl SimulatedRows {
    fn write(&mut self, ops: &[RowOp]) {
        for op in ops {
            match op {
                RowOp::Put { key, row } => drop(self.timeline.insert(*key, row.clone())),
                RowOp::Delete { key } => drop(self.timeline.remove(key)),
                RowOp::Index { hash, row: Some(known) } => {
                    drop(self.index.insert(*hash, known.clone()));
                }
                RowOp::Index { hash, row: None } => drop(self.index.remove(hash)),
                RowOp::Skip { offset, marked: true } => drop(self.skips.insert(*offset)),
                RowOp::Skip { offset, marked: false } => {
                    let _was = self.skips.remove(offset);
                }
            }
        }
    }
}

/// A store: what is in memory, and what a crash would leave.
#[derive(Debug, Default)]
pub(super) struct SimulatedDisk {
    pub(super) rows: SimulatedRows,
    flushed: SimulatedRows,
    /// It fails until it is wiped.
    pub(super) has_failed: bool,
    /// It can be neither deleted nor opened.
    pub(super) is_refused: bool,
    pub(super) is_open: bool,
    /// The standby writes it.
    pub(super) is_followed: bool,
    /// It has rows that no state covers yet.
    pub(super) has_loose_rows: bool,
}

impl SimulatedDisk {
    /// Rows and state, in one.
    pub(super) fn apply(&mut self, ops: &[RowOp], state: LocalState) {
        self.rows.write(ops);
        self.rows.state = Some(state);
        self.has_loose_rows = false;
    }

    /// Rows that become files at once; the state that covers them is written later, unless a crash
    /// prevents it.
    pub(super) fn add(&mut self, ops: &[RowOp]) {
        self.rows.write(ops);
        self.flushed.write(ops);
        self.has_loose_rows |= !ops.is_empty();
    }

    /// The rows at these places.
    pub(super) fn rows_at(&self, places: &[TimelineKey]) -> TimelineRows {
        let found = |key: &TimelineKey| Some((*key, self.rows.timeline.get(key)?.clone()));
        places.iter().filter_map(found).collect()
    }

    /// The compaction filter: removes rows below `fired_through`.
    pub(super) fn forget_decided(&mut self) {
        if let Some(state) = &self.rows.state {
            self.rows.timeline = self.rows.timeline.split_off(&state.fired_through);
        }
    }

    pub(super) fn flush(&mut self) {
        self.flushed = self.rows.clone();
    }

    pub(super) fn crash(&mut self) {
        self.rows = self.flushed.clone();
    }

    /// A process starts, or has ended.
    pub(super) fn close(&mut self) {
        (self.is_open, self.is_followed) = (false, false);
    }

    pub(super) fn wipe(&mut self) {
        *self = Self::default();
    }

    /// What the wheel requests, and up to where that is complete.
    pub(super) fn scan(&self, load: LoadRequest) -> (Vec<(TimelineKey, RowBytes)>, TimelineKey) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (key, row) in self.rows.timeline.range(load.from..load.until) {
            entries.push((*key, row.clone()));
            bytes += ENTRY_BYTES + row.len();
            if bytes >= load.bytes_max {
                return (entries, key.successor());
            }
        }
        (entries, load.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_takes_rows_and_state_back_to_the_last_flush() {
        let mut disk = SimulatedDisk::default();
        let state = |step| LocalState {
            applied: 0,
            step,
            ledger_position: 0,
            fired_through: TimelineKey::MIN,
            cluster_id: String::new(),
            caught_up_at: step * 10,
        };
        let skip = |offset| [RowOp::Skip { offset, marked: true }];
        disk.apply(&skip(1), state(1));
        disk.flush();
        disk.apply(&skip(2), state(2));
        assert_eq!(disk.rows.skips, BTreeSet::from([1, 2]));
        disk.crash();
        assert_eq!(disk.rows.skips, BTreeSet::from([1]));
        assert_eq!(disk.rows.state, Some(state(1)));
    }
}
