//! Entries that are due, and retries: targets that fail, and how far W and L move.

use super::fixture::{
    EngineFixture, NOW, callback_trigger, delete, emits_and_rows, in_ledger, index, ledger_delete,
    ledger_put, ledger_skip, postponed, put, retry, topic_trigger, trigger_to_topic, veto,
    withdraw,
};
use super::harness::TestStore;
use crate::codec::row::RowBytes;
use crate::engine::catalog::{TopicCatalog, TopicState};
use crate::engine::index_row::IdHash;
use crate::engine::partition::{IndexRows, Input};
use crate::engine::prefetch::{Prefetched, TimelineRows};
use crate::engine::step::{Emit, RowOp};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::entry::Entry;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::outcome::OutcomeKind;
use crate::model::timeline::TimelineKey;

#[test]
fn a_retry_is_in_the_ledger_from_the_step_that_accepts_it_until_it_fires() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    let a = callback_trigger("a", 0, 1_020);
    let second = retry(&a, (2, 0), 1_040, 0);
    fixture.signal(&second);
    fixture.assert_decides(&[ledger_put(&second)], &[put(&second), index("a", &[&a, &second])]);
    fixture.now = 1_039;
    fixture.assert_decides(&[], &[]);
    fixture.now = 1_040;
    fixture.assert_decides(&[fixture.fire_emit(&second), ledger_delete(&second)], &[]);
}

#[test]
fn a_retry_that_is_due_already_fires_at_once() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    let a = callback_trigger("a", 0, 1_020);
    let second = in_ledger(&retry(&a, (2, 0), 1_010, 0), false);
    fixture.signal(&second);
    fixture.assert_decides(&[fixture.fire_emit(&second)], &[index("a", &[&a, &second])]);
}

#[test]
fn an_attempt_that_is_known_is_ignored_before_and_after_it_fires() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    let a = callback_trigger("a", 0, 1_020);
    fixture.signal(&retry(&a, (2, 0), 1_040, 0));
    fixture.run_until_idle();
    fixture.signal(&retry(&a, (2, 0), 1_045, 1));
    fixture.assert_decides(&[], &[]);
    fixture.now = 1_040;
    fixture.run_until_idle();
    fixture.signal(&retry(&a, (2, 0), 1_055, 2));
    fixture.assert_decides(&[], &[]);
}

#[test]
fn a_deferral_is_distinguished_from_the_attempt_it_defers() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    let a = callback_trigger("a", 0, 1_020);
    let once = retry(&a, (1, 1), 1_040, 0);
    fixture.signal(&once);
    fixture.assert_decides(&[ledger_put(&once)], &[put(&once), index("a", &[&a, &once])]);
    let twice = retry(&a, (1, 2), 1_050, 1);
    fixture.signal(&twice);
    let rows = [delete(&once), put(&twice), index("a", &[&a, &twice])];
    fixture.assert_decides(&[ledger_put(&twice)], &rows);
    fixture.signal(&retry(&a, (1, 1), 1_060, 2));
    fixture.assert_decides(&[], &[]);
    fixture.now = 1_050;
    fixture.assert_decides(&[fixture.fire_emit(&twice), ledger_delete(&twice)], &[]);
    let second = retry(&a, (2, 0), 1_070, 3);
    fixture.signal(&second);
    fixture.assert_decides(&[ledger_put(&second)], &[put(&second), index("a", &[&a, &second])]);
}

#[test]
fn a_cancel_removes_the_retries_and_vetoes_the_next() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    let a = callback_trigger("a", 0, 1_020);
    let second = retry(&a, (2, 0), 1_040, 0);
    fixture.signal(&second);
    fixture.run_until_idle();
    fixture.cancel("a");
    let veto = veto("a", 1, 6_020);
    let cancelled = OutcomeKind::Cancelled { generation: 0 };
    fixture.assert_decides(
        &[
            ledger_delete(&second),
            ledger_put(&veto),
            fixture.response(1, "a", cancelled.clone()),
            withdraw("a", 1),
        ],
        &[delete(&second), put(&veto), index("a", &[&a, &veto])],
    );
    fixture.signal(&retry(&a, (3, 0), 1_050, 1));
    fixture.assert_decides(&[fixture.unrequested_outcome("a", cancelled)], &[]);
    fixture.now = 2_000;
    fixture.assert_decides(&[], &[]);
}

