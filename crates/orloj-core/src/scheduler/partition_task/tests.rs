//! Tests of a partition and of what its takeover reads.
//!
//! Invariant: nothing is registered in it.

use super::*;
use crate::environment::log::RecordHeader;
use crate::model::input::Request;
use crate::scheduler::test_partition::{active, restore_of, restoring};

/// A record of the ledger.
struct Record(Offset, &'static [u8]);

impl LogRecord for Record {
    fn position(&self) -> (&str, PartitionId, Offset) {
        ("o.ledger", 0, self.0)
    }

    fn timestamp(&self) -> Timestamp {
        0
    }

    fn key(&self) -> Option<&[u8]> {
        Some(self.1)
    }

    fn value(&self) -> Option<&[u8]> {
        None
    }

    fn headers(&self) -> impl Iterator<Item = RecordHeader<'_>> {
        std::iter::empty()
    }
}

#[test]
fn the_ledger_counts_as_written_by_us_up_to_the_end_known_at_the_seal_of_an_active_partition() {
    let mut task = active();
    task.on_ledger_end(7);
    assert_eq!(task.ledger_position, 0, "the next step is not committed");
    task.before_seal();
    assert_eq!(task.ledger_position, 7);
    task.on_ledger_end(5);
    task.before_seal();
    assert_eq!(task.ledger_position, 7, "another broker is behind");
    let mut task = restoring(TakeoverRequest::Ledger { from: 0 });
    task.on_ledger_end(7);
    task.before_seal();
    assert_eq!(task.ledger_position, 0);
}

#[test]
fn a_takeover_is_over_buffered_by_a_full_batch_while_another_one_is_applied() {
    for is_ledger in [true, false] {
        let mut task = restoring(TakeoverRequest::Ledger { from: 0 });
        let restore = restore_of(&mut task);
        let request = Request::Cancel { id: "a".into(), caller: None };
        let record = TriggerRecord { offset: 0, timestamp: 0, ack: false, request };
        let batch = if is_ledger { LEDGER_BATCH } else { TRIGGERS_BATCH };
        let takeover = restore.takeover.take();
        for size in 0..batch {
            assert!(size < batch - 1 || !restore.is_over_buffered(), "it is not full");
            if is_ledger {
                restore.add_ledger_record(&Record(0, b"m|a"), false);
            } else {
                restore.triggers.push(record.clone());
            }
        }
        assert!(task.is_over_buffered() && task.is_full());
        restore_of(&mut task).takeover = takeover;
        assert!(!task.is_over_buffered(), "it can be applied at once");
    }
    assert!(!active().is_over_buffered());
}

#[test]
fn of_the_ledger_a_takeover_keeps_what_it_has_requested() {
    let mirror = TakeoverRequest::Mirror { from: 0, until: 5 };
    let cursor = LedgerKey::CURSOR;
    for (request, key, offset, is_kept) in [
        (TakeoverRequest::Ledger { from: 0 }, &b"m|a"[..], 4, true),
        (mirror.clone(), cursor, 4, true),
        (mirror.clone(), cursor, 5, false), // of a later owner
        (mirror, b"m|a", 4, false),
        (TakeoverRequest::Offsets, cursor, 4, false),
    ] {
        let mut task = restoring(request);
        let restore = restore_of(&mut task);
        restore.add_ledger_record(&Record(offset, key), false);
        assert_eq!((restore.ledger.len() == 1, restore.ledger_position), (is_kept, offset + 1));
    }
}

#[test]
fn our_barrier_counts_as_read_until_the_ledger_is_read_again() {
    let mut task = restoring(TakeoverRequest::Ledger { from: 0 });
    let restore = restore_of(&mut task);
    restore.add_ledger_record(&Record(4, LedgerKey::BARRIER), true);
    restore.add_ledger_record(&Record(5, b"m|a"), false);
    assert!(restore.barrier_read);
    restore.restart_ledger(2);
    assert!(!restore.barrier_read);
    assert_eq!((restore.ledger.len(), restore.ledger_position), (0, 2));
}

#[test]
fn a_covered_record_is_skipped_and_its_timestamp_counts() {
    let mut task = restoring(TakeoverRequest::Triggers { from: 0, until: 9 });
    restore_of(&mut task).covered = OffsetBitmap::empty(0..9);
    restore_of(&mut task).covered.insert(4);
    assert!(!task.skip_covered(3, 50));
    assert!(task.skip_covered(4, 50) && task.skip_covered(4, 40));
    let restore = restore_of(&mut task);
    assert_eq!((restore.covered_at, restore.records_read), (50, 2));
    assert_eq!(task.next_trigger, 5);
    assert!(!active().skip_covered(4, 50));
}
