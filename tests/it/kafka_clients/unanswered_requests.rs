//! Requests of a transaction that are not answered. A late copy of one that was sent again could
//! end the next transaction of its producer, or take its offsets back: the brokers cannot tell one
//! transaction of a producer from the next (KIP-890 needs a client that can).
//!
//! Invariant: such a request is sent once, and the outcome of its transaction is unknown.
//! A topic is looked up at brokers that answer.
//! No partition is left out for what the coordinator of a transaction does not do.
//! A coordinator and a leader are waited for until their cluster has replaced them, and not until
//! the request times out. Brokers that take long to answer are asked who leads what once a second.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use orloj::clock;
use orloj::config::{Layers, Settings};
use orloj::kafka::admin_client::KafkaAdminClient;
use orloj::kafka::member::Member;
use orloj::kafka::transaction::{OffsetCommit, TransactionError, TransactionalProducer};
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseRecord, DeliveryResult, ProducerContext, ThreadedProducer};
use rustix::process::Signal;

use super::setup::{DEADLINE, TIMEOUT, poll_until_assigned, proxied_broker, record, settings_of};
use crate::brokers::{BrokerRole, ThreeBrokers};
use crate::faults::proxy::{END_TXN, Proxy, TXN_OFFSET_COMMIT};
use crate::kafka_server::create_topics;
use crate::test_cluster::exclusive_machine;
use crate::wait::{until, within};

/// After that the client takes a request for lost.
const REQUEST_TIMEOUT: &str = "1s";
/// After that it gives a record up.
const DELIVERY_TIMEOUT: &str = "2s";
/// How long a call may take. If the request was sent again, it would be answered by then.
const CALL: Duration = Duration::from_secs(10);

/// How long the look-up of a topic may take: each of its three questions waits for a second at most
/// for a broker that does not answer; and a margin.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// How long a cluster may take to replace a broker, also the controller, and a margin.
const REPLACED_MAX: Duration = Duration::from_secs(30);
/// Longer than that, and shorter than the timeout of the requests.
const LONG_CALL: Duration = Duration::from_secs(50);
const LONG_REQUEST_TIMEOUT: &str = "60s";

/// A leader is silent after a second, and that is looked at every second. If one that does not
/// answer is asked first, it is a second more. And a margin; a request times out after a minute.
const LEARNED_MAX: Duration = Duration::from_secs(5);
/// How long twelve questions may take that follow each other after 250 ms. They take twelve seconds
/// if each waits for the time after which there is no answer.
const QUICK_MIN: Duration = Duration::from_millis(2_500);
const QUICK_MAX: Duration = Duration::from_secs(8);
/// What takes so long is not answered within a test.
const UNANSWERED: Duration = Duration::from_secs(600);

/// What happens to the request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It arrives after the client has given it up.
    Held,
    /// Its answer is lost, with the connection.
    AnswerLost,
}

#[test]
fn a_request_that_may_have_arrived_is_not_sent_again() {
    let (server, proxy, address) = proxied_broker();
    let (topic, group) = ("unanswered", "unanswered");
    create_topics(&server.client(), &[NewTopic::new(topic, 1, TopicReplication::Fixed(1))]);
    let settings = impatient_settings(&address);
    let member = Member::join(&settings, group, topic, "a").unwrap();
    poll_until_assigned(&member);
    for kind in [END_TXN, TXN_OFFSET_COMMIT] {
        for fault in [Fault::Held, Fault::AnswerLost] {
            let producer = TransactionalProducer::open(&settings, "id", TIMEOUT).unwrap();
            producer.begin().unwrap();
            producer.send(record(topic, 0, "key")).unwrap();
            producer.flush(TIMEOUT).unwrap();
            let metadata = "step".to_owned();
            let commit =
                OffsetCommit { topic: topic.to_owned(), partition: 0, offset: 1, metadata };
            let add_offsets =
                || producer.send_offsets(&[commit], &member.group_metadata().unwrap(), CALL);
            let (result, sent) = if kind == END_TXN {
                add_offsets().unwrap();
                with_fault(&proxy, kind, fault, || producer.commit(CALL))
            } else {
                with_fault(&proxy, kind, fault, add_offsets)
            };
            assert!(
                matches!(result, Err(TransactionError::Unknown(_))),
                "{kind}, {fault:?}: {result:?}"
            );
            assert_eq!(sent, 1, "{kind}, {fault:?}: {result:?}");
        }
    }
}

