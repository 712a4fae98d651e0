//! A broker that is slow for spells: it takes records late, and answers nothing at all for a while,
//! but no longer than clients wait. What waits for it has a bound in every role.
//!
//! Invariant: afterwards everything has fired once and is delivered once, and what is due then is
//! in time. The program reaches the broker through a proxy, the test does not.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use orloj::model::outcome::OutcomeKind;
use orloj::{clock, telemetry};
use rustix::process::{Pid, Signal, kill_process};

use super::receiver::BoundReceiver;
use super::steady_caller::{SteadyCaller, SteadyTimes};
use super::{BoundTime, end_all, resident_memory, start_all, wait_for_ms};
use crate::background_thread::BackgroundThread;
use crate::faults::background::beside;
use crate::faults::gateway_load::{GatewayAddresses, GatewayLoad};
use crate::faults::proxy::{PRODUCE, Proxy};
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::load::MARGIN;
use crate::test_cluster::{TestCluster, exclusive_machine};
use crate::test_producer::TestProducer;
use crate::wait::{until, within};

/// By how much each request with records is later in a slow spell.
const DELAY: Duration = Duration::from_millis(300);
/// How long the spells are, in ms: with that delay, without any answer, and as a broker should be.
/// Shorter than the timeouts of clients and the session of the group.
const DELAYED_MS: u64 = 4_000;
const STOPPED_MS: u64 = 3_000;
const NORMAL_MS: u64 = 1_000;
/// `worker.results_bytes_max`, and what waits while the broker does not answer: that much, and what
/// is in progress when so much waits.
const RESULTS: Range<usize> = 16 * 1_024..32 * 1_024;
/// Bytes of the payload of each trigger that fires into a topic, 50 a second.
const PAYLOAD_BYTES: usize = 4_000;
const PAUSE: Duration = Duration::from_millis(20);
/// How long the broker is as it should be at the end, in ms.
const AFTER_MS: u64 = 6_000;
/// How late what is due after the last spell may be, in ms.
const LATE_AFTER_MAX: u64 = 1_000;
/// Of each process, in MiB.
const MEMORY_MIB: [(&str, u64); 3] = [("scheduler", 384), ("worker", 192), ("gateway", 256)];
const DEADLINE: Duration = Duration::from_secs(120);

#[test]
#[ignore = "without other tests: `make test` runs it after them"]
fn a_slow_broker_costs_no_memory_and_loses_nothing() {
    let _machine = exclusive_machine();
    let time = BoundTime::or_short(18);
    let broker = SlowBroker::start();
    let cluster = broker.cluster();
    let receiver = BoundReceiver::start();
    let processes = start_all(&cluster, ["scheduler", "worker", "gateway"]);
    let [scheduler, worker, gateway] = &processes;
    let topic = cluster.new_target("gateway");
    let addresses = GatewayAddresses::default();
    addresses.add(gateway.address());
    let requests = GatewayLoad { addresses: &addresses, topic: &topic };
    let callbacks = SteadyCaller::start(&cluster, &receiver);
    let topics = TopicLoad::start(&cluster);
    let watched = [("scheduler", scheduler), ("worker", worker), ("gateway", gateway)];
    let mut waited = 0;
    let (memory, answers) = beside(
        |ended| requests.send(ended),
        || {
            let watch = || {
                resident_memory::sample_for(time.seconds, &watched, || {
                    let of = format!("{}{{of=\"results\"}}", telemetry::WORKER_MEMORY);
                    waited = waited.max(worker.gauge(&of).unwrap_or(0));
                })
            };
            let memory = beside(|ended| broker.be_slow_until(ended), watch).0;
            // The newest requests must be answered as usual.
            wait_for_ms(AFTER_MS);
            memory
        },
    );
    let after = clock::now_ms() - AFTER_MS / 2;
    let registered = topics.end();
    let times = callbacks.end(&receiver);
    eprintln!("answers of the gateway: {:?}, {} ms", answers.counts(), answers.took_max());
    answers.assert_correct();
    assert!(RESULTS.contains(&waited), "at most {waited} bytes of results have waited");
    let report = cluster.audit_when_complete(&registered, MARGIN, DEADLINE);
    assert!(report.is_clean(), "{report}");
    assert_delivered(&cluster, &times, after);
    let accepted: usize = answers.counts().range(..300).map(|(_, count)| count).sum();
    let fires = until("what was registered over HTTP to fire", DEADLINE, || {
        Some(cluster.fires_into(&topic)).filter(|fires| fires.len() >= accepted)
    });
    answers.assert_fired(&fires);
    resident_memory::assert_flat(&memory);
    for (process, most) in MEMORY_MIB {
        resident_memory::assert_peak(&memory, process, most);
    }
    end_all(processes);
}

