//! Recurring triggers and commands as their users see them: all events, in order, while time
//! passes and owners change.
//!
//! Invariant: once everything is settled the ledger holds nothing of it.

use super::fixture::NOW;
use super::harness::{TestStore, definition};
use super::scenario::{EngineScenario, recurring};
use crate::engine::partition::LIFECYCLE_COST;
use crate::model::input::{CountPolicy, Registration};
use crate::model::ledger::LedgerKey;
use crate::model::lifecycle::Command;
use crate::model::schedule::Schedule;
use crate::model::signal::{RetryRequest, Signal};

const SECONDLY: &str = r#"{"every":"PT1S","maxExecutions":3}"#;

#[test]
fn each_occurrence_fires_once_and_the_last_is_the_end() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, SECONDLY);
        scenario.run_until(NOW + 1_500).assert_events(&[
            "a accepted",
            "1000 a#0 of 1000",
            "2000 a#1 of 2000",
        ]);
        assert_eq!(scenario.ledger_keys(), [LedgerKey::Main("a".into())]);
        scenario.run_until(NOW + 9_000).assert_events(&["3000 a#2 of 3000", "a ended after 3"]);
        assert_eq!(scenario.ledger_keys(), []);
        scenario.fixture.cancel("a");
        scenario.run_until(NOW + 9_100);
        assert_eq!(scenario.take_events()[0].split(',').next(), Some("a not pending"));
    });
}

#[test]
fn jitter_moves_an_occurrence_and_not_the_next() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, r#"{"every":"PT10S","maxExecutions":3,"jitter":"PT2S"}"#);
        let schedule = Schedule::from_json(r#"{"every":"PT10S","start":1000,"jitter":"PT2S"}"#);
        let schedule = schedule.unwrap();
        let at = |nominal| schedule.jittered("a", nominal);
        let (a, b, c) = (at(1_000), at(11_000), at(21_000));
        scenario.run_until(40_000);
        let lines = [
            "a accepted".to_owned(),
            format!("{a} a#0 of {a}"),
            format!("{b} a#1 of {b}"),
            format!("{c} a#2 of {c}"),
            "a ended after 3".to_owned(),
        ];
        assert_eq!(scenario.take_events(), lines);
    });
}

#[test]
fn missed_occurrences_are_skipped_or_caught_up_as_the_schedule_says() {
    for (misfire, expected) in [
        (r#""skip""#, &["a skipped 3 of 2000 to 4000", "5000 a#1 of 5000"][..]),
        (r#""latest""#, &["a skipped 2 of 2000 to 3000", "4970 a#1 of 4000", "5000 a#2 of 5000"]),
        (
            r#"{"all":2}"#,
            &[
                "a skipped 1 of 2000 to 2000",
                "4970 a#1 of 3000",
                "4971 a#2 of 4000",
                "5000 a#3 of 5000",
            ],
        ),
    ] {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            let json = format!(r#"{{"every":"PT1S","misfire":{misfire}}}"#);
            scenario.recurring("a", false, &json);
            scenario.run_until(NOW);
            scenario.assert_events(&["a accepted", "1000 a#0 of 1000"]);
            scenario.fixture.take_over(TestStore::default(), 4_970);
            scenario.run_until(5_000).assert_events(expected);
        });
    }
}

#[test]
fn an_occurrence_within_the_grace_is_not_missed() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, r#"{"every":"PT1S","misfire":"skip"}"#);
        scenario.run_until(NOW);
        scenario.fixture.take_over(TestStore::default(), 2_060);
        scenario.run_until(2_100).assert_events(&[
            "a accepted",
            "1000 a#0 of 1000",
            "2060 a#1 of 2000",
        ]);
    });
}