/// The coordinator may be away, or not able to end an earlier transaction of the same producer.
#[test]
fn records_that_wait_for_the_coordinator_blame_no_partition() {
    let (server, proxy, address) = proxied_broker();
    let topic = "waiting";
    create_topics(&server.client(), &[NewTopic::new(topic, 1, TopicReplication::Fixed(1))]);
    let producer =
        TransactionalProducer::open(&impatient_settings(&address), "id", TIMEOUT).unwrap();
    producer.prefetch_metadata(topic).unwrap();
    proxy.close();
    producer.begin().unwrap();
    producer.send(record(topic, 0, "key")).unwrap();
    let result = producer.flush(CALL);
    assert!(matches!(result, Err(TransactionError::Unknown(_))), "{result:?}");
    proxy.release();
}

/// One to which something was sent just now would be asked first.
#[test]
fn a_broker_that_does_not_answer_is_not_asked_again_for_metadata() {
    const ATTEMPTS: usize = 10;
    let _machine = exclusive_machine();
    let brokers = ThreeBrokers::start();
    let topic = "silent";
    create_topics(&brokers.client(), &[NewTopic::new(topic, 3, TopicReplication::Fixed(3))]);
    brokers.wait_until_in_sync();
    let settings = settings_of(&brokers.bootstrap());
    let producer = TransactionalProducer::open(&settings, "id", TIMEOUT).unwrap();
    producer.prefetch_metadata(topic).unwrap();
    producer.begin().unwrap();
    (0..3).for_each(|partition| producer.send(record(topic, partition, "key")).unwrap());
    producer.flush(TIMEOUT).unwrap();
    let stopped = brokers.place_of(BrokerRole::Leader(topic));
    producer.send(record(topic, 0, "key")).unwrap();
    producer.flush(TIMEOUT).unwrap();
    brokers.signal(stopped, Signal::STOP);
    let asked = (0..ATTEMPTS).map(|_| producer.refresh_metadata(Duration::from_millis(500)));
    let failed: Vec<_> = asked.filter_map(Result::err).collect();
    brokers.signal(stopped, Signal::CONT);
    assert!(failed.len() <= 1, "{failed:?}");
}

