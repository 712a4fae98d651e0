//! Triggers that wait for others, as their users see them.
//!
//! Law: once everything is settled the ledger holds nothing of it.

use super::play::Play;
use super::scene::NOW;
use super::world::{definition, registration};
use crate::model::course::{Command, OnFailure};
use crate::model::input::{OnConflict, Registration};

#[test]
fn a_trigger_waits_for_others() {
    Play::twice(|mut play| {
        play.after("c", &["a", "b"], OnFailure::Fail);
        play.pass(NOW);
        play.scene.register("a", 1_500);
        play.scene.register("b", 2_000);
        play.pass(2_010);
        let said = play.said();
        let expected =
            ["c accepted", "a accepted", "b accepted", "1500 a#0 of 1500", "2000 b#0 of 2000"];
        assert_eq!(said[..5], expected);
        assert!(said.len() == 6 && said[5].ends_with("c#0 of 1000"), "{said:?}");
        assert_eq!(play.held(), []);
    });
}

#[test]
fn what_is_waited_for_may_end_before_anyone_waits_if_it_is_retained() {
    Play::twice(|mut play| {
        let new = registration("a", NOW, definition(false));
        play.register(Registration { retain: Some(1_000), ..new });
        play.pass(1_500);
        let again = registration("a", 9_000, definition(false));
        play.register(Registration { on_conflict: OnConflict::Keep, ..again });
        play.after("b", &["a"], OnFailure::Fail);
        play.pass(1_510);
        let said = play.said();
        let expected = ["a accepted", "1000 a#0 of 1000", "a kept for 1000", "b accepted"];
        assert_eq!(said[..4], expected);
        assert!(said.len() == 5 && said[4].ends_with("b#0 of 1500"), "{said:?}");
        play.pass(2_100).says(&[]);
        assert_eq!(play.held(), [], "it is forgotten");
        play.after("c", &["a"], OnFailure::Skip);
        play.pass(9_000);
        let said = play.said();
        assert_eq!(said[0], "c accepted");
        assert!(said[1].starts_with("c unmet, Skip: a has not settled in time"), "{said:?}");
        assert_eq!(play.held(), []);
    });
}

#[test]
fn what_fails_is_heard_by_those_who_wait() {
    for (on_failure, expected) in [
        (OnFailure::Fail, &["b unmet, Fail: a failed", "c unmet, Fail: b failed"][..]),
        (OnFailure::Skip, &["b unmet, Skip: a failed", "c"]),
        (OnFailure::Fire, &["b unmet, Fire: a failed", "b", "c"]),
    ] {
        Play::twice(|mut play| {
            let new = registration("a", 1_200, definition(true));
            play.register(new);
            play.after("b", &["a"], on_failure);
            play.after("c", &["b"], OnFailure::Fail);
            play.pass(1_200);
            let said = play.said();
            assert_eq!(said[..4], ["a accepted", "b accepted", "c accepted", "1200 a#0 of 1200"]);
            play.ended(false);
            play.pass(1_300);
            let said = play.said();
            let short = |line: &String| match line.split_once(" of ") {
                Some((fire, _)) => fire[fire.len() - 3..fire.len() - 2].to_owned(),
                None => line.clone(),
            };
            assert_eq!(said.iter().map(short).collect::<Vec<_>>(), expected);
            assert_eq!(play.held(), []);
        });
    }
}

#[test]
fn a_circle_ends_when_its_time_is_up() {
    Play::twice(|mut play| {
        play.after("a", &["b"], OnFailure::Fail);
        play.after("b", &["a"], OnFailure::Fail);
        play.pass(5_999).says(&["a accepted", "b accepted"]);
        play.pass(6_100);
        let said = play.said();
        assert!(said[0].starts_with("a unmet, Fail: b has not settled in time"), "{said:?}");
        assert!(said[1].starts_with("b unmet, Fail: "), "{said:?}");
        assert_eq!(said.len(), 2);
        assert_eq!(play.held(), []);
    });
}

#[test]
fn who_waits_for_what_is_cancelled_learns_that_it_failed() {
    Play::twice(|mut play| {
        play.scene.register("a", 3_000);
        play.after("b", &["a"], OnFailure::Fail);
        play.pass(NOW);
        play.scene.register("a", 4_000);
        play.pass(1_500);
        play.scene.cancel("a");
        play.pass(1_600).says(&[
            "a accepted",
            "b accepted",
            "a accepted, replaces",
            "a cancelled",
            "b unmet, Fail: a failed",
        ]);
        play.pass(9_000).says(&[]);
        assert_eq!(play.held(), []);
    });
}

#[test]
fn who_waits_can_be_called_paused_and_cancelled() {
    Play::twice(|mut play| {
        for id in ["b", "c", "d"] {
            play.after(id, &["a"], OnFailure::Fail);
        }
        play.pass(NOW);
        play.command("b", Command::FireNow);
        play.command("c", Command::Pause);
        play.scene.cancel("d");
        play.pass(1_010);
        let said = play.said();
        let accepted = ["b accepted", "c accepted", "d accepted"];
        assert_eq!(said[..3], accepted);
        assert_eq!(said[3..6], ["b called #0", "c paused by a command", "d cancelled"]);
        assert!(said.len() == 7 && said[6].ends_with("b#0 of 1000"), "{said:?}");
        play.scene.register("a", 1_100);
        play.pass(8_000).says(&["a accepted", "1100 a#0 of 1100"]);
        play.command("c", Command::Resume);
        play.pass(8_010);
        let said = play.said();
        assert_eq!(said[0], "c resumed for 1000");
        assert!(said.len() == 2 && said[1].ends_with("c#0 of 1000"), "{said:?}");
        assert_eq!(play.held(), []);
    });
}
