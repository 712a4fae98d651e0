//! A caller with large payloads whose receiver hangs: what waits for it has a bound in the worker,
//! and delays no other caller.
//!
//! Invariant: the payloads compress to an eighth, as JSON does, so that brokers keep little while
//! the worker has all of their bytes.

use std::time::Duration;

use orloj::{clock, telemetry};

use super::receiver::BoundReceiver;
use super::registrations::{CallbackRegistration, RegistrationProducer};
use super::steady_caller::SteadyCaller;
use super::{BoundTime, end_all, resident_memory, start_all, wait_for_ms};
use crate::process::OrlojProcess;
use crate::test_cluster::{TestCluster, exclusive_machine};
use crate::wait::until;

/// Bytes of each payload: nearly the most that a trigger may have.
const PAYLOAD_BYTES: usize = 900_000;
/// Of so many bytes an eighth cannot be compressed.
const BLOCK_BYTES: usize = 4_096;
/// How late others are in the first window, in ms: there the last of 4.5 GB, which are registered,
/// fired, read and sent back at once, are written to the log of their owner.
const FLOOD_MS_MAX: u64 = 15_000;
/// Until the worker is at its bound.
const DEADLINE: Duration = Duration::from_secs(300);
const MIB: usize = 1_048_576;

/// What is registered at once, and what the worker may have of it.
struct HangingLoad {
    callbacks: usize,
    /// `worker.queue_bytes_max`, in MiB. A caller alone gets half of it.
    queue_mib: usize,
    /// What the worker may have in memory in all, in MiB.
    memory_mib: u64,
    /// How long is measured before, in ms.
    before_ms: u64,
}

/// A twelfth of the load, and limits of which the load is as many times as much.
const SHORT: HangingLoad =
    HangingLoad { callbacks: 400, queue_mib: 24, memory_mib: 256, before_ms: 12_000 };
/// With the limits that a worker has by default.
const LONG: HangingLoad =
    HangingLoad { callbacks: 5_000, queue_mib: 256, memory_mib: 1_024, before_ms: 60_000 };

#[test]
#[ignore = "without other tests: `make test` runs it after them"]
fn a_hanging_caller_with_large_payloads_delays_no_other_caller() {
    let _machine = exclusive_machine();
    let time = BoundTime::or_short(12);
    let load = time.choose(SHORT, LONG);
    let cluster = TestCluster::new("hanging-caller")
        .set("worker.allow_addresses", "any")
        // Otherwise the worker is not at its bound: what waits would wait at its owners.
        .set("worker.circuit_failures_percent", 100)
        .set("worker.timeout", "30s");
    let cluster = if time.is_long { cluster } else { with_small_limits(cluster, &load) };
    let receiver = BoundReceiver::start();
    let processes = start_all(&cluster, ["scheduler", "worker"]);
    let [scheduler, worker] = &processes;
    let others = SteadyCaller::start(&cluster, &receiver);
    let began = clock::now_ms();
    wait_for_ms(load.before_ms);
    let before = (began, clock::now_ms());

    load.register(&cluster, &receiver);
    load.wait_until_at_bound(worker);
    let began = clock::now_ms();
    let mut samples_at_bound = 0;
    let watched = [("worker", worker), ("scheduler", scheduler)];
    let memory = resident_memory::sample_for(time.seconds, &watched, || {
        let waiting = gauge(worker, "waiting");
        assert!(waiting <= load.queue_mib * MIB, "{waiting} bytes wait");
        samples_at_bound += u64::from(waiting >= load.waiting_min());
    });
    let at_bound = (began, clock::now_ms());
    let deferred = worker.gauge(&format!("{}{{reason=\"queue_full\"}}", telemetry::DEFERRED));
    eprintln!("{} callbacks, deferred because of a full queue: {deferred:?}", load.callbacks);
    assert!(samples_at_bound * 4 >= time.seconds * 3, "in {samples_at_bound} samples only");
    let times = others.end(&receiver);
    resident_memory::assert_flat(&memory[..1]);
    resident_memory::assert_peak(&memory, "worker", load.memory_mib);
    times.assert_not_later_or(FLOOD_MS_MAX, before, at_bound, time);
    assert_eq!(times.repeated, 0, "callbacks of others were repeated");
    receiver.recover();
    end_all(processes);
}

/// Of which one caller takes less than half, as it does of those by default.
fn with_small_limits(cluster: TestCluster, load: &HangingLoad) -> TestCluster {
    cluster
        .set("worker.caller_in_flight_max", 10)
        .set("worker.in_flight_bytes_max", "24MiB")
        .set("worker.queue_bytes_max", format!("{}MiB", load.queue_mib))
        .set("worker.results_bytes_max", "16MiB")
}

impl HangingLoad {
    fn register(&self, cluster: &TestCluster, receiver: &BoundReceiver) {
        let (producer, url, payload) =
            (RegistrationProducer::connect(cluster), receiver.url("hang"), payload());
        for n in 0..self.callbacks {
            producer.register(CallbackRegistration {
                id: &format!("large-{n}"),
                due: clock::now_ms(),
                url: &url,
                caller: "hanging",
                payload: &payload,
            });
        }
        producer.flush();
    }

    /// How many bytes wait at the bound, at least: a caller may have as many as it leaves free.
    fn waiting_min(&self) -> usize {
        self.queue_mib * MIB / 2 - 2 * PAYLOAD_BYTES
    }

    /// All were read by the worker once, and what does not fit is deferred.
    fn wait_until_at_bound(&self, worker: &OrlojProcess) {
        let deferred = format!("{}{{reason=\"queue_full\"}}", telemetry::DEFERRED);
        let in_worker = || {
            worker.gauge(telemetry::CALLBACKS_WAITING).unwrap_or(0)
                + worker.gauge(telemetry::CALLBACKS_IN_FLIGHT).unwrap_or(0)
        };
        until("the worker to be at its bound", DEADLINE, || {
            let read = in_worker() + worker.gauge(&deferred).unwrap_or(0);
            (gauge(worker, "waiting") >= self.waiting_min() && read >= self.callbacks).then_some(())
        });
    }
}

fn gauge(worker: &OrlojProcess, of: &str) -> usize {
    worker.gauge(&format!("{}{{of=\"{of}\"}}", telemetry::WORKER_MEMORY)).unwrap_or(0)
}

/// A JSON string. Of each block the beginning is random.
fn payload() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'a' + u8::try_from(state % 26).unwrap()
    };
    let is_random = |at: &usize| at % BLOCK_BYTES < BLOCK_BYTES / 8;
    let mut text = vec![b'"'];
    text.extend((0..PAYLOAD_BYTES).map(|at| if is_random(&at) { random() } else { b'.' }));
    text.push(b'"');
    text
}
