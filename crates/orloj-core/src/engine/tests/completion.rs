//! What is kept of a trigger that has ended, and for how long.
//!
//! Invariant: the index says of a trigger that it has fired if and only if it has.

use super::fixture::NOW;
use super::harness::definition;
use super::scenario::{EngineScenario, recurring};
use crate::engine::index_row::IndexEntryKind;
use crate::model::Offset;
use crate::model::input::{OnConflict, Registration};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::{Command, Dependencies, OnFailure};
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{CallbackEnded, Signal};

#[test]
fn a_callback_whose_end_is_reported_has_fired_and_is_not_in_the_ledger_any_more() {
    let mut scenario = EngineScenario::new();
    scenario.fixture.callback("a", 1_200);
    scenario.after("b", &["a"], OnFailure::Fail);
    scenario.run_until(1_300);
    assert!(scenario.fixture.index_entries("a")[0].has_lifecycle);
    scenario.report_callback_end(true);
    scenario.run_until(1_400);
    let fired_through = scenario.fixture.owner.partition.cursor().fired_through;
    let [entry] = &scenario.fixture.index_entries("a")[..] else { panic!("one entry") };
    assert_eq!((entry.kind, entry.generation), (IndexEntryKind::Main, 0));
    assert!(entry.key <= fired_through && !entry.in_ledger && !entry.has_lifecycle, "{entry:?}");
    assert_eq!(cancel(&mut scenario, "a"), not_pending(Some(0), true));
}

#[test]
fn the_callback_of_the_last_occurrence_is_not_waited_for_if_no_trigger_waits_for_its_result() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        let json = r#"{"every":"PT1S","overlap":"skip","maxExecutions":1}"#;
        scenario.recurring("a", true, json);
        scenario.run_until(NOW + 1).assert_events(&[
            "a accepted",
            "1000 a#0 of 1000",
            "a ended after 1",
        ]);
        assert_eq!(scenario.ledger_keys(), []);
        let new = recurring("b", true, scenario.now(), json);
        scenario.register(Registration { retain: Some(1_000), ..new });
        scenario.run_until(NOW + 3);
        assert_eq!(scenario.ledger_keys(), [LedgerKey::Main("b".into())]);
    });
}

#[test]
fn a_trigger_that_ends_without_a_fire_has_not_fired_and_its_earlier_generation_has() {
    let expires = Registration::one_time("a", 1_030, definition(false));
    let expires = Registration { expire_after: Some(10), ..expires };
    let mut scenario = EngineScenario::new();
    scenario.fixture.register("a", 1_010);
    scenario.run_until(1_020);
    scenario.register(expires.clone());
    scenario.run_until(1_021);
    scenario.fixture.now = 1_100;
    scenario.run_until(1_100).assert_events(&[
        "a accepted",
        "1010 a#0 of 1010",
        "a accepted",
        "a expired of 1030",
    ]);
    assert_eq!(cancel(&mut scenario, "a"), not_pending(Some(0), false));

    let mut scenario = EngineScenario::new();
    scenario.register(expires);
    scenario.run_until(1_010);
    scenario.fixture.now = 1_100;
    scenario.run_until(1_100).assert_events(&["a accepted", "a expired of 1030"]);
    assert_eq!(cancel(&mut scenario, "a"), not_pending(None, true));
}

#[test]
fn what_is_retained_of_a_trigger_that_ended_without_a_fire_has_not_fired() {
    let retained = |http| {
        let one_time = Registration::one_time("a", 1_030, definition(http));
        Registration { retain: Some(900_000), ..one_time }
    };
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.register(retained(true));
        scenario.run_until(1_010);
        assert_eq!(cancel(&mut scenario, "a"), OutcomeKind::Cancelled { generation: 0 });
        assert_eq!(cancel(&mut scenario, "a"), not_pending(None, true));
    });
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.register(Registration { expire_after: Some(10), ..retained(true) });
        scenario.run_until(1_010);
        scenario.fixture.now = 1_100;
        scenario.run_until(1_100).assert_events(&["a accepted", "a expired of 1030"]);
        assert_eq!(cancel(&mut scenario, "a"), not_pending(None, true));
    });
    EngineScenario::with_and_without_restarts(|mut scenario| {
        let ids = vec!["b".into()];
        let after = Dependencies { ids, on_failure: OnFailure::Skip, timeout: 50 };
        scenario.register(Registration { after: Some(Box::new(after)), ..retained(false) });
        scenario.run_until(1_100);
        let events = scenario.take_events();
        assert!(events[1].starts_with("a unmet, Skip"), "{events:?}");
        assert_eq!(cancel(&mut scenario, "a"), not_pending(None, false));
    });
}

