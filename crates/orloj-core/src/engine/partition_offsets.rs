//! What the broker reports of a partition: its committed offset and the bounds of its topics.
//!
//! Invariant: records that retention has deleted are never requested; each gap is reported.

use super::cursor::Cursor;
use super::local_checkpoint::LocalCheckpoint;
use crate::model::Offset;

/// The committed offset of the partition and the bounds of its topics, as the broker reports them.
#[derive(Clone, Debug, Default)]
pub struct PartitionOffsets {
    /// The group's offset of `triggers[p]` and its metadata, if any was ever committed.
    pub committed: Option<(Offset, String)>,
    /// The first offset of `triggers[p]` still there.
    pub triggers_low: Offset,
    /// The end of `triggers[p]`.
    pub triggers_end: Offset,
    /// The first offset of `signals[p]` still there.
    pub signals_low: Offset,
    /// The end of `signals[p]`.
    pub signals_end: Offset,
    /// The first offset of `ledger[p]` still there.
    pub ledger_low: Offset,
    /// The end of `ledger[p]`.
    pub ledger_end: Offset,
    /// What is new in the logs that seemed to be shorter than they were read.
    pub new_records: Vec<NewRecords>,
}

/// The records that were written to a log since it seemed to be shorter than it was read. If it was
/// cut, they can be below offsets that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecords {
    /// The name of the topic.
    pub topic: String,
    /// The first of them; the end offset if there are none.
    pub first: Offset,
    /// Where the log ended then.
    pub end: Offset,
    /// Until where the log was read.
    pub offset: Offset,
}

/// Part of a log that was deleted before it was read: an operator must be informed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetGap {
    /// `triggers`, `signals` or `ledger`.
    pub topic: &'static str,
    /// The first offset that was needed.
    pub from: Offset,
    /// The first offset that is there.
    pub until: Offset,
}

/// `signals` was cut below the committed offset, or created again, and was written to since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutSignals {
    /// Where it ended. It is read from there on.
    pub end: Offset,
    /// The committed offset.
    pub offset: Offset,
}

impl PartitionOffsets {
    /// What is new in a log that seemed to be shorter.
    pub(super) fn new_records_of(&self, topic: &str) -> Option<&NewRecords> {
        self.new_records.iter().find(|new| new.topic == topic)
    }

    /// Moves `cursor` back to where `signals`, whose name is `topic`, was cut: what is there was
    /// written since. An end below the committed offset alone proves nothing, and what is below it
    /// was handled: then there is nothing to read yet.
    pub(super) fn return_to_cut(&self, cursor: &mut Cursor, topic: &str) -> Option<CutSignals> {
        let offset = cursor.next_signal_offset;
        let new = self.new_records_of(topic)?;
        if new.first >= new.offset.min(offset).min(self.signals_end) {
            return None;
        }
        cursor.next_signal_offset = new.end.min(offset);
        Some(CutSignals { end: cursor.next_signal_offset, offset })
    }

    /// Moves `cursor` past what retention has deleted; returns the parts that were still needed.
    pub(super) fn skip_deleted(
        &self,
        cursor: &mut Cursor,
        local: Option<&LocalCheckpoint>,
    ) -> Vec<OffsetGap> {
        let mut gaps = Vec::new();
        let applied = local.map_or(0, |local| local.applied_until);
        let needed = cursor.replay_from.max(applied).min(cursor.next_offset);
        if needed < self.triggers_low {
            let low = self.triggers_low;
            // What waited for a parked record is not distinguished from what is decided.
            let is_parked = cursor.decided_until() < low.min(cursor.next_offset);
            let until = if is_parked { low.max(cursor.next_offset) } else { low };
            gaps.push(OffsetGap { topic: "triggers", from: needed, until });
            cursor.replay_from = cursor.replay_from.max(low);
            cursor.next_offset = cursor.next_offset.max(low);
        }
        if cursor.next_signal_offset < self.signals_low {
            let (from, until) = (cursor.next_signal_offset, self.signals_low);
            gaps.push(OffsetGap { topic: "signals", from, until });
            cursor.next_signal_offset = until;
        }
        let read = local.map_or(0, |local| local.ledger_position);
        if read < self.ledger_low {
            gaps.push(OffsetGap { topic: "ledger", from: read, until: self.ledger_low });
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_waited_for_a_deleted_one_are_in_the_report() {
        let offsets = PartitionOffsets { triggers_low: 20, ..PartitionOffsets::default() };
        // What waits behind the record at 10 is not distinguished from what is decided.
        let parked = [(7, 10)].into_iter().collect();
        let mut cursor = Cursor { next_offset: 100, parked, ..Cursor::initial(10, 0) };
        let gap = |from, until| vec![OffsetGap { topic: "triggers", from, until }];
        assert_eq!(offsets.skip_deleted(&mut cursor, None), gap(10, 100));
        assert_eq!((cursor.replay_from, cursor.next_offset), (20, 100));
        for still_there in [20, 30] {
            let parked = [(7, still_there)].into_iter().collect();
            let mut cursor = Cursor { next_offset: 100, parked, ..Cursor::initial(10, 0) };
            assert_eq!(offsets.skip_deleted(&mut cursor, None), gap(10, 20));
        }
    }

    #[test]
    fn a_log_that_begins_where_it_is_needed_has_no_gap() {
        let at = |triggers_low, signals_low, ledger_low| {
            let mut cursor = Cursor { next_offset: 100, ..Cursor::initial(10, 5) };
            let bounds =
                PartitionOffsets { triggers_low, signals_low, ledger_low, ..Default::default() };
            let gaps = bounds.skip_deleted(&mut cursor, None);
            gaps.into_iter().map(|gap| (gap.topic, gap.from, gap.until)).collect::<Vec<_>>()
        };
        assert_eq!(at(10, 5, 0), vec![]);
        assert_eq!(at(11, 6, 1), [("triggers", 10, 11), ("signals", 5, 6), ("ledger", 0, 1)]);
        assert_eq!(at(9, 4, 0), vec![]);
    }
}
