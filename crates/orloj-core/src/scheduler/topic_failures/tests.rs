//! Tests of targets that have not taken a record.
//!
//! Invariant: times are those of the calls; a topic has as many partitions as a test names.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// What a look-up shows if these partitions cannot be written.
fn shown(unavailable: &[PartitionId]) -> TopicState {
    let unavailable = unavailable.iter().copied().collect();
    TopicState::Usable { partitions: 1 << 20, record_bytes_max: 1_000, unavailable }
}

/// The partitions of a topic that are left out.
fn left_out(failures: &TopicFailures, topic: &str) -> Vec<PartitionId> {
    match failures.applied_to(topic, &shown(&[])) {
        TopicState::Usable { unavailable, .. } => unavailable.iter().collect(),
        state => panic!("{state:?}"),
    }
}

#[test]
fn of_too_many_failures_those_are_forgotten_whose_time_is_over_and_then_the_first_to_be() {
    let mut failures = TopicFailures::default();
    let topic = |n: usize| format!("topic-{n}");
    let half = REMEMBERED_MAX / 2;
    for n in 0..half {
        failures.on_undelivered((&topic(n), 7), SECOND, Duration::ZERO);
        failures.on_undelivered(("wide", n as PartitionId), SECOND * 2, Duration::ZERO);
        failures.on_committed("wide", PartitionId::MAX);
    }
    assert_eq!(failures.remembered(), REMEMBERED_MAX);
    failures.on_undelivered(("later", 0), SECOND, SECOND / 2);
    assert_eq!(failures.remembered(), REMEMBERED_MAX, "one is forgotten, of the first to end");
    assert_eq!((0..half).filter(|n| failures.contains(&topic(*n))).count(), half - 1);
    assert_eq!(left_out(&failures, "later"), [0]);
    failures.on_undelivered(("wide", half as PartitionId), SECOND, SECOND);
    assert_eq!(failures.remembered(), half + 2, "those that end now are forgotten");
    assert!(failures.contains("wide") && failures.contains("later"));
    assert_eq!(left_out(&failures, "wide").len(), half + 1);
}

#[test]
fn the_time_of_a_topic_that_refuses_records_counts_among_too_many() {
    let mut failures = TopicFailures::default();
    assert_eq!(failures.on_refused("refusing", Duration::ZERO), 1);
    failures.block_until("refusing", SECOND * 3);
    for n in 1..REMEMBERED_MAX {
        failures.on_undelivered(("wide", n as PartitionId), SECOND, Duration::ZERO);
        failures.on_committed("wide", PartitionId::MAX);
    }
    failures.on_undelivered(("other", 1), SECOND, SECOND * 2);
    assert_eq!(failures.remembered(), 2);
    assert!(failures.is_blocked("refusing", SECOND * 2));
    assert!(!failures.is_blocked("refusing", SECOND * 3));
    assert_eq!(failures.on_refused("refusing", SECOND * 2), 2);
}

/// The brokers may need another partition to end the transaction in which it failed.
#[test]
fn a_partition_that_is_shown_to_be_back_is_not_left_out_for_its_transaction() {
    let mut failures = TopicFailures::default();
    let keep_out = |failures: &mut TopicFailures, until| {
        for partition in [1, 2] {
            failures.leave_out_until(("a", partition), until);
        }
    };
    for partition in [1, 2] {
        failures.on_undelivered(("a", partition), SECOND, Duration::ZERO);
        failures.on_committed("a", 3);
    }
    // What is not shown to be away may be as silent as before.
    failures.on_answer("a", SECOND / 2, &shown(&[1]));
    keep_out(&mut failures, SECOND * 3);
    failures.on_answer("a", SECOND * 2, &shown(&[]));
    keep_out(&mut failures, SECOND * 30);
    failures.on_answer("a", SECOND * 3, &shown(&[]));
    assert_eq!(left_out(&failures, "a"), [2]);
    // It fails again: that it was back says nothing now.
    failures.on_undelivered(("a", 1), SECOND, SECOND * 4);
    keep_out(&mut failures, SECOND * 60);
    failures.on_answer("a", SECOND * 59, &shown(&[]));
    assert_eq!(left_out(&failures, "a"), [1, 2]);
}

/// Whether fires wait for all of the topic.
fn is_left_out(failures: &TopicFailures, topic: &str) -> bool {
    let state = failures.applied_to(topic, &shown(&[]));
    matches!(state, TopicState::Unavailable(_))
}

