//! One-time triggers that may expire: until when they fire, and what their fire carries.
//!
//! Invariant: a trigger fires up to its `expireAfter` late, and no later.

use super::fixture::{EngineFixture, encode, topic_trigger};
use super::harness::definition;
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
