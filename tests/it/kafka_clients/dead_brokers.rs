//! What the clients do when a broker dies on which their request depends.
//!
//! Invariant: every call ends in time, also if no answer comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use orloj::kafka::reader::LogReader;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};

use super::setup::{DEADLINE, TIMEOUT, settings_of};
use crate::kafka_server::{KafkaServer, create_topics, unique_prefix};
use crate::test_cluster::exclusive_machine;
use crate::wait::{until, within};

/// The client had taken the dead leader that it remembered for an error that lasts.
#[test]
fn the_stable_offset_of_a_topic_that_is_not_read_is_known_although_its_leader_has_died() {
    let _machine = exclusive_machine();
    let mut brokers = KafkaServer::cluster::<3>();
    let bootstrap = brokers.each_ref().map(KafkaServer::bootstrap).join(",");
    let topics = ["asked", "read"].map(unique_prefix);
    let [asked, read] = &topics;
    let new = topics.each_ref().map(|topic| NewTopic::new(topic, 1, TopicReplication::Fixed(3)));
    create_topics(&brokers[0].client(), &new);
    let reader = LogReader::open(&settings_of(&bootstrap), "clients").unwrap();
    let stable = || reader.last_stable_offset(asked, 0, TIMEOUT);
    assert_eq!(stable().unwrap(), 0);
    let metadata_of = |topic: &str| {
        let config = ClientConfig::new().set("bootstrap.servers", &bootstrap).clone();
        let consumer: BaseConsumer = config.create().unwrap();
        consumer.fetch_metadata(Some(topic), TIMEOUT)
    };
    let leader = metadata_of(asked).unwrap().topics()[0].partitions()[0].leader();
    brokers[usize::try_from(leader).unwrap() - 1].kill();
    until("the others to know that it is dead", DEADLINE, || {
        (metadata_of(read).ok()?.brokers().len() == 2).then_some(())
    });
    // The client knows it, too, and still remembers the leader.
    reader.prefetch_metadata(read).unwrap();
    assert_eq!(until("the offset", DEADLINE, || stable().ok()), 0);
}

/// Counts how often the leader of a partition is asked for.
#[derive(Clone, Default)]
struct LeaderQueries(Arc<AtomicUsize>);

impl ClientContext for LeaderQueries {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, _message: &str) {
        if facility == "QRYLEADER" {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

impl ProducerContext for LeaderQueries {
    type DeliveryOpaque = ();

    fn delivery(&self, _result: &DeliveryResult<'_>, (): ()) {}
}

/// It was asked for every second, so that records went to a new leader up to as much later.
#[test]
fn while_a_partition_has_no_leader_it_is_asked_for_every_250_ms() {
    const QUERIES: usize = 20;
    /// One every half second at least.
    const WITHIN: Duration = Duration::from_secs(10);
    let _machine = exclusive_machine();
    let mut brokers = KafkaServer::cluster::<3>();
    let topic = unique_prefix("leaderless");
    create_topics(&brokers[0].client(), &[NewTopic::new(&topic, 1, TopicReplication::Fixed(1))]);
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers.each_ref().map(KafkaServer::bootstrap).join(","))
        .set("debug", "topic")
        .set_log_level(RDKafkaLogLevel::Debug);
    let queries = LeaderQueries::default();
    let producer: ThreadedProducer<_> = config.create_with_context(queries.clone()).unwrap();
    let send = || producer.send(BaseRecord::<str, str>::to(&topic).payload("record")).unwrap();
    send();
    producer.flush(TIMEOUT).unwrap();
    let metadata = producer.client().fetch_metadata(Some(&topic), TIMEOUT).unwrap();
    let leader = metadata.topics()[0].partitions()[0].leader();
    brokers[usize::try_from(leader).unwrap() - 1].kill();
    send();
    until("the first query", DEADLINE, || (queries.0.load(Relaxed) > 0).then_some(()));
    let enough = within(WITHIN, || (queries.0.load(Relaxed) > QUERIES).then_some(()));
    assert!(enough.is_some(), "{} queries within {WITHIN:?}", queries.0.load(Relaxed));
    // The record waits for good.
    producer.purge(PurgeConfig::default().queue().inflight());
}
