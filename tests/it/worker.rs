//! The worker on a real broker: what it asks of receivers, and what it says of it to the log. The
//! test plays the owner: it writes the fires, and answers no signal by itself.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use orloj::codec::schemas::Schemas;
use orloj::config::{Layers, Settings};
use orloj::health::Health;
use orloj::kafka::topics::TopicDefinitions;
use orloj::model::PartitionId;
use orloj::model::dead_letter::Content;
use orloj::model::definition::{Definition, HttpTarget, Target};
use orloj::model::entry::FireId;
use orloj::model::fire::{Fire, Withdrawal};
use orloj::model::outcome::{Outcome, OutcomeKind};
use orloj::model::signal::{RetryRequest, Signal};
use orloj::worker::progress::{OPEN_MAX, WINDOW_MAX};
use orloj::worker::{self, WorkerError};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::kafka_server::{self, unique_prefix};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
const PARTITIONS: u16 = 2;

#[test]
fn a_failing_callback_is_retried_by_signals_until_it_is_delivered() {
    let cluster = WorkerFixture::new("worker-retry");
    let _worker = cluster.start_worker(&[]);
    let signals = cluster.read_topic("signals");
    let outcomes = cluster.read_topic("outcomes");

    let mut fire = cluster.fire("order-7", "flaky");
    for attempt in 2..=3 {
        cluster.publish(0, &fire);
        let Signal::Retry(request) = signals.next(Schemas::decode_signal) else { panic!() };
        assert_eq!(request.id, FireId { attempt, ..fire.id.clone() });
        assert_eq!(request.reason, "answered 500: attempt refused");
        let outcome = outcomes.next(Schemas::decode_outcome);
        let OutcomeKind::Failed { status: Some(500), retry_at, .. } = outcome.kind else {
            panic!("{outcome:?}")
        };
        assert_eq!(retry_at, Some(request.due));
        let delay = if attempt == 2 { 10_000 } else { 30_000 };
        assert_eq!(request.due, outcome.at + delay);
        let RetryRequest { id, definition, history, .. } = request;
        fire = Fire { id, definition, history, ..fire };
    }
    cluster.publish(0, &fire);
    let outcome = outcomes.next(Schemas::decode_outcome);
    let (generation, occurrence, attempt) = (42, 0, 3);
    let delivered = OutcomeKind::Delivered { generation, occurrence, attempt, status: 200 };
    assert_eq!((outcome.trigger.as_str(), outcome.kind), ("order-7", delivered));

    let calls = cluster.receiver.calls();
    let attempts: Vec<_> = calls.iter().map(|call| call.attempt.as_str()).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    assert!(calls.iter().all(|call| call.key == "order-7:42:0"), "{calls:?}");
    assert_eq!(calls[0].body, r#"{"triggerId":"order-7","payload":{"n":1}}"#);
}

#[test]
fn what_cannot_be_delivered_becomes_a_dead_letter() {
    let cluster = WorkerFixture::new("worker-dead");
    let _worker = cluster.start_worker(&["worker.allow_addresses=public"]);
    let letters = cluster.read_topic("dead-letters");

    let fire = cluster.fire("inside", "ok");
    cluster.publish(1, &fire);
    let letter = letters.next(Schemas::decode_dead_letter);
    assert!(letter.reason.starts_with("127.0.0.1 must not be called"), "{}", letter.reason);
    let Content::Fire { fire: dead, attempts: 1 } = &letter.content else { panic!("{letter:?}") };
    assert_eq!(Fire { history: None, ..dead.clone() }, fire);
    assert_eq!((letter.origin.partition, letter.origin.offset), (1, 0));

    cluster.send(0, b"broken", b"no fire");
    let letter = letters.next(Schemas::decode_dead_letter);
    let Content::Record { value, .. } = &letter.content else { panic!("{letter:?}") };
    assert_eq!(value.as_deref(), Some(&b"no fire"[..]));
    assert!(cluster.receiver.calls().is_empty());

    // A name that leads to a forbidden address is as bad as the address.
    let url = cluster.receiver.url("ok").replace("127.0.0.1", "localhost");
    cluster.publish(0, &fire_to("by-name", &url));
    let letter = letters.next(Schemas::decode_dead_letter);
    assert!(letter.reason.contains("must not be called: it is loopback"), "{}", letter.reason);
}

#[test]
fn unreachable_and_silent_receivers_fail_as_expected() {
    let cluster = WorkerFixture::new("worker-silent");
    let _worker = cluster.start_worker(&[
        "worker.timeout=1s",
        "worker.connect_timeout=1s",
        "worker.retry_delays=[\"1s\"]",
    ]);
    let outcomes = cluster.read_topic("outcomes");
    let mut last = cluster.fire("silent", "slow");
    last.id.attempt = 2;
    let [closed] = kafka_server::free_ports();
    let refused = fire_to("refused", &format!("http://127.0.0.1:{closed}/"));
    for fire in [cluster.fire("final", "final"), cluster.fire("silent", "slow"), last, refused] {
        cluster.publish(0, &fire);
    }
    let mut failures = BTreeMap::new();
    for _ in 0..4 {
        let Outcome { trigger, kind, .. } = outcomes.next(Schemas::decode_outcome);
        let OutcomeKind::Failed { attempt, reason, retry_at, .. } = kind else { panic!() };
        failures.insert((trigger.to_string(), attempt), (reason, retry_at.is_some()));
    }
    let of = |trigger: &str, attempt| failures[&(trigger.to_owned(), attempt)].clone();
    assert_eq!(of("final", 1), ("final: answered 410".to_owned(), false));
    assert!(of("silent", 1).0.starts_with("timed out") && of("silent", 1).1, "{failures:?}");
    assert!(of("silent", 2).0.starts_with("attempt 2 was the last: timed out"), "{failures:?}");
    assert!(of("refused", 1).0.contains("refused") && of("refused", 1).1, "{failures:?}");
}

/// One slow callback a partition holds its offset back; then a second worker takes one of the two
/// partitions over. Only what was not finished is called again.
#[test]
fn a_partition_that_moves_repeats_only_what_was_not_finished() {
    let cluster = WorkerFixture::new("worker-moves");
    let first = cluster.start_worker(&[]);
    let outcomes = cluster.read_topic("outcomes");
    for partition in 0..2 {
        cluster.publish(partition, &cluster.fire(&format!("slow-{partition}"), "slow"));
        for n in 0..20 {
            cluster.publish(partition, &cluster.fire(&format!("quick-{partition}-{n}"), "ok"));
        }
    }
    for _ in 0..40 {
        let outcome = outcomes.next(Schemas::decode_outcome);
        assert!(outcome.trigger.as_str().starts_with("quick"), "{outcome:?}");
    }

    let second = cluster.start_worker(&[]);
    until("the slow callback of the moved partition again", DEADLINE, || {
        (cluster.receiver.count("slow-0") + cluster.receiver.count("slow-1") == 3).then_some(())
    });
    cluster.receiver.release.send_replace(true);
    let mut slow = [outcomes.next(Schemas::decode_outcome), outcomes.next(Schemas::decode_outcome)];
    slow.sort_by(|a, b| a.trigger.cmp(&b.trigger));
    let ids = slow.each_ref().map(|outcome| outcome.trigger.as_str());
    assert_eq!(ids, ["slow-0", "slow-1"]);

    // Both leave in good order; a third finds nothing left to do.
    drop((first, second));
    let _third = cluster.start_worker(&[]);
    cluster.publish(0, &cluster.fire("last", "ok"));
    assert_eq!(outcomes.next(Schemas::decode_outcome).trigger.as_str(), "last");
    let repeated = |call: &&WorkerCall| !call.trigger.starts_with("slow");
    assert_eq!(cluster.receiver.calls().iter().filter(repeated).count(), 41);
}

/// The first callback hangs, a thousand wait for its place, and then so much comes that Kafka could
/// not remember what of it is finished.
#[test]
fn waiting_callbacks_are_deferred_when_the_window_is_full() {
    let cluster = WorkerFixture::new("worker-window");
    let _worker = cluster.start_worker(&[
        "worker.caller_in_flight_max=1",
        "worker.timeout=60s",
        "worker.timeout_max=60s",
    ]);
    let signals = cluster.read_topic("signals");
    cluster.publish(0, &cluster.fire("hangs", "slow"));
    let mut waits = cluster.fire("waits", "slow");
    for n in 0..OPEN_MAX as u64 {
        waits.id.generation = n;
        cluster.enqueue(0, b"waits", &cluster.schemas.encode_fire(&waits));
    }
    until("a callback that hangs", DEADLINE, || {
        (cluster.receiver.count("hangs") == 1).then_some(())
    });
    let mut other = cluster.fire("other", "ok");
    other.definition.caller = Some("other".into());
    for n in 0..=WINDOW_MAX {
        other.id.generation = n;
        cluster.enqueue(0, b"other", &cluster.schemas.encode_fire(&other));
    }
    cluster.producer.flush(DEADLINE).unwrap();
    let request = loop {
        let Signal::Retry(request) = signals.next(Schemas::decode_signal) else { panic!() };
        if request.id.trigger == *"waits" {
            break request;
        }
    };
    assert_eq!((request.id.attempt, request.id.deferral), (1, 1));
    assert_eq!(request.reason, "not started: it held back the progress of its partition");
    assert_eq!((cluster.receiver.count("hangs"), cluster.receiver.count("waits")), (1, 0));
    cluster.receiver.release.send_replace(true);
}

#[test]
fn waiting_callbacks_of_a_stopped_worker_are_made_by_the_next() {
    let cluster = WorkerFixture::new("worker-ends");
    let first = cluster.start_worker(&["worker.caller_in_flight_max=1"]);
    cluster.publish(0, &cluster.fire("under-way", "slow"));
    cluster.publish(0, &cluster.fire("waits", "ok"));
    until("a callback under way", DEADLINE, || {
        (cluster.receiver.count("under-way") == 1).then_some(())
    });
    first.shutdown.cancel();
    cluster.receiver.release.send_replace(true);
    drop(first);
    assert_eq!(cluster.receiver.count("waits"), 0);
    let _second = cluster.start_worker(&[]);
    until("what has waited", DEADLINE, || (cluster.receiver.count("waits") == 1).then_some(()));
    assert_eq!(cluster.receiver.count("under-way"), 1);
}

/// Three fires of a caller that has one place, and a cancel of all three behind them.
#[test]
fn only_callbacks_that_have_not_started_are_withdrawn() {
    let cluster = WorkerFixture::new("worker-withdraws");
    let _worker = cluster.start_worker(&["worker.caller_in_flight_max=1"]);
    let outcomes = cluster.read_topic("outcomes");
    let fires = [1, 2, 43].map(|generation| {
        let mut fire = cluster.fire("order-7", "slow");
        (fire.id.generation, fire.id.attempt) = (generation, 2);
        fire
    });
    for fire in &fires {
        cluster.publish(0, fire);
    }
    until("a callback under way", DEADLINE, || {
        (cluster.receiver.count("order-7") == 1).then_some(())
    });
    cluster.withdraw(1, "order-7", 43);
    cluster.withdraw(0, "another", 43);
    cluster.withdraw(0, "order-7", 43);
    let outcome = outcomes.next(Schemas::decode_outcome);
    let withdrawn = OutcomeKind::Withdrawn { generation: 2, occurrence: 0, attempt: 2 };
    assert_eq!((outcome.kind, outcome.answers), (withdrawn, None));
    cluster.receiver.release.send_replace(true);
    let delivered = [(); 2].map(|()| match outcomes.next(Schemas::decode_outcome).kind {
        OutcomeKind::Delivered { generation, .. } => generation,
        other => panic!("{other:?}"),
    });
    assert_eq!((delivered, cluster.receiver.count("order-7")), ([1, 43], 2));
}

/// A worker has started two callbacks of each partition; then another worker, with a limit of one,
/// takes over one of the two partitions. No outcome may say that one of them was not requested.
#[test]
fn callbacks_that_another_worker_may_have_started_are_not_withdrawn() {
    let cluster = WorkerFixture::new("worker-doubts");
    let _first = cluster.start_worker(&[]);
    let outcomes = cluster.read_topic("outcomes");
    let ids = ["started-0", "started-1", "waits-0", "waits-1"];
    for (id, partition) in ids.into_iter().zip([0, 1, 0, 1]) {
        cluster.publish(partition, &cluster.fire(id, "slow"));
    }
    until("all under way", DEADLINE, || (cluster.receiver.calls().len() == 4).then_some(()));
    let _second = cluster.start_worker(&["worker.caller_in_flight_max=1"]);
    until("the first one of the moved partition again", DEADLINE, || {
        (cluster.receiver.calls().len() == 5).then_some(())
    });
    for (id, partition) in ids.into_iter().zip([0, 1, 0, 1]) {
        cluster.withdraw(partition, id, 43);
    }
    for partition in 0..2 {
        let mut behind = cluster.fire("behind", "ok");
        behind.definition.caller = Some("another".into());
        cluster.publish(partition, &behind);
        assert_eq!(outcomes.next(Schemas::decode_outcome).trigger.as_str(), "behind");
    }
    cluster.receiver.release.send_replace(true);
    for _ in ids {
        let outcome = outcomes.next(Schemas::decode_outcome);
        assert!(matches!(outcome.kind, OutcomeKind::Delivered { .. }), "{outcome:?}");
    }
}

/// Topics of their own, a receiver, and a producer that plays the owner.
struct WorkerFixture {
    prefix: String,
    producer: BaseProducer,
    schemas: Schemas,
    receiver: WorkerReceiver,
}

impl WorkerFixture {
    fn new(test: &str) -> Self {
        let client = kafka_server::shared().client();
        let prefix = unique_prefix(test);
        let runtime = Runtime::new().unwrap();
        let partitions = NonZeroU16::new(PARTITIONS).unwrap();
        let topics = TopicDefinitions::load(&prefix, partitions, NonZeroU16::MIN);
        runtime.block_on(topics.apply_with(&client)).unwrap();
        // A broker may answer for a topic a little later than its controller has made it.
        until("the topics", DEADLINE, || runtime.block_on(topics.verify_with(&client)).ok());
        let producer = client.create().unwrap();
        Self { prefix, producer, schemas: Schemas::new(), receiver: WorkerReceiver::start(runtime) }
    }

    fn start_worker(&self, overrides: &[&str]) -> WorkerThread {
        let bootstrap = kafka_server::shared().bootstrap();
        let mut all = vec![
            format!("kafka.bootstrap.servers={bootstrap}"),
            format!("topics.prefix={}", self.prefix),
            "worker.allow_addresses=any".to_owned(),
            "worker.retry_jitter=0".to_owned(),
        ];
        all.extend(overrides.iter().map(|&assignment| assignment.to_owned()));
        let settings = Settings::load(&Layers { overrides: all, ..Layers::default() }).unwrap();
        let (shutdown, health) = (CancellationToken::new(), Health::new("worker"));
        let thread = std::thread::spawn({
            let (shutdown, health) = (shutdown.clone(), Arc::clone(&health));
            move || worker::run(&settings, shutdown, health)
        });
        let worker = WorkerThread { shutdown, thread: Some(thread) };
        until("a worker that is ready", DEADLINE, || {
            assert!(!worker.has_ended(), "the worker has ended");
            health.is_ready().then_some(())
        });
        worker
    }

    fn fire(&self, trigger: &str, path: &str) -> Fire {
        fire_to(trigger, &self.receiver.url(path))
    }

    fn publish(&self, partition: PartitionId, fire: &Fire) {
        self.send(partition, fire.id.trigger.bytes(), &self.schemas.encode_fire(fire));
    }

    fn withdraw(&self, partition: PartitionId, trigger: &str, cancel: u64) {
        let withdrawal = Withdrawal { trigger: trigger.into(), cancel };
        let value = self.schemas.encode_withdrawal(&withdrawal);
        self.send(partition, trigger.as_bytes(), &value);
    }

    fn send(&self, partition: PartitionId, key: &[u8], value: &[u8]) {
        self.enqueue(partition, key, value);
        self.producer.flush(DEADLINE).unwrap();
    }

    fn enqueue(&self, partition: PartitionId, key: &[u8], value: &[u8]) {
        let topic = format!("{}.fires", self.prefix);
        let record = BaseRecord::to(&topic).partition(partition).key(key).payload(value);
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
    }

    /// What the worker writes to a topic, from its beginning.
    fn read_topic(&self, topic: &str) -> TopicReader {
        let mut config = kafka_server::shared().client();
        config.set("group.id", "follower").set("isolation.level", "read_committed");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut assignment = TopicPartitionList::new();
        let topic = format!("{}.{topic}", self.prefix);
        for partition in 0..PARTITIONS.into() {
            assignment.add_partition_offset(&topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&assignment).unwrap();
        TopicReader { topic, consumer, schemas: Schemas::new() }
    }
}

/// A fire that is due as its first attempt.
pub(crate) fn fire_to(trigger: &str, url: &str) -> Fire {
    let id =
        FireId { trigger: trigger.into(), generation: 42, occurrence: 0, attempt: 1, deferral: 0 };
    let definition = Definition {
        target: Target::from(HttpTarget::post(url)),
        payload: Some(br#"{"n":1}"#[..].into()),
        headers: Vec::new(),
        retry: None,
        caller: None,
    };
    let (scheduled, fired, history, settles, priority) = (1_000, 1_001, None, false, 127);
    Fire { id, scheduled, fired, definition, history, report_end: settles, priority }
}

/// A worker in this process; it is ended, and waited for, when the value is dropped.
struct WorkerThread {
    shutdown: CancellationToken,
    thread: Option<std::thread::JoinHandle<Result<(), WorkerError>>>,
}

impl WorkerThread {
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(std::thread::JoinHandle::is_finished)
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.shutdown.cancel();
        let result = self.thread.take().unwrap().join();
        if std::thread::panicking() {
            eprintln!("the worker ended with {result:?}");
        } else {
            result.unwrap().unwrap();
        }
    }
}

struct TopicReader {
    topic: String,
    consumer: BaseConsumer,
    schemas: Schemas,
}

impl TopicReader {
    fn next<T, E: std::fmt::Debug>(&self, decode: fn(&Schemas, &[u8]) -> Result<T, E>) -> T {
        until(&format!("a record of {}", self.topic), DEADLINE, || {
            let record = self.consumer.poll(Duration::from_millis(50))?.ok()?;
            Some(decode(&self.schemas, record.payload().unwrap()).unwrap())
        })
    }
}

/// Who is called back; the path says how it behaves.
struct WorkerReceiver {
    base: String,
    calls: WorkerCalls,
    /// Lets the slow callbacks be answered.
    release: watch::Sender<bool>,
    _runtime: Runtime,
}

type WorkerCalls = Arc<Mutex<Vec<WorkerCall>>>;

#[derive(Clone, Debug)]
struct WorkerCall {
    trigger: String,
    attempt: String,
    key: String,
    body: String,
}

impl WorkerReceiver {
    fn start(runtime: Runtime) -> Self {
        let (release, released) = watch::channel(false);
        let calls = WorkerCalls::default();
        let router = Router::new()
            .route("/{behaviour}", axum::routing::post(answer))
            .with_state((Arc::clone(&calls), released));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { base, calls, release, _runtime: runtime }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }

    fn calls(&self) -> Vec<WorkerCall> {
        self.calls.lock().unwrap().clone()
    }

    fn count(&self, trigger: &str) -> usize {
        self.calls().iter().filter(|call| call.trigger == trigger).count()
    }
}

async fn answer(
    State((calls, mut released)): State<(WorkerCalls, watch::Receiver<bool>)>,
    Path(behaviour): Path<String>,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, &'static str) {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (trigger, attempt) = (text("x-trigger-id"), text("x-trigger-attempt"));
    let third = attempt == "3";
    assert_eq!(text("webhook-id"), text("x-idempotency-key"));
    let call = WorkerCall { trigger, attempt, key: text("x-idempotency-key"), body };
    calls.lock().unwrap().push(call);
    match behaviour.as_str() {
        "flaky" if !third => (StatusCode::INTERNAL_SERVER_ERROR, "attempt refused\n"),
        "final" => (StatusCode::GONE, ""),
        "slow" => {
            let _released = released.wait_for(|released| *released).await;
            (StatusCode::OK, "")
        }
        _ => (StatusCode::OK, ""),
    }
}
