//! From assigned to active: each request, each error, and what survives a wiped disk.

use std::collections::BTreeSet;

use super::fixture::{
    EngineFixture, NOW, callback_trigger, in_ledger, index, ledger_delete, ledger_put, put, retry,
    topic_trigger, veto, withdraw,
};
use super::harness::TestStore;
use super::harness::registration_record;
use crate::engine::cursor::{Cursor, MetadataError};
use crate::engine::index_row::IdHash;
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::parked_schemas::ParkedSchemas;
use crate::engine::partition::IndexRows;
use crate::engine::step::RowOp;
use crate::engine::takeover::{
    CutSignals, NewRecords, OffsetGap, PartitionOffsets, Takeover, TakeoverError, TakeoverRequest,
};
use crate::model::Offset;
use crate::model::entry::Entry;
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::names::Names;
use crate::model::outcome::OutcomeKind;
use crate::model::timeline::TimelineKey;

/// 400 days, in ms.
pub(super) const LONG: u64 = 400 * 24 * 3_600_000;

/// The nonce of the takeovers under test.
pub(super) const NONCE: u64 = 77;

/// The committed cursor of most tests: N = 5, L = 2, one signal ingested.
pub(super) const CURSOR: Cursor = Cursor {
    fired_through: TimelineKey { due: 900, ..TimelineKey::MIN },
    next_offset: 5,
    next_signal_offset: 1,
    replay_from: 2,
    replay_horizon: 950,
    step: 7,
    registry_from: 0,
    parked: ParkedSchemas::NONE,
};

#[test]
fn a_takeover_requests_offsets_barrier_ledger_and_log_in_this_order() {
    let mut takeover = begin(None);
    assert_eq!(takeover.next_request(), TakeoverRequest::Offsets);
    takeover.on_offsets(offsets_before_barrier(&CURSOR)).unwrap();
    let metadata = CURSOR.to_metadata("me");
    let barrier = TakeoverRequest::Barrier { offset: 5, metadata, nonce: NONCE };
    assert_eq!(takeover.next_request(), barrier);
    takeover.on_barrier();
    assert_eq!(takeover.next_request(), TakeoverRequest::Offsets);
    takeover.on_offsets(offsets_after_barrier(&CURSOR)).unwrap();
    assert_eq!(takeover.next_request(), TakeoverRequest::Ledger { from: 0 });
    let rows = takeover.on_ledger(vec![barrier_record(NONCE)], 5, &IndexRows::default()).unwrap();
    assert_eq!(rows, []);
    assert_eq!(takeover.next_request(), TakeoverRequest::Triggers { from: 2, until: 5 });
    takeover.on_triggers_end();
    assert_eq!(takeover.next_request(), TakeoverRequest::Nothing);
    let start = takeover.finish();
    assert_eq!((start.cursor, start.index_complete_from), (CURSOR, 2));
}

#[test]
fn the_ledger_is_read_until_our_own_barrier_comes_back() {
    let mut takeover = takeover_after_barrier(None);
    for (nonce, position) in [(NONCE - 1, 1), (NONCE + 1, 2)] {
        takeover.on_ledger(vec![barrier_record(nonce)], position, &IndexRows::default()).unwrap();
        assert_eq!(takeover.next_request(), TakeoverRequest::Ledger { from: 0 });
    }
    takeover.on_ledger(vec![barrier_record(NONCE)], 3, &IndexRows::default()).unwrap();
    assert_eq!(takeover.next_request(), TakeoverRequest::Triggers { from: 2, until: 5 });
}

#[test]
fn a_partition_without_an_earlier_owner_begins_at_the_start_of_its_log() {
    let mut takeover = begin(None);
    let unowned =
        PartitionOffsets { triggers_low: 3, triggers_end: 9, ..PartitionOffsets::default() };
    takeover.on_offsets(unowned).unwrap();
    assert_eq!(takeover.cursor(), &Cursor::initial(3, 0));
}

