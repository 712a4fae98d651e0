//! From assigned to active: each question, each refusal, and what survives a wiped disk.

use std::collections::BTreeSet;

use super::scene::{
    NOW, Scene, callback, hold, in_ledger, index, put, retry, settle, topic, veto, withdraw,
};
use super::world::{Disk, commit};
use crate::engine::cursor::{Cursor, MetadataError, next_lineage};
use crate::engine::local::Local;
use crate::engine::partition::Fetched;
use crate::engine::step::RowOp;
use crate::engine::takeover::{Ask, Committed, Gap, Refusal, Takeover};
use crate::model::Offset;
use crate::model::entry::Entry;
use crate::model::input::TriggerRecord;
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::outcome::Verdict;
use crate::model::timeline::TimelineKey;

/// 400 days, in ms.
const LONG: u64 = 400 * 24 * 3_600_000;

/// The nonce of the takeovers under test.
const NONCE: u64 = 77;

/// The committed cursor of most tests: N = 5, L = 2, one signal taken in.
const CURSOR: Cursor = Cursor {
    w: TimelineKey { due: 900, ..TimelineKey::MIN },
    triggers: 5,
    signals: 1,
    low_water: 2,
    horizon: 950,
    step: 7,
};

#[test]
fn a_takeover_asks_for_offsets_barrier_ledger_and_log_in_this_order() {
    let mut takeover = begin(None);
    assert_eq!(takeover.ask(), Ask::Committed);
    takeover.on_committed(committed(&CURSOR)).unwrap();
    let metadata = CURSOR.to_metadata("me");
    let barrier = Ask::Barrier { offset: 5, metadata, nonce: NONCE };
    assert_eq!(takeover.ask(), barrier);
    takeover.on_barrier();
    assert_eq!(takeover.ask(), Ask::Committed);
    takeover.on_committed(confirmed(&CURSOR)).unwrap();
    assert_eq!(takeover.ask(), Ask::Ledger { from: 0 });
    let rows = takeover.on_ledger(vec![barrier_record(NONCE)], 5, &Fetched::default()).unwrap();
    assert_eq!(rows, []);
    assert_eq!(takeover.ask(), Ask::Triggers { from: 2, until: 5 });
    takeover.on_triggers_end();
    assert_eq!(takeover.ask(), Ask::Nothing);
    let start = takeover.finish();
    assert_eq!((start.cursor, start.seen_from), (CURSOR, 2));
}

#[test]
fn the_ledger_is_read_until_our_own_barrier_comes_back() {
    let mut takeover = at_ledger(None);
    for (nonce, position) in [(NONCE - 1, 1), (NONCE + 1, 2)] {
        takeover.on_ledger(vec![barrier_record(nonce)], position, &Fetched::default()).unwrap();
        assert_eq!(takeover.ask(), Ask::Ledger { from: 0 });
    }
    takeover.on_ledger(vec![barrier_record(NONCE)], 3, &Fetched::default()).unwrap();
    assert_eq!(takeover.ask(), Ask::Triggers { from: 2, until: 5 });
}

#[test]
fn a_partition_nobody_ever_owned_begins_at_the_start_of_its_log() {
    let mut takeover = begin(None);
    let unowned = Committed { triggers_low: 3, triggers_end: 9, ..Committed::default() };
    takeover.on_committed(unowned).unwrap();
    assert_eq!(takeover.cursor(), &Cursor::fresh(3, 0));
}

#[test]
fn an_offset_that_an_operator_moved_makes_everything_from_there_on_new() {
    for (offset, low_water) in [(1, 1), (3, 2), (7, 2)] {
        let mut takeover = begin(None);
        let moved = Some((offset, String::new()));
        takeover.on_committed(Committed { offset: moved, ..committed(&CURSOR) }).unwrap();
        assert_eq!(takeover.ask(), Ask::Mirror { from: 0, until: 4 });
        takeover.on_ledger(vec![mirror(&CURSOR, false)], 4, &Fetched::default()).unwrap();
        // Past the mirror, S is unknown until the log has been replayed.
        let horizon = if offset > CURSOR.triggers { u64::MAX } else { CURSOR.horizon };
        let step = next_lineage(CURSOR.step);
        let cursor = Cursor { triggers: offset, low_water, horizon, step, ..CURSOR };
        let metadata = cursor.to_metadata("me");
        assert_eq!(takeover.ask(), Ask::Barrier { offset, metadata, nonce: NONCE });
    }
}

