//! What is due, and what comes back: retries, targets that fail, and how far W and L move.

use super::scene::{
    NOW, Scene, callback, delete, hold, in_ledger, index, parked, put, registered, retry, settle,
    skip, spoken, topic, topic_to, veto, withdraw,
};
use super::world::{Disk, definition};
use crate::codec::row::RowBytes;
use crate::engine::catalog::{Catalog, TopicState};
use crate::engine::partition::{Fetched, Input};
use crate::engine::rows::{Rows, Stored};
use crate::engine::step::{Emit, RowOp};
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::definition::{Definition, HttpTarget, Target};
use crate::model::entry::Entry;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::outcome::Verdict;
use crate::model::timeline::TimelineKey;

#[test]
fn a_retry_is_in_the_ledger_from_the_step_that_accepts_it_until_it_fires() {
    let mut scene = Scene::with_callback_in_flight();
    let a = callback("a", 0, 1_020);
    let second = retry(&a, (2, 0), 1_040, 0);
    scene.signal(&second);
    scene.decides(&[hold(&second)], &[put(&second), index("a", &[&a, &second])]);
    scene.now = 1_039;
    scene.decides(&[], &[]);
    scene.now = 1_040;
    scene.decides(&[scene.fires(&second), settle(&second)], &[]);
}

#[test]
fn a_retry_that_is_due_already_fires_at_once() {
    let mut scene = Scene::with_callback_in_flight();
    let a = callback("a", 0, 1_020);
    let second = in_ledger(&retry(&a, (2, 0), 1_010, 0), false);
    scene.signal(&second);
    scene.decides(&[scene.fires(&second)], &[index("a", &[&a, &second])]);
}

#[test]
fn an_attempt_that_is_known_is_ignored_before_and_after_it_fires() {
    let mut scene = Scene::with_callback_in_flight();
    let a = callback("a", 0, 1_020);
    scene.signal(&retry(&a, (2, 0), 1_040, 0));
    scene.run();
    scene.signal(&retry(&a, (2, 0), 1_045, 1));
    scene.decides(&[], &[]);
    scene.now = 1_040;
    scene.run();
    scene.signal(&retry(&a, (2, 0), 1_055, 2));
    scene.decides(&[], &[]);
}

#[test]
fn a_deferral_is_told_from_the_attempt_it_defers() {
    let mut scene = Scene::with_callback_in_flight();
    let a = callback("a", 0, 1_020);
    let once = retry(&a, (1, 1), 1_040, 0);
    scene.signal(&once);
    scene.decides(&[hold(&once)], &[put(&once), index("a", &[&a, &once])]);
    let twice = retry(&a, (1, 2), 1_050, 1);
    scene.signal(&twice);
    let rows = [delete(&once), put(&twice), index("a", &[&a, &twice])];
    scene.decides(&[hold(&twice)], &rows);
    scene.signal(&retry(&a, (1, 1), 1_060, 2));
    scene.decides(&[], &[]);
    scene.now = 1_050;
    scene.decides(&[scene.fires(&twice), settle(&twice)], &[]);
    let second = retry(&a, (2, 0), 1_070, 3);
    scene.signal(&second);
    scene.decides(&[hold(&second)], &[put(&second), index("a", &[&a, &second])]);
}

#[test]
fn a_cancel_takes_the_retries_too_and_vetoes_the_next() {
    let mut scene = Scene::with_callback_in_flight();
    let a = callback("a", 0, 1_020);
    let second = retry(&a, (2, 0), 1_040, 0);
    scene.signal(&second);
    scene.run();
    scene.cancel("a");
    let veto = veto("a", 1, 6_020);
    let cancelled = Verdict::Cancelled { generation: 0 };
    scene.decides(
        &[settle(&second), hold(&veto), scene.answer(1, "a", cancelled.clone()), withdraw("a", 1)],
        &[delete(&second), put(&veto), index("a", &[&a, &veto])],
    );
    scene.signal(&retry(&a, (3, 0), 1_050, 1));
    scene.decides(&[scene.notes("a", cancelled)], &[]);
    scene.now = 2_000;
    scene.decides(&[], &[]);
}

#[test]
fn a_cancel_takes_the_new_generation_and_the_old_ones_retry() {
    let mut scene = Scene::with_callback_in_flight();
    let old = callback("a", 0, 1_020);
    let second = retry(&old, (2, 0), 1_040, 0);
    scene.signal(&second);
    scene.callback("a", 1_030);
    scene.run();
    scene.cancel("a");
    let new = callback("a", 1, 1_030);
    let cancelled = scene.answer(2, "a", Verdict::Cancelled { generation: 1 });
    let rows = [delete(&new), delete(&second), index("a", &[&old])];
    scene.decides(&[settle(&second), cancelled], &rows);
    scene.now = 2_000;
    scene.decides(&[], &[]);
}

