//! Triggers that wait for others, as their users see them.
//!
//! Invariant: once everything is settled the ledger holds nothing of it.

use super::fixture::NOW;
use super::harness::definition;
use super::scenario::EngineScenario;
use crate::model::input::{OnConflict, Registration};
use crate::model::lifecycle::{Command, OnFailure, Watcher};
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{DependencySettled, Signal};

#[test]
fn a_trigger_waits_for_others() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.after("c", &["a", "b"], OnFailure::Fail);
        scenario.run_until(NOW);
        scenario.fixture.register("a", 1_500);
        scenario.fixture.register("b", 2_000);
        scenario.run_until(2_010);
        let events = scenario.take_events();
        let expected =
            ["c accepted", "a accepted", "b accepted", "1500 a#0 of 1500", "2000 b#0 of 2000"];
        assert_eq!(events[..5], expected);
        assert!(events.len() == 6 && events[5].ends_with("c#0 of 1000"), "{events:?}");
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn a_retained_trigger_may_complete_before_others_depend_on_it() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        let new = Registration::one_time("a", NOW, definition(false));
        scenario.register(Registration { retain: Some(1_000), ..new });
        scenario.run_until(1_500);
        let again = Registration::one_time("a", 9_000, definition(false));
        scenario.register(Registration { on_conflict: OnConflict::Keep, ..again });
        scenario.after("b", &["a"], OnFailure::Fail);
        scenario.run_until(1_510);
        let events = scenario.take_events();
        let expected = ["a accepted", "1000 a#0 of 1000", "a kept for 1000", "b accepted"];
        assert_eq!(events[..4], expected);
        assert!(events.len() == 5 && events[4].ends_with("b#0 of 1500"), "{events:?}");
        scenario.run_until(2_100).assert_events(&[]);
        assert_eq!(scenario.ledger_keys(), [], "it is forgotten");
        scenario.after("c", &["a"], OnFailure::Skip);
        scenario.run_until(9_000);
        let events = scenario.take_events();
        assert_eq!(events[0], "c accepted");
        assert!(events[1].starts_with("c unmet, Skip: a has not settled in time"), "{events:?}");
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn a_failure_is_reported_to_dependents() {
    for (on_failure, expected) in [
        (OnFailure::Fail, &["b unmet, Fail: a failed", "c unmet, Fail: b failed"][..]),
        (OnFailure::Skip, &["b unmet, Skip: a failed", "c"]),
        (OnFailure::Fire, &["b unmet, Fire: a failed", "b", "c"]),
    ] {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            let new = Registration::one_time("a", 1_200, definition(true));
            scenario.register(new);
            scenario.after("b", &["a"], on_failure);
            scenario.after("c", &["b"], OnFailure::Fail);
            scenario.run_until(1_200);
            let events = scenario.take_events();
            assert_eq!(events[..4], ["a accepted", "b accepted", "c accepted", "1200 a#0 of 1200"]);
            scenario.report_callback_end(false);
            scenario.run_until(1_300);
            let events = scenario.take_events();
            let short = |line: &String| match line.split_once(" of ") {
                Some((fire, _)) => fire[fire.len() - 3..fire.len() - 2].to_owned(),
                None => line.clone(),
            };
            assert_eq!(events.iter().map(short).collect::<Vec<_>>(), expected);
            assert_eq!(scenario.ledger_keys(), []);
        });
    }
}

#[test]
fn a_dependency_cycle_ends_at_its_timeout() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.after("a", &["b"], OnFailure::Fail);
        scenario.after("b", &["a"], OnFailure::Fail);
        scenario.run_until(5_999).assert_events(&["a accepted", "b accepted"]);
        scenario.run_until(6_100);
        let events = scenario.take_events();
        assert!(events[0].starts_with("a unmet, Fail: b has not settled in time"), "{events:?}");
        assert!(events[1].starts_with("b unmet, Fail: "), "{events:?}");
        assert_eq!(events.len(), 2);
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn a_cancelled_trigger_counts_as_failed_for_its_dependents() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.fixture.register("a", 3_000);
        scenario.after("b", &["a"], OnFailure::Fail);
        scenario.run_until(NOW);
        scenario.fixture.register("a", 4_000);
        scenario.run_until(1_500);
        scenario.fixture.cancel("a");
        scenario.run_until(1_600).assert_events(&[
            "a accepted",
            "b accepted",
            "a accepted, replaces",
            "a cancelled",
            "b unmet, Fail: a failed",
        ]);
        scenario.run_until(9_000).assert_events(&[]);
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn a_waiting_trigger_can_be_fired_paused_and_cancelled() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        for id in ["b", "c", "d"] {
            scenario.after(id, &["a"], OnFailure::Fail);
        }
        scenario.run_until(NOW);
        scenario.command("b", Command::FireNow);
        scenario.command("c", Command::Pause);
        scenario.fixture.cancel("d");
        scenario.run_until(1_010);
        let events = scenario.take_events();
        let accepted = ["b accepted", "c accepted", "d accepted"];
        assert_eq!(events[..3], accepted);
        assert_eq!(events[3..6], ["b called #0", "c paused by a command", "d cancelled"]);
        assert!(events.len() == 7 && events[6].ends_with("b#0 of 1000"), "{events:?}");
        scenario.fixture.register("a", 1_100);
        scenario.run_until(8_000).assert_events(&["a accepted", "1100 a#0 of 1100"]);
        scenario.command("c", Command::Resume);
        scenario.run_until(8_010);
        let events = scenario.take_events();
        assert_eq!(events[0], "c resumed for 1000");
        assert!(events.len() == 2 && events[1].ends_with("c#0 of 1000"), "{events:?}");
        assert_eq!(scenario.ledger_keys(), []);
    });
}

