//! The caller of a trigger, and the generation that a registration replaces.
//!
//! Invariant: a record of one caller changes no trigger of another, nor does a registration that
//! was written for another generation; a takeover changes nothing about either.

use super::fixture::*;
use super::harness::{TestStore, definition};
use crate::engine::step::Emit;
use crate::model::definition::Definition;
use crate::model::input::{OnConflict, Registration, Request};
use crate::model::lifecycle::Command;
use crate::model::outcome::OutcomeKind;
use crate::model::{Offset, Timestamp};

const NOT_PENDING: OutcomeKind = OutcomeKind::NotPending { fired: None, withdrawal: false };

fn definition_of_caller(caller: &str, http: bool) -> Definition {
    Definition { caller: Some(caller.into()), ..definition(http) }
}

fn register(
    fixture: &mut EngineFixture,
    id: &str,
    due: Timestamp,
    definition: Definition,
) -> Offset {
    fixture.log.append(fixture.now, Request::Register(Registration::one_time(id, due, definition)))
}

fn cancel(fixture: &mut EngineFixture, id: &str, caller: &str) -> Offset {
    let request = Request::Cancel { id: id.into(), caller: Some(caller.into()) };
    fixture.log.append(fixture.now, request)
}

fn replace(fixture: &mut EngineFixture, id: &str, due: Timestamp, generation: Offset) -> Offset {
    let on_conflict = OnConflict::Match(generation);
    let registration =
        Registration { on_conflict, ..Registration::one_time(id, due, definition(false)) };
    fixture.log.append(fixture.now, Request::Register(registration))
}

