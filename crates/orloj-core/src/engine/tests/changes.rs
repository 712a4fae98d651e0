//! Changes as their users see them: what a change names is another one from then on, and all else
//! of the trigger is as it was.
//!
//! Invariant: every assertion also holds for an owner that loses its disk at any moment, so none of
//! these triggers fires at a time that it does not have any more.

use super::fixture::NOW;
use super::harness::definition;
use super::scenario::{EngineScenario, recurring};
use crate::engine::step::Emit;
use crate::model::definition::{Definition, Target, TopicTarget};
use crate::model::input::{Change, ChangedParts, CountPolicy, OnConflict, Registration, Request};
use crate::model::lifecycle::{Command, Dependencies, OnFailure};
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{RetryRequest, Signal};
use crate::model::{Offset, Timestamp};

const NONE: ChangedParts = ChangedParts { time: false, after: false, payload: false, key: false };
const TIME: ChangedParts = ChangedParts { time: true, ..NONE };

/// Changes the trigger that is pending under the id of `new`.
fn change(scenario: &mut EngineScenario, new: Registration, parts: ChangedParts) -> Offset {
    let request = Request::Change(Box::new(Change { new, parts }));
    scenario.fixture.log.append(scenario.now(), request)
}

fn one_time(id: &str, due: Timestamp) -> Registration {
    Registration::one_time(id, due, definition(false))
}

#[test]
fn a_paused_trigger_stays_paused_through_a_change() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.register(one_time("a", 2_000));
        scenario.command("a", Command::Pause);
        scenario.run_until(3_000).assert_events(&["a accepted", "a paused by a command"]);
        change(&mut scenario, one_time("a", 2_000), NONE);
        scenario.run_until(9_000).assert_events(&["a changed for 2000"]);
        scenario.command("a", Command::Resume);
        scenario.run_until(9_100).assert_events(&["a resumed for 2000", "9000 a#0 of 2000"]);
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn what_has_settled_is_not_waited_for_again() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.register(one_time("x", 1_100));
        scenario.register(one_time("y", 3_000));
        scenario.after("a", &["x", "y"], OnFailure::Fail);
        scenario.run_until(2_000);
        let _before = scenario.take_events();
        change(&mut scenario, one_time("a", 2_000), NONE);
        scenario.run_until(2_500).assert_events(&["a changed for 1000"]);
        scenario.run_until(5_000).assert_events(&["3000 y#0 of 3000", "3001 a#0 of 1000"]);
    });
}

#[test]
fn the_end_of_a_changed_trigger_is_reported_to_those_that_wait() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.register(one_time("x", 2_000));
        scenario.after("a", &["x"], OnFailure::Fail);
        scenario.run_until(1_500);
        let _before = scenario.take_events();
        change(&mut scenario, one_time("x", 3_000), TIME);
        scenario.run_until(5_000).assert_events(&[
            "x changed for 3000",
            "3000 x#0 of 3000",
            "3001 a#0 of 1000",
        ]);
    });
}

#[test]
fn a_time_is_changed_to_an_earlier_and_to_a_later_one() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        // Pending all the time, so that a replay reads the registrations.
        scenario.register(one_time("x", NOW + 49));
        for (id, due) in [("a", NOW + 20), ("b", NOW + 45)] {
            scenario.register(one_time(id, NOW + 40));
            scenario.run_until(NOW + 10);
            change(&mut scenario, one_time(id, due), TIME);
        }
        scenario.run_until(NOW + 48).assert_events(&[
            "x accepted",
            "a accepted",
            "a changed for 1020",
            "b accepted",
            "b changed for 1045",
            "1020 a#0 of 1020",
            "1045 b#0 of 1045",
        ]);
        scenario.run_until(20_000).assert_events(&["1049 x#0 of 1049"]);
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn a_schedule_is_changed_and_its_count_goes_on_or_begins_again() {
    for (count, last, ended) in [(CountPolicy::Keep, 2, 3), (CountPolicy::Reset, 4, 5)] {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            scenario.recurring("a", false, r#"{"every":"PT1S","maxExecutions":3}"#);
            scenario.run_until(2_500);
            let _before = scenario.take_events();
            let every_two = r#"{"every":"PT2S","maxExecutions":3,"start":2000}"#;
            let new = recurring("a", false, scenario.now(), every_two);
            change(&mut scenario, Registration { count, ..new }, TIME);
            scenario.run_until(20_000);
            let events = scenario.take_events();
            assert_eq!(events[..2], ["a changed for 4000", "4000 a#2 of 4000"]);
            let fired = events[events.len() - 2].split(' ').nth(1);
            assert_eq!(fired, Some(format!("a#{last}").as_str()), "{events:?}");
            assert_eq!(events[events.len() - 1], format!("a ended after {ended}"));
        });
    }
}

