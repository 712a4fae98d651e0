//! Recurring triggers and commands as their users see them: what is said, in order, while time
//! passes and owners change.
//!
//! Law: once everything is settled the ledger holds nothing of it.

use super::play::{Play, recurring};
use super::scene::NOW;
use super::world::{Disk, definition, registration};
use crate::model::course::Command;
use crate::model::input::{Count, Registration};
use crate::model::ledger::LedgerKey;
use crate::model::schedule::Schedule;
use crate::model::signal::{RetryRequest, Signal};

const SECONDLY: &str = r#"{"every":"PT1S","maxExecutions":3}"#;

#[test]
fn each_occurrence_fires_once_and_the_last_is_the_end() {
    Play::twice(|mut play| {
        play.recurring("a", false, SECONDLY);
        play.pass(NOW + 1_500).says(&["a accepted", "1000 a#0 of 1000", "2000 a#1 of 2000"]);
        assert_eq!(play.held(), [LedgerKey::Main("a".into())]);
        play.pass(NOW + 9_000).says(&["3000 a#2 of 3000", "a ended after 3"]);
        assert_eq!(play.held(), []);
        play.scene.cancel("a");
        play.pass(NOW + 9_100);
        assert_eq!(play.said()[0].split(',').next(), Some("a not pending"));
    });
}

