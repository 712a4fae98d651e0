//! What a worker reads when the log of its fires is not as it was.
//!
//! Invariant: no broker decides here: a test sets the bounds of the log.

use crate::environment::log::LogEvent;
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::{NOW, TestEnvironment};
use crate::worker::config::WorkerConfig;
use crate::worker::test_worker::{
    FIRES, TestWorker, config, fire, offsets, record, worker_after,
};

/// Turns of the loop, until nothing more happens.
fn run(worker: &mut TestWorker) {
    (0..20).for_each(|_| worker.poll_once().unwrap());
}

#[test]
fn a_worker_commits_and_reads_on_after_a_jump_of_the_log_start() {
    const LOW: u64 = 1_000_000;
    const OFFSET_METADATA_MAX: usize = 4_096;
    let world = TestEnvironment::default();
    let (mut worker, callbacks) =
        worker_after(&world, WorkerConfig { in_flight_max: 10_000, ..config() }, (0, 0, 5_000));
    callbacks.answer(0);
    world.hold("committer");
    world.triggers.returns((0..5_000).map(|offset| record(offset, NOW, &fire("a", 1))));
    run(&mut worker);
    world.cluster.set(FIRES, 0, TestBounds::whole(LOW, LOW + 1));
    world.triggers.reading().events.push_back(LogEvent::OutOfRange);
    run(&mut worker);
    world.let_go("committer");
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