#[test]
fn metadata_of_a_newer_orloj_is_rejected() {
    let newer = TakeoverError::NewerMetadata(MetadataError::Newer("orloj3".to_owned()));
    let offset = Some((5, "orloj3 q=1".to_owned()));
    let refused = begin(None)
        .on_offsets(PartitionOffsets { committed: offset, ..offsets_before_barrier(&CURSOR) });
    assert_eq!(refused, Err(newer.clone()));
    let mut takeover = begin(None);
    takeover
        .on_offsets(PartitionOffsets { committed: None, ..offsets_before_barrier(&CURSOR) })
        .unwrap();
    let metadata = "orloj3 q=1".to_owned();
    let value = Some(LedgerValue::Cursor { metadata, offset: 5, clean: true });
    let mirror = LedgerRecord { key: LedgerKey::Cursor, value, step: 7 };
    assert_eq!(takeover.on_ledger(vec![mirror], 4, &IndexRows::default()), Err(newer));
}

#[test]
fn a_commit_of_another_member_ends_the_takeover() {
    let mut takeover = begin(None);
    takeover.on_offsets(offsets_before_barrier(&CURSOR)).unwrap();
    takeover.on_barrier();
    let later = Cursor { next_offset: 6, step: 8, ..CURSOR };
    let refused = takeover.on_offsets(offsets_before_barrier(&later));
    assert_eq!(refused, Err(TakeoverError::TakenOverByOther { partition: 0 }));
}

#[test]
fn ledger_records_after_our_barrier_are_not_applied() {
    let mut takeover = takeover_after_barrier(None);
    let value = Some(LedgerValue::Skip);
    let mark =
        |offset, step| LedgerRecord { key: LedgerKey::Skip(offset), value: value.clone(), step };
    let rows = takeover.on_ledger(vec![mark(2, 7)], 4, &IndexRows::default()).unwrap();
    assert_eq!(rows, [RowOp::Skip { offset: 2, marked: true }]);
    let batch = vec![mark(3, 7), barrier_record(NONCE), mark(4, 8)];
    let rows = takeover.on_ledger(batch, 7, &IndexRows::default()).unwrap();
    assert_eq!(rows, [RowOp::Skip { offset: 3, marked: true }]);
    let local = takeover.checkpoint(2);
    assert_eq!((local.step, local.ledger_position), (7, 4), "read again from before the barrier");
}

#[test]
fn a_trigger_due_after_the_replay_horizon_and_not_in_the_ledger_is_complete() {
    let mut takeover = takeover_after_barrier(None);
    takeover.on_ledger(vec![barrier_record(NONCE)], 3, &IndexRows::default()).unwrap();
    // Record 3 was in the ledger until record 4 cancelled it; a crash between may be a long one.
    let long = registration_record("a", 3, CURSOR.replay_horizon + 1);
    assert_eq!(takeover.on_triggers(vec![long], &IndexRows::default()), []);
    let short = registration_record("a", 3, CURSOR.replay_horizon);
    assert_eq!(takeover.on_triggers(vec![short], &IndexRows::default()).len(), 2);
}

#[test]
fn a_record_covered_by_the_ledger_need_not_be_read_from_the_log() {
    let main = |id: &str, entry: Option<&Entry>| LedgerRecord {
        key: LedgerKey::Main(id.into()),
        value: entry.cloned().map(LedgerValue::Entry),
        step: 7,
    };
    let (a, b) = (|generation| topic_trigger("a", generation, 9_000), topic_trigger("b", 4, 9_000));
    let held = |records: &[LedgerRecord]| {
        let mut takeover = takeover_after_barrier(None);
        let records = [records, &[barrier_record(NONCE)]].concat();
        let _rows = takeover.on_ledger(records, 4, &IndexRows::default()).unwrap();
        let held: Vec<_> = (0..9).filter(|offset| takeover.is_covered(*offset)).collect();
        let taken = takeover.take_covered();
        assert_eq!(held, (0..9).filter(|offset| taken.contains(*offset)).collect::<Vec<_>>());
        held
    };
    let [first, second] = [main("a", Some(&a(2))), main("a", Some(&a(3)))];
    let other = main("b", Some(&b));
    assert_eq!(held(&[first.clone(), other.clone()]), [2, 4]);
    assert_eq!(held(&[first, second.clone()]), [3], "the newer one is covered");
    assert_eq!(held(&[second, other, main("a", None)]), [4], "it may have replaced a short one");
    assert_eq!(held(&[main("a", Some(&a(1)))]), [0; 0], "below L nothing is read anyhow");
    assert_eq!(held(&[main("a", Some(&topic_trigger("a", 3, 899)))]), [0; 0], "it has fired");
    let second_try = retry(&callback_trigger("a", 3, 899), (2, 0), 9_000, 0);
    let key = LedgerKey::Retry { trigger: "a".into(), generation: 3, occurrence: 0 };
    let value = Some(LedgerValue::Entry(second_try));
    assert_eq!(held(&[LedgerRecord { key, value, step: 7 }]), [0; 0], "a retry is no registration");
}

