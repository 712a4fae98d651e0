//! Whose trigger it is, and which generation a registration means to replace.
//!
//! Law: a record in one caller's name changes nothing of another's, nor does a registration that
//! was written with another generation in mind; neither does after a takeover what it did not do
//! before.

use super::scene::*;
use super::world::{Disk, definition, registration};
use crate::engine::step::Emit;
use crate::model::course::Command;
use crate::model::definition::Definition;
use crate::model::input::{OnConflict, Registration, Request};
use crate::model::outcome::Verdict;
use crate::model::{Offset, Timestamp};

const NOTHING: Verdict = Verdict::NotPending { fired: None, withdrawal: false };

fn of(caller: &str, http: bool) -> Definition {
    Definition { caller: Some(caller.into()), ..definition(http) }
}

fn register(scene: &mut Scene, id: &str, due: Timestamp, definition: Definition) -> Offset {
    scene.log.append(scene.now, Request::Register(registration(id, due, definition)))
}

fn cancel(scene: &mut Scene, id: &str, caller: &str) -> Offset {
    let request = Request::Cancel { id: id.into(), caller: Some(caller.into()) };
    scene.log.append(scene.now, request)
}

fn replace(scene: &mut Scene, id: &str, due: Timestamp, generation: Offset) -> Offset {
    let on_conflict = OnConflict::Match(generation);
    let registration = Registration { on_conflict, ..registration(id, due, definition(false)) };
    scene.log.append(scene.now, Request::Register(registration))
}

