//! One trigger id that is registered, replaced and cancelled thousands of times a second: what is
//! kept of an id has a bound in every role, and triggers of the same partition do not wait for it.
//!
//! Invariant: the last registration is the one that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orloj::clock;

use super::receiver::BoundReceiver;
use super::registrations::{CallbackRegistration, RegistrationProducer};
use super::steady_caller::SteadyCaller;
use super::{BoundTime, end_all, resident_memory, start_all, wait_for_ms};
use crate::background_thread::BackgroundThread;
use crate::test_cluster::{TestCluster, exclusive_machine};
use crate::wait::{until, within};

pub(super) const ID: &str = "hot";
/// Records in each [`PAUSE`]: 2,000 a second, and some less, because of what is due.
const RECORDS: u64 = 50;
const PAUSE: Duration = Duration::from_millis(20);
/// Of so many records one is a cancel; the others are replaced before they are due.
const CANCELLED: u64 = 4;
/// The last one of so many records is due at once, and the next one is written this much later, in
/// ms, so that it fires.
const DUE: u64 = 1_000;
const DUE_MS: u64 = 100;
/// When those are due, in ms.
const LATER: u64 = 3_600_000;
/// Of the scheduler, the worker and the gateway, in MiB.
const MEMORY_MIB: [(&str, u64); 3] = [("scheduler", 512), ("worker", 256), ("gateway", 384)];
const DEADLINE: Duration = Duration::from_secs(120);

#[test]
#[ignore = "without other tests: `make test` runs it after them"]
fn an_id_that_is_replaced_all_the_time_costs_no_memory_and_delays_no_other() {
    let _machine = exclusive_machine();
    let time = BoundTime::or_short(15);
    let cluster = TestCluster::new("hot-id")
        .set("worker.allow_addresses", "any")
        .set("store.flush_interval", "2s");
    let receiver = BoundReceiver::start();
    let processes = start_all(&cluster, ["scheduler", "worker", "gateway"]);
    let [scheduler, worker, gateway] = &processes;
    let others = SteadyCaller::start(&cluster, &receiver);
    let began = clock::now_ms();
    wait_for_ms(time.choose(12_000, 60_000));
    let before = (began, clock::now_ms());

    let hot = HotTrigger::start(&cluster, &receiver);
    until("its first callback", DEADLINE, || (receiver.called(ID) == 1).then_some(()));
    let (began, written) = (clock::now_ms(), hot.written());
    let watched = [("scheduler", scheduler), ("worker", worker), ("gateway", gateway)];
    let memory = resident_memory::sample_for(time.seconds, &watched, || {});
    let at_bound = (began, clock::now_ms());
    let rate = (hot.written() - written) / time.seconds;
    hot.end_with_a_callback(&receiver);
    let times = others.end(&receiver);
    let calls = receiver.times()[ID].len();
    eprintln!("{rate} records a second, {calls} callbacks");
    assert!(rate >= 1_000, "{rate} records of the hot id a second");
    // That of the gateway depends on whether its view keeps up: `hot_view`.
    resident_memory::assert_flat(&memory[..2]);
    for (process, most) in MEMORY_MIB {
        resident_memory::assert_peak(&memory, process, most);
    }
    times.assert_not_later(before, at_bound, time);
    end_all(processes);
}

/// The writer of the hot id.
pub(super) struct HotTrigger {
    producer: Arc<RegistrationProducer>,
    written: Arc<AtomicU64>,
    thread: BackgroundThread,
}

impl HotTrigger {
    pub(super) fn start(cluster: &TestCluster, receiver: &BoundReceiver) -> Self {
        let (producer, written) =
            (Arc::new(RegistrationProducer::connect(cluster)), Arc::<AtomicU64>::default());
        let (writes, counts, url) =
            (Arc::clone(&producer), Arc::clone(&written), receiver.url("quick"));
        let thread = BackgroundThread::start(move |ended| {
            while within(PAUSE, || ended.load(Relaxed).then_some(())).is_none() {
                for _ in 0..RECORDS {
                    write(&writes, &url, counts.fetch_add(1, Relaxed) + 1);
                }
                if counts.load(Relaxed).is_multiple_of(DUE) {
                    wait_for_ms(DUE_MS);
                }
            }
        });
        Self { producer, written, thread }
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Ends it; returns what it has written with.
    pub(super) fn end(self) -> Arc<RegistrationProducer> {
        drop(self.thread);
        self.producer
    }

    /// Ends it, and registers the trigger once more: this one is called back.
    fn end_with_a_callback(self, receiver: &BoundReceiver) {
        let producer = self.end();
        producer.cancel(ID);
        let (url, due) = (receiver.url("quick"), clock::now_ms() + 2_000);
        producer.register(callback(&url, due));
        producer.flush();
        let last = || receiver.times()[ID].last().copied();
        let _at = until("the last registration to be called", DEADLINE, || {
            last().filter(|at| *at >= due)
        });
    }
}

fn write(producer: &RegistrationProducer, url: &str, n: u64) {
    let now = clock::now_ms();
    if n.is_multiple_of(DUE) {
        producer.register(callback(url, now));
    } else if n.is_multiple_of(CANCELLED) {
        producer.cancel(ID);
    } else {
        producer.register(callback(url, now + LATER));
    }
}

fn callback(url: &str, due: u64) -> CallbackRegistration<'_> {
    CallbackRegistration { id: ID, due, url, caller: ID, payload: b"{\"n\": 1}" }
}