#[test]
fn a_local_w_beyond_the_mirror_stays_when_an_operator_moves_the_offset() {
    let w = TimelineKey::first_of(930);
    let mut takeover = begin(Some(Local { w, ..local() }));
    let moved = Some((3, String::new()));
    takeover.on_committed(Committed { offset: moved, ..committed(&CURSOR) }).unwrap();
    takeover.on_ledger(vec![mirror(&CURSOR, false)], 4, &Fetched::default()).unwrap();
    let step = next_lineage(CURSOR.step);
    assert_eq!(takeover.cursor(), &Cursor { w, triggers: 3, step, ..CURSOR });
    assert!(takeover.must_wipe(), "it holds what is to be new");
}

#[test]
fn every_move_of_an_offset_begins_a_lineage_whatever_the_mirror_says() {
    let first = next_lineage(CURSOR.step);
    let barrier = |step| LedgerRecord { step, ..barrier_record(NONCE - 1) };
    for (seen, expected) in [(9, first), (first, next_lineage(first))] {
        for with_mirror in [false, true] {
            let mirror = with_mirror.then(|| mirror(&CURSOR, false));
            let records = mirror.into_iter().chain([barrier(seen)]).collect();
            let mut takeover = begin(None);
            let moved = Some((3, String::new()));
            takeover.on_committed(Committed { offset: moved, ..committed(&CURSOR) }).unwrap();
            takeover.on_ledger(records, 4, &Fetched::default()).unwrap();
            assert_eq!(takeover.cursor().step, expected, "after {seen}, {with_mirror}");
        }
    }
}

#[test]
fn a_disk_of_before_an_offset_was_moved_is_wiped() {
    let cursor = Cursor { step: next_lineage(CURSOR.step) + 2, ..CURSOR };
    let mut takeover = begin(Some(local()));
    takeover.on_committed(committed(&cursor)).unwrap();
    assert!(takeover.must_wipe(), "steps of another lineage are not ours");
}

#[test]
fn a_replay_that_an_operator_asks_for_fires_again_and_repeats_nothing_pending() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.register("b", 9_000);
    scene.run();
    scene.now = 1_020;
    scene.run();
    let last = scene.owner.partition.seal_clean();
    commit(&mut scene.log, &last, scene.now);
    scene.log.committed = Some((0, String::new()));
    scene.take_over(Disk::default(), 1_100);
    let a = topic("a", 0, 1_020);
    let b = in_ledger(&topic("b", 1, 9_000), true);
    let said = scene.step().unwrap().emits;
    let accepted = [scene.accepted(&a, None), settle(&b), scene.accepted(&b, Some(1))];
    assert_eq!(said, [&accepted[..], &[hold(&b), scene.fires(&a)]].concat());
    scene.now = 9_000;
    scene.decides(&[scene.fires(&b), settle(&b)], &[]);
}

#[test]
fn what_a_newer_orloj_wrote_is_refused() {
    let newer = Refusal::Newer(MetadataError::Newer("orloj2".to_owned()));
    let offset = Some((5, "orloj2 q=1".to_owned()));
    let refused = begin(None).on_committed(Committed { offset, ..committed(&CURSOR) });
    assert_eq!(refused, Err(newer.clone()));
    let mut takeover = begin(None);
    takeover.on_committed(Committed { offset: None, ..committed(&CURSOR) }).unwrap();
    let metadata = "orloj2 q=1".to_owned();
    let value = Some(LedgerValue::Cursor { metadata, offset: 5, clean: true });
    let mirror = LedgerRecord { key: LedgerKey::Cursor, value, step: 7 };
    assert_eq!(takeover.on_ledger(vec![mirror], 4, &Fetched::default()), Err(newer));
}