#[test]
fn a_cancel_removes_the_new_generation_and_the_retry_of_the_old() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    let old = callback_trigger("a", 0, 1_020);
    let second = retry(&old, (2, 0), 1_040, 0);
    fixture.signal(&second);
    fixture.callback("a", 1_030);
    fixture.run_until_idle();
    fixture.cancel("a");
    let new = callback_trigger("a", 1, 1_030);
    let cancelled = fixture.response(2, "a", OutcomeKind::Cancelled { generation: 1 });
    let rows = [delete(&new), delete(&second), index("a", &[&old])];
    fixture.assert_decides(&[ledger_delete(&second), cancelled], &rows);
    fixture.now = 2_000;
    fixture.assert_decides(&[], &[]);
}

#[test]
fn a_veto_refuses_older_generations_only() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    let old = callback_trigger("a", 0, 1_020);
    fixture.cancel("a");
    fixture.run_until_idle();
    fixture.callback("a", 1_025);
    fixture.run_until_idle();
    fixture.now = 1_025;
    fixture.run_until_idle();
    let (veto, new) = (veto("a", 1, 6_020), callback_trigger("a", 2, 1_025));
    fixture.signal(&retry(&old, (2, 0), 1_040, 0));
    fixture.assert_decides(
        &[fixture.unrequested_outcome("a", OutcomeKind::Cancelled { generation: 0 })],
        &[],
    );
    let second = retry(&new, (2, 0), 1_040, 1);
    fixture.signal(&second);
    let rows = [put(&second), index("a", &[&veto, &new, &second])];
    fixture.assert_decides(&[ledger_put(&second)], &rows);
}

#[test]
fn an_unusable_topic_fails_only_its_own_trigger() {
    let mut fixture = EngineFixture::new();
    fixture
        .owner
        .catalog
        .insert("deleted".into(), TopicState::Unusable("no such topic".to_owned()));
    fixture.register_to("deleted", "a", 1_060);
    fixture.register("b", 1_060);
    fixture.run_until_idle();
    let a = in_ledger(&trigger_to_topic("deleted", "a", 0, 1_060), true);
    let b = in_ledger(&topic_trigger("b", 1, 1_060), true);
    fixture.now = 1_060;
    let [failed, letter] = dead_lettered(&fixture, &a, "no such topic");
    fixture.assert_decides(
        &[failed, letter, ledger_delete(&a), fixture.fire_emit(&b), ledger_delete(&b)],
        &[],
    );
}

#[test]
fn a_trigger_that_is_held_for_a_short_time_is_late_by_a_short_time() {
    let mut fixture = EngineFixture::new();
    fixture.owner.partition.config_mut().target_retry_interval = 1_000;
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    // A record of it is parked.
    fixture.owner.partition.hold([IdHash::of("a")]);
    let a = topic_trigger("a", 0, 1_020);
    for (now, until) in [(1_020, 1_120), (1_120, 1_220), (1_220, 1_420), (3_000, 4_000)] {
        fixture.now = now;
        let held = postponed(&a, until);
        fixture.assert_decides(&[ledger_put(&held)], &[put(&held), index("a", &[&held])]);
    }
}

#[test]
fn entries_of_a_millisecond_fire_in_the_order_they_were_written() {
    let mut fixture = EngineFixture::new();
    fixture.register("b", 1_020);
    fixture.register("c", 1_010);
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.now = 1_030;
    let (b, c, a) =
        (topic_trigger("b", 0, 1_020), topic_trigger("c", 1, 1_010), topic_trigger("a", 2, 1_020));
    fixture.assert_decides(
        &[fixture.fire_emit(&c), fixture.fire_emit(&b), fixture.fire_emit(&a)],
        &[],
    );
}

#[test]
fn while_input_is_unread_only_what_was_due_when_it_was_written_fires() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_010);
    fixture.register("b", 1_020);
    fixture.now = 1_015;
    fixture.cancel("b");
    fixture.now = 1_100;
    fixture.register("c", 1_120);
    fixture.now = 2_000;
    fixture.records = 1;
    let (a, b, c) =
        (topic_trigger("a", 0, 1_010), topic_trigger("b", 1, 1_020), topic_trigger("c", 3, 1_120));
    let cancelled = fixture.response(2, "b", OutcomeKind::Cancelled { generation: 1 });
    let events: Vec<_> = (0..4).map(|_| fixture.step().unwrap().emits).collect();
    let expected = [
        vec![fixture.accepted(&a, None)],
        vec![fixture.accepted(&b, None)],
        vec![cancelled, fixture.fire_emit(&a)],
        vec![fixture.accepted(&c, None), fixture.fire_emit(&c)],
    ];
    assert_eq!(events, expected);
    fixture.assert_decides(&[], &[]);
}

