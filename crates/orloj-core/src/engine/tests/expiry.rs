//! One-time triggers that may expire: until when they fire, and what their fire carries.
//!
//! Invariant: a trigger fires up to its `expireAfter` late, and no later.

use super::fixture::{EngineFixture, encode, topic_trigger};
use super::harness::definition;
use super::scenario::recurring;
use crate::engine::step::Emit;
use crate::model::input::{Registration, Request};
use crate::model::outcome::OutcomeKind;

/// A fixture in which `a` is pending, due at 1,020, and may be late by 500 ms.
fn with_one_that_expires() -> EngineFixture {
    let mut fixture = EngineFixture::new();
    let new = Registration::one_time("a", 1_020, definition(false));
    let new = Registration { expire_after: Some(500), ..new };
    fixture.log.append(fixture.now, Request::Register(new));
    fixture.run_until_idle();
    fixture
}

#[test]
fn a_trigger_that_is_late_by_its_expire_after_fires_and_a_later_one_expires() {
    for (now, fires) in [(1_519, true), (1_520, true), (1_521, false)] {
        let mut fixture = with_one_that_expires();
        fixture.now = now;
        let emits = fixture.step().unwrap().emits;
        let is_fire = |emit: &Emit| matches!(emit, Emit::ToTopic(_));
        assert_eq!(emits.iter().any(is_fire), fires, "{now}: {emits:?}");
        let kind = OutcomeKind::Expired { generation: 0, fire_at: 1_020 };
        let expired = fixture.unrequested_outcome("a", kind);
        assert_eq!(emits.contains(&expired), !fires, "{now}: {emits:?}");
    }
}

#[test]
fn the_row_of_a_fire_carries_no_lifecycle() {
    let mut fixture = with_one_that_expires();
    fixture.now = 1_020;
    let emits = fixture.step().unwrap().emits;
    let [Emit::ToTopic(fire)] = &emits[..] else { panic!("one fire: {emits:?}") };
    assert_eq!(fire.row, encode(&topic_trigger("a", 0, 1_020).row));
}

/// The schedules of the harness may be late by 60 ms.
#[test]
fn a_step_says_until_when_all_that_fires_in_it_is_in_time() {
    let plain = Registration::one_time("a", 1_020, definition(false));
    let expiring = Registration { expire_after: Some(500), ..plain.clone() };
    let schedule = recurring("a", false, 1_000, r#"{"every":"PT1S","misfire":"latest"}"#);
    for (new, now, fires, late_max) in [
        (plain, 1_020, true, None),
        (expiring.clone(), 1_020, true, Some(500)),
        (expiring, 1_600, false, None),
        (schedule.clone(), 2_000, true, Some(60)),
        (schedule, 5_500, true, None), // it is late already, and fires however late it is
    ] {
        let mut fixture = EngineFixture::new();
        fixture.log.append(fixture.now, Request::Register(new.clone()));
        fixture.run_until_idle();
        fixture.now = now;
        let step = fixture.step().unwrap();
        let scheduled = step.emits.iter().find_map(|emit| match emit {
            Emit::ToTopic(fire) => Some(fire.scheduled),
            _ => None,
        });
        assert_eq!(scheduled.is_some(), fires, "{new:?} at {now}: {:?}", step.emits);
        let until = scheduled.zip(late_max).map(|(scheduled, late)| scheduled + late);
        assert_eq!(step.in_time_until, until, "{new:?} at {now}");
    }
}
