//! The cursor of a takeover without usable metadata: an operator moved the offset, or it was lost.

use super::fixture::{EngineFixture, in_ledger, ledger_delete, ledger_put, topic_trigger};
use super::harness::{TestStore, commit};
use super::takeover::{
    CURSOR, NONCE, barrier_record, begin, local_checkpoint, mirror, offsets_before_barrier,
};
use crate::engine::cursor::{Cursor, next_epoch_base};
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition::IndexRows;
use crate::engine::takeover::{PartitionOffsets, TakeoverError, TakeoverRequest};
use crate::model::ledger::LedgerRecord;
use crate::model::timeline::TimelineKey;

#[test]
fn an_offset_that_an_operator_moved_makes_everything_from_there_on_new() {
    for (offset, low_water) in [(1, 1), (3, 2), (5, 2), (7, 2)] {
        let mut takeover = begin(None);
        let moved = Some((offset, String::new()));
        takeover
            .on_offsets(PartitionOffsets { committed: moved, ..offsets_before_barrier(&CURSOR) })
            .unwrap();
        assert_eq!(takeover.next_request(), TakeoverRequest::Mirror { from: 0, until: 4 });
        takeover.on_ledger(vec![mirror(&CURSOR, false)], 4, &IndexRows::default()).unwrap();
        // Past the mirror, S is unknown until the log has been replayed.
        let horizon = if offset > CURSOR.next_offset { u64::MAX } else { CURSOR.replay_horizon };
        let step = next_epoch_base(CURSOR.step);
        let cursor = Cursor {
            next_offset: offset,
            replay_from: low_water,
            replay_horizon: horizon,
            step,
            ..CURSOR
        };
        let metadata = cursor.to_metadata("me");
        assert_eq!(
            takeover.next_request(),
            TakeoverRequest::Barrier { offset, metadata, nonce: NONCE }
        );
    }
}

#[test]
fn a_local_fired_through_beyond_the_mirror_stays_when_an_operator_moves_the_offset() {
    let fired_through = TimelineKey::first_at(930);
    let mut takeover = begin(Some(LocalCheckpoint { fired_through, ..local_checkpoint() }));
    let moved = Some((3, String::new()));
    takeover
        .on_offsets(PartitionOffsets { committed: moved, ..offsets_before_barrier(&CURSOR) })
        .unwrap();
    takeover.on_ledger(vec![mirror(&CURSOR, false)], 4, &IndexRows::default()).unwrap();
    let step = next_epoch_base(CURSOR.step);
    assert_eq!(takeover.cursor(), &Cursor { fired_through, next_offset: 3, step, ..CURSOR });
    assert!(takeover.must_wipe(), "it contains what is to be new");
}

#[test]
fn records_below_a_moved_offset_stay_parked_and_those_above_it_are_read_again() {
    let parked = |schemas: &[(u32, u64)]| schemas.iter().copied().collect();
    let cursor = Cursor { parked: parked(&[(7, 3), (8, 4)]), ..CURSOR };
    for (offset, left) in [(3, &[][..]), (4, &[(7, 3)]), (5, &[(7, 3), (8, 4)])] {
        let mut takeover = begin(None);
        let moved = Some((offset, String::new()));
        takeover
            .on_offsets(PartitionOffsets { committed: moved, ..offsets_before_barrier(&CURSOR) })
            .unwrap();
        takeover.on_ledger(vec![mirror(&cursor, false)], 4, &IndexRows::default()).unwrap();
        assert_eq!(takeover.cursor().parked, parked(left), "moved to {offset}");
    }
}

#[test]
fn every_move_of_an_offset_begins_an_epoch_whatever_the_mirror_says() {
    let first = next_epoch_base(CURSOR.step);
    let barrier = |step| LedgerRecord { step, ..barrier_record(NONCE - 1) };
    for (seen, expected) in [(9, first), (first, next_epoch_base(first))] {
        for with_mirror in [false, true] {
            let mirror = with_mirror.then(|| mirror(&CURSOR, false));
            let records = mirror.into_iter().chain([barrier(seen)]).collect();
            let mut takeover = begin(None);
            let moved = Some((3, String::new()));
            takeover
                .on_offsets(PartitionOffsets {
                    committed: moved,
                    ..offsets_before_barrier(&CURSOR)
                })
                .unwrap();
            takeover.on_ledger(records, 4, &IndexRows::default()).unwrap();
            assert_eq!(takeover.cursor().step, expected, "after {seen}, {with_mirror}");
        }
    }
}