#[test]
fn records_that_are_not_read_still_report_their_timestamp() {
    let mut takeover = takeover_after_barrier(None);
    takeover.on_ledger(vec![barrier_record(NONCE)], 3, &IndexRows::default()).unwrap();
    takeover.on_covered(940);
    takeover.on_covered(930);
    takeover.on_triggers_end();
    assert_eq!(takeover.finish().last_timestamp, 940);
}

#[test]
fn a_broker_that_drops_metadata_is_rejected() {
    let mut takeover = begin(None);
    takeover.on_offsets(offsets_before_barrier(&CURSOR)).unwrap();
    takeover.on_barrier();
    let dropped =
        PartitionOffsets { committed: Some((5, String::new())), ..offsets_before_barrier(&CURSOR) };
    assert_eq!(takeover.on_offsets(dropped), Err(TakeoverError::MetadataDropped));
}

#[test]
fn records_deleted_too_early_are_reported_and_skipped() {
    let mut takeover = begin(None);
    let ends =
        PartitionOffsets { triggers_low: 4, signals_low: 3, ..offsets_before_barrier(&CURSOR) };
    takeover.on_offsets(ends).unwrap();
    let gap = |topic, from, until| OffsetGap { topic, from, until };
    assert_eq!(takeover.gaps, [gap("triggers", 2, 4), gap("signals", 1, 3)]);
    assert_eq!(takeover.cursor(), &Cursor { replay_from: 4, next_signal_offset: 3, ..CURSOR });

    let mut takeover = begin(None);
    takeover
        .on_offsets(PartitionOffsets { triggers_low: 8, ..offsets_before_barrier(&CURSOR) })
        .unwrap();
    assert_eq!(takeover.gaps, [gap("triggers", 2, 8)]);
    assert_eq!(takeover.cursor(), &Cursor { replay_from: 8, next_offset: 8, ..CURSOR });

    let mut takeover = begin(Some(local_checkpoint()));
    takeover
        .on_offsets(PartitionOffsets { triggers_low: 4, ..offsets_before_barrier(&CURSOR) })
        .unwrap();
    assert_eq!(takeover.gaps, [], "the disk has what the log has lost");
}

#[test]
fn a_ledger_that_begins_late_is_read_from_where_it_begins() {
    let late = |cursor: &Cursor| PartitionOffsets {
        ledger_low: 4,
        ledger_end: 6,
        ..offsets_before_barrier(cursor)
    };
    let mut takeover = begin(None);
    takeover.on_offsets(PartitionOffsets { committed: None, ..late(&CURSOR) }).unwrap();
    assert_eq!(takeover.next_request(), TakeoverRequest::Mirror { from: 4, until: 6 });

    let mut takeover = begin(Some(local_checkpoint()));
    takeover.on_offsets(late(&CURSOR)).unwrap();
    assert_eq!(takeover.gaps, [OffsetGap { topic: "ledger", from: 3, until: 4 }]);
    takeover.on_barrier();
    let deleted_since = PartitionOffsets { ledger_low: 5, ..offsets_after_barrier(&CURSOR) };
    takeover.on_offsets(deleted_since).unwrap();
    assert_eq!(takeover.next_request(), TakeoverRequest::Ledger { from: 5 });

    let mut takeover = begin(None);
    let emptied =
        PartitionOffsets { committed: None, ledger_low: 4, ..offsets_before_barrier(&CURSOR) };
    takeover.on_offsets(emptied).unwrap();
    assert_eq!(takeover.cursor(), &Cursor::initial(0, 0), "there is no mirror to wait for");
}