#[test]
fn a_change_of_a_pending_trigger_leaves_what_is_known_of_the_fired_one() {
    let mut scenario = EngineScenario::new();
    scenario.fixture.register("a", 1_010);
    scenario.run_until(1_020);
    scenario.fixture.register("a", 9_000);
    scenario.command("a", Command::Pause);
    scenario.run_until(1_030);
    assert_eq!(cancel(&mut scenario, "a"), OutcomeKind::Cancelled { generation: 1 });
    assert_eq!(cancel(&mut scenario, "a"), not_pending(Some(0), false));
}

#[test]
fn a_report_about_an_earlier_generation_does_not_count_for_the_next() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        let json = r#"{"every":"PT1S","pauseAfter":1}"#;
        scenario.recurring("a", true, json);
        scenario.run_until(1_500);
        scenario.recurring("a", true, json);
        scenario.run_until(1_600).assert_events(&[
            "a accepted",
            "1000 a#0 of 1000",
            "a accepted, replaces",
            "1500 a#0 of 1500",
        ]);
        let [old, new] = [0, 1].map(|fire: usize| scenario.fires[fire].id.clone());
        scenario.signal(Signal::CallbackEnded(CallbackEnded { id: old, ok: false }));
        scenario.run_until(1_700).assert_events(&[]);
        scenario.signal(Signal::CallbackEnded(CallbackEnded { id: new, ok: false }));
        scenario.run_until(1_800).assert_events(&["a paused 1 failures in a row: see pauseAfter"]);
    });
}

#[test]
fn a_failed_callback_that_fails_again_when_it_is_replayed_stays_failed() {
    for (again, expected) in [(false, "b unmet, Fail: a failed"), (true, "b#0 of 1300")] {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            let new = Registration::one_time("a", NOW, definition(true));
            scenario.register(Registration { retain: Some(5_000), ..new });
            for ok in [false, again] {
                scenario.run_until(1_100);
                scenario.report_callback_end(ok);
            }
            scenario.run_until(1_300);
            let _events = scenario.take_events();
            scenario.after("b", &["a"], OnFailure::Fail);
            scenario.run_until(1_400);
            let events = scenario.take_events();
            assert!(events.len() == 2 && events[1].ends_with(expected), "{events:?}");
        });
    }
}

#[test]
fn a_registration_with_keep_finds_what_is_pending_or_retained_and_not_what_has_fired_early() {
    let one_time = || Registration::one_time("a", 9_000, definition(false));
    let keep = || Registration { on_conflict: OnConflict::Keep, ..one_time() };
    let kept = OutcomeKind::Kept { generation: 0, fire_at: 9_000 };
    for (retain, fires_early, is_kept) in [
        (None, false, true),
        (Some(100), false, true),
        (None, true, false),
        (Some(100), true, true),
    ] {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            let (expire_after, new) = (Some(500), one_time());
            scenario.register(Registration { retain, expire_after, ..new });
            if fires_early {
                scenario.command("a", Command::FireNow);
            }
            scenario.run_until(NOW + 10);
            let offset = scenario.register(keep());
            scenario.run_until(NOW + 20);
            let answer = scenario.fixture.answer_to(offset);
            assert_eq!(answer == Some(&kept), is_kept, "{retain:?}, {fires_early}: {answer:?}");
        });
    }
}

/// The answer to a cancel.
fn cancel(scenario: &mut EngineScenario, id: &str) -> OutcomeKind {
    let offset = scenario.fixture.cancel(id);
    let now = scenario.now();
    scenario.run_until(now);
    scenario.fixture.answer_to(offset).expect("a cancel is answered").clone()
}

fn not_pending(fired: Option<Offset>, withdrawal: bool) -> OutcomeKind {
    OutcomeKind::NotPending { fired, withdrawal }
}