#[test]
fn a_store_older_than_a_moved_offset_is_wiped() {
    let cursor = Cursor { step: next_epoch_base(CURSOR.step) + 2, ..CURSOR };
    let mut takeover = begin(Some(local_checkpoint()));
    takeover.on_offsets(offsets_before_barrier(&cursor)).unwrap();
    assert!(takeover.must_wipe(), "steps of another epoch are not ours");
}

#[test]
fn a_replay_that_an_operator_asks_for_fires_again_and_repeats_nothing_pending() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.register("b", 9_000);
    fixture.run_until_idle();
    fixture.now = 1_020;
    fixture.run_until_idle();
    let last = fixture.owner.partition.seal_final();
    commit(&mut fixture.log, &last, fixture.now);
    fixture.log.committed = Some((0, String::new()));
    fixture.take_over(TestStore::default(), 1_100);
    let a = topic_trigger("a", 0, 1_020);
    let b = in_ledger(&topic_trigger("b", 1, 9_000), true);
    let events = fixture.step().unwrap().emits;
    let accepted = [fixture.accepted(&a, None), ledger_delete(&b), fixture.accepted(&b, Some(1))];
    assert_eq!(events, [&accepted[..], &[ledger_put(&b), fixture.fire_emit(&a)]].concat());
    fixture.now = 9_000;
    fixture.assert_decides(&[fixture.fire_emit(&b), ledger_delete(&b)], &[]);
}

/// It was interrupted when its store was complete; then the disk is lost.
#[test]
fn what_is_pending_below_a_moved_offset_survives_a_takeover_that_was_interrupted() {
    let mut fixture = EngineFixture::new();
    fixture.log.ledger.push(mirror(fixture.owner.partition.cursor(), false));
    let a = topic_trigger("a", fixture.register("a", 1_050), 1_050);
    fixture.run_until_idle();
    fixture.log.committed = Some((1, String::new()));
    fixture.take_over(TestStore::default(), 1_010);
    let disk = fixture.owner.store.clone();
    fixture.take_over(disk, 1_020);
    fixture.run_until_idle();
    fixture.take_over(TestStore::default(), 1_030);
    fixture.run_until_idle();
    fixture.now = 1_050;
    fixture.assert_decides(&[fixture.fire_emit(&a)], &[]);
}

#[test]
fn a_lost_cursor_is_found_in_a_clean_mirror() {
    let mut takeover = begin(None);
    takeover
        .on_offsets(PartitionOffsets { committed: None, ..offsets_before_barrier(&CURSOR) })
        .unwrap();
    assert_eq!(takeover.next_request(), TakeoverRequest::Mirror { from: 0, until: 4 });
    let early =
        takeover.on_ledger(vec![mirror(&Cursor::initial(1, 0), false)], 3, &IndexRows::default());
    assert_eq!(
        (early, takeover.next_request()),
        (Ok(vec![]), TakeoverRequest::Mirror { from: 0, until: 4 })
    );
    takeover.on_ledger(vec![mirror(&CURSOR, true)], 4, &IndexRows::default()).unwrap();
    let metadata = CURSOR.to_metadata("me");
    assert_eq!(
        takeover.next_request(),
        TakeoverRequest::Barrier { offset: 5, metadata, nonce: NONCE }
    );
}

#[test]
fn a_lost_cursor_with_an_unclean_mirror_needs_an_operator() {
    let mut takeover = begin(None);
    takeover
        .on_offsets(PartitionOffsets { committed: None, ..offsets_before_barrier(&CURSOR) })
        .unwrap();
    let topic = "o.triggers".to_owned();
    let lost = TakeoverError::CursorLost { partition: 0, topic, offset: 5, mirror_due: 900 };
    let refused = takeover.on_ledger(vec![mirror(&CURSOR, false)], 4, &IndexRows::default());
    assert_eq!(refused, Err(lost));
}

#[test]
fn a_partition_given_up_before_it_is_active_gets_a_final_commit_after_our_barrier() {
    let mut takeover = begin(None);
    assert_eq!((takeover.nonce(), takeover.final_commit()), (NONCE, None));
    takeover.on_offsets(offsets_before_barrier(&CURSOR)).unwrap();
    assert_eq!(takeover.final_commit(), None, "the last commit is the earlier owner's");
    takeover.on_barrier();
    assert_eq!(takeover.final_commit(), Some((5, CURSOR.to_final_metadata("me"))));
}
