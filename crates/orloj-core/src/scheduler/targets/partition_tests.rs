//! Tests of target topics of which some partitions cannot be written.
//!
//! Invariant: the clock moves when an answer takes time or a test says so.

use super::tests::{TTL, TestTargets, UNREACHABLE, state_of, targets, usable};
use super::*;
use crate::test_environment::clock::MS;

/// All partitions but these can be written.
fn without(unavailable: &[PartitionId]) -> TopicState {
    let unavailable = unavailable.iter().copied().collect();
    TopicState::Usable { partitions: 8, record_bytes_max: 1_000, unavailable }
}

/// The partitions of `topic` that fires wait for.
fn left_out(targets: &mut TestTargets, topic: &str) -> Vec<PartitionId> {
    match state_of(targets, topic) {
        TopicState::Usable { unavailable, .. } => unavailable.iter().collect(),
        state => panic!("{state:?}"),
    }
}

#[test]
fn only_the_partition_that_has_not_acknowledged_a_record_is_left_out() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    for topic in ["a", "b"] {
        assert_eq!(state_of(&mut targets, topic), usable());
    }
    for partition in [5, 3, 5] {
        targets.on_undelivered("a", partition);
        targets.on_committed("a", 0);
    }
    assert_eq!(state_of(&mut targets, "a"), without(&[3, 5]));
    assert_eq!(state_of(&mut targets, "b"), usable());
}

#[test]
fn a_partition_that_fails_again_and_again_is_left_out_for_longer() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    assert!(!targets.has_failures());
    for factor in [1, 2, 4, 8, 8] {
        targets.on_undelivered("a", 3);
        assert!(targets.has_failures());
        clock.advance(UNREACHABLE * factor - MS);
        for _ in 0..2 {
            targets.refresh_expired();
            assert_eq!(left_out(&mut targets, "a"), [3], "whatever the answers are");
        }
        clock.advance(MS);
        targets.refresh_expired();
        assert_eq!(state_of(&mut targets, "a"), usable(), "factor {factor}");
    }
}

#[test]
fn a_record_of_a_partition_ends_its_failures_and_those_of_no_other_one() {
    let (mut targets, clock) = targets(Duration::ZERO);
    let fails_for = |targets: &mut TestTargets, partition, length: Duration| {
        targets.on_undelivered("a", partition);
        assert_eq!(left_out(targets, "a"), [partition]);
        clock.advance(length - MS);
        targets.refresh_expired();
        assert_eq!(left_out(targets, "a"), [partition]);
        clock.advance(MS);
        targets.refresh_expired();
        assert_eq!(state_of(targets, "a"), usable());
        targets.on_committed("a", 0);
        clock.advance(UNREACHABLE * 8); // its turn is over
    };
    assert_eq!(state_of(&mut targets, "a"), usable());
    fails_for(&mut targets, 3, UNREACHABLE);
    fails_for(&mut targets, 4, UNREACHABLE);
    targets.on_committed("a", 4);
    targets.on_committed("b", 3);
    fails_for(&mut targets, 3, UNREACHABLE * 2);
    fails_for(&mut targets, 4, UNREACHABLE);
    targets.on_committed("a", 3);
    fails_for(&mut targets, 3, UNREACHABLE);
    targets.on_committed("a", 3);
    targets.on_committed("a", 4);
    assert!(!targets.has_failures());
}

/// Its broker may have been away when it was asked.
#[test]
fn a_partition_returns_after_the_answer_to_a_look_up_that_was_made_when_its_time_was_over() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.on_undelivered("a", 3);
    clock.advance(UNREACHABLE);
    // The answer to the look-up that was made at once comes late.
    assert_eq!(left_out(&mut targets, "a"), [3]);
    assert_eq!(targets.lookups.submitted, 2);
    targets.refresh_expired();
    assert_eq!(targets.lookups.submitted, 3);
    assert_eq!(state_of(&mut targets, "a"), usable());
}

#[test]
fn a_topic_is_asked_for_at_once_if_one_of_its_partitions_has_failed() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.on_undelivered("a", 3);
    assert_eq!(targets.lookups.submitted, 2);
    targets.lookups.answer = Some(without(&[1, 3]));
    assert_eq!(left_out(&mut targets, "a"), [1, 3]);
}

#[test]
fn a_partition_that_a_look_up_shows_is_asked_for_as_long_as_fires_wait_for_its_topic() {
    let (mut targets, clock) = targets(Duration::ZERO);
    targets.lookups.answer = Some(without(&[2]));
    assert_eq!(left_out(&mut targets, "a"), [2]);
    for n in 1..=20 {
        clock.advance(UNREACHABLE - MS);
        targets.refresh_expired();
        assert_eq!(targets.lookups.submitted, n.min(11), "its time is not over");
        clock.advance(MS);
        targets.refresh_expired();
        assert_eq!(targets.lookups.submitted, 1 + n.min(10), "it was used {n} s ago");
        targets.refresh_expired();
    }
    assert_eq!(left_out(&mut targets, "a"), [2], "it is used again");
    targets.lookups.answer = None;
    targets.refresh_expired();
    assert_eq!(state_of(&mut targets, "a"), usable());
    assert_eq!(targets.lookups.submitted, 12);
    clock.advance(TTL - MS);
    targets.refresh_expired();
    assert_eq!(targets.lookups.submitted, 12, "all of it can be written");
}

