//! Callers whose receivers hang, and whether any other caller can tell.
//!
//! Invariant: both sides of the comparison run on the same machine in the same minute, in turn: a
//! round without the hanging callers, one with them, and the next pair the other way round. Each
//! round has its 99th percentile; of each side the median counts, or the best where other tests
//! keep the machine busy: noise comes and goes, and a caller that can be felt is felt in every
//! round.

use std::collections::HashSet;
use std::time::Duration;

use orloj::clock;

use super::{Behaviour, BehaviourReceiver};
use crate::test_cluster::{READY_DEADLINE, TestCluster, exclusive_machine};
use crate::test_producer::TestProducer;
use crate::wait::until;

const CALLERS: usize = 20;
/// The last so many of them hang.
const HANGING: usize = 2;
/// Callbacks under way at once. Those who hang begin 30 a second, and would have all of them long
/// before a round ends.
const IN_FLIGHT_MAX: i64 = 40;
/// From the registration of a round to the first due time, in ms.
const LEAD: u64 = 2_000;
const DEADLINE: Duration = Duration::from_secs(120);

/// What is compared.
struct Comparison {
    /// Pairs of rounds.
    pairs: usize,
    /// How long a round's triggers are due, in ms.
    window: u64,
    /// Callbacks a second of each caller.
    rate: u64,
}

#[test]
fn two_hanging_callers_delay_no_other_caller() {
    let _alone = exclusive_machine();
    let comparison = Comparison { pairs: 2, window: 3_000, rate: 15 };
    let [without, with] = comparison.run(&cluster("isolation")).map(best);
    assert!(!is_noticeably_slower(without, with), "p99 {with} ms with them, {without} ms without");
}

#[test]
#[ignore = "minutes of measuring: make test-delivery"]
fn two_hanging_callers_delay_no_other_caller_measurably() {
    let _alone = exclusive_machine();
    let comparison = Comparison { pairs: 7, window: 10_000, rate: 15 };
    let [without, with] = comparison.run(&cluster("isolation-strict")).map(median);
    assert!(with * 10 <= without * 12, "p99 {with} ms with them, {without} ms without");
}

/// The tests above would see it if there were no walls between callers.
#[test]
#[ignore = "a minute of measuring: make test-delivery"]
fn two_hanging_callers_delay_others_without_a_bulkhead() {
    let _alone = exclusive_machine();
    let cluster = cluster("isolation-none").set("worker.caller_in_flight_max", IN_FLIGHT_MAX);
    let comparison = Comparison { pairs: 2, window: 3_000, rate: 15 };
    let [without, with] = comparison.run(&cluster).map(best);
    assert!(is_noticeably_slower(without, with), "p99 {with} ms with them, {without} ms without");
}

/// Also on a busy machine.
fn is_noticeably_slower(without: u64, with: u64) -> bool {
    with > 2 * without + 250
}

/// A worker of so few places that those who hang would take all of them if they could.
fn cluster(name: &str) -> TestCluster {
    TestCluster::new(name)
        .set("worker.allow_addresses", "any")
        .set("worker.timeout", "5s")
        .set("worker.connect_timeout", "5s")
        .set("worker.in_flight_max", IN_FLIGHT_MAX)
        .set("worker.caller_in_flight_max", IN_FLIGHT_MAX / 10)
        .set("worker.caller_queue_max", 20)
        .set("worker.circuit_open_duration", "2s")
        .set("worker.defer_first", "500ms")
        .set("worker.defer_max", "4s")
        .set("worker.retry_delays", vec!["1s"; 30])
}

impl Comparison {
    /// The others' p99 of lateness in ms, of each round without and with those who hang.
    fn run(&self, cluster: &TestCluster) -> [Vec<u64>; 2] {
        let receiver = BehaviourReceiver::start();
        let mut scheduler = cluster.scheduler("scheduler");
        let mut worker = cluster.start("worker", "worker");
        scheduler.wait_until_ready(READY_DEADLINE);
        worker.wait_until_ready(READY_DEADLINE);
        let client = cluster.client();
        let mut round = 0;
        let mut measure = |hanging| {
            round += 1;
            self.round(round, hanging, &client, &receiver)
        };
        measure(false); // connections and caches grow warm
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for pair in 0..self.pairs {
            for hanging in [pair % 2 == 1, pair % 2 == 0] {
                let p99 = measure(hanging);
                if hanging { with.push(p99) } else { without.push(p99) }
            }
        }
        eprintln!("p99 of lateness in ms, without: {without:?}, with {HANGING} hanging: {with:?}");
        assert!(!scheduler.panicked() && !worker.panicked());
        worker.terminate();
        scheduler.terminate();
        [without, with]
    }

    /// One round; returns the p99 of lateness, in ms, of those who do not hang.
    fn round(
        &self,
        round: usize,
        hanging: bool,
        client: &TestProducer,
        receiver: &BehaviourReceiver,
    ) -> u64 {
        let callers = if hanging { CALLERS } else { CALLERS - HANGING };
        for caller in CALLERS - HANGING..CALLERS {
            receiver.set_behaviour(&format!("caller-{caller}"), Behaviour::Hang);
        }
        let before = receiver.received().calls.len();
        let first = clock::now_ms() + LEAD;
        let each = self.rate * self.window / 1_000;
        let due = |n: u64, caller: usize| {
            // Callers are due one after the other, not all in one millisecond.
            first + n * 1_000 / self.rate + caller as u64 * 1_000 / self.rate / CALLERS as u64
        };
        let mut expected = HashSet::new();
        for n in 0..each {
            for caller in 0..callers {
                let (id, name) = (format!("{round}-{caller}-{n}"), format!("caller-{caller}"));
                client.register_callback(&id, due(n, caller), &receiver.url(&name), &name);
                expected.insert(id);
            }
        }
        let heals = first + self.window;
        until("the end of the round", DEADLINE, || (clock::now_ms() >= heals).then_some(()));
        for caller in CALLERS - HANGING..CALLERS {
            receiver.set_behaviour(&format!("caller-{caller}"), Behaviour::Answer(200));
        }
        let calls = until("every callback to be answered", DEADLINE, || {
            let seen = receiver.received();
            expected.is_subset(&seen.answered).then(|| seen.calls[before..].to_vec())
        });
        let mut lateness = Vec::new();
        for call in calls.iter().filter(|call| !is_hanging(call)) {
            let mut parts = call.trigger.split('-').skip(1).map(|part| part.parse().unwrap());
            let (caller, n): (u64, u64) = (parts.next().unwrap(), parts.next().unwrap());
            let due = due(n, usize::try_from(caller).unwrap());
            assert!(call.attempt == 1 && call.at >= due, "{call:?}, due at {due}");
            lateness.push(call.at - due);
        }
        assert_eq!(lateness.len() as u64, each * (CALLERS - HANGING) as u64, "each of them once");
        lateness.sort_unstable();
        lateness[lateness.len() * 99 / 100]
    }
}

fn is_hanging(call: &super::ReceivedCall) -> bool {
    let caller: usize = call.endpoint.strip_prefix("caller-").unwrap().parse().unwrap();
    caller >= CALLERS - HANGING
}

fn best(values: Vec<u64>) -> u64 {
    values.into_iter().min().unwrap()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}