/// Takes everything in and returns the answer to the last record.
#[track_caller]
fn last_answer(scene: &mut Scene) -> Verdict {
    let asked = scene.log.triggers.last().unwrap().offset;
    let mut answers = Vec::new();
    while let Some(step) = scene.step() {
        answers.extend(step.emits.into_iter().filter_map(|emit| match emit {
            Emit::Outcome(outcome) if outcome.answers == Some(asked) => Some(outcome.verdict),
            _ => None,
        }));
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

/// How often the trigger fires by then, a takeover with an empty disk in between.
fn fires_after_takeover(scene: &mut Scene, until: Timestamp) -> usize {
    scene.take_over(Disk::default(), scene.now);
    scene.now = until;
    let mut fires = 0;
    while let Some(step) = scene.step() {
        let is_fire = |emit: &&Emit| matches!(emit, Emit::ToTopic(_) | Emit::ToWorker(_));
        fires += step.emits.iter().filter(is_fire).count();
    }
    fires
}

#[test]
fn a_caller_cancels_and_commands_only_what_is_his() {
    for caller in [Some("billing"), None] {
        let mut scene = Scene::new();
        let definition = Definition { caller: caller.map(Into::into), ..definition(true) };
        let _generation = register(&mut scene, "a", 1_020, definition);
        scene.run();
        let _offset = cancel(&mut scene, "a", "thief");
        assert_eq!(last_answer(&mut scene), NOTHING);
        for command in [Command::Pause, Command::FireNow] {
            let (id, caller) = ("a".into(), Some("thief".into()));
            let request = Request::Command { id, command, caller };
            let _offset = scene.log.append(scene.now, request);
            assert_eq!(last_answer(&mut scene), NOTHING);
        }
        assert_eq!(fires_after_takeover(&mut scene, 2_000), 1, "{caller:?}");
    }
}

#[test]
fn a_caller_registers_no_id_that_is_anothers() {
    let mut scene = Scene::new();
    let first = register(&mut scene, "a", 1_020, of("billing", false));
    scene.run();
    let _offset = register(&mut scene, "a", 1_050, of("thief", false));
    assert_eq!(last_answer(&mut scene), Verdict::Taken { generation: first });
    let _offset = register(&mut scene, "a", 1_030, of("billing", false));
    let accepted = Verdict::Accepted { generation: 2, fire_at: 1_030, replaced: Some(first) };
    assert_eq!(last_answer(&mut scene), accepted);
    assert_eq!(fires_after_takeover(&mut scene, 2_000), 1);
}

#[test]
fn the_owner_and_who_names_nobody_may_do_everything() {
    for caller in [Some("billing"), None] {
        let mut scene = Scene::new();
        let generation = register(&mut scene, "a", 1_020, of("billing", false));
        scene.run();
        let request = Request::Cancel { id: "a".into(), caller: caller.map(Into::into) };
        let _offset = scene.log.append(scene.now, request);
        assert_eq!(last_answer(&mut scene), Verdict::Cancelled { generation });
        let id = Definition { caller: caller.map(Into::into), ..definition(false) };
        let _offset = register(&mut scene, "a", 1_020, id);
        assert!(matches!(last_answer(&mut scene), Verdict::Accepted { .. }));
    }
}

#[test]
fn a_callback_under_way_is_withdrawn_for_its_caller_only() {
    let mut scene = Scene::new();
    let generation = register(&mut scene, "a", 1_020, of("billing", true));
    scene.run();
    scene.now = 1_020;
    scene.run();
    let _offset = cancel(&mut scene, "a", "thief");
    assert_eq!(last_answer(&mut scene), NOTHING);
    let _offset = cancel(&mut scene, "b", "billing");
    assert_eq!(last_answer(&mut scene), NOTHING, "it may be another's, and leaves no veto");
    let _offset = cancel(&mut scene, "a", "billing");
    let late = Verdict::NotPending { fired: Some(generation), withdrawal: true };
    assert_eq!(last_answer(&mut scene), late);
}

#[test]
fn a_replacement_means_one_generation() {
    let mut scene = Scene::new();
    let first = scene.register("a", 1_020);
    scene.run();
    let _offset = replace(&mut scene, "a", 1_100, first + 7);
    let kept = Verdict::Kept { generation: first, fire_at: 1_020 };
    assert_eq!(last_answer(&mut scene), kept);
    let second = replace(&mut scene, "a", 1_030, first);
    let accepted = Verdict::Accepted { generation: second, fire_at: 1_030, replaced: Some(first) };
    assert_eq!(last_answer(&mut scene), accepted);
    let _offset = replace(&mut scene, "a", 1_040, first);
    assert_eq!(last_answer(&mut scene), Verdict::Kept { generation: second, fire_at: 1_030 });
    assert_eq!(fires_after_takeover(&mut scene, 2_000), 1);
}

#[test]
fn what_is_not_pending_is_not_replaced() {
    let mut scene = Scene::new();
    let _offset = replace(&mut scene, "a", 1_020, 0);
    assert_eq!(last_answer(&mut scene), NOTHING);
    let fired = scene.register("b", 1_010);
    scene.now = 1_010;
    scene.run();
    let _offset = replace(&mut scene, "b", 1_200, fired);
    assert_eq!(last_answer(&mut scene), NOTHING);
    assert_eq!(fires_after_takeover(&mut scene, 2_000), 0);
}

#[test]
fn what_is_retained_is_remembered_after_a_cancel() {
    let retained = |on_conflict| Registration {
        retain: Some(5_000),
        on_conflict,
        ..registration("a", 1_020, definition(false))
    };
    let mut scene = Scene::new();
    let keep = || Request::Register(retained(OnConflict::Keep));
    let generation = scene.log.append(scene.now, keep());
    scene.run();
    let _offset = scene.cancel("a");
    assert_eq!(last_answer(&mut scene), Verdict::Cancelled { generation });
    scene.take_over(Disk::default(), scene.now);
    let _offset = scene.log.append(scene.now, keep());
    assert_eq!(last_answer(&mut scene), Verdict::Kept { generation, fire_at: 1_020 });
    scene.now = 7_000;
    scene.run();
    let _offset = scene.log.append(scene.now, keep());
    assert!(matches!(last_answer(&mut scene), Verdict::Accepted { .. }), "it is forgotten");
}
