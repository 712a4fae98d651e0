//! Cancels of triggers that have a lifecycle: what is removed, and whether a callback may be in
//! progress.
//!
//! Invariant: a veto is left only if a callback of the trigger may be in progress.

use super::fixture::NOW;
use super::harness::definition;
use super::scenario::{EngineScenario, recurring};
use crate::engine::step::Emit;
use crate::model::entry::FireId;
use crate::model::fire::Fire;
use crate::model::input::Registration;
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::{Command, OnFailure};
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{RetryRequest, Signal};

#[test]
fn a_cancel_after_a_command_and_before_its_fire_leaves_nothing_of_the_trigger() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.fixture.register("a", 5_000);
        scenario.run_until(NOW);
        scenario.command("a", Command::FireNow);
        scenario.fixture.cancel("a");
        scenario.run_until(NOW + 1).assert_events(&["a accepted", "a called #0", "a cancelled"]);
        assert_eq!(scenario.ledger_keys(), []);
        scenario.run_until(6_000).assert_events(&[]);
    });
}

#[test]
fn a_cancel_of_a_callback_that_has_not_fired_leaves_no_veto_whatever_its_lifecycle() {
    let one_time = Registration::one_time("a", 5_000, definition(true));
    let registrations = [
        Registration { retain: Some(1_000), ..one_time.clone() },
        Registration { expire_after: Some(1_000), ..one_time },
        recurring("a", true, 3_000, r#"{"every":"PT1S"}"#),
    ];
    for registration in registrations {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            scenario.register(registration.clone());
            scenario.run_until(NOW + 1);
            let cancel = scenario.fixture.cancel("a");
            scenario.run_until(NOW + 2);
            let cancelled = OutcomeKind::Cancelled { generation: 0 };
            assert_eq!(scenario.fixture.answer_to(cancel), Some(&cancelled));
            let veto = LedgerKey::Veto("a".into());
            assert!(!scenario.ledger_keys().contains(&veto), "{registration:?}");
            let withdrawal = |emit: &Emit| matches!(emit, Emit::Withdraw { .. });
            assert!(!scenario.fixture.log.emitted.iter().any(|(emit, ..)| withdrawal(emit)));
        });
    }
}

#[test]
fn a_cancel_tells_dependents_at_once_only_if_it_has_removed_the_retry_of_the_callback() {
    for is_retried in [true, false] {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            scenario.fixture.callback("a", 1_200);
            scenario.after("b", &["a"], OnFailure::Fail);
            scenario.run_until(1_250).assert_events(&[
                "a accepted",
                "b accepted",
                "1200 a#0 of 1200",
            ]);
            if is_retried {
                let fire = scenario.fires[0].clone();
                scenario.signal(second_attempt(fire, 3_000));
            }
            scenario.run_until(1_300);
            scenario.fixture.cancel("a");
            scenario.run_until(1_400);
            let events = scenario.take_events();
            if is_retried {
                assert_eq!(events, ["a cancelled", "b unmet, Fail: a failed"]);
            } else {
                assert_eq!(events, ["a not pending, true"]);
                // A worker reports the end of the callback.
                scenario.report_callback_end(true);
                scenario.run_until(1_500);
                let events = scenario.take_events();
                assert!(events.len() == 1 && events[0].ends_with("b#0 of 1000"), "{events:?}");
            }
            assert_eq!(scenario.ledger_keys(), [LedgerKey::Veto("a".into())]);
        });
    }
}

/// [`partition_config`](super::harness::partition_config) has vetoes of 5,000 ms.
#[test]
fn an_attempt_that_was_made_before_a_cancel_is_not_made_again_when_the_veto_has_ended() {
    let mut scenario = EngineScenario::new();
    let new = recurring("a", true, NOW, r#"{"every":"PT10S"}"#);
    scenario.register(Registration { retain: Some(1_000), ..new });
    scenario.run_until(1_100);
    let again = second_attempt(scenario.fires[0].clone(), 1_200);
    scenario.signal(again.clone());
    scenario.run_until(1_300);
    scenario.fixture.cancel("a");
    scenario.run_until(9_000).assert_events(&[
        "a accepted",
        "1000 a#0 of 1000",
        "1200 a#0 of 1000 again",
        "a cancelled",
    ]);
    assert_eq!(scenario.ledger_keys(), []);
    scenario.signal(again);
    scenario.run_until(9_100).assert_events(&[]);
}

/// A worker asks for a second attempt of this callback.
fn second_attempt(fire: Fire, due: u64) -> Signal {
    let Fire { id, scheduled, definition, report_end, priority, .. } = fire;
    let id = FireId { attempt: 2, ..id };
    let (reason, history) = ("500".to_owned(), None);
    Signal::Retry(RetryRequest {
        id,
        due,
        scheduled,
        reason,
        definition,
        history,
        report_end,
        priority,
    })
}
