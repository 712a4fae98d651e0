//! What a worker reads when the log of its fires is not as it was.
//!
//! Invariant: no broker decides here: a test sets the bounds of the log.

use std::time::Duration;

use crate::engine::assignment::AssignmentChange;
use crate::environment::log::LogEvent;
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::reader::TestRecord;
use crate::test_environment::{NOW, TestEnvironment};
use crate::worker::config::WorkerConfig;
use crate::worker::test_worker::{
    FIRES, TestCallbacks, TestWorker, config, fire, offsets, record, worker_after, worker_with,
};

/// Turns of the loop, until nothing more happens.
fn run(worker: &mut TestWorker) {
    (0..20).for_each(|_| worker.poll_once().unwrap());
}

/// A log start so far ahead that the metadata of a commit does not reach it while much is open.
const LOW: u64 = 1_000_000;

/// A worker with 5,000 callbacks in progress, whose log starts at [`LOW`] and ends at `end` since
/// then.
fn worker_behind(world: &TestEnvironment, end: u64) -> (TestWorker, TestCallbacks) {
    let (mut worker, callbacks) =
        worker_after(world, WorkerConfig { in_flight_max: 10_000, ..config() }, (0, 0, 5_000));
    callbacks.answer(0);
    world.hold("committer");
    let first = record(0, NOW, &fire("a", 1));
    world.triggers.returns((0..5_000).map(|offset| TestRecord { offset, ..first.clone() }));
    run(&mut worker);
    world.cluster.set(FIRES, 0, TestBounds::whole(LOW, end));
    world.triggers.reading().events.push_back(LogEvent::OutOfRange);
    run(&mut worker);
    world.let_go("committer");
    (worker, callbacks)
}

#[test]
fn a_worker_commits_and_reads_on_after_a_jump_of_the_log_start() {
    const OFFSET_METADATA_MAX: usize = 4_096;
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_behind(&world, LOW + 1);
    let _earlier = (callbacks.requested(), world.triggers.calls());
    world.producer.sending().offsets.clear();
    world.triggers.returns([record(LOW, NOW, &fire("new", 1))]);
    run(&mut worker);
    let sent = world.producer.sending().offsets.clone();
    let longest = sent.iter().map(|it| it.metadata.len()).max().unwrap();
    assert!(longest <= OFFSET_METADATA_MAX, "{longest}");
    let again = format!("start {FIRES}[0] at {LOW}");
    assert!(world.triggers.calls().contains(&again), "there is room again");
    callbacks.answer(204);
    world.triggers.returns([record(LOW, NOW, &fire("new", 1))]);
    run(&mut worker);
    assert_eq!(callbacks.requested().last().map(String::as_str), Some("new"));
    assert_eq!(offsets(&world).last(), Some(&(0, LOW + 1)));
}

#[test]
fn what_was_deleted_is_not_behind_for_ever_although_nothing_more_is_read() {
    const FIRST_IS_OPEN: &str = "1:fA;656"; // and the next five are finished
    let world = TestEnvironment::default();
    let (mut worker, _callbacks) = worker_with(&world, config());
    run(&mut worker);
    world.member.membership().committed = Some((150, FIRST_IS_OPEN.to_owned()));
    world.cluster.set(FIRES, 0, TestBounds::whole(155, 156));
    let assigned = AssignmentChange::Assigned(vec![0]);
    world.member.membership().polls.push_back(Ok(vec![assigned]));
    run(&mut worker);
    assert_eq!(offsets(&world).last(), Some(&(0, 156)), "no fire is left");
    run(&mut worker);
    assert_eq!(offsets(&world), [], "it is committed once");

    world.hold("committer");
    world.triggers.returns([record(156, NOW, &fire("a", 1))]);
    run(&mut worker);
    world.cluster.set(FIRES, 0, TestBounds::whole(400, 400));
    world.triggers.reading().events.push_back(LogEvent::OutOfRange);
    run(&mut worker);
    world.let_go("committer");
    run(&mut worker);
    assert_eq!(offsets(&world), [(0, 157), (0, 400)], "what was deleted meanwhile is not left");
}

#[test]
fn what_was_deleted_far_ahead_is_finished_when_what_is_open_has_ended() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_behind(&world, LOW);
    callbacks.answer(204);
    (0..5).for_each(|_| run(&mut worker));
    assert_eq!(offsets(&world).last(), Some(&(0, LOW)));
}

#[test]
fn fires_that_are_written_again_below_the_committed_offset_are_delivered() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_after(&world, config(), (50, 0, 10));
    assert_eq!(world.triggers.calls(), [format!("start {FIRES}[0] at 10")]);
    run(&mut worker);
    assert_eq!(offsets(&world).last(), Some(&(0, 10)), "the next worker knows it, too");
    world.triggers.returns([record(10, NOW, &fire("a", 1)), record(11, NOW, &fire("b", 1))]);
    run(&mut worker);
    assert_eq!(callbacks.requested(), ["a", "b"]);
}

#[test]
fn fires_that_are_written_again_below_the_read_offset_are_delivered() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_after(&world, config(), (0, 0, 50));
    world.triggers.returns((0..50).map(|offset| record(offset, NOW, &fire("lost", 1))));
    run(&mut worker);
    let last = world.producer.sending().offsets.last().cloned().unwrap();
    world.member.membership().committed = Some((last.offset, last.metadata));
    world.cluster.set(FIRES, 0, TestBounds::whole(0, 10));
    let _earlier = (callbacks.requested(), world.triggers.calls());
    world.triggers.reading().events.push_back(LogEvent::OutOfRange);
    run(&mut worker);
    // By now it is as long as it was.
    world.cluster.set(FIRES, 0, TestBounds::whole(0, 60));
    assert_eq!(world.triggers.calls().last(), Some(&format!("start {FIRES}[0] at 10")));
    assert_eq!(offsets(&world).last(), Some(&(0, 10)));
    world.triggers.returns([record(10, NOW, &fire("a", 1)), record(11, NOW, &fire("b", 1))]);
    run(&mut worker);
    assert_eq!(callbacks.requested(), ["a", "b"]);
    assert_eq!(offsets(&world).last(), Some(&(0, 12)), "in the same epoch");
    run(&mut worker);
    assert_eq!(world.triggers.calls(), [""; 0], "it is read on");
}

#[test]
fn a_broker_that_refuses_an_offset_that_exists_is_asked_again_after_a_pause() {
    let world = TestEnvironment::default();
    let (mut worker, _callbacks) = worker_with(&world, config());
    run(&mut worker);
    let starts = |seconds: u64, worker: &mut TestWorker| {
        world.clock.advance(Duration::from_secs(seconds));
        let _earlier = world.triggers.calls();
        for _ in 0..20 {
            world.triggers.reading().events.push_back(LogEvent::OutOfRange);
            worker.poll_once().unwrap();
        }
        world.triggers.calls().len()
    };
    assert_eq!([starts(0, &mut worker), starts(0, &mut worker)], [1, 0]);
    assert_eq!([starts(3, &mut worker), starts(0, &mut worker)], [1, 0]);
}