#[test]
fn a_topic_that_ends_below_its_offset_is_rejected() {
    let shorter = |topic: &str, end, offset| {
        Err(TakeoverError::TopicTruncated { partition: 0, topic: topic.to_owned(), end, offset })
    };
    let cut = PartitionOffsets { triggers_end: 4, ..offsets_before_barrier(&CURSOR) };
    assert_eq!(begin(None).on_offsets(cut), shorter("o.triggers", 4, 5));
}

/// The broker may not be the leader any more, and there is nothing in it that must not be passed.
#[test]
fn signals_that_end_below_their_offset_do_not_stop_a_takeover() {
    let mut takeover = begin(None);
    let cut = PartitionOffsets { signals_end: 0, ..offsets_before_barrier(&CURSOR) };
    assert_eq!(takeover.on_offsets(cut), Ok(()));
    assert_eq!((takeover.cursor(), takeover.cut_signals), (&CURSOR, None));
}

#[test]
fn signals_that_were_cut_and_written_again_are_read_from_where_they_were_cut() {
    let cursor = Cursor { next_signal_offset: 9, ..CURSOR };
    let since = |first, offset| {
        let topic = "o.signals".to_owned();
        let new_records = vec![NewRecords { topic, first, end: 2, offset }];
        PartitionOffsets { new_records, signals_end: 12, ..offsets_before_barrier(&cursor) }
    };
    let after = |offsets| {
        let mut takeover = begin(None);
        takeover.on_offsets(offsets).unwrap();
        let TakeoverRequest::Barrier { metadata, .. } = takeover.next_request() else {
            panic!("a barrier is requested")
        };
        let (committed, _owner) = Cursor::from_metadata(5, &metadata).unwrap();
        (committed.next_signal_offset, takeover.cut_signals)
    };
    assert_eq!(after(since(3, 9)), (2, Some(CutSignals { end: 2, offset: 9 })));
    let empty = PartitionOffsets { signals_end: 3, ..since(3, 9) };
    assert_eq!(after(empty), (9, None), "nothing was written since");
    assert_eq!(after(since(9, 9)), (9, None), "the broker was not the leader any more");
    assert_eq!(after(since(8, 8)), (9, None), "it was cut where it was read until then");
}

#[test]
fn the_topics_of_a_takeover_are_distinguished_whatever_their_prefix_is() {
    let cursor = Cursor { next_signal_offset: 9, ..CURSOR };
    let topic = "triggers.signals".to_owned();
    let new_records = vec![NewRecords { topic, first: 3, end: 2, offset: 9 }];
    let offsets =
        PartitionOffsets { new_records, signals_end: 12, ..offsets_before_barrier(&cursor) };
    let mut takeover = Takeover::new(0, &Names::new("triggers"), "me", NONCE, None);
    takeover.on_offsets(offsets).unwrap();
    assert_eq!(takeover.cut_signals, Some(CutSignals { end: 2, offset: 9 }));
}

/// It was read until 4 when it seemed to be shorter; 5 is committed.
#[test]
fn a_topic_with_new_records_below_its_offset_is_rejected() {
    let since = |topic: &str, first, offset| {
        let new_records = vec![NewRecords { topic: topic.to_owned(), first, end: 0, offset }];
        PartitionOffsets { new_records, ..offsets_before_barrier(&CURSOR) }
    };
    let rejected = |topic: &str, offset| {
        Err(TakeoverError::WrittenAgain { partition: 0, topic: topic.to_owned(), end: 0, offset })
    };
    let on_offsets = |offsets| begin(None).on_offsets(offsets);
    assert_eq!(on_offsets(since("o.triggers", 3, 4)), rejected("o.triggers", 4));
    assert_eq!(on_offsets(since("o.triggers", 4, 9)), rejected("o.triggers", 5));
    assert_eq!(on_offsets(since("o.triggers", 4, 4)), Ok(()), "another owner has read it");
    assert_eq!(on_offsets(since("o.triggers", 5, 9)), Ok(()), "less is committed");
    let moved = PartitionOffsets {
        committed: Some((5, String::new())),
        ledger_low: 6,
        ledger_end: 6,
        ..since("o.triggers", 3, 4)
    };
    assert_eq!(on_offsets(moved), Ok(()), "an operator has moved the offset");
}