#[test]
fn a_cancel_before_the_due_time_is_effective_although_all_owners_were_down() {
    for wiped in [false, true] {
        let mut fixture = EngineFixture::new();
        fixture.register("a", 1_020);
        fixture.register("b", 1_008);
        fixture.run_until_idle();
        fixture.now = 1_010;
        fixture.register("c", 1_090);
        fixture.cancel("a");
        let disk = if wiped { TestStore::default() } else { fixture.owner.store.clone() };
        fixture.take_over(disk, 5_000);
        fixture.records = 1;
        let (b, c) = (topic_trigger("b", 1, 1_008), topic_trigger("c", 2, 1_090));
        let cancelled = fixture.response(3, "a", OutcomeKind::Cancelled { generation: 0 });
        let events: Vec<_> = (0..2).map(|_| fixture.step().unwrap().emits).collect();
        let accepted = fixture.accepted(&c, None);
        assert_eq!(
            events,
            [vec![accepted, fixture.fire_emit(&b)], vec![cancelled, fixture.fire_emit(&c)]]
        );
    }
}

#[test]
fn the_end_of_the_log_counts_as_read_though_its_last_offsets_hold_no_record() {
    let mut fixture = EngineFixture::new();
    fixture.now = 1_100;
    let partition = &mut fixture.owner.partition;
    let _behind = partition.observe_clock(1_100);
    partition.on_end_offset(2, 1_100);
    assert_eq!((partition.watermark(), partition.has_unread_input()), (NOW, true));
    let stored = Prefetched { index: &IndexRows::default(), rows: &TimelineRows::default() };
    partition.ingest(vec![Input::TriggersEnd(2)], stored).unwrap();
    assert_eq!((partition.watermark(), partition.has_unread_input()), (1_100, false));
}

#[test]
fn a_cancel_finds_what_a_step_in_flight_has_put() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    let first = fixture.draft_and_commit().unwrap();
    fixture.cancel("a");
    let second = fixture.draft_and_commit().unwrap();
    let a = topic_trigger("a", 0, 1_020);
    let cancelled = fixture.response(1, "a", OutcomeKind::Cancelled { generation: 0 });
    assert_eq!(
        emits_and_rows(second.clone()),
        (vec![cancelled], vec![delete(&a), index("a", &[])])
    );
    fixture.apply(&first);
    fixture.apply(&second);
    fixture.now = 1_020;
    fixture.assert_decides(&[], &[]);
}

#[test]
fn a_row_in_flight_fires_though_the_store_does_not_have_it_yet() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 9_000);
    let _in_flight = fixture.draft_and_commit().unwrap();
    fixture.now = 9_000;
    let a = in_ledger(&topic_trigger("a", 0, 9_000), true);
    assert_eq!(
        fixture.draft_and_commit().unwrap().emits,
        [fixture.fire_emit(&a), ledger_delete(&a)]
    );
}

#[test]
fn a_stored_row_that_cannot_be_read_fires_nothing() {
    let mut fixture = EngineFixture::new();
    let key = topic_trigger("a", 0, NOW).key;
    assert!(fixture.owner.partition.wheel_mut().insert(key, RowBytes::from(*b"?")));
    let due = fixture.owner.partition.take_due(100);
    let fired = fixture.owner.partition.fire(due, &TopicCatalog::default(), &IndexRows::default());
    assert!(fired.is_err());
}

#[test]
fn fired_through_advances_when_nothing_is_due() {
    let mut fixture = EngineFixture::new();
    fixture.now = 5_000;
    fixture.assert_decides(&[], &[]);
    assert_eq!(fixture.owner.partition.cursor().fired_through, TimelineKey::last_at(4_999));
}

#[test]
fn replay_from_advances_with_fired_through_and_deletes_passed_skip_marks() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.now = 1_010;
    fixture.register_keep("a", 1_020);
    fixture.register("b", 1_040);
    fixture.run_until_idle();
    let (a, b) = (topic_trigger("a", 0, 1_020), topic_trigger("b", 2, 1_040));
    let forgotten = RowOp::Skip { offset: 1, marked: false };
    let decisions = [
        (1_021, vec![fixture.fire_emit(&a)], vec![], 0),
        (1_022, vec![], vec![], 1),
        (1_041, vec![fixture.fire_emit(&b)], vec![], 1),
        (1_042, vec![ledger_skip(1, false)], vec![forgotten], 3),
    ];
    for (now, emits, rows, low_water) in decisions {
        fixture.now = now;
        fixture.assert_decides(&emits, &rows);
        assert_eq!(fixture.owner.partition.cursor().replay_from, low_water);
    }
}

