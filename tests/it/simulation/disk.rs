//! What the disk of a node holds of one partition.
//!
//! Law: rows and state are one; a crash takes both back to the last flush.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use orloj::engine::partition::Fetched;
use orloj::engine::pending::Pending;
use orloj::engine::step::RowOp;
use orloj::engine::takeover::Local;
use orloj::engine::wheel::{ENTRY_BYTES, Load};
use orloj::model::timeline::TimelineKey;
use orloj::model::{Offset, Timestamp};

/// A store as it stands at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    timeline: BTreeMap<TimelineKey, Bytes>,
    pub(super) index: Fetched,
    pub(super) skips: BTreeSet<Offset>,
    /// How far it is, and when it was known to hold everything committed; 0 while it is rebuilt.
    pub(super) state: Option<(Local, Timestamp)>,
}

/// A store: what is in memory, and what a crash would leave.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) rows: Rows,
    flushed: Rows,
}

impl Disk {
    /// Rows and state, in one.
    pub(super) fn apply(&mut self, ops: &[RowOp], local: Local, caught_up_at: Timestamp) {
        self.write(ops);
        self.rows.state = Some((local, caught_up_at));
    }

    /// Rows that more rows and a state follow at once.
    pub(super) fn write(&mut self, ops: &[RowOp]) {
        let rows = &mut self.rows;
        for op in ops {
            match op {
                RowOp::Put { key, row } => drop(rows.timeline.insert(*key, stored(row))),
                RowOp::Delete { key } => drop(rows.timeline.remove(key)),
                RowOp::Index { hash, known: Some(known) } => {
                    drop(rows.index.insert(*hash, known.clone()));
                }
                RowOp::Index { hash, known: None } => drop(rows.index.remove(hash)),
                RowOp::Skip { offset, marked: true } => drop(rows.skips.insert(*offset)),
                RowOp::Skip { offset, marked: false } => {
                    let _was = rows.skips.remove(offset);
                }
            }
        }
    }

    /// The compaction filter: rows that W has passed go.
    pub(super) fn forget_decided(&mut self) {
        if let Some((local, _)) = self.rows.state {
            self.rows.timeline = self.rows.timeline.split_off(&local.w);
        }
    }

    pub(super) fn flush(&mut self) {
        self.flushed = self.rows.clone();
    }

    pub(super) fn crash(&mut self) {
        self.rows = self.flushed.clone();
    }

    pub(super) fn wipe(&mut self) {
        *self = Self::default();
    }

    /// What the wheel asks for, and up to where that is complete.
    pub(super) fn scan(&self, load: Load) -> (Vec<(TimelineKey, Pending)>, TimelineKey) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (key, row) in self.rows.timeline.range(load.from..load.until) {
            entries.push((*key, row.clone().into()));
            bytes += ENTRY_BYTES + row.len();
            if bytes >= load.bytes_max {
                return (entries, key.successor());
            }
        }
        (entries, load.until)
    }
}

/// A store keeps bytes.
fn stored(row: &Pending) -> Bytes {
    Bytes::copy_from_slice(row.encoded(&mut Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_takes_rows_and_state_back_to_the_last_flush() {
        let mut disk = Disk::default();
        let local = |step| Local { applied: 0, step, ledger_position: 0, w: TimelineKey::MIN };
        let skip = |offset| [RowOp::Skip { offset, marked: true }];
        disk.apply(&skip(1), local(1), 10);
        disk.flush();
        disk.apply(&skip(2), local(2), 20);
        assert_eq!(disk.rows.skips, BTreeSet::from([1, 2]));
        disk.crash();
        assert_eq!(disk.rows.skips, BTreeSet::from([1]));
        assert_eq!(disk.rows.state, Some((local(1), 10)));
    }
}
