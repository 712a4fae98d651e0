//! What is bounded in bytes: what is in progress, what is not committed, and what goes back to the
//! log.

use std::time::Duration;

use super::{opens_at_once, run};
use crate::codec::schemas::Schemas;
use crate::model::fire::Fire;
use crate::model::signal::Signal;
use crate::test_environment::{NOW, TestEnvironment};
use crate::worker::config::WorkerConfig;
use crate::worker::queue::QueueBounds;
use crate::worker::test_worker::{config, fire, offsets, record, worker_with};

#[test]
fn reading_stops_when_too_many_bytes_of_results_are_not_committed() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(
        &world,
        WorkerConfig { results_bytes_max: 3_000, in_flight_max: 2, ..config() },
    );
    run(&mut worker);
    callbacks.answer(500);
    world.hold("committer");
    world.triggers.returns((0..50).map(|n| record(n, NOW, &fire("a", 1_000))));
    run(&mut worker);
    let read = callbacks.requested().len();
    assert!((2..6).contains(&read), "{read} are read");
    world.let_go("committer");
    (0..10).for_each(|_| run(&mut worker));
    assert_eq!((callbacks.requested().len() + read, worker.results.bytes()), (50, 0));
}

#[test]
fn no_callback_starts_when_the_fires_in_flight_have_too_many_bytes() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, with_bytes_in_progress(10_000));
    callbacks.answer(0);
    world.triggers.returns((0..50).map(|n| record(n, NOW, &fire("a", 1_000))));
    run(&mut worker);
    let started = callbacks.requested().len();
    assert!((3..6).contains(&started), "{started} are started");
    callbacks.answer(204);
    (0..10).for_each(|_| run(&mut worker));
    assert_eq!((callbacks.requested().len() + started, worker.queue.in_progress_bytes()), (50, 0));
}

#[test]
fn what_one_transaction_contains_is_bounded_in_bytes() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) =
        worker_with(&world, WorkerConfig { commit_bytes_max: 4_000, ..config() });
    run(&mut worker);
    callbacks.answer(500);
    world.hold("committer");
    world.triggers.returns((0..20).map(|n| record(n, NOW, &fire("a", 1_000))));
    run(&mut worker);
    world.let_go("committer");
    let _before = offsets(&world);
    run(&mut worker);
    let commits = offsets(&world);
    assert!(commits.len() >= 5, "{commits:?}");
    assert_eq!((commits.last(), worker.results.count()), (Some(&(0, 20)), 0));
}

fn with_bytes_in_progress(in_progress_bytes: usize) -> WorkerConfig {
    let queue = QueueBounds { in_progress_bytes, ..config().queue };
    WorkerConfig { queue, ..config() }
}

fn fire_of(caller: &str, trigger: &str, size: usize) -> Fire {
    let mut fire = fire(trigger, size);
    fire.definition.caller = Some(caller.into());
    fire
}

#[test]
fn callers_whose_receivers_hang_leave_bytes_in_flight_to_others() {
    let world = TestEnvironment::default();
    let (mut worker, callbacks) = worker_with(&world, with_bytes_in_progress(100_000));
    callbacks.answer(0);
    let callers = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let hanging = callers.iter().flat_map(|name| (0..60).map(|_| fire_of(name, "hangs", 1_000)));
    let fires: Vec<_> = hanging.chain([fire_of("other", "other", 1_000)]).collect();
    let records = (0..).zip(&fires).map(|(offset, fire)| record(offset, NOW, fire));
    world.triggers.returns(records.collect::<Vec<_>>());
    (0..10).for_each(|_| run(&mut worker));
    assert_eq!(callbacks.requested().last().map(String::as_str), Some("other"));
}

