//! Tests of look-ups that no broker answers.
//!
//! Invariant: the clock moves when a test says so.

use super::tests::{TTL, TestTargets, UNREACHABLE, state_of, targets, usable};
use super::*;
use crate::test_environment::clock::{MS, TestClock};

fn without(unavailable: &[PartitionId]) -> TopicState {
    let unavailable = unavailable.iter().copied().collect();
    TopicState::Usable { partitions: 8, record_bytes_max: 1_000, unavailable }
}

/// Targets of which `a` has this state, and that no broker answers for from now on. The state has
/// expired, and is asked for.
fn unanswered(state: &TopicState) -> (TestTargets, TestClock) {
    let (mut targets, clock) = targets(Duration::ZERO);
    targets.lookups.answer = Some(state.clone());
    assert_eq!(state_of(&mut targets, "a"), *state);
    (targets.lookups.answer, targets.lookups.is_unanswered) = (None, true);
    clock.advance(TTL);
    let _asked_for = state_of(&mut targets, "a");
    assert_eq!(targets.lookups.submitted, 2);
    (targets, clock)
}

/// Asks again what is to be asked again, and takes the answer.
fn refresh(targets: &mut TestTargets) {
    targets.refresh_expired();
    targets.refresh_expired();
    assert_eq!(targets.lookups.in_flight(), 0);
}

/// The reason why all of `a` cannot be reached.
fn reason(targets: &mut TestTargets) -> String {
    match state_of(targets, "a") {
        TopicState::Unavailable(reason) => reason,
        state => panic!("{state:?}"),
    }
}

/// While a broker was stopped, fires of a topic that could be written waited for two seconds.
#[test]
fn a_usable_topic_stays_so_although_no_broker_answers_and_is_asked_for_again_soon() {
    for state in [usable(), without(&[2])] {
        let (mut targets, clock) = unanswered(&state);
        refresh(&mut targets);
        for n in 0..5 {
            assert_eq!(state_of(&mut targets, "a"), state);
            assert_eq!(targets.lookups.submitted, 2 + n, "its time is not over");
            clock.advance(UNREACHABLE);
            refresh(&mut targets);
        }
        targets.lookups.is_unanswered = false;
        clock.advance(UNREACHABLE);
        refresh(&mut targets);
        assert_eq!(state_of(&mut targets, "a"), usable());
        let submitted = targets.lookups.submitted;
        clock.advance(TTL - MS);
        refresh(&mut targets);
        assert_eq!(targets.lookups.submitted, submitted, "all of it can be written");
    }
}

#[test]
fn a_topic_that_was_not_used_since_an_outage_stays_usable_in_the_next_one() {
    let (mut targets, clock) = unanswered(&usable());
    refresh(&mut targets);
    clock.advance(UNREACHABLE * KEPT_MAX * 2);
    let _asked_for = state_of(&mut targets, "a");
    refresh(&mut targets);
    assert_eq!(state_of(&mut targets, "a"), usable());
}

/// It may have been deleted, or its rules may be others, or all brokers are away.
#[test]
fn a_usable_topic_that_no_broker_answers_for_for_long_is_unavailable_until_one_does() {
    let (mut targets, clock) = unanswered(&usable());
    for outage in 0..2 {
        for second in 0..KEPT_MAX {
            refresh(&mut targets);
            assert_eq!(state_of(&mut targets, "a"), usable(), "after {second} s");
            clock.advance(UNREACHABLE);
        }
        refresh(&mut targets);
        assert_eq!(reason(&mut targets), "topic a: no answer", "outage {outage}");
        targets.lookups.is_unanswered = false;
        clock.advance(UNREACHABLE);
        refresh(&mut targets);
        assert_eq!(state_of(&mut targets, "a"), usable());
        // Each outage has its own time.
        targets.lookups.is_unanswered = true;
        clock.advance(TTL);
        let _asked_for = state_of(&mut targets, "a");
    }
}

#[test]
fn a_topic_of_which_no_broker_has_said_anything_is_unavailable() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    targets.lookups.is_unanswered = true;
    assert_eq!(reason(&mut targets), "topic a: no answer");
}

/// What brokers say before and after it counts.
#[test]
fn no_answer_is_neither_a_doubt_nor_a_dead_letter() {
    let away = |reason: &str| TopicState::Unavailable(reason.to_owned());
    let deleted = TopicState::Unusable("it was deleted".to_owned());
    let (mut targets, clock) = unanswered(&usable());
    for (answer, wait, expected) in [
        (None, Duration::ZERO, usable()),
        (Some(&deleted), UNREACHABLE, away("it was deleted")),
        (None, UNREACHABLE, away("topic a: no answer")),
        (Some(&deleted), UNREACHABLE, deleted.clone()),
        (None, TTL, away("topic a: no answer")),
    ] {
        targets.lookups.is_unanswered = answer.is_none();
        targets.lookups.answer = answer.cloned();
        clock.advance(wait);
        let _asked_for = state_of(&mut targets, "a");
        refresh(&mut targets);
        assert_eq!(state_of(&mut targets, "a"), expected, "{answer:?}");
    }
}

#[test]
fn a_partition_that_has_failed_does_not_return_while_no_broker_answers() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.lookups.is_unanswered = true;
    targets.on_undelivered("a", 3);
    for n in 0..5 {
        refresh(&mut targets);
        assert_eq!(state_of(&mut targets, "a"), without(&[3]));
        assert_eq!(targets.lookups.submitted, 2 + n, "once in {UNREACHABLE:?}");
        clock.advance(UNREACHABLE);
    }
    targets.lookups.is_unanswered = false;
    refresh(&mut targets);
    assert_eq!(state_of(&mut targets, "a"), usable());
}

/// A transaction is not given up for what was known before it began.
#[test]
fn a_look_up_that_no_broker_answers_does_not_show_that_a_partition_is_unavailable() {
    let (mut targets, clock) = targets(Duration::ZERO);
    targets.lookups.answer = Some(without(&[2]));
    assert_eq!(state_of(&mut targets, "a"), without(&[2]));
    for (is_unanswered, is_shown) in [(false, true), (true, false), (false, true)] {
        targets.lookups.is_unanswered = is_unanswered;
        clock.advance(MS);
        let asked_since = clock.monotonic();
        targets.look_up_now(&["a".to_owned()].into());
        assert!(!targets.is_shown_unavailable("a", 2, asked_since), "no answer yet");
        refresh(&mut targets);
        assert_eq!(targets.is_shown_unavailable("a", 2, asked_since), is_shown);
        assert_eq!(state_of(&mut targets, "a"), without(&[2]));
    }
}

#[test]
fn a_topic_that_no_broker_has_answered_for_is_asked_for_when_the_brokers_may_be_back() {
    let (mut targets, clock) = unanswered(&usable());
    refresh(&mut targets);
    targets.refresh_unavailable();
    assert_eq!(targets.lookups.in_flight(), 0, "its time is not over");
    clock.advance(UNREACHABLE);
    targets.refresh_unavailable();
    assert_eq!(targets.lookups.in_flight(), 1);
}