#[test]
fn a_clock_that_is_ahead_does_not_make_the_next_occurrence_earlier() {
    let mut scenario = EngineScenario::new();
    scenario.recurring("a", false, r#"{"every":"PT1S","misfire":"skip"}"#);
    scenario.run_until(NOW).assert_events(&["a accepted", "1000 a#0 of 1000"]);
    scenario.fixture.take_over(TestStore::default(), 2_990);
    scenario.fixture.owner.commit_lead = 20;
    scenario.run_steps();
    scenario.assert_events(&["a skipped 1 of 2000 to 2000"]);
    scenario.run_until(3_000).assert_events(&["3000 a#1 of 3000"]);
}

#[test]
fn a_fire_by_a_command_is_not_committed_before_its_fire_time() {
    let mut scenario = EngineScenario::new();
    scenario.recurring("a", false, r#"{"every":"PT10S"}"#);
    scenario.run_until(NOW).assert_events(&["a accepted", "1000 a#0 of 1000"]);
    scenario.fixture.owner.commit_lead = 20;
    scenario.command("a", Command::FireNow);
    scenario.fixture.now += 5;
    let mut times = Vec::new();
    while let Some(step) = scenario.fixture.step() {
        scenario.record(&step);
        times.push(step.commit_not_before);
    }
    scenario.assert_events(&["a called #1", "1005 a#1 of 1025"]);
    assert_eq!(times.into_iter().max(), Some(1_025));
}

#[test]
fn catch_up_is_rate_limited_and_does_not_delay_others() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        for id in ["a", "b", "c"] {
            scenario.recurring(id, false, r#"{"every":"PT10S","misfire":"latest"}"#);
        }
        scenario.run_until(NOW);
        let _fired = scenario.take_events();
        scenario.fixture.take_over(TestStore::default(), 50_000);
        scenario.fixture.owner.partition.config_mut().catch_up_rate = 100;
        scenario.loses_store = false;
        scenario.fixture.register("new", 50_000);
        scenario.run_until(50_020);
        let made: Vec<_> =
            scenario.take_events().into_iter().filter(|line| line.contains(" of ")).collect();
        let made: Vec<_> = made.iter().filter(|line| !line.contains("skipped")).collect();
        let expected = [
            "50000 a#1 of 41000",
            "50000 new#0 of 50000",
            "50010 b#1 of 41000",
            "50020 c#1 of 41000",
        ];
        assert_eq!(made, expected);
    });
}

#[test]
fn a_one_time_trigger_expires_after_its_expire_after() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        for (id, expire_after) in [("a", 500), ("b", 5_000)] {
            let new = Registration::one_time(id, 1_020, definition(false));
            scenario.register(Registration { expire_after: Some(expire_after), ..new });
        }
        scenario.run_until(NOW);
        scenario.fixture.take_over(TestStore::default(), 3_000);
        let expected = ["a accepted", "b accepted", "a expired of 1020", "3000 b#0 of 1020"];
        scenario.run_until(3_000).assert_events(&expected);
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn a_paused_trigger_waits_until_it_is_resumed() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.fixture.register("a", 1_020);
        scenario.fixture.register("b", 1_020);
        scenario.command("a", Command::Pause);
        scenario.command("a", Command::Pause);
        scenario.run_until(2_000).assert_events(&[
            "a accepted",
            "b accepted",
            "a paused by a command",
            "a paused by a command",
            "1020 b#0 of 1020",
        ]);
        scenario.command("a", Command::Resume);
        scenario.command("b", Command::Pause);
        scenario.run_until(2_010);
        let events = scenario.take_events();
        assert_eq!(events[..1], ["a resumed for 1020"]);
        assert!(events[1].starts_with("b not pending"), "{events:?}");
        assert!(events[2].ends_with("a#0 of 1020"), "{events:?}");
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn a_paused_schedule_decides_on_missed_occurrences_when_it_is_resumed() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, r#"{"every":"PT1S","misfire":"skip"}"#);
        scenario.run_until(NOW);
        scenario.command("a", Command::Pause);
        scenario.run_until(4_970).assert_events(&[
            "a accepted",
            "1000 a#0 of 1000",
            "a paused by a command",
        ]);
        scenario.command("a", Command::Resume);
        scenario.run_until(5_000).assert_events(&[
            "a resumed for 2000",
            "a skipped 3 of 2000 to 4000",
            "5000 a#1 of 5000",
        ]);
    });
}

