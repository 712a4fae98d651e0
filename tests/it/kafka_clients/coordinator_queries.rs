//! How the client library looks for the coordinator of a group, on its built-in broker.
//!
//! Invariant: it asks once at a time, and does not wait for a coordinator that it has lost.

use std::sync::Mutex;
use std::time::Duration;

use orloj::clock;
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerGroupMetadata};
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::{BaseProducer, DefaultProducerContext, Producer as _, ProducerContext};
use rdkafka::statistics::Statistics;
use rdkafka::{Offset, TopicPartitionList, message::DeliveryResult};

use super::setup::{DEADLINE, POLL, TIMEOUT};
use crate::test_cluster::exclusive_machine;
use crate::wait::until;

const GROUP: &str = "group";
const TOPIC: &str = "topic";

/// Longer than several looks of the client at a request that waits (every 250 ms).
const SLOW: Duration = Duration::from_millis(900);
/// The client looks at such a request after 250 ms: one that waits takes longer than this.
const AT_ONCE: Duration = Duration::from_millis(200);
const ROUNDS: usize = 4;

/// The queries for a coordinator, by the client's last statistics: how often they were received,
/// and how many queries there were.
#[derive(Debug, Default)]
struct QueryCount(Mutex<(usize, i64)>);

impl ClientContext for QueryCount {
    fn stats(&self, statistics: Statistics) {
        let mut count = self.0.lock().unwrap();
        let queries = |requests: &std::collections::HashMap<String, i64>| {
            requests.get("FindCoordinator").copied().unwrap_or(0)
        };
        let queries = statistics.brokers.values().map(|broker| queries(&broker.req)).sum();
        *count = (count.0 + 1, queries);
    }
}

impl ProducerContext for QueryCount {
    type DeliveryOpaque = ();

    fn delivery(&self, _result: &DeliveryResult<'_>, (): ()) {}
}

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// Brokers, of which the first coordinates transactions and the second the group, and a producer
/// with an open transaction.
fn start(brokers: i32) -> (Cluster, BaseProducer<QueryCount>, ConsumerGroupMetadata) {
    let cluster = MockCluster::new(brokers).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    cluster.coordinator(MockCoordinator::Transaction(TOPIC.to_owned()), 1).unwrap();
    cluster.coordinator(MockCoordinator::Group(GROUP.to_owned()), brokers.min(2)).unwrap();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers());
    let consumer: BaseConsumer = config.clone().set("group.id", GROUP).create().unwrap();
    let group = consumer.group_metadata().unwrap();
    config.set("transactional.id", TOPIC).set("statistics.interval.ms", "20");
    config.set("reconnect.backoff.ms", "20").set("reconnect.backoff.max.ms", "20");
    let producer: BaseProducer<_> = config.create_with_context(QueryCount::default()).unwrap();
    producer.init_transactions(TIMEOUT).unwrap();
    producer.begin_transaction().unwrap();
    (cluster, producer, group)
}

/// Adds an offset to the transaction, and says how long that took.
fn add_offset(producer: &BaseProducer<QueryCount>, group: &ConsumerGroupMetadata) -> Duration {
    let mut offsets = TopicPartitionList::new();
    offsets.add_partition_offset(TOPIC, 0, Offset::Offset(1)).unwrap();
    let began = clock::monotonic();
    producer.send_offsets_to_transaction(&offsets, group, TIMEOUT).unwrap();
    clock::monotonic() - began
}

/// How many queries for a coordinator there were until now.
fn queries(producer: &BaseProducer<QueryCount>) -> i64 {
    let count = || *producer.context().0.lock().unwrap();
    let before = count().0;
    // The statistics may have been on their way.
    until("the statistics", DEADLINE, || {
        producer.poll(POLL);
        (count().0 >= before + 3).then(|| count().1)
    })
}

/// It had asked again every 250 ms, for each request, although the first answer was on its way.
#[test]
fn a_coordinator_is_not_asked_for_again_while_an_answer_is_on_its_way() {
    let (cluster, producer, group) = start(1);
    let before = queries(&producer);
    cluster.broker_round_trip_time(1, SLOW).unwrap();
    let took = add_offset(&producer, &group);
    assert!(took >= SLOW, "{took:?}");
    cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
    assert_eq!(queries(&producer) - before, 1);
}

/// It had waited for the coordinator that it remembered.
#[test]
fn a_coordinator_is_looked_for_at_once_if_its_connection_is_lost() {
    let _machine = exclusive_machine();
    let (cluster, producer, group) = start(3);
    let mut took = Vec::new();
    for coordinator in [2, 3].into_iter().cycle().take(ROUNDS) {
        let other = 5 - coordinator;
        let _known = add_offset(&producer, &group);
        cluster.broker_down(coordinator).unwrap();
        cluster.coordinator(MockCoordinator::Group(GROUP.to_owned()), other).unwrap();
        // Until the client knows that the connection is lost.
        let _some = queries(&producer);
        took.push(add_offset(&producer, &group));
        cluster.broker_up(coordinator).unwrap();
    }
    println!("offsets added after the coordinator was lost: {took:?}");
    assert!(*took.iter().min().unwrap() < AT_ONCE, "{took:?}");
}