/// Each of its transactions would fail, and with it those of all topics.
#[test]
fn a_topic_whose_partitions_fail_one_after_the_other_is_left_out_as_a_whole_for_a_time() {
    let mut failures = TopicFailures::default();
    let fail = |failures: &mut TopicFailures, partition, now| {
        failures.on_undelivered(("a", partition), SECOND, now)
    };
    assert_eq!(fail(&mut failures, 0, SECOND), SECOND * 2);
    assert_eq!(fail(&mut failures, 0, SECOND * 9), SECOND * 11, "the same one");
    assert!(!is_left_out(&failures, "a"));
    let mut now = SECOND * 19;
    for (partition, factor) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8)] {
        let until = now + SECOND * factor;
        assert_eq!(fail(&mut failures, partition, now), until);
        failures.on_answer("a", until - SECOND / 2, &shown(&[]));
        assert!(is_left_out(&failures, "a"), "{partition}");
        // The others have their turn, and those that have failed do not.
        failures.on_answer("a", until, &shown(&[]));
        assert_eq!(left_out(&failures, "a").len(), 1 + partition as usize);
        now = until + SECOND * 7;
    }
    failures.on_committed("a", 6);
    failures.on_answer("a", now, &shown(&[]));
    assert_eq!(left_out(&failures, "a").len(), 6, "their time is not over");
    failures.on_answer("a", now + SECOND, &shown(&[]));
    assert_eq!(left_out(&failures, "a"), [1, 2, 3, 4, 5], "one returns");
    // A record of it was committed.
    let _until = fail(&mut failures, 7, now);
    assert_eq!(left_out(&failures, "a"), [1, 2, 3, 4, 5, 7]);
    // Two that have not failed before.
    let _until = fail(&mut failures, 8, now);
    assert!(is_left_out(&failures, "a"));
    failures.on_answer("a", now + SECOND, &shown(&[]));
    assert_eq!(left_out(&failures, "a"), [0, 1, 2, 3, 4, 5, 7, 8]);
}

/// Three partitions of a topic have failed, and it is left out for 2 s.
fn three_failed() -> TopicFailures {
    let mut failures = TopicFailures::default();
    for partition in [1, 2, 3] {
        failures.on_undelivered(("a", partition), SECOND, Duration::ZERO);
    }
    assert!(is_left_out(&failures, "a"));
    failures.on_answer("a", SECOND * 2, &shown(&[]));
    assert_eq!(left_out(&failures, "a"), [1, 2, 3]);
    failures
}

/// They say nothing of the others, of which a record may never be committed: it is in the
/// transactions that they fail.
#[test]
fn partitions_that_fail_again_and_again_do_so_one_at_a_time_and_leave_out_no_other_one() {
    let mut failures = three_failed();
    let mut failed = Vec::new();
    for second in 3..60 {
        failures.on_answer("a", SECOND * second, &shown(&[]));
        let out = left_out(&failures, "a");
        assert!(out.iter().all(|id| (1..=3).contains(id)), "{second} s: {out:?}");
        for partition in (1..=3).filter(|id| !out.contains(id)) {
            failures.on_undelivered(("a", partition), SECOND, SECOND * second);
            failed.push((second, partition));
        }
    }
    let expected = [(10, 1), (18, 2), (26, 3), (34, 1), (42, 2), (50, 3), (58, 1)];
    assert_eq!(failed, expected);
}

#[test]
fn a_partition_that_has_failed_again_and_one_that_fails_first_leave_out_no_other_one() {
    let mut failures = TopicFailures::default();
    failures.on_undelivered(("a", 1), SECOND, Duration::ZERO);
    failures.on_committed("a", 0);
    failures.on_undelivered(("a", 1), SECOND, SECOND * 10);
    failures.on_undelivered(("a", 2), SECOND, SECOND * 11);
    assert_eq!(left_out(&failures, "a"), [1, 2]);
}

/// Which transactions would fail.
#[test]
fn a_partition_is_left_out_until_it_returns_or_with_its_topic() {
    let mut failures = TopicFailures::default();
    failures.on_undelivered(("a", 1), SECOND, Duration::ZERO);
    let out = |failures: &TopicFailures| {
        [("a", 1), ("a", 2), ("b", 1)].map(|(topic, id)| failures.is_left_out(topic, id))
    };
    assert_eq!(out(&failures), [true, false, false]);
    failures.on_answer("a", SECOND, &shown(&[]));
    assert_eq!(out(&failures), [false, false, false]);
    failures.on_undelivered(("a", -1), SECOND, SECOND * 2);
    assert_eq!(out(&failures), [true, true, false]);
    failures.on_answer("a", SECOND * 3, &shown(&[]));
    assert_eq!(out(&failures), [true, false, false]);
}

