//! One record at a time: what a registration, a cancel and a record nobody can read decide.

use bytes::Bytes;

use super::scene::{
    Scene, callback, delete, hold, in_ledger, index, put, settle, skip, topic, veto, withdraw,
    withdraw_from,
};
use crate::engine::catalog::TopicState;
use crate::engine::step::{Emit, RowOp};
use crate::model::Offset;
use crate::model::dead_letter::{Content, DeadLetter, Origin};
use crate::model::input::{Forward, Request, SignalRecord, Unreadable};
use crate::model::outcome::Verdict;

#[test]
fn a_short_trigger_lives_in_the_log_until_it_fires() {
    let mut scene = Scene::new();
    scene.register("a", 1_050);
    let a = topic("a", 0, 1_050);
    scene.decides(&[scene.accepted(&a, None)], &[put(&a), index("a", &[&a])]);
    scene.now = 1_049;
    scene.decides(&[], &[]);
    scene.now = 1_050;
    scene.decides(&[scene.fires(&a)], &[]);
}

#[test]
fn a_long_trigger_is_in_the_ledger_from_its_first_transaction() {
    let mut scene = Scene::new();
    scene.register("a", 1_051);
    let a = in_ledger(&topic("a", 0, 1_051), true);
    scene.decides(&[scene.accepted(&a, None), hold(&a)], &[put(&a), index("a", &[&a])]);
    scene.now = 1_051;
    scene.decides(&[scene.fires(&a), settle(&a)], &[]);
}

#[test]
fn a_replacement_drops_the_old_row_and_settles_the_ledger() {
    let mut scene = Scene::new();
    scene.register("a", 1_060);
    scene.run();
    scene.register("a", 1_020);
    let (old, new) = (in_ledger(&topic("a", 0, 1_060), true), topic("a", 1, 1_020));
    scene.decides(
        &[settle(&old), scene.accepted(&new, Some(0))],
        &[delete(&old), put(&new), index("a", &[&new])],
    );
    scene.now = 2_000;
    scene.decides(&[scene.fires(&new)], &[]);
}

#[test]
fn a_replacement_within_one_step_leaves_only_the_newest() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.register("a", 1_030);
    let (old, new) = (topic("a", 0, 1_020), topic("a", 1, 1_030));
    scene.decides(
        &[scene.accepted(&old, None), scene.accepted(&new, Some(0))],
        &[put(&new), index("a", &[&new])],
    );
    scene.now = 2_000;
    scene.decides(&[scene.fires(&new)], &[]);
}

#[test]
fn a_keep_that_finds_one_pending_leaves_a_skip_mark() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.run();
    scene.keep("a", 1_010);
    let kept = Verdict::Kept { generation: 0, fire_at: 1_020 };
    scene.decides(&[skip(1, true), scene.answer(1, "a", kept)], &[mark(1)]);
    scene.now = 1_020;
    let a = topic("a", 0, 1_020);
    scene.decides(&[scene.fires(&a)], &[]);
}

#[test]
fn a_keep_sees_what_has_fired_as_absent() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.run();
    scene.now = 1_020;
    scene.run();
    scene.keep("a", 1_040);
    let (fired, new) = (topic("a", 0, 1_020), topic("a", 1, 1_040));
    scene.decides(&[scene.accepted(&new, None)], &[put(&new), index("a", &[&fired, &new])]);
}

#[test]
fn late_registrations_fire_at_once_in_offset_order() {
    let mut scene = Scene::new();
    scene.register("b", 999);
    scene.register("a", 0);
    let (b, a) = (topic("b", 0, 999), topic("a", 1, 0));
    let fires = [scene.fires(&b), scene.fires(&a)];
    let accepted = [scene.accepted(&b, None), scene.accepted(&a, None)];
    scene.decides(&[accepted, fires].concat(), &[index("b", &[&b]), index("a", &[&a])]);
}

#[test]
fn a_cancel_in_time_takes_the_trigger_off_the_timeline() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.run();
    scene.cancel("a");
    let a = topic("a", 0, 1_020);
    scene.decides(&[scene.answer(1, "a", cancelled(0))], &[delete(&a), index("a", &[])]);
    scene.now = 2_000;
    scene.decides(&[], &[]);
}