#[test]
fn what_another_member_has_committed_is_not_ours_to_take() {
    let mut takeover = begin(None);
    takeover.on_committed(committed(&CURSOR)).unwrap();
    takeover.on_barrier();
    let later = Cursor { triggers: 6, step: 8, ..CURSOR };
    let refused = takeover.on_committed(committed(&later));
    assert_eq!(refused, Err(Refusal::Overtaken { partition: 0 }));
}

#[test]
fn what_follows_our_barrier_in_the_ledger_is_for_the_next_owner() {
    let mut takeover = at_ledger(None);
    let value = Some(LedgerValue::Skip);
    let mark =
        |offset, step| LedgerRecord { key: LedgerKey::Skip(offset), value: value.clone(), step };
    let rows = takeover.on_ledger(vec![mark(2, 7)], 4, &Fetched::default()).unwrap();
    assert_eq!(rows, [RowOp::Skip { offset: 2, marked: true }]);
    let batch = vec![mark(3, 7), barrier_record(NONCE), mark(4, 8)];
    let rows = takeover.on_ledger(batch, 7, &Fetched::default()).unwrap();
    assert_eq!(rows, [RowOp::Skip { offset: 3, marked: true }]);
    let local = takeover.local(2);
    assert_eq!((local.step, local.ledger_position), (7, 4), "read again from before the barrier");
}

#[test]
fn what_is_due_later_than_s_and_not_in_the_ledger_is_settled() {
    let mut takeover = at_ledger(None);
    takeover.on_ledger(vec![barrier_record(NONCE)], 3, &Fetched::default()).unwrap();
    // Record 3 was in the ledger until record 4 cancelled it; a crash between may be a long one.
    let record = |offset, due| {
        let mut log = super::world::Log::default();
        let _at = log.register("a", due, 0);
        TriggerRecord { offset, ..log.triggers.remove(0) }
    };
    let long = record(3, CURSOR.horizon + 1);
    assert_eq!(takeover.on_triggers(vec![long], &Fetched::default()), []);
    let short = record(3, CURSOR.horizon);
    assert_eq!(takeover.on_triggers(vec![short], &Fetched::default()).len(), 2);
}

#[test]
fn what_the_ledger_holds_need_not_be_read_in_the_log() {
    let main = |id: &str, entry: Option<&Entry>| LedgerRecord {
        key: LedgerKey::Main(id.into()),
        value: entry.cloned().map(LedgerValue::Entry),
        step: 7,
    };
    let (a, b) = (|generation| topic("a", generation, 9_000), topic("b", 4, 9_000));
    let held = |records: &[LedgerRecord]| {
        let mut takeover = at_ledger(None);
        let records = [records, &[barrier_record(NONCE)]].concat();
        let _rows = takeover.on_ledger(records, 4, &Fetched::default()).unwrap();
        let held: Vec<_> = (0..9).filter(|offset| takeover.holds(*offset)).collect();
        let taken = takeover.take_held();
        assert_eq!(held, (0..9).filter(|offset| taken.contains(*offset)).collect::<Vec<_>>());
        held
    };
    let [first, second] = [main("a", Some(&a(2))), main("a", Some(&a(3)))];
    let other = main("b", Some(&b));
    assert_eq!(held(&[first.clone(), other.clone()]), [2, 4]);
    assert_eq!(held(&[first, second.clone()]), [3], "the newer one is held");
    assert_eq!(held(&[second, other, main("a", None)]), [4], "it may have replaced a short one");
    assert_eq!(held(&[main("a", Some(&a(1)))]), [0; 0], "below L nothing is read anyhow");
    assert_eq!(held(&[main("a", Some(&topic("a", 3, 899)))]), [0; 0], "it has fired");
    let second_try = retry(&callback("a", 3, 899), (2, 0), 9_000, 0);
    let key = LedgerKey::Retry { trigger: "a".into(), generation: 3, occurrence: 0 };
    let value = Some(LedgerValue::Entry(second_try));
    assert_eq!(held(&[LedgerRecord { key, value, step: 7 }]), [0; 0], "a retry is no registration");
}

