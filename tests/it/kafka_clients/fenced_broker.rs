//! A broker that its cluster has fenced, as each one is for a moment after its start: it answers,
//! and names no broker at all.
//!
//! Invariant: such an answer says nothing of the brokers that a client knows.

use std::thread;
use std::time::Duration;

use orloj::clock;
use orloj::kafka::admin_client::KafkaAdminClient;
use orloj::kafka::transaction::TransactionalProducer;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::setup::{DEADLINE, POLL, TIMEOUT, settings_of};
use crate::faults::proxy::Proxy;
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::wait::until;

/// Whether a client is affected depends on which of its connections is established first.
const CLIENTS: usize = 10;
/// How often they lose the broker.
const ROUNDS: usize = 3;

/// For two thirds of the time a broker with these heartbeats is fenced.
const HEARTBEATS: [(&str, &str); 2] =
    [("broker.heartbeat.interval.ms", "6000"), ("broker.session.timeout.ms", "2000")];

/// It is fenced for 4 s at a time.
const OPEN_MAX: Duration = Duration::from_secs(12);

fn start(proxied: Option<[u16; 2]>) -> KafkaServer {
    let properties = HEARTBEATS.map(|(name, value)| (name, value.to_owned())).into();
    KafkaServer::start(&Options { properties, proxied, ..Options::default() })
}

fn await_fenced(server: &KafkaServer, topic: &str) {
    until("the broker to be fenced", DEADLINE, || {
        let consumer: BaseConsumer = server.client().create().unwrap();
        let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT).unwrap();
        metadata.brokers().is_empty().then_some(())
    });
}

#[test]
fn a_client_survives_an_answer_that_names_no_broker() {
    let [listener, port] = free_ports();
    let server = start(Some([listener, port]));
    let topic = server.new_topic(1, &[]);
    let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
    let settings = settings_of(&format!("127.0.0.1:{port}"));
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| KafkaAdminClient::open(&settings, POLL * 10).unwrap()).collect();
    let each = |check: &(dyn Fn(&KafkaAdminClient) + Sync)| {
        thread::scope(|scope| {
            for client in &clients {
                let _ends_with_the_scope = scope.spawn(move || check(client));
            }
        });
    };
    let answered = |client: &KafkaAdminClient| {
        let _bounds = until("an answer", DEADLINE, || client.bounds(&topic, 0).ok());
    };
    for _ in 0..ROUNDS {
        each(&answered);
        proxy.cut();
        each(&|client| assert!(client.bounds(&topic, 0).is_err(), "no connection is left"));
        await_fenced(&server, &topic);
        proxy.release();
    }
    each(&answered);
}

#[test]
fn a_producer_is_opened_soon_after_its_broker_is_not_fenced_any_more() {
    let server = start(None);
    let (topic, settings) = (server.new_topic(1, &[]), settings_of(server.bootstrap()));
    // The topic of the transactions is created, and has leaders.
    let _first = TransactionalProducer::open(&settings, &topic, DEADLINE).unwrap();
    await_fenced(&server, &topic);
    let began = clock::monotonic();
    let _second = TransactionalProducer::open(&settings, &topic, DEADLINE).unwrap();
    let took = clock::monotonic() - began;
    assert!(took < OPEN_MAX, "{took:?}");
}