#[test]
fn a_cancel_of_a_long_trigger_settles_the_ledger() {
    let mut scene = Scene::new();
    scene.register("a", 1_500);
    scene.run();
    scene.cancel("a");
    let a = in_ledger(&topic("a", 0, 1_500), true);
    let emits = [settle(&a), scene.answer(1, "a", cancelled(0))];
    scene.decides(&emits, &[delete(&a), index("a", &[])]);
    scene.now = 2_000;
    scene.decides(&[], &[]);
}

#[test]
fn a_cancel_after_the_fire_into_a_topic_is_told_so_and_leaves_no_veto() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.run();
    scene.now = 1_020;
    scene.run();
    scene.cancel("a");
    let a = topic("a", 0, 1_020);
    scene.decides(&[scene.answer(1, "a", not_pending(Some(0), false))], &[index("a", &[&a])]);
}

#[test]
fn a_cancel_after_the_fire_of_a_callback_leaves_a_veto() {
    let mut scene = Scene::with_callback_in_flight();
    scene.cancel("a");
    let (a, veto) = (callback("a", 0, 1_020), veto("a", 1, 6_020));
    scene.decides(
        &[hold(&veto), scene.answer(1, "a", not_pending(Some(0), true)), withdraw("a", 1)],
        &[put(&veto), index("a", &[&a, &veto])],
    );
}

#[test]
fn a_withdrawal_goes_to_every_pool_that_can_be_told() {
    let mut scene = Scene::new();
    let away = TopicState::Away("away".to_owned());
    let short = TopicState::Usable { partitions: 0, record_bytes_max: 1 << 20 };
    let usable = TopicState::Usable { partitions: 1, record_bytes_max: 1 << 20 };
    for (pool, state) in [("away", away), ("short", short), ("slow", usable)] {
        scene.owner.catalog.insert_pool(pool.to_owned(), state);
        scene.owner.partition.rules.pools.push(pool.into());
    }
    scene.owner.partition.rules.pools.push("unknown".into());
    scene.cancel("a");
    let (veto, answer) = (veto("a", 0, 6_000), scene.answer(0, "a", not_pending(None, true)));
    let withdrawals = [withdraw("a", 0), withdraw_from(Some("slow"), "a", 0)];
    let emits = [[hold(&veto), answer], withdrawals].concat();
    scene.decides(&emits, &[put(&veto), index("a", &[&veto])]);
}

#[test]
fn a_cancel_of_an_unknown_id_leaves_a_veto_that_expires() {
    let mut scene = Scene::new();
    scene.cancel("a");
    let veto = veto("a", 0, 6_000);
    scene.decides(
        &[hold(&veto), scene.answer(0, "a", not_pending(None, true)), withdraw("a", 0)],
        &[put(&veto), index("a", &[&veto])],
    );
    scene.now = 5_999;
    scene.decides(&[], &[]);
    scene.now = 6_000;
    scene.decides(&[settle(&veto)], &[]);
}

#[test]
fn a_second_cancel_takes_the_place_of_the_first_ones_veto() {
    let mut scene = Scene::new();
    scene.cancel("a");
    scene.run();
    scene.now = 1_100;
    scene.cancel("a");
    let (first, second) = (veto("a", 0, 6_000), veto("a", 1, 6_100));
    scene.decides(
        &[hold(&second), scene.answer(1, "a", not_pending(None, true)), withdraw("a", 1)],
        &[delete(&first), put(&second), index("a", &[&second])],
    );
    scene.now = 6_099;
    scene.decides(&[], &[]);
}

/// Its topic may be away: then it would wait on beside whatever came after it.
#[test]
fn a_late_registration_is_pending_until_its_step_fires() {
    let mut scene = Scene::new();
    scene.register("a", 900);
    scene.cancel("a");
    let a = topic("a", 0, 900);
    let cancelled = scene.answer(1, "a", Verdict::Cancelled { generation: 0 });
    scene.decides(&[scene.accepted(&a, None), cancelled], &[]);
    scene.register("a", 900);
    scene.register("a", 1_030);
    let (late, new) = (topic("a", 2, 900), topic("a", 3, 1_030));
    scene.decides(
        &[scene.accepted(&late, None), scene.accepted(&new, Some(2))],
        &[put(&new), index("a", &[&new])],
    );
}