#[test]
fn records_that_are_not_read_say_when_they_were_written() {
    let mut takeover = at_ledger(None);
    takeover.on_ledger(vec![barrier_record(NONCE)], 3, &Fetched::default()).unwrap();
    takeover.on_held(940);
    takeover.on_held(930);
    takeover.on_triggers_end();
    assert_eq!(takeover.finish().last_timestamp, 940);
}

#[test]
fn a_broker_that_drops_metadata_is_refused() {
    let mut takeover = begin(None);
    takeover.on_committed(committed(&CURSOR)).unwrap();
    takeover.on_barrier();
    let dropped = Committed { offset: Some((5, String::new())), ..committed(&CURSOR) };
    assert_eq!(takeover.on_committed(dropped), Err(Refusal::MetadataDropped));
}

#[test]
fn a_lost_cursor_is_found_in_a_clean_mirror() {
    let mut takeover = begin(None);
    takeover.on_committed(Committed { offset: None, ..committed(&CURSOR) }).unwrap();
    assert_eq!(takeover.ask(), Ask::Mirror { from: 0, until: 4 });
    let early =
        takeover.on_ledger(vec![mirror(&Cursor::fresh(1, 0), false)], 3, &Fetched::default());
    assert_eq!((early, takeover.ask()), (Ok(vec![]), Ask::Mirror { from: 0, until: 4 }));
    takeover.on_ledger(vec![mirror(&CURSOR, true)], 4, &Fetched::default()).unwrap();
    let metadata = CURSOR.to_metadata("me");
    assert_eq!(takeover.ask(), Ask::Barrier { offset: 5, metadata, nonce: NONCE });
}

#[test]
fn a_lost_cursor_with_an_unclean_mirror_is_for_a_person_to_decide() {
    let mut takeover = begin(None);
    takeover.on_committed(Committed { offset: None, ..committed(&CURSOR) }).unwrap();
    let topic = "o.triggers".to_owned();
    let lost = Refusal::CursorLost { partition: 0, topic, offset: 5, mirror_due: 900 };
    let refused = takeover.on_ledger(vec![mirror(&CURSOR, false)], 4, &Fetched::default());
    assert_eq!(refused, Err(lost));
}

#[test]
fn what_retention_deleted_too_early_is_named_and_passed_over() {
    let mut takeover = begin(None);
    let ends = Committed { triggers_low: 4, signals_low: 3, ..committed(&CURSOR) };
    takeover.on_committed(ends).unwrap();
    let gap = |topic, from, until| Gap { topic, from, until };
    assert_eq!(takeover.gaps, [gap("triggers", 2, 4), gap("signals", 1, 3)]);
    assert_eq!(takeover.cursor(), &Cursor { low_water: 4, signals: 3, ..CURSOR });

    let mut takeover = begin(None);
    takeover.on_committed(Committed { triggers_low: 8, ..committed(&CURSOR) }).unwrap();
    assert_eq!(takeover.gaps, [gap("triggers", 2, 8)]);
    assert_eq!(takeover.cursor(), &Cursor { low_water: 8, triggers: 8, ..CURSOR });

    let mut takeover = begin(Some(local()));
    takeover.on_committed(Committed { triggers_low: 4, ..committed(&CURSOR) }).unwrap();
    assert_eq!(takeover.gaps, [], "the disk has what the log has lost");
}