/// After hours with a parked record millions of marks are passed at once.
#[test]
fn a_step_deletes_half_as_many_skip_marks_as_it_may_have_records_and_the_next_one_goes_on() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    fixture.now = 1_010;
    for _ in 1..=5 {
        fixture.register_keep("a", 1_020);
    }
    fixture.register("b", 1_040);
    fixture.run_until_idle();
    fixture.now = 1_021;
    fixture.run_until_idle();
    fixture.owner.partition.config_mut().records_per_step_max = 4;
    fixture.now = 1_042;
    let mut steps = Vec::new();
    while let Some(step) = fixture.step() {
        let is_deleted =
            |emit: &&Emit| matches!(emit, Emit::Ledger { key: LedgerKey::Skip(_), value: None });
        steps.push((step.emits.iter().filter(is_deleted).count(), step.cursor.replay_from));
    }
    let deleted: Vec<_> = steps.into_iter().filter(|(deleted, _)| *deleted > 0).collect();
    assert_eq!(deleted, [(2, 3), (2, 5), (1, 7)]);
    assert_eq!(fixture.owner.partition.seal_final().emits.len(), 1, "the cursor only");
}

#[test]
fn the_final_step_of_an_owner_mirrors_its_cursor_as_clean() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    let step = fixture.owner.partition.seal_final();
    let metadata = step.cursor.to_metadata("owner");
    let value = LedgerValue::Cursor { metadata, offset: 1, clean: true };
    assert_eq!(step.emits, [Emit::Ledger { key: LedgerKey::Cursor, value: Some(Box::new(value)) }]);
    assert_eq!(step.spill.unwrap().rows(), []);
}

#[test]
fn the_cursor_is_mirrored_again_once_the_interval_is_over_and_not_as_clean() {
    let mut fixture = EngineFixture::new();
    fixture.owner.partition.config_mut().cursor_copy_interval = 20;
    let mut mirrored = Vec::new();
    for now in [1_100, 1_119, 1_120] {
        fixture.now = now;
        fixture.register("a", 500);
        let step = fixture.step().unwrap();
        let (metadata, offset) = (step.cursor.to_metadata("owner"), step.cursor.next_offset);
        let value = Some(Box::new(LedgerValue::Cursor { metadata, offset, clean: false }));
        mirrored.push(step.emits.contains(&Emit::Ledger { key: LedgerKey::Cursor, value }));
    }
    assert_eq!(mirrored, [true, false, true]);
}

#[test]
fn an_owner_whose_clock_is_behind_fired_through_waits() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_500);
    fixture.run_until_idle();
    fixture.now = 1_500;
    fixture.run_until_idle();
    fixture.take_over(fixture.owner.store.clone(), NOW);
    fixture.register("b", 1_400);
    assert_eq!(fixture.owner.partition.observe_clock(NOW), 500);
    fixture.assert_waits();
    fixture.now = 1_499;
    fixture.assert_waits();
    fixture.now = 1_500;
    let b = topic_trigger("b", 1, 1_400);
    fixture
        .assert_decides(&[fixture.accepted(&b, None), fixture.fire_emit(&b)], &[index("b", &[&b])]);
}

/// The outcome and the dead letter of an entry that cannot fire, ever.
pub(super) fn dead_lettered(fixture: &EngineFixture, entry: &Entry, reason: &str) -> [Emit; 2] {
    let fire = fixture.fire(entry);
    let kind = OutcomeKind::Failed {
        generation: fire.id.generation,
        occurrence: 0,
        attempt: 1,
        status: None,
        reason: reason.to_owned(),
        retry_at: None,
    };
    let outcome = fixture.unrequested_outcome(fire.id.trigger.as_str(), kind);
    let topic = "o.triggers".into();
    let letter = DeadLetter {
        origin: Origin { topic, partition: 0, offset: entry.key.offset },
        reason: reason.to_owned(),
        at: fixture.now,
        content: Content::Fire { fire, attempts: 1 },
    };
    [outcome, Emit::DeadLetter(Box::new(letter))]
}