/// Each callback has one outcome and one request, and those due after this time, in ms since the
/// epoch, were in time.
fn assert_delivered(cluster: &TestCluster, times: &SteadyTimes, after: u64) {
    let late = times.latest((0, after));
    let late_after = times.latest((after, u64::MAX));
    eprintln!("  callbacks: {late} ms late, {late_after} ms afterwards; {} again", times.repeated);
    assert!(late_after <= LATE_AFTER_MAX, "{late_after} ms late after the spells");
    assert_eq!(times.repeated, 0, "callbacks were repeated");
    let delivered = until("an outcome of each callback", DEADLINE, || {
        let mut delivered = HashMap::<_, usize>::new();
        for outcome in cluster.outcomes() {
            if matches!(outcome.kind, OutcomeKind::Delivered { .. }) {
                *delivered.entry(outcome.trigger).or_default() += 1;
            }
        }
        (delivered.len() == times.count()).then_some(delivered)
    });
    let other = delivered.iter().find(|(_, outcomes)| **outcomes != 1);
    assert_eq!(other, None, "it has more outcomes than one");
}

/// A broker behind a proxy.
struct SlowBroker {
    server: KafkaServer,
    proxy: Proxy,
    /// Where the program connects.
    proxied: String,
}

impl SlowBroker {
    fn start() -> Self {
        let [listener, port] = free_ports();
        let proxied = Some([listener, port]);
        let server = KafkaServer::start(&Options { proxied, ..Options::default() });
        let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
        Self { server, proxy, proxied: format!("127.0.0.1:{port}") }
    }

    /// With limits that the load reaches while the broker does not answer.
    fn cluster(&self) -> TestCluster {
        let kafka = [("bootstrap.servers", self.proxied.clone())];
        TestCluster::with_client("slow-broker", self.server.client(), &kafka)
            .set("worker.allow_addresses", "any")
            .set("worker.in_flight_max", 10)
            .set("worker.caller_in_flight_max", 10)
            .set("worker.results_bytes_max", format!("{}KiB", RESULTS.start / 1_024))
            .set("worker.commit_bytes_max", "8KiB")
            .set("scheduler.bytes_per_step_max", "128KiB")
            .set("scheduler.bytes_per_commit_max", "256KiB")
    }

    fn be_slow_until(&self, ended: &AtomicBool) {
        while !ended.load(Relaxed) {
            self.proxy.delay(PRODUCE, DELAY);
            wait_for_ms(DELAYED_MS);
            self.proxy.delay(PRODUCE, Duration::ZERO);
            self.signal(Signal::STOP);
            wait_for_ms(STOPPED_MS);
            self.signal(Signal::CONT);
            wait_for_ms(NORMAL_MS);
        }
    }

    fn signal(&self, signal: Signal) {
        let java = self.server.process_id().cast_signed();
        kill_process(Pid::from_raw(java).unwrap(), signal).unwrap();
    }
}

/// Triggers that fire into a topic, at a steady rate.
struct TopicLoad {
    client: Arc<TestProducer>,
    thread: BackgroundThread,
}

impl TopicLoad {
    fn start(cluster: &TestCluster) -> Self {
        let client = Arc::new(cluster.client());
        let (registers, (header, target)) = (Arc::clone(&client), cluster.target());
        let (target, text) = (target.to_owned(), "x".repeat(PAYLOAD_BYTES));
        let thread = BackgroundThread::start(move |ended| {
            for n in 0_u64.. {
                if within(PAUSE, || ended.load(Relaxed).then_some(())).is_some() {
                    return;
                }
                let due = clock::now_ms() + 500;
                registers.register(&format!("topic-{n}"), due, (header, &target), &text, false);
            }
        });
        Self { client, thread }
    }

    /// Ends it, and returns what has registered.
    fn end(self) -> Arc<TestProducer> {
        drop(self.thread);
        self.client
    }
}
