//! As many callbacks at once as a worker may have: how fast they begin and end, and what they cost.

use std::time::Duration;

use orloj::clock;
use orloj::model::outcome::OutcomeKind;

use super::{Behaviour, BehaviourReceiver};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster, exclusive_machine};
use crate::wait::until;

/// Callbacks under way at once.
const CALLBACKS: usize = 10_000;
/// How long the slowest machine may take for each part.
const DEADLINE: Duration = Duration::from_secs(180);
/// What 10,000 callbacks may cost at most, in MiB: 100 KiB each.
const MEMORY_MAX: u64 = 1_000;

#[test]
#[ignore = "10,000 sockets for minutes: make test-delivery"]
fn ten_thousand_callbacks_are_in_flight_at_once() {
    let _alone = exclusive_machine();
    let cluster = TestCluster::new("concurrency")
        .set("worker.allow_addresses", "any")
        .set("worker.timeout", "120s")
        .set("worker.timeout_max", "120s")
        .set("worker.caller_in_flight_max", 10_000)
        .set("worker.caller_queue_max", 20_000)
        .set("worker.queue_max", 40_000);
    let receiver = BehaviourReceiver::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);
    eprintln!("before: {} MiB", worker.memory());
    let peaks = [1, 2].map(|wave| run_wave(wave, &cluster, &receiver, &worker));
    assert!(peaks[0] <= MEMORY_MAX, "{peaks:?} MiB");
    assert!(
        peaks[1] * 10 <= peaks[0] * 12,
        "the second wave uses more memory than the first: {peaks:?}"
    );
    assert!(!worker.panicked());
    worker.terminate();
    scheduler.terminate();
}

/// Starts many callbacks at once, then answers them; returns the worker's peak memory, in MiB.
fn run_wave(
    wave: usize,
    cluster: &TestCluster,
    receiver: &BehaviourReceiver,
    worker: &OrlojProcess,
) -> u64 {
    receiver.set_behaviour("many", Behaviour::Hang);
    let (client, before) = (cluster.client(), receiver.received().calls.len());
    let due = clock::now_ms() + 3_000;
    for n in 0..CALLBACKS {
        client.register_callback(&format!("{wave}-{n}"), due, &receiver.url("many"), "many");
    }
    let late = |at: u64| at.saturating_sub(due) as f64 / 1_000.0;
    until("all callbacks to be in progress", DEADLINE, || {
        (receiver.received().calls.len() == before + CALLBACKS).then_some(())
    });
    let gathered = clock::now_ms();
    let memory = worker.memory();
    receiver.set_behaviour("many", Behaviour::Answer(200));
    let ended = until("all to be delivered", DEADLINE, || {
        let outcomes = cluster.outcomes();
        let delivered = outcomes.iter().filter(|outcome| {
            let ours = outcome.trigger.as_str().starts_with(&format!("{wave}-"));
            ours && matches!(outcome.kind, OutcomeKind::Delivered { attempt: 1, .. })
        });
        let times: Vec<_> = delivered.map(|outcome| outcome.at).collect();
        (times.len() == CALLBACKS).then(|| times.into_iter().max())?
    });
    let took = (ended - gathered).max(1);
    eprintln!(
        "wave {wave}: {CALLBACKS} in progress {:.1} s after they were due ({:.0}/s), {memory} MiB; \
         ended at {}/s",
        late(gathered),
        CALLBACKS as f64 / late(gathered),
        CALLBACKS as u64 * 1_000 / took,
    );
    memory
}