#[test]
fn a_count_that_is_used_up_ends_the_trigger_and_is_reported_to_those_that_wait_for_it() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("x", false, r#"{"every":"PT1S"}"#);
        scenario.run_until(2_500);
        scenario.after("a", &["x"], OnFailure::Fail);
        scenario.run_until(2_600);
        let _before = scenario.take_events();
        let once = recurring("x", false, scenario.now(), r#"{"every":"PT1S","maxExecutions":1}"#);
        change(&mut scenario, Registration { count: CountPolicy::Keep, ..once }, TIME);
        scenario.run_until(9_000);
        let events = scenario.take_events();
        assert!(events[0].starts_with("x changed for"), "{events:?}");
        assert_eq!(events[1..], ["x ended after 2", "2600 a#0 of 2500"]);
    });
}

#[test]
fn the_callback_in_progress_is_still_the_triggers() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        let skip = r#"{"every":"PT1S","overlap":"skip"}"#;
        scenario.recurring("a", true, skip);
        scenario.run_until(1_500).assert_events(&["a accepted", "1000 a#0 of 1000"]);
        let new = recurring(
            "a",
            true,
            scenario.now(),
            r#"{"every":"PT1S","overlap":"skip","start":1000}"#,
        );
        change(&mut scenario, Registration { count: CountPolicy::Keep, ..new }, TIME);
        scenario
            .run_until(2_500)
            .assert_events(&["a changed for 2000", "a skipped 1 of 2000 to 2000"]);
        scenario.report_callback_end(true);
        scenario.run_until(3_000).assert_events(&["3000 a#1 of 3000"]);
    });
}

#[test]
fn a_change_for_another_revision_changes_nothing() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        let generation = scenario.register(one_time("a", 2_000));
        let wanted = |revision| Registration {
            on_conflict: OnConflict::Match(revision),
            ..one_time("a", 3_000)
        };
        let revision = change(&mut scenario, wanted(generation), TIME);
        change(&mut scenario, wanted(generation), TIME);
        change(&mut scenario, wanted(revision), NONE);
        scenario.run_until(9_000).assert_events(&[
            "a accepted",
            "a changed for 3000",
            "a kept for 3000",
            "a changed for 3000",
            "3000 a#0 of 3000",
        ]);
        change(&mut scenario, one_time("a", 10_000), TIME);
        scenario.run_until(20_000).assert_events(&["a not pending, false"]);
    });
}

#[test]
fn a_replacement_names_the_change_that_it_was_written_for() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        let generation = scenario.register(one_time("a", 2_000));
        let revision = change(&mut scenario, one_time("a", 3_000), TIME);
        for wanted in [generation, revision] {
            let on_conflict = OnConflict::Match(wanted);
            scenario.register(Registration { on_conflict, ..one_time("a", 4_000) });
        }
        scenario.run_until(9_000).assert_events(&[
            "a accepted",
            "a changed for 3000",
            "a kept for 3000",
            "a accepted, replaces",
            "4000 a#0 of 4000",
        ]);
    });
}

#[test]
fn payload_and_key_stay_unless_they_are_named() {
    let to = |key: Option<&'static [u8]>, payload: &'static [u8]| Definition {
        target: Target::Topic(TopicTarget { topic: "out".into(), key: key.map(Into::into) }),
        payload: Some(payload.into()),
        ..definition(false)
    };
    let binary: &[u8] = &[0xff, 0x00];
    for (parts, expected) in [
        (NONE, to(Some(binary), b"p")),
        (ChangedParts { payload: true, ..NONE }, to(Some(binary), b"q")),
        (ChangedParts { key: true, ..NONE }, to(Some(b"k"), b"p")),
    ] {
        let mut scenario = EngineScenario::new();
        scenario.register(Registration::one_time("a", 2_000, to(Some(binary), b"p")));
        change(&mut scenario, Registration::one_time("a", 2_000, to(Some(b"k"), b"q")), parts);
        scenario.run_until(1_500);
        scenario.fixture.now = 2_000;
        let step = scenario.fixture.step().expect("it is due");
        let fired = step.emits.iter().find_map(|emit| match emit {
            Emit::ToTopic(fire) => crate::codec::row::view(&fire.row).unwrap(),
            _ => None,
        });
        let fired = fired.unwrap();
        let Target::Topic(target) = &expected.target else { unreachable!() };
        assert_eq!(fired.payload, expected.payload.as_deref(), "{parts:?}");
        assert_eq!(Some(fired.record_key()), target.key.as_deref(), "{parts:?}");
    }
}