/// The answer that it is back is of a broker that does not know of the failure.
#[test]
fn each_partition_that_has_failed_returns_when_its_own_time_is_over_and_the_one_before_is_back() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.on_undelivered("a", 3);
    targets.on_committed("a", 0);
    clock.advance(UNREACHABLE / 2);
    targets.on_undelivered("a", 4);
    for expected in [&[3, 4][..], &[4], &[]] {
        targets.refresh_expired();
        assert_eq!(left_out(&mut targets, "a"), expected);
        if expected == [4] {
            targets.on_committed("a", 3);
        }
        clock.advance(UNREACHABLE / 2);
    }
    assert_eq!(targets.lookups.submitted, 5);
}

/// If one is as it was, the others may be too, and each fails a transaction of all topics.
#[test]
fn partitions_that_have_failed_return_one_at_a_time() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    for partition in [3, 4, 5] {
        targets.on_undelivered("a", partition);
        targets.on_committed("a", 0);
    }
    clock.advance(UNREACHABLE);
    targets.refresh_expired();
    assert_eq!(left_out(&mut targets, "a"), [4, 5]);
    targets.on_committed("a", 3);
    targets.refresh_expired();
    assert_eq!(left_out(&mut targets, "a"), [5], "it is looked up at once");
    // Nothing is to be sent to it.
    clock.advance(UNREACHABLE * 8 - MS);
    targets.refresh_expired();
    assert_eq!(left_out(&mut targets, "a"), [5]);
    clock.advance(MS);
    targets.refresh_expired();
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.on_undelivered("a", 5);
    assert_eq!(left_out(&mut targets, "a"), [4, 5], "neither has taken a record");
}

#[test]
fn topics_with_partitions_that_are_left_out_are_asked_for_when_the_brokers_may_be_back() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "usable"), usable());
    targets.lookups.answer = Some(without(&[2]));
    assert_eq!(left_out(&mut targets, "shown"), [2]);
    targets.lookups.answer = None;
    assert_eq!(state_of(&mut targets, "failed"), usable());
    targets.refresh_unavailable();
    assert_eq!(targets.lookups.in_flight(), 0, "its time is not over");
    targets.on_undelivered("failed", 3);
    targets.refresh_unavailable();
    assert_eq!(targets.lookups.in_flight(), 2, "what was asked before does not count");
    assert_eq!(left_out(&mut targets, "failed"), [3]);
    clock.advance(UNREACHABLE);
    targets.refresh_unavailable();
    assert_eq!(targets.lookups.in_flight(), 2, "all but the one that is usable");
    assert_eq!(state_of(&mut targets, "shown"), usable());
    assert_eq!(state_of(&mut targets, "failed"), usable());
}

#[test]
fn a_record_of_a_partition_that_is_not_known_stops_the_whole_topic_for_a_time() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.on_undelivered("a", -1);
    assert!(matches!(state_of(&mut targets, "a"), TopicState::Unavailable(_)));
    clock.advance(UNREACHABLE);
    targets.refresh_expired();
    assert_eq!(state_of(&mut targets, "a"), usable());
    targets.on_committed("a", 7);
    assert!(!targets.has_failures());
}

#[test]
fn a_topic_of_which_one_partition_after_the_other_fails_lets_all_its_fires_wait() {
    let (mut targets, clock) = targets(Duration::ZERO);
    assert_eq!(state_of(&mut targets, "a"), usable());
    for partition in [3, 4] {
        targets.on_undelivered("a", partition);
    }
    assert!(matches!(state_of(&mut targets, "a"), TopicState::Unavailable(_)));
    clock.advance(UNREACHABLE);
    targets.refresh_expired();
    assert_eq!(left_out(&mut targets, "a"), [3, 4], "the others have their turn");
    targets.on_committed("a", 0);
    clock.advance(UNREACHABLE * 8);
    targets.refresh_expired();
    assert_eq!(left_out(&mut targets, "a"), [4], "they return one at a time");
    targets.on_committed("a", 3);
    targets.refresh_expired();
    assert_eq!(state_of(&mut targets, "a"), usable());
}

#[test]
fn a_topic_that_refuses_records_stays_out_although_one_of_its_partitions_fails() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    for _ in 0..REFUSALS_MAX {
        targets.on_refused("a", "too large");
    }
    targets.on_undelivered("a", 3);
    for _ in 0..2 {
        assert!(matches!(state_of(&mut targets, "a"), TopicState::Unusable(_)));
    }
    assert_eq!(targets.lookups.submitted, 0);
    targets.on_committed("a", 4);
    assert!(targets.has_failures(), "that of the partition");
}

#[test]
fn the_partitions_of_a_pools_topic_are_left_out_one_by_one_too() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    let pool = |targets: &mut TestTargets| {
        let catalog = targets.catalog(std::iter::empty(), ["slow"].into_iter());
        catalog.pool("slow").cloned().unwrap()
    };
    assert_eq!(pool(&mut targets), usable());
    targets.on_undelivered("o.fires.slow", 1);
    assert_eq!(pool(&mut targets), without(&[1]));
}

#[test]
fn a_topic_with_a_partition_that_is_out_stays_known_however_many_others_are_used() {
    let (mut targets, _clock) = targets(Duration::ZERO);
    targets.on_undelivered("failed", 3);
    assert_eq!(left_out(&mut targets, "failed"), [3], "the metadata shows nothing");
    targets.lookups.answer = Some(without(&[2]));
    assert_eq!(left_out(&mut targets, "shown"), [2]);
    targets.lookups.answer = None;
    for n in 0..=CACHED_MAX {
        let _state = state_of(&mut targets, &format!("topic-{n}"));
    }
    let submitted = targets.lookups.submitted;
    assert_eq!(left_out(&mut targets, "shown"), [2]);
    assert_eq!(left_out(&mut targets, "failed"), [3]);
    assert_eq!(targets.lookups.submitted, submitted, "both are known");
}