#[test]
fn a_veto_refuses_older_generations_only() {
    let mut scene = Scene::with_callback_in_flight();
    let old = callback("a", 0, 1_020);
    scene.cancel("a");
    scene.run();
    scene.callback("a", 1_025);
    scene.run();
    scene.now = 1_025;
    scene.run();
    let (veto, new) = (veto("a", 1, 6_020), callback("a", 2, 1_025));
    scene.signal(&retry(&old, (2, 0), 1_040, 0));
    scene.decides(&[scene.notes("a", Verdict::Cancelled { generation: 0 })], &[]);
    let second = retry(&new, (2, 0), 1_040, 1);
    scene.signal(&second);
    let rows = [put(&second), index("a", &[&veto, &new, &second])];
    scene.decides(&[hold(&second)], &rows);
}

#[test]
fn a_refused_topic_fails_only_its_own_trigger() {
    let mut scene = Scene::new();
    scene.owner.catalog.insert("gone".into(), TopicState::Refused("no such topic".to_owned()));
    scene.register_to("gone", "a", 1_060);
    scene.register("b", 1_060);
    scene.run();
    let a = in_ledger(&topic_to("gone", "a", 0, 1_060), true);
    let b = in_ledger(&topic("b", 1, 1_060), true);
    scene.now = 1_060;
    let [failed, letter] = buried(&scene, &a, "no such topic");
    scene.decides(&[failed, letter, settle(&a), scene.fires(&b), settle(&b)], &[]);
}

#[test]
fn a_fire_that_does_not_fit_its_topic_fails_only_its_own_trigger() {
    let mut scene = Scene::new();
    let fits = |bytes| TopicState::Usable { partitions: 1, record_bytes_max: bytes };
    // One byte of payload, one of key, 1,024 kept free.
    scene.owner.catalog.insert("small".into(), fits(1_025));
    scene.owner.catalog.insert("large".into(), fits(1_026));
    scene.register_to("small", "a", 1_020);
    scene.register_to("large", "b", 1_020);
    scene.run();
    let (a, b) = (topic_to("small", "a", 0, 1_020), topic_to("large", "b", 1, 1_020));
    scene.now = 1_020;
    let reason = "a fire of 1026 bytes does not fit topic small, which takes 1025: \
                  raise its max.message.bytes or send less";
    let [failed, letter] = buried(&scene, &a, reason);
    scene.decides(&[failed, letter, scene.fires(&b)], &[]);
}

#[test]
fn a_fire_whose_topic_is_away_waits_in_the_ledger_and_fires_later() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.callback("b", 1_020);
    scene.run();
    scene.now = 1_020;
    scene.owner.catalog.insert("out".into(), TopicState::Away("no leader".to_owned()));
    let (a, b) = (parked(&topic("a", 0, 1_020), 1_025), callback("b", 1, 1_020));
    scene.decides(&[hold(&a), scene.fires(&b)], &[put(&a), index("a", &[&a])]);
    scene.now = 1_025;
    let again = parked(&a, 1_030);
    scene.decides(&[hold(&again)], &[put(&again), index("a", &[&again])]);
    scene.now = 1_030;
    let back = TopicState::Usable { partitions: 1, record_bytes_max: 1 << 20 };
    scene.owner.catalog.insert("out".into(), back);
    scene.decides(&[scene.fires(&again), settle(&again)], &[]);
}

#[test]
fn a_fire_waits_for_its_pool_and_without_one_fails_alone() {
    let mut scene = Scene::new();
    let pooled = |name: &str| Definition {
        target: Target::Http(Box::new(HttpTarget {
            pool: Some(name.into()),
            ..HttpTarget::post("http://x/")
        })),
        ..definition(true)
    };
    let usable = |partitions| TopicState::Usable { partitions, record_bytes_max: 1 << 20 };
    let states = [
        ("slow", TopicState::Away("no leader".to_owned())),
        ("gone", TopicState::Refused("no such topic".to_owned())),
        ("narrow", usable(0)),
    ];
    for (pool, state) in states {
        scene.register_as(pooled(pool), pool, 1_020);
        scene.owner.catalog.insert_pool(pool.to_owned(), state);
    }
    scene.run();
    scene.now = 1_020;
    let slow = parked(&registered("slow", 0, 1_020, pooled("slow")), 1_025);
    let gone = registered("gone", 1, 1_020, pooled("gone"));
    let narrow = registered("narrow", 2, 1_020, pooled("narrow"));
    let [no_topic, first] = buried(&scene, &gone, "no such topic");
    let reason = "the topic of pool narrow has 0 partitions and lacks 0: it needs as many as the \
                  other topics; `orloj topics verify` compares them";
    let [no_partition, second] = buried(&scene, &narrow, reason);
    let rows = [put(&slow), index("slow", &[&slow])];
    scene.decides(&[hold(&slow), no_topic, first, no_partition, second], &rows);
    scene.owner.catalog.insert_pool("slow".to_owned(), usable(1));
    scene.now = 1_025;
    scene.decides(&[scene.fires(&slow), settle(&slow)], &[]);
}

