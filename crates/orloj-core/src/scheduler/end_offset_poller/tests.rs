//! Tests of the requests for end offsets.
//!
//! Invariant: a request is answered when the answers are polled next, unless it is held.

use super::*;
use crate::model::Offset;
use crate::test_environment::TestEnvironment;
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::cluster::TestBounds;
const TRIGGERS: InputLog = InputLog::Triggers;

/// Polls the ends of the partitions 0 and 1, whose logs end at 10 and 11.
fn poller(world: &TestEnvironment) -> EndOffsetPoller<TestEnvironment> {
    world.clock.advance(SECOND);
    let names = Names::new("o");
    for id in [0, 1] {
        for topic in [names.triggers(), names.signals(), names.ledger()] {
            let end = if id == 0 { 10 } else { 11 };
            world.cluster.set(&topic, id, TestBounds::whole(0, end));
        }
    }
    let parts = (world.cluster.clone(), world.clock.clone());
    let timing = SchedulerTiming::default();
    let mut poller = EndOffsetPoller::start(world, parts, &names, &timing);
    poller.watch([0, 1].into_iter());
    let none = poll(&mut poller);
    assert!(none.is_empty(), "the leaders are asked for");
    poller
}

fn poll(poller: &mut EndOffsetPoller<TestEnvironment>) -> Vec<LogEnd> {
    poller.poll_ends(|_, id| known(id))
}

fn known(id: PartitionId) -> KnownLog {
    let read_until = Offset::from(id.unsigned_abs()) + 5;
    KnownLog { read_until, end: Some(read_until + 1) }
}

#[test]
fn an_answer_has_the_end_the_time_of_the_request_and_what_was_read_before_it() {
    let world = TestEnvironment::default();
    world.clock.set(1_000);
    let mut poller = poller(&world);
    assert!(poll(&mut poller).is_empty(), "they are requested");
    let ends = poll(&mut poller);
    assert_eq!(ends.len(), 6);
    for LogEnd { partition, end, at, known: was_known, .. } in ends {
        let id = Offset::from(partition.unsigned_abs());
        assert_eq!((end, at, was_known), (Some(10 + id), 2_000, known(partition)));
    }
    assert!(poll(&mut poller).is_empty(), "it is not time yet");
}

#[test]
fn the_end_of_a_log_is_requested_again_after_its_interval() {
    let world = TestEnvironment::default();
    let mut poller = poller(&world);
    let mut counts = BTreeMap::new();
    // 20 s in steps of 100 ms; an answer takes one.
    for _ in 0..200 {
        for LogEnd { log, partition, .. } in poll(&mut poller) {
            *counts.entry((log, partition)).or_insert(0) += 1;
        }
        world.clock.advance(MS * 100);
    }
    for id in [0, 1] {
        let counts = [TRIGGERS, InputLog::Signals, InputLog::Ledger].map(|log| counts[&(log, id)]);
        assert_eq!(counts, [67, 2, 4], "every 200 ms, 10 s and 5 s after the answer");
    }
}

#[test]
fn the_end_of_a_log_is_not_requested_while_an_answer_is_awaited() {
    let world = TestEnvironment::default();
    let mut poller = poller(&world);
    world.hold("end-offsets");
    let _none = poll(&mut poller);
    world.clock.advance(SECOND * 60);
    let _none = poll(&mut poller);
    world.let_go("end-offsets");
    assert_eq!(poll(&mut poller).len(), 6);
}

#[test]
fn a_request_that_fails_is_answered_too_and_made_again() {
    let world = TestEnvironment::default();
    let names = Names::new("o");
    for topic in [names.triggers(), names.signals(), names.ledger()] {
        world.cluster.set_leader(&topic, 7, 1);
    }
    let mut poller = poller(&world);
    poller.watch([7].into_iter());
    // The leaders are known, and the ends are asked for.
    let _none = poll(&mut poller);
    let ends = poll(&mut poller);
    assert!(ends.len() == 3 && ends.iter().all(|end| end.end.is_none()));
    world.clock.advance(SECOND * 60);
    let _none = poll(&mut poller);
    assert_eq!(poll(&mut poller).len(), 3);
}

#[test]
fn answers_to_requests_before_a_takeover_say_nothing_and_its_triggers_are_asked_for_at_once() {
    let world = TestEnvironment::default();
    let mut poller = poller(&world);
    let _none = poll(&mut poller);
    poller.on_taken_over(0);
    let ids: Vec<_> = poll(&mut poller).iter().map(|end| end.partition).collect();
    assert_eq!(ids, [1, 1, 1], "those of the other one");
    poller.on_taken_over(0);
    let _none = poll(&mut poller);
    let again: Vec<_> = poll(&mut poller).iter().map(|end| (end.log, end.partition)).collect();
    assert_eq!(again, [(TRIGGERS, 0)]);
    world.clock.advance(SECOND * 60);
    let _none = poll(&mut poller);
    assert_eq!(poll(&mut poller).len(), 6, "each with the takeovers of its own partition");
}

#[test]
fn brokers_that_do_not_answer_for_any_partition_are_noticed() {
    let world = TestEnvironment::default();
    let mut poller = poller(&world);
    let _none = poll(&mut poller);
    world.clock.advance(SECOND);
    assert_eq!(poller.unanswered_for(), SECOND);
    let _ends = poll(&mut poller);
    assert_eq!(poller.unanswered_for(), Duration::ZERO);
    world.hold("end-offsets");
    for _ in 0..10 {
        world.clock.advance(SECOND);
        let _none = poll(&mut poller);
    }
    assert_eq!(poller.unanswered_for(), SECOND * 10);
    poller.watch([].into_iter());
    assert_eq!(poller.unanswered_for(), Duration::ZERO, "it has nothing to ask for");
    poller.watch([1].into_iter());
    assert_eq!(poller.unanswered_for(), Duration::ZERO);
}
