//! The producers that replace those of a failed transaction.
//!
//! Invariant: a spare takes over at once, whatever has become of its connections, and ends the
//! transaction of the earlier producers.

use std::time::Duration;

use orloj::clock;
use orloj::config::Settings;
use orloj::kafka::producer_pair::ProducerPair;
use orloj::kafka::spare_producers::SpareProducers;
use orloj::kafka::transaction::TransactionError;

use super::setup::{DEADLINE, TIMEOUT, keys, new_topic, reader, record, settings, settings_of};
use crate::faults::proxy::Proxy;
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::test_cluster::exclusive_machine;
use crate::wait::until;

/// What a swap may take. Of several, the best one counts: the machine may be busy.
const SWAP_MAX: Duration = Duration::from_millis(50);
const SWAPS: usize = 8;

/// librdkafka looks at a client without a connection again after this time.
const LIBRARY_PAUSE: Duration = Duration::from_millis(500);

/// How long a spare waits; its broker closes connections sooner that are not used.
const IDLE: Duration = Duration::from_secs(3);
/// How often it sends a request meanwhile.
const KEPT_ALIVE: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_secs(3_600);

fn open_first(settings: &Settings, topic: &str) -> (SpareProducers, ProducerPair) {
    let producers = SpareProducers::new(settings, topic, vec![topic.to_owned()], KEPT_ALIVE);
    let first = producers.open(0, TIMEOUT).unwrap();
    producers.prepare(0);
    (producers, first)
}

fn await_spare(producers: &SpareProducers) {
    until("a spare", DEADLINE, || producers.is_ready().then_some(()));
}

/// Begins a transaction, and sends this key.
fn send(pair: &ProducerPair, topic: &str, key: &str) {
    pair.begin_at(0).unwrap();
    pair.send(record(topic, 0, key)).unwrap();
    pair.flush(TIMEOUT).unwrap();
}

/// Opens the next producers, and says how long that took.
fn timed(producers: &SpareProducers) -> (ProducerPair, Duration) {
    let began = clock::monotonic();
    let pair = producers.open(0, TIMEOUT).unwrap();
    let took = clock::monotonic() - began;
    producers.prepare(0);
    (pair, took)
}

#[test]
fn a_spare_replaces_a_failed_pair_within_50_ms_and_ends_its_transaction() {
    let _machine = exclusive_machine();
    let topic = new_topic(1, &[]);
    let (producers, mut pair) = open_first(&settings(), &topic);
    let (mut swaps, mut firsts) = (Vec::new(), Vec::new());
    for n in 0..SWAPS {
        await_spare(&producers);
        send(&pair, &topic, "open");
        let (next, took) = timed(&producers);
        swaps.push(took);
        let ended = pair.commit(TIMEOUT);
        assert!(matches!(ended, Err(TransactionError::Fenced(_))), "{ended:?}");
        let began = clock::monotonic();
        send(&next, &topic, &n.to_string());
        next.commit(TIMEOUT).unwrap();
        firsts.push(clock::monotonic() - began);
        pair = next;
    }
    println!("swaps: {swaps:?}; their first transactions: {firsts:?}");
    let reader = reader();
    reader.start(&topic, 0, 0).unwrap();
    assert_eq!(keys(&reader, SWAPS), (0..SWAPS).map(|n| n.to_string()).collect::<Vec<_>>());
    let best = swaps.iter().min().unwrap();
    assert!(*best <= SWAP_MAX, "{swaps:?}");
}

/// A request of it every hour is no reason to be busy.
#[test]
fn a_spare_that_waits_is_left_alone() {
    let topic = new_topic(1, &[]);
    let producers = SpareProducers::new(&settings(), &topic, vec![topic.clone()], SELDOM);
    producers.prepare(0);
    await_spare(&producers);
    let waits_until = clock::monotonic() + IDLE / 3;
    until("the spare to be idle", DEADLINE, || {
        assert!(producers.is_ready(), "it is in use for a request");
        (clock::monotonic() >= waits_until).then_some(())
    });
}

/// Brokers close connections that are not used, and without one the library pauses.
#[test]
fn a_spare_that_waits_for_long_is_used_without_the_pause_of_the_library() {
    let _machine = exclusive_machine();
    let properties = vec![("connections.max.idle.ms", "700".to_owned())];
    let server = KafkaServer::start(&Options { properties, ..Options::default() });
    let (topic, settings) = (server.new_topic(1, &[]), settings_of(server.bootstrap()));
    let (producers, _first) = open_first(&settings, &topic);
    let (mut idle, mut new) = (Vec::new(), Vec::new());
    for _ in 0..SWAPS / 2 {
        await_spare(&producers);
        let waits_until = clock::monotonic() + IDLE;
        until("the spare to be idle", DEADLINE, || {
            (clock::monotonic() >= waits_until).then_some(())
        });
        idle.push(timed(&producers).1);
        let (without_spare, took) =
            timed(&SpareProducers::new(&settings, &topic, Vec::new(), KEPT_ALIVE));
        new.push(took);
        drop(without_spare);
    }
    println!("swaps to an idle spare: {idle:?}; new clients: {new:?}");
    assert!(*idle.iter().min().unwrap() < LIBRARY_PAUSE, "{idle:?}");
}

#[test]
fn a_spare_that_cannot_connect_is_left_and_new_clients_are_opened_when_a_broker_is_there() {
    let [listener, port] = free_ports();
    let server =
        KafkaServer::start(&Options { proxied: Some([listener, port]), ..Options::default() });
    let topic = server.new_topic(1, &[]);
    let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
    let (producers, first) = open_first(&settings_of(&format!("127.0.0.1:{port}")), &topic);
    await_spare(&producers);
    proxy.cut();
    let opened = producers.open(0, TIMEOUT / 5);
    assert!(opened.is_err() && !producers.is_ready(), "{opened:?}");
    proxy.release();
    let next = until("the next producers", DEADLINE, || producers.open(0, TIMEOUT).ok());
    producers.prepare(0);
    send(&next, &topic, "key");
    next.commit(TIMEOUT).unwrap();
    let of_first = first.begin_at(0).and_then(|()| first.send(record(&topic, 0, "first")));
    let of_first = of_first.and_then(|()| first.flush(TIMEOUT));
    assert!(of_first.and_then(|()| first.commit(TIMEOUT)).is_err(), "it is fenced");
    await_spare(&producers);
}