/// Ingests everything and returns the response to the last record.
#[track_caller]
fn last_response(fixture: &mut EngineFixture) -> OutcomeKind {
    let requested_offset = fixture.log.triggers.last().unwrap().offset;
    let mut answers = Vec::new();
    while let Some(step) = fixture.step() {
        answers.extend(step.emits.into_iter().filter_map(|emit| match emit {
            Emit::Outcome(outcome) if outcome.answers == Some(requested_offset) => {
                Some(outcome.kind)
            }
            _ => None,
        }));
    }
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

/// How often the trigger fires by then, a takeover with an empty disk in between.
fn fires_after_takeover(fixture: &mut EngineFixture, until: Timestamp) -> usize {
    fixture.take_over(TestStore::default(), fixture.now);
    fixture.now = until;
    let mut fires = 0;
    while let Some(step) = fixture.step() {
        let is_fire = |emit: &&Emit| matches!(emit, Emit::ToTopic(_) | Emit::ToWorker(_));
        fires += step.emits.iter().filter(is_fire).count();
    }
    fires
}

#[test]
fn a_caller_cancels_and_commands_only_its_own_triggers() {
    for caller in [Some("billing"), None] {
        let mut fixture = EngineFixture::new();
        let definition = Definition { caller: caller.map(Into::into), ..definition(true) };
        let _generation = register(&mut fixture, "a", 1_020, definition);
        fixture.run_until_idle();
        let _offset = cancel(&mut fixture, "a", "thief");
        assert_eq!(last_response(&mut fixture), NOT_PENDING);
        for command in [Command::Pause, Command::FireNow] {
            let (id, caller) = ("a".into(), Some("thief".into()));
            let request = Request::Command { id, command, caller };
            let _offset = fixture.log.append(fixture.now, request);
            assert_eq!(last_response(&mut fixture), NOT_PENDING);
        }
        assert_eq!(fires_after_takeover(&mut fixture, 2_000), 1, "{caller:?}");
    }
}

#[test]
fn a_caller_cannot_register_an_id_of_another_caller() {
    let mut fixture = EngineFixture::new();
    let first = register(&mut fixture, "a", 1_020, definition_of_caller("billing", false));
    fixture.run_until_idle();
    let _offset = register(&mut fixture, "a", 1_050, definition_of_caller("thief", false));
    assert_eq!(last_response(&mut fixture), OutcomeKind::Taken { generation: first });
    let _offset = register(&mut fixture, "a", 1_030, definition_of_caller("billing", false));
    let accepted = OutcomeKind::Accepted { generation: 2, fire_at: 1_030, replaced: Some(first) };
    assert_eq!(last_response(&mut fixture), accepted);
    assert_eq!(fires_after_takeover(&mut fixture, 2_000), 1);
}

#[test]
fn the_same_caller_and_records_without_a_caller_may_change_a_trigger() {
    for caller in [Some("billing"), None] {
        let mut fixture = EngineFixture::new();
        let generation = register(&mut fixture, "a", 1_020, definition_of_caller("billing", false));
        fixture.run_until_idle();
        let request = Request::Cancel { id: "a".into(), caller: caller.map(Into::into) };
        let _offset = fixture.log.append(fixture.now, request);
        assert_eq!(last_response(&mut fixture), OutcomeKind::Cancelled { generation });
        let id = Definition { caller: caller.map(Into::into), ..definition(false) };
        let _offset = register(&mut fixture, "a", 1_020, id);
        assert!(matches!(last_response(&mut fixture), OutcomeKind::Accepted { .. }));
    }
}

#[test]
fn a_callback_in_flight_is_withdrawn_only_for_its_caller() {
    let mut fixture = EngineFixture::new();
    let generation = register(&mut fixture, "a", 1_020, definition_of_caller("billing", true));
    fixture.run_until_idle();
    fixture.now = 1_020;
    fixture.run_until_idle();
    let _offset = cancel(&mut fixture, "a", "thief");
    assert_eq!(last_response(&mut fixture), NOT_PENDING);
    let _offset = cancel(&mut fixture, "b", "billing");
    assert_eq!(last_response(&mut fixture), NOT_PENDING, "it may be another's, and leaves no veto");
    let _offset = cancel(&mut fixture, "a", "billing");
    let late = OutcomeKind::NotPending { fired: Some(generation), withdrawal: true };
    assert_eq!(last_response(&mut fixture), late);
}

#[test]
fn a_replacement_names_the_generation_it_replaces() {
    let mut fixture = EngineFixture::new();
    let first = fixture.register("a", 1_020);
    fixture.run_until_idle();
    let _offset = replace(&mut fixture, "a", 1_100, first + 7);
    let kept = OutcomeKind::Kept { generation: first, fire_at: 1_020 };
    assert_eq!(last_response(&mut fixture), kept);
    let second = replace(&mut fixture, "a", 1_030, first);
    let accepted =
        OutcomeKind::Accepted { generation: second, fire_at: 1_030, replaced: Some(first) };
    assert_eq!(last_response(&mut fixture), accepted);
    let _offset = replace(&mut fixture, "a", 1_040, first);
    assert_eq!(
        last_response(&mut fixture),
        OutcomeKind::Kept { generation: second, fire_at: 1_030 }
    );
    assert_eq!(fires_after_takeover(&mut fixture, 2_000), 1);
}

#[test]
fn a_trigger_that_is_not_pending_is_not_replaced() {
    let mut fixture = EngineFixture::new();
    let _offset = replace(&mut fixture, "a", 1_020, 0);
    assert_eq!(last_response(&mut fixture), NOT_PENDING);
    let fired = fixture.register("b", 1_010);
    fixture.now = 1_010;
    fixture.run_until_idle();
    let _offset = replace(&mut fixture, "b", 1_200, fired);
    assert_eq!(last_response(&mut fixture), NOT_PENDING);
    assert_eq!(fires_after_takeover(&mut fixture, 2_000), 0);
}

#[test]
fn a_retained_trigger_is_remembered_after_a_cancel() {
    let retained = |on_conflict| Registration {
        retain: Some(5_000),
        on_conflict,
        ..Registration::one_time("a", 1_020, definition(false))
    };
    let mut fixture = EngineFixture::new();
    let keep = || Request::Register(retained(OnConflict::Keep));
    let generation = fixture.log.append(fixture.now, keep());
    fixture.run_until_idle();
    let _offset = fixture.cancel("a");
    assert_eq!(last_response(&mut fixture), OutcomeKind::Cancelled { generation });
    fixture.take_over(TestStore::default(), fixture.now);
    let _offset = fixture.log.append(fixture.now, keep());
    assert_eq!(last_response(&mut fixture), OutcomeKind::Kept { generation, fire_at: 1_020 });
    fixture.now = 7_000;
    fixture.run_until_idle();
    let _offset = fixture.log.append(fixture.now, keep());
    assert!(matches!(last_response(&mut fixture), OutcomeKind::Accepted { .. }), "it is forgotten");
}

#[test]
fn a_retained_trigger_that_was_cancelled_has_not_fired() {
    let retained = || {
        let new = Registration::one_time("a", 1_020, definition(false));
        Request::Register(Registration { retain: Some(5_000), ..new })
    };
    let fired_by_response = |fixture: &mut EngineFixture| match last_response(fixture) {
        OutcomeKind::NotPending { fired, .. } => fired,
        other => panic!("{other:?}"),
    };
    let mut fixture = EngineFixture::new();
    let generation = fixture.log.append(fixture.now, retained());
    fixture.run_until_idle();
    let _offset = fixture.cancel("a");
    assert_eq!(last_response(&mut fixture), OutcomeKind::Cancelled { generation });
    let _offset = fixture.cancel("a");
    assert_eq!(fired_by_response(&mut fixture), None);

    let generation = fixture.log.append(fixture.now, retained());
    fixture.run_until_idle();
    fixture.now = 1_030;
    fixture.run_until_idle();
    let _offset = fixture.cancel("a");
    assert_eq!(fired_by_response(&mut fixture), Some(generation));
}