#[test]
fn a_valid_store_is_resumed_from_its_checkpoint() {
    let mut takeover = takeover_after_barrier(Some(local_checkpoint()));
    assert!(!takeover.must_wipe());
    assert_eq!(takeover.next_request(), TakeoverRequest::Ledger { from: 3 });
    takeover.on_ledger(vec![barrier_record(NONCE)], 5, &IndexRows::default()).unwrap();
    assert_eq!(takeover.next_request(), TakeoverRequest::Triggers { from: 4, until: 5 });
    takeover.on_triggers_end();
    let applied = LocalCheckpoint {
        applied_until: 5,
        step: 7,
        ledger_position: 5,
        fired_through: CURSOR.fired_through,
    };
    assert_eq!(takeover.checkpoint(5), applied);
    assert_eq!(takeover.finish().skips, BTreeSet::from([3]));
}

#[test]
fn a_store_ahead_of_the_cursor_is_wiped() {
    let ahead = [
        LocalCheckpoint { applied_until: 6, ..local_checkpoint() },
        LocalCheckpoint { step: 8, ..local_checkpoint() },
        LocalCheckpoint { ledger_position: 5, ..local_checkpoint() },
    ];
    for local in ahead {
        let mut takeover = takeover_after_barrier(Some(local));
        assert!(takeover.must_wipe());
        assert_eq!(takeover.next_request(), TakeoverRequest::Ledger { from: 0 });
        takeover.on_ledger(vec![barrier_record(NONCE)], 5, &IndexRows::default()).unwrap();
        assert_eq!(takeover.next_request(), TakeoverRequest::Triggers { from: 2, until: 5 });
        takeover.on_triggers_end();
        assert_eq!(takeover.finish().skips, BTreeSet::new());
    }
}

#[test]
fn index_rows_are_read_of_a_store_that_is_resumed_and_of_an_empty_one_from_the_second_time_on() {
    let value = Some(LedgerValue::Entry(topic_trigger("a", 3, 9_000)));
    let held = [LedgerRecord { key: LedgerKey::Main("a".into()), value, step: 7 }];
    let registered = ["a", "b"].map(|id| registration_record(id, 4, 940));
    let [a, b] = ["a", "b"].map(IdHash::of);
    let mut takeover = takeover_after_barrier(Some(local_checkpoint()));
    assert_eq!(takeover.ids_in_ledger(&held), [a]);
    assert_eq!(takeover.ids_in_triggers(&registered), [a, b]);
    let mut takeover = takeover_after_barrier(None);
    assert_eq!(takeover.ids_in_ledger(&held), []);
    assert_eq!(takeover.ids_in_triggers(&registered), [a]);
    assert_eq!(takeover.ids_in_triggers(&registered), [a, b]);
}

#[test]
fn a_wiped_store_is_rebuilt_from_the_ledger_and_the_log() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    let second = retry(&callback_trigger("a", 0, 1_020), (2, 0), 1_040, 0);
    fixture.signal(&second);
    fixture.register("short", 1_060);
    fixture.register("long", 9_000);
    fixture.register("replaced", 9_000);
    fixture.register("replaced", 1_050);
    fixture.register("cancelled", 1_055);
    fixture.register_keep("short", 1_030);
    fixture.cancel("cancelled");
    fixture.cancel("unknown");
    fixture.run_until_idle();
    let expected = [
        second,
        topic_trigger("replaced", 4, 1_050),
        topic_trigger("short", 1, 1_060),
        veto("unknown", 8, 6_020),
        in_ledger(&topic_trigger("long", 2, 9_000), true),
    ];
    for disk in [fixture.owner.store.clone(), TestStore::default()] {
        fixture.take_over(disk, 1_021);
        let w = fixture.owner.partition.cursor().fired_through;
        let pending = fixture.owner.store.timeline.range(w.successor()..);
        let rows: Vec<_> =
            pending.map(|(key, row)| RowOp::Put { key: *key, row: row.clone() }).collect();
        assert_eq!(rows, expected.each_ref().map(put));
        assert_eq!(fixture.owner.store.skips, BTreeSet::from([6]));
    }
}