#[test]
fn jitter_moves_an_occurrence_and_not_the_next() {
    Play::twice(|mut play| {
        play.recurring("a", false, r#"{"every":"PT10S","maxExecutions":3,"jitter":"PT2S"}"#);
        let schedule = Schedule::from_json(r#"{"every":"PT10S","start":1000,"jitter":"PT2S"}"#);
        let schedule = schedule.unwrap();
        let at = |nominal| schedule.jittered("a", nominal);
        let (a, b, c) = (at(1_000), at(11_000), at(21_000));
        play.pass(40_000);
        let lines = [
            "a accepted".to_owned(),
            format!("{a} a#0 of {a}"),
            format!("{b} a#1 of {b}"),
            format!("{c} a#2 of {c}"),
            "a ended after 3".to_owned(),
        ];
        assert_eq!(play.said(), lines);
    });
}

#[test]
fn what_was_missed_is_left_out_or_made_up_for_as_the_schedule_says() {
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
        Play::twice(|mut play| {
            let json = format!(r#"{{"every":"PT1S","misfire":{misfire}}}"#);
            play.recurring("a", false, &json);
            play.pass(NOW);
            play.says(&["a accepted", "1000 a#0 of 1000"]);
            play.scene.take_over(Disk::default(), 4_970);
            play.pass(5_000).says(expected);
        });
    }
}

#[test]
fn an_occurrence_within_the_grace_is_not_missed() {
    Play::twice(|mut play| {
        play.recurring("a", false, r#"{"every":"PT1S","misfire":"skip"}"#);
        play.pass(NOW);
        play.scene.take_over(Disk::default(), 2_060);
        play.pass(2_100).says(&["a accepted", "1000 a#0 of 1000", "2060 a#1 of 2000"]);
    });
}

#[test]
fn what_follows_a_missed_occurrence_is_no_earlier_for_a_clock_that_is_ahead() {
    let mut play = Play::new();
    play.recurring("a", false, r#"{"every":"PT1S","misfire":"skip"}"#);
    play.pass(NOW).says(&["a accepted", "1000 a#0 of 1000"]);
    play.scene.take_over(Disk::default(), 2_990);
    play.scene.owner.ahead = 20;
    play.decide();
    play.says(&["a skipped 1 of 2000 to 2000"]);
    play.pass(3_000).says(&["3000 a#1 of 3000"]);
}

#[test]
fn what_a_command_fires_is_committed_no_sooner_than_it_says() {
    let mut play = Play::new();
    play.recurring("a", false, r#"{"every":"PT10S"}"#);
    play.pass(NOW).says(&["a accepted", "1000 a#0 of 1000"]);
    play.scene.owner.ahead = 20;
    play.command("a", Command::FireNow);
    play.scene.now += 5;
    let mut times = Vec::new();
    while let Some(step) = play.scene.step() {
        play.hear(&step);
        times.push(step.time);
    }
    play.says(&["a called #1", "1005 a#1 of 1025"]);
    assert_eq!(times.into_iter().max(), Some(1_025));
}

#[test]
fn made_up_occurrences_come_at_a_rate_and_do_not_hold_up_others() {
    Play::twice(|mut play| {
        for id in ["a", "b", "c"] {
            play.recurring(id, false, r#"{"every":"PT10S","misfire":"latest"}"#);
        }
        play.pass(NOW);
        let _fired = play.said();
        play.scene.take_over(Disk::default(), 50_000);
        play.scene.owner.partition.rules.catch_up_rate = 100;
        play.forgetful = false;
        play.scene.register("new", 50_000);
        play.pass(50_020);
        let made: Vec<_> = play.said().into_iter().filter(|line| line.contains(" of ")).collect();
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
fn a_one_time_trigger_expires_by_its_own_rule() {
    Play::twice(|mut play| {
        for (id, expire_after) in [("a", 500), ("b", 5_000)] {
            let new = registration(id, 1_020, definition(false));
            play.register(Registration { expire_after: Some(expire_after), ..new });
        }
        play.pass(NOW);
        play.scene.take_over(Disk::default(), 3_000);
        let expected = ["a accepted", "b accepted", "a expired of 1020", "3000 b#0 of 1020"];
        play.pass(3_000).says(&expected);
        assert_eq!(play.held(), []);
    });
}

#[test]
fn a_paused_trigger_waits_until_it_is_resumed() {
    Play::twice(|mut play| {
        play.scene.register("a", 1_020);
        play.scene.register("b", 1_020);
        play.command("a", Command::Pause);
        play.command("a", Command::Pause);
        play.pass(2_000).says(&[
            "a accepted",
            "b accepted",
            "a paused by a command",
            "a paused by a command",
            "1020 b#0 of 1020",
        ]);
        play.command("a", Command::Resume);
        play.command("b", Command::Pause);
        play.pass(2_010);
        let said = play.said();
        assert_eq!(said[..1], ["a resumed for 1020"]);
        assert!(said[1].starts_with("b not pending"), "{said:?}");
        assert!(said[2].ends_with("a#0 of 1020"), "{said:?}");
        assert_eq!(play.held(), []);
    });
}

#[test]
fn a_paused_schedule_judges_what_it_missed_when_it_is_resumed() {
    Play::twice(|mut play| {
        play.recurring("a", false, r#"{"every":"PT1S","misfire":"skip"}"#);
        play.pass(NOW);
        play.command("a", Command::Pause);
        play.pass(4_970).says(&["a accepted", "1000 a#0 of 1000", "a paused by a command"]);
        play.command("a", Command::Resume);
        play.pass(5_000).says(&[
            "a resumed for 2000",
            "a skipped 3 of 2000 to 4000",
            "5000 a#1 of 5000",
        ]);
    });
}

#[test]
fn what_is_called_before_its_time_does_not_fire_again_then() {
    Play::twice(|mut play| {
        play.scene.register("a", 1_040);
        play.pass(NOW + 5);
        play.command("a", Command::FireNow);
        play.pass(NOW + 7);
        let said = play.said();
        assert_eq!(said[..2], ["a accepted", "a called #0"]);
        assert!(said[2].ends_with(" a#0 of 1040") && said.len() == 3, "{said:?}");
        assert_eq!(play.held(), [LedgerKey::Main("a".into())], "until its time has passed");
        play.restart();
        play.pass(2_000).says(&[]);
        assert_eq!(play.held(), []);
    });
}

#[test]
fn a_schedule_that_is_called_fires_once_more() {
    Play::twice(|mut play| {
        play.recurring("a", false, r#"{"every":"PT1S","maxExecutions":3}"#);
        play.pass(1_500);
        play.command("a", Command::FireNow);
        play.pass(1_510);
        play.command("a", Command::Pause);
        play.command("a", Command::FireNow);
        play.pass(5_000);
        let said = play.said();
        assert_eq!(said[..3], ["a accepted", "1000 a#0 of 1000", "a called #1"]);
        assert!(said[3].contains(" a#1 of 150"), "{said:?}");
        assert_eq!(said[4..6], ["a paused by a command", "a called #2"]);
        assert!(said[6].contains(" a#2 of 151"), "{said:?}");
        assert_eq!(said[7..], ["a ended after 3"]);
    });
}

#[test]
fn a_new_definition_counts_on_only_if_it_says_so() {
    Play::twice(|mut play| {
        play.recurring("a", false, SECONDLY);
        play.pass(2_500);
        let new = recurring("a", false, play.now(), SECONDLY);
        play.register(Registration { count: Count::Keep, ..new });
        play.pass(9_000).says(&[
            "a accepted",
            "1000 a#0 of 1000",
            "2000 a#1 of 2000",
            "a accepted, replaces",
            "2500 a#2 of 2500",
            "a ended after 3",
        ]);
        play.recurring("b", false, SECONDLY);
        play.pass(9_000);
        play.recurring("b", false, SECONDLY);
        play.pass(9_000);
        play.pass(9_001).says(&[
            "b accepted",
            "9000 b#0 of 9000",
            "b accepted, replaces",
            "9001 b#0 of 9000",
        ]);
    });
}

#[test]
fn a_cancel_of_a_schedule_stops_a_callback_that_is_under_way_too() {
    Play::twice(|mut play| {
        play.recurring("a", true, SECONDLY);
        play.pass(1_500);
        let fire = play.fires[0].clone();
        assert!(!fire.settles);
        play.scene.cancel("a");
        play.pass(1_510).says(&["a accepted", "1000 a#0 of 1000", "a cancelled"]);
        assert_eq!(play.held(), [LedgerKey::Veto("a".into())]);
        play.signal(Signal::Retry(RetryRequest::replay(fire, 0, 1_600)));
        play.pass(9_000).says(&["a cancelled"]);
        assert_eq!(play.held(), []);
    });
}

#[test]
fn an_occurrence_that_would_overlap_is_left_out() {
    Play::twice(|mut play| {
        play.recurring("a", true, r#"{"every":"PT1S","overlap":"skip"}"#);
        play.pass(2_500).says(&["a accepted", "1000 a#0 of 1000", "a skipped 1 of 2000 to 2000"]);
        play.ended(true);
        play.pass(3_000).says(&["3000 a#1 of 3000"]);
    });
}

#[test]
fn an_occurrence_that_would_overlap_waits() {
    Play::twice(|mut play| {
        play.recurring("a", true, r#"{"every":"PT1S","overlap":"queue","misfire":"latest"}"#);
        play.pass(4_500).says(&["a accepted", "1000 a#0 of 1000"]);
        play.ended(true);
        play.pass(4_600);
        let said = play.said();
        // The third was missed meanwhile, and the fourth is the latest: it waits.
        assert!(said[0].ends_with("a#1 of 2000"), "{said:?}");
        assert_eq!(said[1..], ["a skipped 1 of 3000 to 3000"]);
        play.ended(false);
        play.pass(4_700);
        let said = play.said();
        assert!(said.len() == 1 && said[0].ends_with("a#2 of 4000"), "{said:?}");
    });
}

#[test]
fn a_worker_that_is_never_heard_of_holds_nothing_up_for_ever() {
    Play::twice(|mut play| {
        play.recurring("a", true, r#"{"every":"PT1S","overlap":"queue","misfire":"latest"}"#);
        play.pass(10_999);
        play.says(&["a accepted", "1000 a#0 of 1000"]);
        play.pass(11_001);
        let said = play.said();
        assert_eq!(said, ["11000 a#1 of 2000", "a skipped 8 of 3000 to 10000"]);
    });
}

#[test]
fn too_many_failures_in_a_row_stop_it() {
    Play::twice(|mut play| {
        play.recurring("a", true, r#"{"every":"PT1S","pauseAfter":2}"#);
        for (until, ok) in [(1_500, false), (2_500, true), (3_500, false), (4_500, false)] {
            play.pass(until);
            play.ended(ok);
        }
        play.pass(20_000).says(&[
            "a accepted",
            "1000 a#0 of 1000",
            "2000 a#1 of 2000",
            "3000 a#2 of 3000",
            "4000 a#3 of 4000",
            "a paused 2 failures in a row: see pauseAfter",
        ]);
        play.ended(false);
        play.pass(20_000).says(&[]);
        play.command("a", Command::Resume);
        play.pass(20_000);
        let said = play.said();
        assert_eq!(said[..2], ["a resumed for 5000", "a skipped 15 of 5000 to 19000"]);
        play.pass(20_500);
        let _fired = play.said();
        play.ended(false);
        play.pass(20_900).says(&[]);
    });
}

#[test]
fn a_higher_priority_fires_first_within_a_millisecond() {
    let mut play = Play::new();
    for (id, priority) in [("low", 1), ("usual", 127), ("high", 255)] {
        let new = registration(id, 1_020, definition(false));
        play.register(Registration { priority, ..new });
    }
    play.pass(1_020);
    let fired: Vec<_> = play.said().split_off(3);
    assert_eq!(fired, ["1020 high#0 of 1020", "1020 usual#0 of 1020", "1020 low#0 of 1020"]);
}