#[test]
fn a_ledger_that_begins_late_is_read_from_where_it_begins() {
    let late = |cursor: &Cursor| Committed { ledger_low: 4, ledger_end: 6, ..committed(cursor) };
    let mut takeover = begin(None);
    takeover.on_committed(Committed { offset: None, ..late(&CURSOR) }).unwrap();
    assert_eq!(takeover.ask(), Ask::Mirror { from: 4, until: 6 });

    let mut takeover = begin(Some(local()));
    takeover.on_committed(late(&CURSOR)).unwrap();
    assert_eq!(takeover.gaps, [Gap { topic: "ledger", from: 3, until: 4 }]);
    takeover.on_barrier();
    let deleted_since = Committed { ledger_low: 5, ..confirmed(&CURSOR) };
    takeover.on_committed(deleted_since).unwrap();
    assert_eq!(takeover.ask(), Ask::Ledger { from: 5 });

    let mut takeover = begin(None);
    let emptied = Committed { offset: None, ledger_low: 4, ..committed(&CURSOR) };
    takeover.on_committed(emptied).unwrap();
    assert_eq!(takeover.cursor(), &Cursor::fresh(0, 0), "there is no mirror to wait for");
}

#[test]
fn a_topic_that_ends_below_its_offset_is_refused() {
    let shorter = |topic: &str, end, offset| {
        Err(Refusal::TopicShorter { partition: 0, topic: topic.to_owned(), end, offset })
    };
    let cut = Committed { triggers_end: 4, ..committed(&CURSOR) };
    assert_eq!(begin(None).on_committed(cut), shorter("o.triggers", 4, 5));
    let cut = Committed { signals_end: 0, ..committed(&CURSOR) };
    assert_eq!(begin(None).on_committed(cut), shorter("o.signals", 0, 1));
}

#[test]
fn a_valid_disk_is_read_on_from_where_it_stands() {
    let mut takeover = at_ledger(Some(local()));
    assert!(!takeover.must_wipe());
    assert_eq!(takeover.ask(), Ask::Ledger { from: 3 });
    takeover.on_ledger(vec![barrier_record(NONCE)], 5, &Fetched::default()).unwrap();
    assert_eq!(takeover.ask(), Ask::Triggers { from: 4, until: 5 });
    takeover.on_triggers_end();
    let applied = Local { applied: 5, step: 7, ledger_position: 5, w: CURSOR.w };
    assert_eq!(takeover.local(5), applied);
    assert_eq!(takeover.finish().skips, BTreeSet::from([3]));
}

#[test]
fn a_disk_ahead_of_the_cursor_is_wiped() {
    let ahead = [
        Local { applied: 6, ..local() },
        Local { step: 8, ..local() },
        Local { ledger_position: 5, ..local() },
    ];
    for local in ahead {
        let mut takeover = at_ledger(Some(local));
        assert!(takeover.must_wipe());
        assert_eq!(takeover.ask(), Ask::Ledger { from: 0 });
        takeover.on_ledger(vec![barrier_record(NONCE)], 5, &Fetched::default()).unwrap();
        assert_eq!(takeover.ask(), Ask::Triggers { from: 2, until: 5 });
        takeover.on_triggers_end();
        assert_eq!(takeover.finish().skips, BTreeSet::new());
    }
}

#[test]
fn a_wiped_disk_is_rebuilt_from_the_ledger_and_the_log() {
    let mut scene = Scene::with_callback_in_flight();
    let second = retry(&callback("a", 0, 1_020), (2, 0), 1_040, 0);
    scene.signal(&second);
    scene.register("short", 1_060);
    scene.register("long", 9_000);
    scene.register("replaced", 9_000);
    scene.register("replaced", 1_050);
    scene.register("cancelled", 1_055);
    scene.keep("short", 1_030);
    scene.cancel("cancelled");
    scene.cancel("unknown");
    scene.run();
    let expected = [
        second,
        topic("replaced", 4, 1_050),
        topic("short", 1, 1_060),
        veto("unknown", 8, 6_020),
        in_ledger(&topic("long", 2, 9_000), true),
    ];
    for disk in [scene.owner.disk.clone(), Disk::default()] {
        scene.take_over(disk, 1_021);
        let w = scene.owner.partition.cursor().w;
        let pending = scene.owner.disk.timeline.range(w.successor()..);
        let rows: Vec<_> =
            pending.map(|(key, row)| RowOp::Put { key: *key, row: row.clone() }).collect();
        assert_eq!(rows, expected.each_ref().map(put));
        assert_eq!(scene.owner.disk.skips, BTreeSet::from([6]));
    }
}