#[test]
fn an_outcome_says_what_has_changed_whether_it_was_asked_for_or_not() {
    let mut scenario = EngineScenario::new();
    let generation = scenario.register(one_time("a", 5_000));
    let revision = change(&mut scenario, one_time("a", 6_000), TIME);
    scenario.fixture.clear_ack_of_last_record();
    let mut kinds = Vec::new();
    while let Some(step) = scenario.fixture.step() {
        kinds.extend(step.emits.iter().filter_map(|emit| match emit {
            Emit::Outcome(outcome) => Some(outcome.kind.clone()),
            _ => None,
        }));
    }
    let changed =
        OutcomeKind::Changed { generation, revision, fire_at: 6_000, executions: Some(0) };
    assert!(kinds.contains(&changed), "{kinds:?}");
}

#[test]
fn a_cancel_stops_an_earlier_callback_of_a_trigger_that_fires_into_a_topic_now() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", true, r#"{"every":"PT1S"}"#);
        scenario.run_until(1_500).assert_events(&["a accepted", "1000 a#0 of 1000"]);
        let to_topic = recurring("a", false, scenario.now(), r#"{"every":"PT1S"}"#);
        change(&mut scenario, to_topic, NONE);
        scenario.run_steps();
        scenario.fixture.cancel("a");
        scenario.run_until(1_600);
        // The first one may be under way, or be reported as failed.
        scenario.assert_events(&["a changed for 2000", "a cancelled"]);
        let fire = scenario.fires.last().expect("it was a callback").clone();
        scenario.signal(Signal::Retry(RetryRequest::replay(fire, 0, 1_700)));
        scenario.run_until(3_000);
        let fired = scenario.take_events().into_iter().find(|event| event.contains("a#0"));
        assert_eq!(fired, None, "the cancel was before it was reported");
    });
}

#[test]
fn a_changed_priority_does_not_let_a_trigger_fire_again() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        // It is pending for longer, so that a replay reads both registrations.
        scenario.register(one_time("b", NOW + 40));
        scenario.register(one_time("a", NOW + 40));
        let first = Registration { priority: 255, ..one_time("a", NOW + 40) };
        change(&mut scenario, first, NONE);
        // W stops between the key that it has now and the one that its registration has.
        scenario.fixture.budget = 1;
        scenario.run_until(9_000).assert_events(&[
            "b accepted",
            "a accepted",
            "a changed for 1040",
            "1040 a#0 of 1040",
            "1040 b#0 of 1040",
        ]);
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn a_changed_trigger_that_ends_before_its_time_does_not_fire_then() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.register(one_time("b", NOW + 45));
        scenario.register(one_time("a", NOW + 40));
        let ids = vec!["x".into()];
        let after = Dependencies { ids, on_failure: OnFailure::Fail, timeout: 10 };
        let waits = Registration { after: Some(Box::new(after)), ..one_time("a", NOW + 40) };
        change(&mut scenario, waits, ChangedParts { after: true, ..NONE });
        scenario.run_until(9_000);
        let events = scenario.take_events();
        assert!(events.iter().any(|event| event.starts_with("a unmet")), "{events:?}");
        assert!(!events.iter().any(|event| event.contains("a#0")), "{events:?}");
    });
}

#[test]
fn an_occurrence_that_was_decided_is_not_repeated_by_a_changed_schedule() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, r#"{"every":"PT1S","start":1000,"maxExecutions":9}"#);
        scenario.run_until(2_000);
        let fired = scenario.take_events();
        assert_eq!(fired[1..], ["1000 a#0 of 1000", "2000 a#1 of 2000"]);
        // Its record is older than the owner's last decision.
        let eight = r#"{"every":"PT1S","start":1000,"maxExecutions":8}"#;
        let new = Registration { count: CountPolicy::Keep, ..recurring("a", false, 1_990, eight) };
        let request = Request::Change(Box::new(Change { new, parts: TIME }));
        scenario.fixture.log.append(1_990, request);
        scenario.run_until(3_000);
        let events = scenario.take_events();
        assert_eq!(events[0], "a changed for 3000", "{events:?}");
    });
}