#[test]
fn a_trigger_fired_early_by_a_command_does_not_fire_again_when_due() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.fixture.register("a", 1_040);
        scenario.run_until(NOW + 5);
        scenario.command("a", Command::FireNow);
        scenario.run_until(NOW + 7);
        let events = scenario.take_events();
        assert_eq!(events[..2], ["a accepted", "a called #0"]);
        assert!(events[2].ends_with(" a#0 of 1040") && events.len() == 3, "{events:?}");
        assert_eq!(
            scenario.ledger_keys(),
            [LedgerKey::Main("a".into())],
            "until its time has passed"
        );
        scenario.restart();
        scenario.run_until(2_000).assert_events(&[]);
        assert_eq!(scenario.ledger_keys(), []);
    });
}

/// A step may end anywhere between the triggers of a millisecond: W is then at one before the
/// trigger that a command has fired.
#[test]
fn a_trigger_fired_by_a_command_in_its_millisecond_fires_once() {
    for budget in 1..=LIFECYCLE_COST + 3 {
        EngineScenario::with_and_without_restarts(|mut scenario| {
            for id in ["a", "b", "c"] {
                scenario.fixture.register(id, 1_040);
            }
            scenario.run_until(1_039);
            scenario.fixture.budget = budget;
            scenario.command("b", Command::FireNow);
            scenario.fixture.now = 1_040;
            scenario.run_until(3_000);
            let events = scenario.take_events();
            let fires = |id: &str| events.iter().filter(|line| line.contains(id)).count();
            let counts = ["a#0 of", "b#0 of", "c#0 of"].map(fires);
            assert_eq!(counts, [1, 1, 1], "budget {budget}: {events:?}");
        });
    }
}

#[test]
fn a_schedule_fired_by_a_command_fires_one_extra_time() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, r#"{"every":"PT1S","maxExecutions":3}"#);
        scenario.run_until(1_500);
        scenario.command("a", Command::FireNow);
        scenario.run_until(1_510);
        scenario.command("a", Command::Pause);
        scenario.command("a", Command::FireNow);
        scenario.run_until(5_000);
        let events = scenario.take_events();
        assert_eq!(events[..3], ["a accepted", "1000 a#0 of 1000", "a called #1"]);
        assert!(events[3].contains(" a#1 of 150"), "{events:?}");
        assert_eq!(events[4..6], ["a paused by a command", "a called #2"]);
        assert!(events[6].contains(" a#2 of 151"), "{events:?}");
        assert_eq!(events[7..], ["a ended after 3"]);
    });
}

#[test]
fn a_new_definition_continues_the_count_only_if_requested() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, SECONDLY);
        scenario.run_until(2_500);
        let new = recurring("a", false, scenario.now(), SECONDLY);
        scenario.register(Registration { count: CountPolicy::Keep, ..new });
        scenario.run_until(9_000).assert_events(&[
            "a accepted",
            "1000 a#0 of 1000",
            "2000 a#1 of 2000",
            "a accepted, replaces",
            "2500 a#2 of 2500",
            "a ended after 3",
        ]);
        scenario.recurring("b", false, SECONDLY);
        scenario.run_until(9_000);
        scenario.recurring("b", false, SECONDLY);
        scenario.run_until(9_000);
        scenario.run_until(9_001).assert_events(&[
            "b accepted",
            "9000 b#0 of 9000",
            "b accepted, replaces",
            "9001 b#0 of 9000",
        ]);
    });
}

