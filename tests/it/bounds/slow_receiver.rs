//! A receiver that takes two seconds for each callback, with many times more due than the worker
//! may have in progress and waiting.
//!
//! Invariant: as much is registered as is answered, so that what is due stays the same; all of it
//! is delivered in the end, by one request each.

use std::collections::HashMap;
use std::time::Duration;

use orloj::model::outcome::OutcomeKind;
use orloj::{clock, telemetry};

use super::receiver::{BoundReceiver, SLOW};
use super::registrations::{CallbackRegistration, RegistrationProducer};
use super::steady_caller::SteadyCaller;
use super::{BoundTime, end_all, resident_memory, start_all, wait_for_ms};
use crate::test_cluster::{TestCluster, exclusive_machine};
use crate::wait::until;

/// Due at any time: eight times what the caller may have in the worker.
const BACKLOG: usize = 1_000;
/// `worker.caller_in_flight_max` and `worker.caller_queue_max`.
const IN_FLIGHT: usize = 20;
const WAITING: usize = 100;
/// `worker.in_flight_max` and `worker.queue_max`.
const ALL_IN_FLIGHT: usize = 60;
const ALL_WAITING: usize = 300;
/// Of the worker, in MiB; it has nothing large.
const MEMORY_MIB: u64 = 192;
const PREFIX: &str = "slow";
const DEADLINE: Duration = Duration::from_secs(120);

#[test]
#[ignore = "without other tests: `make test` runs it after them"]
fn a_slow_receiver_with_a_long_backlog_delays_no_other_caller() {
    let _machine = exclusive_machine();
    let time = BoundTime::or_short(15);
    let cluster = cluster();
    let receiver = BoundReceiver::start();
    let processes = start_all(&cluster, ["scheduler", "worker"]);
    let [scheduler, worker] = &processes;
    let others = SteadyCaller::start(&cluster, &receiver);
    let began = clock::now_ms();
    wait_for_ms(time.choose(12_000, 60_000));
    let before = (began, clock::now_ms());

    let mut backlog = Backlog::of(&cluster, &receiver);
    backlog.register(BACKLOG);
    until("the worker to be at its bound", DEADLINE, || {
        let deferred = worker.gauge(&format!("{}{{reason=\"queue_full\"}}", telemetry::DEFERRED));
        (receiver.unanswered() >= IN_FLIGHT && deferred.is_some()).then_some(())
    });
    let began = clock::now_ms();
    let mut at_bound = 0;
    let watched = [("worker", worker), ("scheduler", scheduler)];
    let memory = resident_memory::sample_for(time.seconds, &watched, || {
        let in_flight = worker.gauge(telemetry::CALLBACKS_IN_FLIGHT).unwrap();
        let waiting = worker.gauge(telemetry::CALLBACKS_WAITING).unwrap();
        assert!(in_flight <= ALL_IN_FLIGHT && waiting <= ALL_WAITING, "{in_flight}, {waiting}");
        at_bound += u64::from(in_flight >= IN_FLIGHT && waiting >= WAITING / 2);
        backlog.register(IN_FLIGHT / usize::try_from(SLOW.as_secs()).unwrap());
    });
    let span = (began, clock::now_ms());
    assert!(at_bound * 4 >= time.seconds * 3, "at the bound in {at_bound} samples only");
    receiver.recover();
    backlog.assert_delivered_once(&cluster, &receiver);
    let times = others.end(&receiver);
    resident_memory::assert_flat(&memory);
    resident_memory::assert_peak(&memory, "worker", MEMORY_MIB);
    times.assert_not_later(before, span, time);
    assert_eq!(times.repeated, 0, "callbacks of others were repeated");
    end_all(processes);
}

fn cluster() -> TestCluster {
    let count = |count: usize| i64::try_from(count).unwrap();
    TestCluster::new("slow-receiver")
        .set("worker.allow_addresses", "any")
        .set("worker.in_flight_max", count(ALL_IN_FLIGHT))
        .set("worker.caller_in_flight_max", count(IN_FLIGHT))
        .set("worker.queue_max", count(ALL_WAITING))
        .set("worker.caller_queue_max", count(WAITING))
        // What is deferred returns soon, again and again.
        .set("worker.defer_max", "4s")
}

/// Callbacks to the slow receiver.
struct Backlog {
    producer: RegistrationProducer,
    url: String,
    registered: usize,
}

impl Backlog {
    fn of(cluster: &TestCluster, receiver: &BoundReceiver) -> Self {
        let producer = RegistrationProducer::connect(cluster);
        Self { producer, url: receiver.url(PREFIX), registered: 0 }
    }

    /// Registers so many more, due now.
    fn register(&mut self, count: usize) {
        for n in self.registered..self.registered + count {
            self.producer.register(CallbackRegistration {
                id: &format!("{PREFIX}-{n}"),
                due: clock::now_ms(),
                url: &self.url,
                caller: PREFIX,
                payload: b"{}",
            });
        }
        self.registered += count;
    }

    fn assert_delivered_once(&self, cluster: &TestCluster, receiver: &BoundReceiver) {
        self.producer.flush();
        until("the backlog to be called", DEADLINE, || {
            (receiver.called(PREFIX) == self.registered).then_some(())
        });
        let delivered = until("the backlog to be delivered", DEADLINE, || {
            let mut delivered = HashMap::<_, usize>::new();
            for outcome in cluster.outcomes() {
                assert!(!matches!(outcome.kind, OutcomeKind::Failed { .. }), "{outcome:?}");
                if matches!(outcome.kind, OutcomeKind::Delivered { .. }) {
                    *delivered.entry(outcome.trigger).or_default() += 1;
                }
            }
            delivered.retain(|id, _| id.as_str().starts_with(PREFIX));
            (delivered.len() == self.registered).then_some(delivered)
        });
        let calls = receiver.times();
        for (id, outcomes) in delivered {
            assert_eq!((outcomes, calls[id.as_str()].len()), (1, 1), "outcomes and calls of {id}");
        }
    }
}