#[test]
fn only_who_asked_is_answered_but_a_cancellation_is_always_recorded() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.unasked();
    let a = topic("a", 0, 1_020);
    scene.decides(&[], &[put(&a), index("a", &[&a])]);
    scene.keep("a", 1_020);
    scene.unasked();
    scene.decides(&[skip(1, true)], &[mark(1)]);
    scene.cancel("a");
    scene.unasked();
    let rows = [delete(&a), index("a", &[])];
    scene.decides(&[scene.answer(2, "a", cancelled(0))], &rows);
    scene.cancel("a");
    scene.unasked();
    let veto = veto("a", 3, 6_000);
    scene.decides(&[hold(&veto), withdraw("a", 3)], &[put(&veto), index("a", &[&veto])]);
}

#[test]
fn an_unreadable_record_is_a_dead_letter_and_the_ones_around_it_count() {
    let mut scene = Scene::new();
    scene.register("a", 1_020);
    scene.log.append(scene.now, Request::Unreadable(Box::new(unreadable(Some("b"), false))));
    scene.log.append(scene.now, Request::Unreadable(Box::new(unreadable(None, false))));
    scene.register("c", 1_020);
    let (a, c) = (topic("a", 0, 1_020), topic("c", 3, 1_020));
    let emits = [
        scene.accepted(&a, None),
        scene.answer(1, "b", rejected()),
        letter(&scene, "o.triggers", 1),
        letter(&scene, "o.triggers", 2),
        scene.accepted(&c, None),
    ];
    scene.decides(&emits, &[put(&a), put(&c), index("a", &[&a]), index("c", &[&c])]);
}

#[test]
fn an_unreadable_record_that_a_replay_might_read_leaves_a_skip_mark() {
    let mut scene = with_one_pending();
    scene.log.append(scene.now, Request::Unreadable(Box::new(unreadable(Some("b"), true))));
    let rejected = scene.answer(1, "b", rejected());
    scene.decides(&[skip(1, true), rejected, letter(&scene, "o.triggers", 1)], &[mark(1)]);
}

#[test]
fn an_unreadable_signal_is_a_dead_letter_of_its_own_topic() {
    let mut scene = Scene::new();
    let signal = Err(Box::new(unreadable(None, false)));
    scene.log.signals.push(SignalRecord { offset: 0, signal });
    scene.decides(&[letter(&scene, "o.signals", 0)], &[]);
}

#[test]
fn a_forwarded_record_leaves_a_skip_mark() {
    let mut scene = with_one_pending();
    let key = Bytes::from_static(b"a");
    let forward = Forward { partition: 3, key, value: None, headers: vec![] };
    scene.log.append(scene.now, Request::Forward(Box::new(forward.clone())));
    scene.decides(&[skip(1, true), Emit::Forward(Box::new(forward))], &[mark(1)]);
}

/// A scene in which L stands, so that a mark is not forgotten at once.
fn with_one_pending() -> Scene {
    let mut scene = Scene::new();
    scene.register("pending", 1_050);
    scene.run();
    scene
}

fn cancelled(generation: Offset) -> Verdict {
    Verdict::Cancelled { generation }
}

fn not_pending(fired: Option<Offset>, withdrawal: bool) -> Verdict {
    Verdict::NotPending { fired, withdrawal }
}

fn rejected() -> Verdict {
    Verdict::Rejected { reason: "not JSON".to_owned() }
}

fn mark(offset: Offset) -> RowOp {
    RowOp::Skip { offset, marked: true }
}

fn unreadable(id: Option<&str>, may_pass: bool) -> Unreadable {
    Unreadable {
        id: id.map(Into::into),
        reason: "not JSON".to_owned(),
        may_pass,
        key: Some(Bytes::from_static(b"k")),
        value: Some(Bytes::from_static(b"{")),
        headers: vec![],
    }
}

/// The dead letter of an [`unreadable`] record.
fn letter(scene: &Scene, topic: &str, offset: Offset) -> Emit {
    let Unreadable { reason, key, value, headers, .. } = unreadable(None, false);
    let origin = Origin { topic: topic.into(), partition: 0, offset };
    let content = Content::Record { key, value, headers };
    Emit::DeadLetter(Box::new(DeadLetter { origin, reason, at: scene.now, content }))
}