#[test]
fn a_cancel_of_a_schedule_also_stops_a_callback_in_flight() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", true, SECONDLY);
        scenario.run_until(1_500);
        let fire = scenario.fires[0].clone();
        assert!(!fire.report_end);
        scenario.fixture.cancel("a");
        scenario.run_until(1_510).assert_events(&["a accepted", "1000 a#0 of 1000", "a cancelled"]);
        assert_eq!(scenario.ledger_keys(), [LedgerKey::Veto("a".into())]);
        scenario.signal(Signal::Retry(RetryRequest::replay(fire, 0, 1_600)));
        scenario.run_until(9_000).assert_events(&["a cancelled"]);
        assert_eq!(scenario.ledger_keys(), []);
    });
}

#[test]
fn an_overlapping_occurrence_is_skipped() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", true, r#"{"every":"PT1S","overlap":"skip"}"#);
        scenario.run_until(2_500).assert_events(&[
            "a accepted",
            "1000 a#0 of 1000",
            "a skipped 1 of 2000 to 2000",
        ]);
        scenario.report_callback_end(true);
        scenario.run_until(3_000).assert_events(&["3000 a#1 of 3000"]);
    });
}

#[test]
fn an_overlapping_occurrence_is_queued() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", true, r#"{"every":"PT1S","overlap":"queue","misfire":"latest"}"#);
        scenario.run_until(4_500).assert_events(&["a accepted", "1000 a#0 of 1000"]);
        scenario.report_callback_end(true);
        scenario.run_until(4_600);
        let events = scenario.take_events();
        // The third was missed meanwhile, and the fourth is the latest: it waits.
        assert!(events[0].ends_with("a#1 of 2000"), "{events:?}");
        assert_eq!(events[1..], ["a skipped 1 of 3000 to 3000"]);
        scenario.report_callback_end(false);
        scenario.run_until(4_700);
        let events = scenario.take_events();
        assert!(events.len() == 1 && events[0].ends_with("a#2 of 4000"), "{events:?}");
    });
}

#[test]
fn a_callback_without_a_result_does_not_block_for_ever() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", true, r#"{"every":"PT1S","overlap":"queue","misfire":"latest"}"#);
        scenario.run_until(10_999);
        scenario.assert_events(&["a accepted", "1000 a#0 of 1000"]);
        scenario.run_until(11_001);
        let events = scenario.take_events();
        assert_eq!(events, ["11000 a#1 of 2000", "a skipped 8 of 3000 to 10000"]);
    });
}

#[test]
fn too_many_failures_in_a_row_pause_a_schedule() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", true, r#"{"every":"PT1S","pauseAfter":2}"#);
        for (until, ok) in [(1_500, false), (2_500, true), (3_500, false), (4_500, false)] {
            scenario.run_until(until);
            scenario.report_callback_end(ok);
        }
        scenario.run_until(20_000).assert_events(&[
            "a accepted",
            "1000 a#0 of 1000",
            "2000 a#1 of 2000",
            "3000 a#2 of 3000",
            "4000 a#3 of 4000",
            "a paused 2 failures in a row: see pauseAfter",
        ]);
        scenario.report_callback_end(false);
        scenario.run_until(20_000).assert_events(&[]);
        scenario.command("a", Command::Resume);
        scenario.run_until(20_000);
        let events = scenario.take_events();
        assert_eq!(events[..2], ["a resumed for 5000", "a skipped 15 of 5000 to 19000"]);
        scenario.run_until(20_500);
        let _fired = scenario.take_events();
        scenario.report_callback_end(false);
        scenario.run_until(20_900).assert_events(&[]);
    });
}

#[test]
fn a_higher_priority_fires_first_within_a_millisecond() {
    let mut scenario = EngineScenario::new();
    for (id, priority) in [("low", 1), ("usual", 127), ("high", 255)] {
        let new = Registration::one_time(id, 1_020, definition(false));
        scenario.register(Registration { priority, ..new });
    }
    scenario.run_until(1_020);
    let fired: Vec<_> = scenario.take_events().split_off(3);
    assert_eq!(fired, ["1020 high#0 of 1020", "1020 usual#0 of 1020", "1020 low#0 of 1020"]);
}