/// What cannot wait in a worker goes back to its owner, which writes it into the log once more.
#[test]
fn what_goes_back_to_the_log_is_bounded_in_bytes_a_second() {
    const FIRES: u64 = 128;
    const BYTES: usize = 512 * 1024;
    const PER_SECOND: usize = 32 << 20;
    let world = TestEnvironment::default();
    let mut config = config();
    config.queue = QueueBounds { bytes: 1, ..config.queue };
    config.deferral.longest = Duration::from_secs(600);
    let (mut worker, callbacks) = worker_with(&world, config);
    callbacks.answer(0);
    let fires = (0..100).map(|n| record(n, NOW, &fire("in-progress", 1)));
    world.triggers.returns(fires.collect::<Vec<_>>());
    run(&mut worker);
    let fires = (100..).take(FIRES as usize).map(|n| record(n, NOW, &fire("waits", BYTES)));
    world.triggers.returns(fires.collect::<Vec<_>>());
    (0..10).for_each(|_| run(&mut worker));
    let mut due = deferred_until(&world);
    assert_eq!(due.len() as u64, FIRES - 1, "one waits");
    due.sort_unstable();
    for at in &due {
        let returned = due.iter().filter(|other| (*at..at + 1_000).contains(*other)).count();
        assert!((returned - 1) * BYTES <= PER_SECOND, "{returned} in a second");
    }
}

/// Their bytes would take longer than any fire may wait.
#[test]
fn fires_that_return_as_late_as_possible_do_not_return_together() {
    const FIRES: u64 = 200;
    let world = TestEnvironment::default();
    let mut config = config();
    config.queue = QueueBounds { bytes: 1, ..config.queue };
    (config.deferral.longest, config.deferral.bytes_per_second_max) =
        (Duration::from_secs(600), 100_000);
    let (mut worker, callbacks) = worker_with(&world, config);
    callbacks.answer(0);
    let fires = (0..100).map(|n| record(n, NOW, &fire("in-progress", 1)));
    world.triggers.returns(fires.collect::<Vec<_>>());
    run(&mut worker);
    let waits = |n: u64| {
        let mut fire = fire(&format!("waits-{n}"), 20_000);
        fire.id.deferral = 10;
        record(100 + n, NOW, &fire)
    };
    world.triggers.returns((0..FIRES).map(waits).collect::<Vec<_>>());
    (0..10).for_each(|_| run(&mut worker));
    let due = deferred_until(&world);
    assert_eq!(due.len() as u64, FIRES - 1, "one waits");
    assert!(due.iter().all(|at| *at <= NOW + 600_000), "{due:?}");
    for at in &due {
        let returned = due.iter().filter(|other| (*at..at + 10_000).contains(*other)).count();
        assert!(returned <= 20, "{returned} in 10 s");
    }
}

/// However long it was open, small fires wait for no bytes.
#[test]
fn what_waits_for_a_circuit_returns_soon_after_it_may_close() {
    let world = TestEnvironment::default();
    let mut config = WorkerConfig { circuits: opens_at_once().circuits, ..config() };
    (config.deferral.longest, config.deferral.bytes_per_second_max) =
        (Duration::from_secs(600), 100_000);
    let (mut worker, callbacks) = worker_with(&world, config);
    callbacks.answer(500);
    world.triggers.returns([record(0, NOW, &fire("fails", 1))]);
    run(&mut worker);
    let mut fire = fire("waits", 1_000);
    fire.id.deferral = 10;
    world.triggers.returns((1..20).map(|n| record(n, NOW, &fire)).collect::<Vec<_>>());
    run(&mut worker);
    let due = deferred_until(&world);
    assert_eq!((due.len(), callbacks.requested()), (20, vec!["fails".to_owned()]));
    let (first, last) = (due.iter().min().unwrap(), due.iter().max().unwrap());
    assert!(last - first <= 3_000, "{due:?}");
}

/// When the fires that were sent back are due.
fn deferred_until(world: &TestEnvironment) -> Vec<u64> {
    let signals = world.producer.sent().into_iter().filter(|it| it.topic == "o.signals");
    signals.map(|it| due(it.value.as_deref().unwrap())).collect()
}

/// When a fire that was deferred is due.
fn due(value: &[u8]) -> u64 {
    match Schemas::new().decode_signal(value).unwrap() {
        Signal::Retry(request) => request.due,
        other => panic!("{other:?}"),
    }
}