/// [`partition_config`](super::harness::partition_config) waits 10,000 ms for a report.
#[test]
fn a_retained_callback_without_a_report_fails_when_the_time_for_it_has_passed() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        let new = Registration::one_time("a", NOW, definition(true));
        scenario.register(Registration { retain: Some(1_000), ..new });
        scenario.run_until(8_000);
        scenario.after("c", &["a"], OnFailure::Fail);
        scenario.run_until(10_999);
        scenario.assert_events(&["a accepted", "1000 a#0 of 1000", "c accepted"]);
        scenario.run_until(11_001).assert_events(&["c unmet, Fail: a failed"]);
    });
}

#[test]
fn a_failure_ends_the_wait_for_all_others_unless_the_trigger_fires_all_the_same() {
    for (on_failure, ends_early) in
        [(OnFailure::Fail, true), (OnFailure::Skip, true), (OnFailure::Fire, false)]
    {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            scenario.fixture.register("a", 2_000);
            scenario.fixture.register("b", 3_000);
            scenario.after("c", &["a", "b"], on_failure);
            scenario.run_until(1_100);
            scenario.fixture.cancel("a");
            scenario.run_until(1_200);
            let unmet = format!("c unmet, {on_failure:?}: a failed");
            let events = scenario.take_events();
            assert_eq!(events.contains(&unmet), ends_early, "{events:?}");
            scenario.run_until(3_100);
            let events = scenario.take_events();
            assert_eq!(events[0], "3000 b#0 of 3000");
            assert_eq!(events.get(1), (!ends_early).then_some(&unmet), "{events:?}");
            assert_eq!(events.len(), if ends_early { 1 } else { 3 }, "{events:?}");
            assert_eq!(scenario.ledger_keys(), []);
        });
    }
}

#[test]
fn what_an_earlier_generation_waited_for_does_not_settle_for_the_next() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.fixture.register("a", 2_000);
        let old = scenario.after("b", &["a"], OnFailure::Fail);
        scenario.run_until(1_100);
        scenario.after("b", &["a"], OnFailure::Fail);
        scenario.run_until(1_200);
        let watcher = Watcher { trigger: "b".into(), generation: old };
        let settled = DependencySettled { watcher, dependency: "a".into(), ok: true };
        scenario.signal(Signal::DependencySettled(settled));
        scenario.run_until(1_900).assert_events(&[
            "a accepted",
            "b accepted",
            "b accepted, replaces",
        ]);
        scenario.run_until(2_100);
        let events = scenario.take_events();
        assert_eq!(events[0], "2000 a#0 of 2000");
        assert!(events.len() == 2 && events[1].ends_with("b#0 of 1100"), "{events:?}");
    });
}

#[test]
fn a_trigger_that_was_waited_for_in_vain_is_still_known_to_have_fired() {
    let mut scenario = EngineScenario::new();
    scenario.fixture.register("a", 1_010);
    scenario.run_until(1_020);
    scenario.after("b", &["a"], OnFailure::Skip);
    scenario.run_until(7_000);
    let events = scenario.take_events();
    assert!(events[3].starts_with("b unmet, Skip: a has not settled in time"), "{events:?}");
    let cancel = scenario.fixture.cancel("a");
    scenario.run_until(7_001);
    let fired = OutcomeKind::NotPending { fired: Some(0), withdrawal: false };
    assert_eq!(scenario.fixture.answer_to(cancel), Some(&fired));
}