#[test]
fn a_cancel_relies_only_on_fires_that_the_replay_covers() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.now = 1_020;
    fixture.run_until_idle();
    fixture.take_over(fixture.owner.store.clone(), 1_021);
    fixture.cancel("a");
    // A later generation, a callback, might have been lost with another owner's disk.
    let (a, veto) = (topic_trigger("a", 0, 1_020), veto("a", 1, 6_021));
    let not_pending = OutcomeKind::NotPending { fired: None, withdrawal: true };
    fixture.assert_decides(
        &[ledger_put(&veto), fixture.response(1, "a", not_pending), withdraw("a", 1)],
        &[put(&veto), index("a", &[&a, &veto])],
    );
}

#[test]
fn a_trigger_due_in_400_days_survives_wiped_stores_and_a_deleted_log() {
    let mut fixture = EngineFixture::new();
    let due = NOW + LONG;
    fixture.register("a", due);
    let a = in_ledger(&topic_trigger("a", 0, due), true);
    fixture.run_until_idle();
    for days in [1, 30, 399] {
        fixture.take_over(TestStore::default(), NOW + days * 24 * 3_600_000);
        fixture.assert_decides(&[], &[]);
        fixture.log.triggers_low = fixture.owner.partition.cursor().replay_from;
    }
    assert_eq!(fixture.log.triggers_low, 1, "only the ledger has it");
    fixture.take_over(TestStore::default(), due - 1);
    fixture.assert_decides(&[], &[]);
    fixture.now = due;
    fixture.assert_decides(&[fixture.fire_emit(&a), ledger_delete(&a)], &[]);
    fixture.take_over(TestStore::default(), due + LONG);
    fixture.assert_decides(&[], &[]);
}

pub(super) fn begin(local: Option<LocalCheckpoint>) -> Takeover {
    // The disk has the mark of a record that was ignored.
    let local = local.map(|local| (local, BTreeSet::from([3])));
    Takeover::new(0, &Names::new("o"), "me", NONCE, local)
}

/// A takeover that has passed its barrier.
pub(super) fn takeover_after_barrier(local: Option<LocalCheckpoint>) -> Takeover {
    let mut takeover = begin(local);
    takeover.on_offsets(offsets_before_barrier(&CURSOR)).unwrap();
    takeover.on_barrier();
    takeover.on_offsets(offsets_after_barrier(&CURSOR)).unwrap();
    takeover
}

/// The ledger of an earlier owner.
pub(super) fn offsets_before_barrier(cursor: &Cursor) -> PartitionOffsets {
    PartitionOffsets {
        committed: Some((cursor.next_offset, cursor.to_metadata("earlier"))),
        triggers_low: 0,
        triggers_end: 8,
        signals_low: 0,
        signals_end: 6,
        ledger_low: 0,
        ledger_end: 4,
        new_records: Vec::new(),
    }
}

/// The offsets after our barrier; meanwhile a trigger was published.
pub(super) fn offsets_after_barrier(cursor: &Cursor) -> PartitionOffsets {
    let offset = Some((cursor.next_offset, cursor.to_metadata("me")));
    PartitionOffsets {
        committed: offset,
        triggers_end: 9,
        ledger_end: 5,
        ..offsets_before_barrier(cursor)
    }
}

/// A disk a little behind [`CURSOR`].
pub(super) fn local_checkpoint() -> LocalCheckpoint {
    LocalCheckpoint {
        applied_until: 4,
        step: 6,
        ledger_position: 3,
        fired_through: TimelineKey::first_at(890),
    }
}

pub(super) fn mirror(cursor: &Cursor, clean: bool) -> LedgerRecord {
    let (metadata, offset): (_, Offset) = (cursor.to_metadata("earlier"), cursor.next_offset);
    let value = Some(LedgerValue::Cursor { metadata, offset, clean });
    LedgerRecord { key: LedgerKey::Cursor, value, step: cursor.step }
}

pub(super) fn barrier_record(nonce: u64) -> LedgerRecord {
    LedgerRecord { key: LedgerKey::Barrier, value: Some(LedgerValue::Barrier { nonce }), step: 7 }
}