#[test]
fn a_fire_that_waits_for_its_topic_can_still_be_cancelled() {
    let mut scene = Scene::new();
    scene.register("a", 900);
    scene.owner.catalog.insert("out".into(), TopicState::Away("no leader".to_owned()));
    let late = topic("a", 0, 900);
    let a = parked(&late, 1_005);
    let emits = [scene.accepted(&late, None), hold(&a)];
    scene.decides(&emits, &[put(&a), index("a", &[&a])]);
    scene.cancel("a");
    let cancelled = scene.answer(1, "a", Verdict::Cancelled { generation: 0 });
    scene.decides(&[settle(&a), cancelled], &[delete(&a), index("a", &[])]);
    scene.now = 1_005;
    scene.decides(&[], &[]);
}

#[test]
fn entries_of_a_millisecond_fire_in_the_order_they_were_written() {
    let mut scene = Scene::new();
    scene.register("b", 1_020);
    scene.register("c", 1_010);
    scene.register("a", 1_020);
    scene.run();
    scene.now = 1_030;
    let (b, c, a) = (topic("b", 0, 1_020), topic("c", 1, 1_010), topic("a", 2, 1_020));
    scene.decides(&[scene.fires(&c), scene.fires(&b), scene.fires(&a)], &[]);
}

#[test]
fn while_input_is_unread_only_what_was_due_when_it_was_written_fires() {
    let mut scene = Scene::new();
    scene.register("a", 1_010);
    scene.register("b", 1_020);
    scene.now = 1_015;
    scene.cancel("b");
    scene.now = 1_100;
    scene.register("c", 1_120);
    scene.now = 2_000;
    scene.records = 1;
    let (a, b, c) = (topic("a", 0, 1_010), topic("b", 1, 1_020), topic("c", 3, 1_120));
    let cancelled = scene.answer(2, "b", Verdict::Cancelled { generation: 1 });
    let said: Vec<_> = (0..4).map(|_| scene.step().unwrap().emits).collect();
    let expected = [
        vec![scene.accepted(&a, None)],
        vec![scene.accepted(&b, None)],
        vec![cancelled, scene.fires(&a)],
        vec![scene.accepted(&c, None), scene.fires(&c)],
    ];
    assert_eq!(said, expected);
    scene.decides(&[], &[]);
}

#[test]
fn a_cancel_before_its_due_time_holds_though_everybody_was_down() {
    for wiped in [false, true] {
        let mut scene = Scene::new();
        scene.register("a", 1_020);
        scene.register("b", 1_008);
        scene.run();
        scene.now = 1_010;
        scene.register("c", 1_090);
        scene.cancel("a");
        let disk = if wiped { Disk::default() } else { scene.owner.disk.clone() };
        scene.take_over(disk, 5_000);
        scene.records = 1;
        let (b, c) = (topic("b", 1, 1_008), topic("c", 2, 1_090));
        let cancelled = scene.answer(3, "a", Verdict::Cancelled { generation: 0 });
        let said: Vec<_> = (0..2).map(|_| scene.step().unwrap().emits).collect();
        let accepted = scene.accepted(&c, None);
        assert_eq!(said, [vec![accepted, scene.fires(&b)], vec![cancelled, scene.fires(&c)]]);
    }
}

#[test]
fn the_end_of_the_log_is_believed_though_its_last_offsets_hold_no_record() {
    let mut scene = Scene::new();
    scene.now = 1_100;
    let partition = &mut scene.owner.partition;
    let _behind = partition.observe(1_100);
    partition.input_known(2, 1_100);
    assert_eq!((partition.watermark(), partition.lags()), (NOW, true));
    let stored = Stored { index: &Fetched::default(), rows: &Rows::default() };
    partition.ingest(vec![Input::TriggersEnd(2)], stored).unwrap();
    assert_eq!((partition.watermark(), partition.lags()), (1_100, false));
}

#[test]
fn a_cancel_finds_what_a_step_in_flight_has_put() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    let first = scene.draft().unwrap();
    scene.cancel("a");
    let second = scene.draft().unwrap();
    let a = topic("a", 0, 1_020);
    let cancelled = scene.answer(1, "a", Verdict::Cancelled { generation: 0 });
    assert_eq!(spoken(second.clone()), (vec![cancelled], vec![delete(&a), index("a", &[])]));
    scene.apply(&first);
    scene.apply(&second);
    scene.now = 1_020;
    scene.decides(&[], &[]);
}