#[test]
fn a_cancel_trusts_only_fires_that_the_replay_has_seen() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.run();
    scene.now = 1_020;
    scene.run();
    scene.take_over(scene.owner.disk.clone(), 1_021);
    scene.cancel("a");
    // A later generation, a callback, might have been forgotten with another owner's disk.
    let (a, veto) = (topic("a", 0, 1_020), veto("a", 1, 6_021));
    let not_pending = Verdict::NotPending { fired: None, withdrawal: true };
    scene.decides(
        &[hold(&veto), scene.answer(1, "a", not_pending), withdraw("a", 1)],
        &[put(&veto), index("a", &[&a, &veto])],
    );
}

#[test]
fn a_trigger_due_in_400_days_survives_wiped_disks_and_a_deleted_log() {
    let mut scene = Scene::new();
    let due = NOW + LONG;
    scene.register("a", due);
    let a = in_ledger(&topic("a", 0, due), true);
    scene.run();
    for days in [1, 30, 399] {
        scene.take_over(Disk::default(), NOW + days * 24 * 3_600_000);
        scene.decides(&[], &[]);
        scene.log.triggers_low = scene.owner.partition.cursor().low_water;
    }
    assert_eq!(scene.log.triggers_low, 1, "only the ledger knows it");
    scene.take_over(Disk::default(), due - 1);
    scene.decides(&[], &[]);
    scene.now = due;
    scene.decides(&[scene.fires(&a), settle(&a)], &[]);
    scene.take_over(Disk::default(), due + LONG);
    scene.decides(&[], &[]);
}

fn begin(local: Option<Local>) -> Takeover {
    // The disk brings the mark of a record that was ignored.
    let local = local.map(|local| (local, BTreeSet::from([3])));
    Takeover::new(0, "o.triggers", "me", NONCE, local)
}

/// A takeover that has passed its barrier.
fn at_ledger(local: Option<Local>) -> Takeover {
    let mut takeover = begin(local);
    takeover.on_committed(committed(&CURSOR)).unwrap();
    takeover.on_barrier();
    takeover.on_committed(confirmed(&CURSOR)).unwrap();
    takeover
}

/// What an earlier owner left.
fn committed(cursor: &Cursor) -> Committed {
    Committed {
        offset: Some((cursor.triggers, cursor.to_metadata("earlier"))),
        triggers_low: 0,
        triggers_end: 8,
        signals_low: 0,
        signals_end: 6,
        ledger_low: 0,
        ledger_end: 4,
    }
}

/// What the broker says after our barrier; meanwhile a trigger was published.
fn confirmed(cursor: &Cursor) -> Committed {
    let offset = Some((cursor.triggers, cursor.to_metadata("me")));
    Committed { offset, triggers_end: 9, ledger_end: 5, ..committed(cursor) }
}

/// A disk a little behind [`CURSOR`].
fn local() -> Local {
    Local { applied: 4, step: 6, ledger_position: 3, w: TimelineKey::first_of(890) }
}

fn mirror(cursor: &Cursor, clean: bool) -> LedgerRecord {
    let (metadata, offset): (_, Offset) = (cursor.to_metadata("earlier"), cursor.triggers);
    let value = Some(LedgerValue::Cursor { metadata, offset, clean });
    LedgerRecord { key: LedgerKey::Cursor, value, step: cursor.step }
}

fn barrier_record(nonce: u64) -> LedgerRecord {
    LedgerRecord { key: LedgerKey::Barrier, value: Some(LedgerValue::Barrier { nonce }), step: 7 }
}