/// One of these had no answer until the timeout of the client was over, although two brokers of
/// three could answer. Which broker is asked first is not known.
#[test]
fn a_topic_is_looked_up_at_another_broker_if_one_does_not_answer_for_a_second() {
    const LOOKUPS: usize = 3;
    /// Some of them are connected to the broker that is stopped alone.
    const CLIENTS: usize = 6;
    let _machine = exclusive_machine();
    let brokers = ThreeBrokers::start();
    let topic = "looked-up";
    create_topics(&brokers.client(), &[NewTopic::new(topic, 3, TopicReplication::Fixed(3))]);
    brokers.wait_until_in_sync();
    let open = |_| {
        let admin = KafkaAdminClient::open(&settings_of(&brokers.bootstrap()), CALL).unwrap();
        let _known = admin.topic_state(topic).unwrap();
        admin
    };
    let look_up = |admin: &KafkaAdminClient| {
        let began = clock::monotonic();
        let state = admin.topic_state(topic);
        (state, clock::monotonic() - began)
    };
    for stopped in 0..3 {
        let clients: Vec<_> = (0..CLIENTS).map(open).collect();
        brokers.signal(stopped, Signal::STOP);
        let found: Vec<_> = thread::scope(|scope| {
            let look_ups = |admin| move || (0..LOOKUPS).map(|_| look_up(admin)).collect::<Vec<_>>();
            let running: Vec<_> =
                clients.iter().map(|admin| scope.spawn(look_ups(admin))).collect();
            running.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        brokers.signal(stopped, Signal::CONT);
        for (state, took) in &found {
            assert!(state.is_ok() && *took < LOOKUP_MAX, "{stopped}: {found:?}");
        }
        brokers.wait_until_in_sync();
    }
}

/// It was asked for once, when the transaction began. Its connection had stayed, with what was sent
/// to it, until the request had timed out.
#[test]
fn a_coordinator_that_does_not_answer_is_left_when_another_one_has_replaced_it() {
    let _machine = exclusive_machine();
    let brokers = ThreeBrokers::start();
    let settings = patient_settings(&brokers.bootstrap());
    let open = |id: &str| TransactionalProducer::open(&settings, id, TIMEOUT).unwrap();
    let committing = open("committing");
    // The topic of transactions exists now.
    let coordinator = |id: &str| brokers.place_of(BrokerRole::TransactionCoordinator(id));
    let stopped = coordinator("committing");
    let mut ids = (0..).map(|n| format!("sending-{n}"));
    let id = ids.find(|id| coordinator(id) == stopped);
    let sending = open(&id.expect("one of so many has the same coordinator"));
    // Their leader lives, and waits for no other broker.
    let replica = [i32::try_from((stopped + 1) % 3).unwrap() + 1];
    let replicas = [&replica[..]];
    let (before, after) = ("before", "after");
    let new = [before, after].map(|topic| {
        let topic = NewTopic::new(topic, 1, TopicReplication::Variable(&replicas));
        topic.set("min.insync.replicas", "1")
    });
    create_topics(&brokers.client(), &new);
    brokers.wait_until_in_sync();
    for producer in [&committing, &sending] {
        [before, after].iter().for_each(|topic| producer.prefetch_metadata(topic).unwrap());
        producer.begin().unwrap();
        producer.send(record(before, 0, "key")).unwrap();
        producer.flush(TIMEOUT).unwrap();
    }
    brokers.signal(stopped, Signal::STOP);
    let began = clock::monotonic();
    let (committed, sent) = thread::scope(|scope| {
        let committed = scope.spawn(|| (committing.commit(LONG_CALL), clock::monotonic() - began));
        // Its partition is to be added to the transaction.
        let sent = sending.send(record(after, 0, "key")).and_then(|()| sending.flush(LONG_CALL));
        let sent = (sent, clock::monotonic() - began);
        (committed.join().unwrap(), sent)
    });
    let ended = sending.commit(TIMEOUT);
    brokers.signal(stopped, Signal::CONT);
    let is_unknown = matches!(committed.0, Err(TransactionError::Unknown(_)));
    assert!(is_unknown && committed.1 <= REPLACED_MAX, "it may have arrived: {committed:?}");
    assert!(sent.0.is_ok() && sent.1 <= REPLACED_MAX, "it is sent to the other one: {sent:?}");
    assert!(ended.is_ok(), "{ended:?}");
}

/// They were asked four times a second, and for topics without records, too.
#[test]
fn slow_brokers_are_asked_once_a_second_who_leads_topics_that_have_records() {
    const ANSWER: Duration = Duration::from_secs(4);
    const RECORDS: usize = 3;
    let (written, idle) = ("written", "idle");
    let cluster = MockCluster::new(1).unwrap();
    [written, idle].iter().for_each(|topic| cluster.create_topic(topic, 1, 1).unwrap());
    let client = ObservedProducer::connect(&cluster.bootstrap_servers(), &[]);
    [written, idle].iter().for_each(|topic| client.write(topic));
    cluster.broker_round_trip_time(1, ANSWER).unwrap();
    let (began, before) = (clock::monotonic(), client.questions().len());
    (0..RECORDS).for_each(|_| client.write(written));
    let seconds = usize::try_from((clock::monotonic() - began).as_secs()).unwrap();
    let asked = client.questions().split_off(before);
    assert!((1..=seconds).contains(&asked.len()), "within {seconds} s: {asked:?}");
    assert!(asked.iter().all(|question| question.topics == 1), "{asked:?}");
}

/// It was waited for until the request had timed out; then, if it was the only one that was
/// connected, it was asked itself.
#[test]
fn a_producer_learns_of_a_new_leader_while_the_last_one_does_not_answer() {
    let (moved, other) = ("moved", "other");
    for is_connected_to_both in [true, false] {
        let cluster = MockCluster::new(2).unwrap();
        for (topic, leader) in [(moved, 1), (other, 2)] {
            cluster.create_topic(topic, 1, 1).unwrap();
            cluster.partition_leader(topic, 0, Some(leader)).unwrap();
        }
        // In the order of their ids.
        let brokers = cluster.bootstrap_servers();
        let first = brokers.split(',').next().unwrap();
        let client = ObservedProducer::connect(first, &[]);
        client.write(moved);
        if is_connected_to_both {
            client.write(other);
        }
        cluster.broker_round_trip_time(1, UNANSWERED).unwrap();
        cluster.partition_leader(moved, 0, Some(2)).unwrap();
        let before = client.delivered();
        let written = within(LEARNED_MAX, || {
            client.send(moved);
            (client.delivered() > before).then_some(())
        });
        assert!(written.is_some(), "{is_connected_to_both}: {:?}", client.questions());
    }
}

/// The next question follows an answer, and not only the time after which there is none. How many
/// there may be is in `silent_leaders`.
#[test]
fn while_a_leader_does_not_answer_another_broker_is_asked_every_250_ms_who_leads() {
    const QUESTIONS: usize = 12;
    let (silent, other) = ("silent", "other");
    let cluster = MockCluster::new(2).unwrap();
    for (topic, leader) in [(silent, 1), (other, 2)] {
        cluster.create_topic(topic, 1, 1).unwrap();
        cluster.partition_leader(topic, 0, Some(leader)).unwrap();
    }
    let client = ObservedProducer::connect(&cluster.bootstrap_servers(), &[]);
    [silent, other].iter().for_each(|topic| client.write(topic));
    cluster.broker_round_trip_time(1, UNANSWERED).unwrap();
    let before = client.questions().len();
    client.send(silent);
    until("a question", DEADLINE, || (client.questions().len() > before).then_some(()));
    let began = clock::monotonic();
    let all = before + 1 + QUESTIONS;
    until("more questions", DEADLINE, || (client.questions().len() >= all).then_some(()));
    let took = clock::monotonic() - began;
    assert!((QUICK_MIN..=QUICK_MAX).contains(&took), "{took:?}: {:?}", client.questions());
}

/// With one request at a time nothing more is sent to them, so that the one to which something was
/// sent longest ago was asked again and again.
#[test]
fn brokers_that_all_do_not_answer_are_asked_in_turn() {
    let cluster = MockCluster::new(3).unwrap();
    let topics = [(1, "first"), (2, "second"), (3, "third")];
    let in_flight_max = ("max.in.flight.requests.per.connection", "1");
    for (broker, topic) in topics {
        cluster.create_topic(topic, 1, 1).unwrap();
        cluster.partition_leader(topic, 0, Some(broker)).unwrap();
    }
    let client = ObservedProducer::connect(&cluster.bootstrap_servers(), &[in_flight_max]);
    topics.iter().for_each(|(_, topic)| client.write(topic));
    for (broker, _) in topics {
        cluster.broker_round_trip_time(broker, UNANSWERED).unwrap();
    }
    let before = client.questions().len();
    client.send("first");
    let asked = until("two questions for each broker", DEADLINE, || {
        let asked = client.questions().split_off(before);
        (asked.len() >= 2 * topics.len()).then_some(asked)
    });
    for turn in asked.windows(topics.len()) {
        let brokers: BTreeSet<_> = turn.iter().map(|question| &question.broker).collect();
        assert_eq!(brokers.len(), topics.len(), "{asked:?}");
    }
}

fn impatient_settings(address: &str) -> Settings {
    settings_with(address, &[("request", REQUEST_TIMEOUT), ("delivery", DELIVERY_TIMEOUT)], "30s")
}

/// No request times out before a broker is replaced.
fn patient_settings(addresses: &str) -> Settings {
    let timeouts = [("request", LONG_REQUEST_TIMEOUT), ("delivery", LONG_REQUEST_TIMEOUT)];
    settings_with(addresses, &timeouts, "120s")
}

/// With these timeouts.
fn settings_with(
    bootstrap: &str,
    timeouts: &[(&str, &str)],
    transaction_timeout: &str,
) -> Settings {
    let mut overrides = vec![
        format!("kafka.bootstrap.servers={bootstrap}"),
        format!("scheduler.transaction_timeout={transaction_timeout}"),
    ];
    overrides.extend(timeouts.iter().map(|(name, time)| format!("timeouts.{name}={time}")));
    Settings::load(&Layers { overrides, ..Layers::default() }).unwrap()
}

/// What the call returns, and how many requests of this kind it has sent.
fn with_fault<T>(proxy: &Proxy, kind: i16, fault: Fault, call: impl FnOnce() -> T) -> (T, usize) {
    let before = proxy.requests(kind);
    match fault {
        Fault::Held => proxy.hold_next(kind),
        Fault::AnswerLost => proxy.lose(&[kind], 1),
    }
    let result = call();
    proxy.lose(&[], 0);
    proxy.release();
    (result, proxy.requests(kind) - before)
}

/// A question of a client who leads topics.
#[derive(Clone, Debug)]
struct LeaderQuestion {
    /// Which broker was asked.
    broker: String,
    /// How many topics it was asked for.
    topics: usize,
}

impl LeaderQuestion {
    /// By the log of the client.
    fn logged(message: &str) -> Option<Self> {
        let (before, after) = message.split_once(": Request metadata for ")?;
        let topics = after.split(' ').next()?.parse().ok()?;
        Some(Self { broker: before.rsplit(' ').next()?.to_owned(), topics })
    }
}

/// What a producer does.
#[derive(Clone, Default)]
struct ProducerLog {
    questions: Arc<Mutex<Vec<LeaderQuestion>>>,
    delivered: Arc<AtomicUsize>,
}

impl ClientContext for ProducerLog {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, message: &str) {
        self.questions.lock().unwrap().extend(LeaderQuestion::logged(message));
    }
}

impl ProducerContext for ProducerLog {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        self.delivered.fetch_add(usize::from(result.is_ok()), Relaxed);
    }
}

/// A producer that is not idempotent: it sends records to a new leader while those that the last
/// one has are not acknowledged.
struct ObservedProducer {
    producer: ThreadedProducer<ProducerLog>,
    log: ProducerLog,
}

impl ObservedProducer {
    fn connect(brokers: &str, properties: &[(&str, &str)]) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers).set("debug", "metadata");
        for (name, value) in properties {
            config.set(*name, *value);
        }
        config.set_log_level(RDKafkaLogLevel::Debug);
        let log = ProducerLog::default();
        Self { producer: config.create_with_context(log.clone()).unwrap(), log }
    }

    fn send(&self, topic: &str) {
        let record = BaseRecord::<str, str>::to(topic).partition(0).payload("record");
        self.producer.send(record).unwrap();
    }

    /// Sends a record, and waits until it is acknowledged.
    fn write(&self, topic: &str) {
        let before = self.delivered();
        self.send(topic);
        until("a record", DEADLINE, || (self.delivered() > before).then_some(()));
    }

    fn delivered(&self) -> usize {
        self.log.delivered.load(Relaxed)
    }

    fn questions(&self) -> Vec<LeaderQuestion> {
        self.log.questions.lock().unwrap().clone()
    }
}