#[test]
fn a_row_in_flight_fires_though_the_store_does_not_have_it_yet() {
    let mut scene = Scene::new();
    scene.register("a", 9_000);
    let _in_flight = scene.draft().unwrap();
    scene.now = 9_000;
    let a = in_ledger(&topic("a", 0, 9_000), true);
    assert_eq!(scene.draft().unwrap().emits, [scene.fires(&a), settle(&a)]);
}

#[test]
fn a_stored_row_that_cannot_be_read_fires_nothing() {
    let mut scene = Scene::new();
    let key = topic("a", 0, NOW).key;
    assert!(scene.owner.partition.wheel.insert(key, RowBytes::from(*b"?")));
    let due = scene.owner.partition.take_due(100);
    let fired = scene.owner.partition.fire(due, &Catalog::default(), &Fetched::default());
    assert!(fired.is_err());
}

#[test]
fn w_moves_when_nothing_is_due() {
    let mut scene = Scene::new();
    scene.now = 5_000;
    scene.decides(&[], &[]);
    assert_eq!(scene.owner.partition.cursor().w, TimelineKey::last_of(4_999));
}

#[test]
fn low_water_passes_what_w_has_decided_and_forgets_its_skip_marks() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.run();
    scene.now = 1_010;
    scene.keep("a", 1_020);
    scene.register("b", 1_040);
    scene.run();
    let (a, b) = (topic("a", 0, 1_020), topic("b", 2, 1_040));
    let forgotten = RowOp::Skip { offset: 1, marked: false };
    let decisions = [
        (1_021, vec![scene.fires(&a)], vec![], 0),
        (1_022, vec![], vec![], 1),
        (1_041, vec![scene.fires(&b)], vec![], 1),
        (1_042, vec![skip(1, false)], vec![forgotten], 3),
    ];
    for (now, emits, rows, low_water) in decisions {
        scene.now = now;
        scene.decides(&emits, &rows);
        assert_eq!(scene.owner.partition.cursor().low_water, low_water);
    }
}

#[test]
fn the_last_step_of_an_owner_mirrors_its_cursor_as_clean() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.run();
    let step = scene.owner.partition.seal_clean();
    let metadata = step.cursor.to_metadata("owner");
    let value = LedgerValue::Cursor { metadata, offset: 1, clean: true };
    assert_eq!(step.emits, [Emit::Ledger { key: LedgerKey::Cursor, value: Some(Box::new(value)) }]);
    assert_eq!(step.spill.unwrap().rows(), []);
}

#[test]
fn the_cursor_is_mirrored_again_once_the_interval_is_over_and_not_as_clean() {
    let mut scene = Scene::new();
    scene.owner.partition.rules.mirror_interval = 20;
    let mut mirrored = Vec::new();
    for now in [1_100, 1_119, 1_120] {
        scene.now = now;
        scene.register("a", 500);
        let step = scene.step().unwrap();
        let (metadata, offset) = (step.cursor.to_metadata("owner"), step.cursor.triggers);
        let value = Some(Box::new(LedgerValue::Cursor { metadata, offset, clean: false }));
        mirrored.push(step.emits.contains(&Emit::Ledger { key: LedgerKey::Cursor, value }));
    }
    assert_eq!(mirrored, [true, false, true]);
}

#[test]
fn a_clock_behind_w_waits_until_it_has_caught_up() {
    let mut scene = Scene::new();
    scene.register("a", 1_500);
    scene.run();
    scene.now = 1_500;
    scene.run();
    scene.take_over(scene.owner.disk.clone(), NOW);
    scene.register("b", 1_400);
    assert_eq!(scene.owner.partition.observe(NOW), 500);
    scene.decides_nothing_yet();
    scene.now = 1_499;
    scene.decides_nothing_yet();
    scene.now = 1_500;
    let b = topic("b", 1, 1_400);
    scene.decides(&[scene.accepted(&b, None), scene.fires(&b)], &[index("b", &[&b])]);
}

/// The outcome and the dead letter of an entry that cannot fire, ever.
fn buried(scene: &Scene, entry: &Entry, reason: &str) -> [Emit; 2] {
    let fire = scene.fire(entry);
    let verdict = Verdict::Failed {
        generation: fire.id.generation,
        occurrence: 0,
        attempt: 1,
        status: None,
        reason: reason.to_owned(),
        retry_at: None,
    };
    let outcome = scene.notes(fire.id.trigger.as_str(), verdict);
    let topic = "o.triggers".into();
    let letter = DeadLetter {
        origin: Origin { topic, partition: 0, offset: entry.key.offset },
        reason: reason.to_owned(),
        at: scene.now,
        content: Content::Fire { fire, attempts: 1 },
    };
    [outcome, Emit::DeadLetter(Box::new(letter))]
}