#[test]
fn partitions_that_have_recovered_return_one_after_the_other() {
    let mut failures = three_failed();
    let left_out_at = |failures: &mut TopicFailures, now| {
        failures.on_answer("a", now, &shown(&[]));
        left_out(failures, "a")
    };
    assert_eq!(failures.first_until("a"), Some(SECOND * 10));
    assert_eq!(left_out_at(&mut failures, SECOND * 11), [2, 3]);
    failures.on_committed("a", 0);
    assert_eq!(left_out_at(&mut failures, SECOND * 12), [2, 3], "no record of it");
    assert_eq!(failures.first_until("a"), Some(SECOND * 19));
    failures.on_committed("a", 1);
    assert_eq!(failures.first_until("a"), Some(SECOND * 10));
    assert_eq!(left_out_at(&mut failures, SECOND * 13), [3]);
    // Nothing is to be sent to it.
    assert_eq!(left_out_at(&mut failures, SECOND * 20), [3]);
    assert_eq!(left_out_at(&mut failures, SECOND * 21), [] as [PartitionId; 0]);
    // None of the two has taken a record.
    failures.on_undelivered(("a", 3), SECOND, SECOND * 22);
    assert_eq!(left_out(&failures, "a"), [2, 3]);
    assert_eq!(left_out_at(&mut failures, SECOND * 24), [3]);
    failures.on_undelivered(("a", 2), SECOND, SECOND * 25);
    assert_eq!(left_out_at(&mut failures, SECOND * 26), [2, 3], "others have their turn");
    assert_eq!(left_out_at(&mut failures, SECOND * 27), [2]);
    failures.on_committed("a", 3);
    assert_eq!(left_out_at(&mut failures, SECOND * 29), [] as [PartitionId; 0]);
    // One of them has recovered meanwhile.
    failures.on_undelivered(("a", 2), SECOND, SECOND * 30);
    assert_eq!(left_out_at(&mut failures, SECOND * 34), [] as [PartitionId; 0]);
}

/// Each failed transaction takes 20 s here.
#[test]
fn a_topic_of_a_thousand_silent_partitions_leaves_other_topics_8_s_between_two_failures() {
    const FAILS_AFTER: Duration = Duration::from_secs(20);
    let mut failures = TopicFailures::default();
    let (mut now, mut failed_at) = (Duration::ZERO, Vec::new());
    while failed_at.len() < 2_000 {
        failures.on_answer("a", now, &shown(&[]));
        let state = failures.applied_to("a", &TopicState::usable(1_000, 1_000));
        let TopicState::Usable { unavailable, .. } = state else {
            now += SECOND;
            continue;
        };
        let Some(partition) = (0..1_000).find(|id| !unavailable.contains(*id)) else {
            now += SECOND;
            continue;
        };
        if let (Some(last), 5..) = (failed_at.last(), failed_at.len()) {
            assert!(now - *last >= SECOND * 8, "{partition} after {:?}", now - *last);
        }
        now += FAILS_AFTER;
        failures.on_undelivered(("a", partition), SECOND, now);
        failed_at.push(now);
    }
}

#[test]
fn a_record_of_a_partition_that_is_not_known_counts_for_the_whole_topic() {
    let mut failures = TopicFailures::default();
    failures.on_undelivered(("a", 0), SECOND, Duration::ZERO);
    failures.on_committed("a", 9);
    failures.on_answer("a", SECOND, &shown(&[]));
    let until = failures.on_undelivered(("a", -1), SECOND, SECOND * 2);
    assert!(is_left_out(&failures, "a"));
    failures.on_answer("a", until, &shown(&[]));
    assert_eq!(left_out(&failures, "a"), [0], "it may be the one that has failed before");
    failures.on_committed("a", 0);
    assert!(failures.is_empty());
}

#[test]
fn what_a_look_up_shows_and_what_has_failed_is_left_out_together() {
    let mut failures = TopicFailures::default();
    failures.on_undelivered(("a", 1), SECOND, Duration::ZERO);
    failures.on_committed("a", 0);
    let unavailable = [0, 1].into_iter().collect();
    let shown = TopicState::Usable { partitions: 3, record_bytes_max: 9, unavailable };
    assert_eq!(failures.applied_to("a", &shown), shown);
    failures.on_undelivered(("a", 2), SECOND, Duration::ZERO);
    let unavailable = [0, 1, 2].into_iter().collect();
    let both = TopicState::Usable { partitions: 3, record_bytes_max: 9, unavailable };
    assert_eq!(failures.applied_to("a", &shown), both);
    assert_eq!(failures.applied_to("b", &shown), shown);
    for state in [TopicState::Unknown, TopicState::Unusable("denied".to_owned())] {
        assert_eq!(failures.applied_to("a", &state), state);
    }
}

#[test]
fn a_partition_does_not_return_before_the_brokers_have_ended_its_transaction() {
    let mut failures = TopicFailures::default();
    failures.leave_out_until(("a", 1), SECOND * 5);
    assert!(failures.is_empty(), "nothing has failed");
    failures.on_undelivered(("a", 1), SECOND, Duration::ZERO);
    failures.leave_out_until(("a", 1), SECOND * 5);
    assert_eq!(failures.first_until("a"), Some(SECOND * 5));
    failures.on_answer("a", SECOND * 4, &shown(&[]));
    assert!(failures.is_left_out("a", 1));
    failures.on_answer("a", SECOND * 5, &shown(&[]));
    assert!(!failures.is_left_out("a", 1));
}
