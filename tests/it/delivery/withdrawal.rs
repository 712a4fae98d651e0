//! Cancels of callbacks that wait behind a full bulkhead, while others go on.
//!
//! Invariant: every callback is withdrawn, delivered or cancelled, exactly one of these, and none
//! that is withdrawn was requested.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use orloj::clock;
use orloj::model::outcome::OutcomeKind;

use super::{Behaviour, BehaviourReceiver};
use crate::process::OrlojProcess;
use crate::records;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(120);
/// Callbacks that the one caller may have under way at once.
const CONCURRENT_MAX: u32 = 10;

#[test]
fn cancels_behind_a_full_bulkhead_withdraw_only_what_was_never_requested() {
    WithdrawalScenario { name: "withdrawal", callbacks: 200, worker_dies: false }.run();
}

#[test]
#[ignore = "takes a minute: make test-delivery"]
fn a_thousand_cancels_behind_a_full_bulkhead() {
    WithdrawalScenario { name: "withdrawal-1000", callbacks: 1_000, worker_dies: false }.run();
}

#[test]
#[ignore = "takes a minute: make test-delivery"]
fn a_thousand_cancels_while_workers_die() {
    WithdrawalScenario { name: "withdrawal-dies", callbacks: 1_000, worker_dies: true }.run();
}

struct WithdrawalScenario {
    name: &'static str,
    callbacks: usize,
    worker_dies: bool,
}

/// How often a callback was withdrawn, delivered and cancelled.
type EndCounts = [u32; 3];

impl WithdrawalScenario {
    /// A caller has as many callbacks under way as it may, all of them hang, and the others wait
    /// or are sent back. The first half of them is cancelled; then its receiver begins to answer,
    /// and the second half is cancelled while one after the other begins.
    fn run(&self) {
        let cluster = self.cluster();
        let receiver = BehaviourReceiver::start();
        receiver.set_behaviour("many", Behaviour::Hang);
        let mut scheduler = cluster.scheduler("scheduler");
        let mut worker = cluster.start("worker", "worker");
        scheduler.wait_until_ready(READY_DEADLINE);
        worker.wait_until_ready(READY_DEADLINE);
        let client = cluster.client();
        let ids: Vec<_> = (0..self.callbacks).map(|n| format!("many-{n}")).collect();
        let due = clock::now_ms() + 1_000;
        for id in &ids {
            client.register_callback(id, due, &receiver.url("many"), "many");
        }
        until("all to be fired, and all places to be taken", DEADLINE, || {
            let fired = records::read_all(cluster.kafka(), &cluster.names.fires()).len();
            let is_full = receiver.received().calls.len() == CONCURRENT_MAX as usize;
            (is_full && fired >= self.callbacks).then_some(())
        });

        let (first, second) = ids.split_at(self.callbacks / 2);
        first.iter().for_each(|id| client.cancel(id));
        until("some to be withdrawn", DEADLINE, || {
            ends(&cluster).values().any(|[withdrawn, ..]| *withdrawn > 0).then_some(())
        });
        if self.worker_dies {
            worker = replace(&cluster, worker);
        }
        receiver.set_behaviour("many", Behaviour::Answer(200));
        second.iter().for_each(|id| client.cancel(id));
        if self.worker_dies {
            worker = replace(&cluster, worker);
        }
        let ends = until("an end of each", DEADLINE, || {
            let ends = ends(&cluster);
            ids.iter().all(|id| ends.contains_key(id)).then_some(ends)
        });
        worker.terminate();
        scheduler.terminate();
        self.check(&ends, &receiver);
    }

    /// Waiting callbacks find room in the worker for half of them; the others go back and forth.
    fn cluster(&self) -> TestCluster {
        TestCluster::new(self.name)
            .set("worker.allow_addresses", "any")
            .set("worker.timeout", "60s")
            .set("worker.timeout_max", "60s")
            .set("worker.caller_in_flight_max", CONCURRENT_MAX)
            .set("worker.caller_queue_max", i64::try_from(self.callbacks / 2).unwrap())
            .set("worker.defer_first", "500ms")
    }

    fn check(&self, ends: &BTreeMap<String, EndCounts>, receiver: &BehaviourReceiver) {
        let seen = receiver.received();
        let requested: HashSet<_> = seen.calls.iter().map(|call| call.trigger.as_str()).collect();
        let mut sums = [0; 3];
        for (id, end @ [withdrawn, ..]) in ends {
            assert_eq!(end.iter().sum::<u32>(), 1, "{id}: withdrawn, delivered, cancelled {end:?}");
            let asked = requested.contains(id.as_str());
            assert!(*withdrawn == 0 || !asked, "{id} was withdrawn and requested");
            sums.iter_mut().zip(end).for_each(|(sum, times)| *sum += times);
        }
        let [withdrawn, delivered, cancelled] = sums;
        eprintln!("{withdrawn} withdrawn, {delivered} delivered, {cancelled} cancelled");
        assert!(withdrawn > 0 && delivered >= CONCURRENT_MAX && cancelled > 0, "{sums:?}");
    }
}

/// Kills a worker; another one takes its place.
fn replace(cluster: &TestCluster, worker: OrlojProcess) -> OrlojProcess {
    worker.kill();
    let mut next = cluster.start("worker", "worker");
    next.wait_until_ready(READY_DEADLINE);
    next
}

/// What became of each callback.
fn ends(cluster: &TestCluster) -> BTreeMap<String, EndCounts> {
    let mut ends = BTreeMap::<_, EndCounts>::new();
    for outcome in cluster.outcomes() {
        let place = match outcome.kind {
            OutcomeKind::Withdrawn { .. } => 0,
            OutcomeKind::Delivered { .. } => 1,
            OutcomeKind::Cancelled { .. } => 2,
            _ => continue,
        };
        ends.entry(outcome.trigger.to_string()).or_default()[place] += 1;
    }
    ends
}
