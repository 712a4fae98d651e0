//! Recurring triggers: which occurrences are missed, and to whom the end of one is reported.
//!
//! Invariant: an occurrence is missed once it is later than the grace, and not before.

use super::fixture::NOW;
use super::harness::TestStore;
use super::scenario::EngineScenario;
use crate::engine::catalog::TopicState;
use crate::model::entry::FireId;
use crate::model::lifecycle::OnFailure;
use crate::model::signal::{CallbackEnded, Signal};

/// [`partition_config`](super::harness::partition_config) has a grace of 60 ms.
#[test]
fn an_occurrence_that_is_late_by_the_grace_is_not_skipped_with_those_before_it() {
    for (now, expected) in [
        (4_059, ["a skipped 2 of 2000 to 3000", "4059 a#1 of 4000"]),
        (4_060, ["a skipped 2 of 2000 to 3000", "4060 a#1 of 4000"]),
        (4_061, ["a skipped 3 of 2000 to 4000", "5000 a#1 of 5000"]),
    ] {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            scenario.recurring("a", false, r#"{"every":"PT1S","misfire":"skip"}"#);
            scenario.run_until(NOW).assert_events(&["a accepted", "1000 a#0 of 1000"]);
            scenario.fixture.take_over(TestStore::default(), now);
            let until = if now > 4_060 { 5_000 } else { 4_100 };
            scenario.run_until(until).assert_events(&expected);
        });
    }
}

#[test]
fn a_trigger_waits_for_the_next_fire_of_a_recurring_one() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, r#"{"every":"PT1S"}"#);
        scenario.run_until(1_500);
        scenario.after("b", &["a"], OnFailure::Fail);
        scenario.run_until(2_100);
        let events = scenario.take_events();
        let expected = ["a accepted", "1000 a#0 of 1000", "b accepted", "2000 a#1 of 2000"];
        assert_eq!(events[..4], expected);
        assert!(events.len() == 5 && events[4].ends_with("b#0 of 1500"), "{events:?}");
    });
}

#[test]
fn a_fire_that_was_not_possible_is_reported_to_a_trigger_that_waits_for_it() {
    let mut scenario = EngineScenario::new();
    scenario.recurring("a", false, r#"{"every":"PT1S"}"#);
    scenario.run_until(1_500);
    scenario.after("b", &["a"], OnFailure::Fail);
    let deleted = TopicState::Unusable("no such topic".to_owned());
    scenario.fixture.owner.catalog.insert("out".into(), deleted);
    scenario.run_until(2_100);
    let events = scenario.take_events();
    assert_eq!(events[2], "b accepted");
    assert!(events[3].starts_with("a Failed"), "{events:?}");
    assert_eq!(events[4..], ["b unmet, Fail: a failed"]);
}

#[test]
fn a_trigger_that_waits_for_a_recurring_callback_waits_for_its_report() {
    for (ok, expected) in [(true, "b#0 of 1100"), (false, "b unmet, Fail: a failed")] {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            scenario.recurring("a", true, r#"{"every":"PT2S","overlap":"skip"}"#);
            scenario.run_until(1_050);
            scenario.report_callback_end(true);
            scenario.run_until(1_100);
            scenario.after("b", &["a"], OnFailure::Fail);
            scenario.run_until(3_500).assert_events(&[
                "a accepted",
                "1000 a#0 of 1000",
                "b accepted",
                "3000 a#1 of 3000",
            ]);
            scenario.report_callback_end(ok);
            scenario.run_until(3_600);
            let events = scenario.take_events();
            assert!(events.len() == 1 && events[0].ends_with(expected), "{events:?}");
        });
    }
}

#[test]
fn a_queued_occurrence_waits_for_the_callback_before_it_and_for_no_other() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", true, r#"{"every":"PT5S","overlap":"queue"}"#);
        scenario.run_until(6_500).assert_events(&["a accepted", "1000 a#0 of 1000"]);
        let written = entries_in_ledger(&scenario);
        let id = FireId { occurrence: 7, ..scenario.fires[0].id.clone() };
        scenario.signal(Signal::CallbackEnded(CallbackEnded { id, ok: true }));
        scenario.run_until(6_600).assert_events(&[]);
        assert_eq!(entries_in_ledger(&scenario), written, "nothing has changed");
        scenario.report_callback_end(true);
        scenario.run_until(6_700);
        let events = scenario.take_events();
        assert!(events.len() == 1 && events[0].ends_with("a#1 of 6000"), "{events:?}");
    });
}

/// How often an entry was written to the ledger.
fn entries_in_ledger(scenario: &EngineScenario) -> usize {
    let ledger = &scenario.fixture.log.ledger;
    ledger.iter().filter(|record| record.key.trigger().is_some()).count()
}
