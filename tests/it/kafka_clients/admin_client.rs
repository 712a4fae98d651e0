//! Questions about topics.

use std::time::Duration;

use orloj::clock;
use orloj::engine::catalog::TopicState;
use orloj::kafka::admin_client::KafkaAdminClient;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::mocking::MockCluster;

use super::setup::{
    DEADLINE, TIMEOUT, changed_settings, delete_before, new_topic, reader, record, settings,
    transactional, unreachable_settings, write,
};
use crate::kafka_server::{self, unique_prefix};
use crate::test_cluster::exclusive_machine;
use crate::wait::until;

/// For what a call takes besides its timeout.
const MARGIN: Duration = Duration::from_secs(2);

fn admin_client() -> KafkaAdminClient {
    KafkaAdminClient::open(&settings(), TIMEOUT).unwrap()
}

#[test]
fn a_partition_has_its_first_offset_its_end_and_the_end_of_what_is_decided() {
    let (topic, client) = (new_topic(2, &[]), admin_client());
    let now = i64::try_from(clock::now_ms()).unwrap();
    write(&topic, 1, &[now; 3]);
    let stable = |partition| reader().last_stable_offset(&topic, partition, TIMEOUT).unwrap();
    assert_eq!(client.bounds(&topic, 0).unwrap(), (0, 0));
    assert_eq!(client.bounds(&topic, 1).unwrap(), (0, 3));
    assert_eq!((stable(0), stable(1)), (0, 3));
    let producer = transactional(&topic);
    producer.begin().unwrap();
    producer.send(record(&topic, 1, "open")).unwrap();
    producer.flush(TIMEOUT).unwrap();
    assert_eq!((client.bounds(&topic, 1).unwrap(), stable(1)), ((0, 4), 3));
    producer.abort(TIMEOUT).unwrap();
    until("the marker", DEADLINE, || (stable(1) == 5).then_some(()));
    write(&topic, 0, &[now; 3]);
    delete_before(&topic, 2);
    assert_eq!(client.bounds(&topic, 0).unwrap(), (2, 3));
}

#[test]
fn the_ends_of_partitions_are_those_of_all_records_and_each_has_a_leader() {
    let (topic, client) = (new_topic(3, &[]), admin_client());
    let now = i64::try_from(clock::now_ms()).unwrap();
    write(&topic, 1, &[now; 3]);
    let producer = transactional(&topic);
    producer.begin().unwrap();
    producer.send(record(&topic, 2, "open")).unwrap();
    producer.flush(TIMEOUT).unwrap();
    let ends = client.end_offsets(&topic, &[0, 1, 2, 3], TIMEOUT).unwrap();
    assert_eq!(ends, [(0, 0), (1, 3), (2, 1)].into(), "there is no partition 3");
    producer.abort(TIMEOUT).unwrap();
    let leaders = client.leaders(&topic).unwrap();
    assert_eq!(leaders.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(leaders[&0], leaders[&1], "there is one broker");
    assert!(client.leaders(&unique_prefix("missing")).unwrap().is_empty());
}

/// A client of mock brokers. It does not ask by itself who leads, and waits for slow connections.
fn mock_admin_client(bootstrap: &str, timeout: Duration) -> KafkaAdminClient {
    let changed = ["timeouts.metadata_refresh=1h", "timeouts.connect=10s"];
    KafkaAdminClient::open(&changed_settings(bootstrap, &changed), timeout).unwrap()
}

/// A leader may be another one by now, or not know where a partition ends: both had made the ends
/// of all partitions of that request unknown.
#[test]
fn an_error_of_one_partition_is_not_one_of_the_others_that_were_asked_for_with_it() {
    const TOPIC: &str = "ends";
    let cluster = MockCluster::new(2).unwrap();
    cluster.create_topic(TOPIC, 3, 1).unwrap();
    let lead = |partition, broker| {
        cluster.partition_leader(TOPIC, partition, Some(broker)).unwrap();
    };
    (0..3).for_each(|partition| lead(partition, 1));
    let client = mock_admin_client(&cluster.bootstrap_servers(), TIMEOUT);
    let ends = || client.end_offsets(TOPIC, &[0, 1, 2], TIMEOUT).unwrap();
    assert_eq!(client.leaders(TOPIC).unwrap(), [(0, 1), (1, 1), (2, 1)].into());
    assert_eq!(ends(), [(0, 0), (1, 0), (2, 0)].into());
    lead(1, 2);
    assert_eq!(ends(), [(0, 0), (2, 0)].into(), "the first broker does not lead partition 1");
    assert_eq!(client.leaders(TOPIC).unwrap(), [(0, 1), (1, 2), (2, 1)].into());
    assert_eq!(ends(), [(0, 0), (1, 0), (2, 0)].into());
}

/// The error would be taken for the end of the log: what is before it would never be read.
#[test]
fn an_offset_is_not_found_by_its_time_at_a_broker_that_does_not_lead_any_more() {
    const TOPIC: &str = "moved";
    let cluster = MockCluster::new(2).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    let lead = |broker| cluster.partition_leader(TOPIC, 0, Some(broker)).unwrap();
    lead(1);
    let client = mock_admin_client(&cluster.bootstrap_servers(), TIMEOUT);
    assert_eq!(client.offset_for_time(TOPIC, 0, 1_000).unwrap(), 0, "the end");
    lead(2);
    let found = client.offset_for_time(TOPIC, 0, 1_000);
    assert!(found.is_err(), "{found:?}");
    assert_eq!(client.leaders(TOPIC).unwrap(), [(0, 2)].into());
    assert_eq!(client.offset_for_time(TOPIC, 0, 1_000).unwrap(), 0);
}

/// They were asked again and again, and had half a second each time: takeovers did not end.
#[test]
fn brokers_that_always_take_longer_than_a_second_have_enough_time_to_answer() {
    const TOPIC: &str = "slow";
    let _machine = exclusive_machine();
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    let client = mock_admin_client(&cluster.bootstrap_servers(), Duration::from_secs(5));
    assert_eq!(client.bounds(TOPIC, 0).unwrap(), (0, 0));
    cluster.broker_round_trip_time(1, Duration::from_millis(1_200)).unwrap();
    assert_eq!(client.leaders(TOPIC).unwrap(), [(0, 1)].into());
    assert_eq!(client.bounds(TOPIC, 0).unwrap(), (0, 0));
}

#[test]
fn an_offset_is_found_by_its_time_and_is_the_end_if_all_records_are_older() {
    let (topic, client) = (new_topic(1, &[("retention.ms", "-1")]), admin_client());
    write(&topic, 0, &[1_000, 2_000, 3_000]);
    for (time, offset) in [(0, 0), (1_000, 0), (1_001, 1), (3_000, 2), (3_001, 3), (u64::MAX, 3)] {
        assert_eq!(client.offset_for_time(&topic, 0, time).unwrap(), offset, "{time}");
    }
}

#[test]
fn a_topic_can_be_written_if_it_exists() {
    let topic = new_topic(2, &[("max.message.bytes", "12345")]);
    let client = admin_client();
    assert_eq!(client.partitions(&topic).unwrap(), Some(2));
    let usable = TopicState::usable(2, 12_345);
    assert_eq!(client.topic_state(&topic).unwrap(), usable);
    let missing = unique_prefix("missing");
    assert_eq!(client.partitions(&missing).unwrap(), None);
    for (topic, what) in [(missing.as_str(), "does not exist"), ("no topic", "not a valid topic")] {
        let state = client.topic_state(topic).unwrap();
        let TopicState::Unusable(reason) = &state else { panic!("{topic}: {state:?}") };
        assert!(reason.contains(topic) && reason.contains(what), "{reason}");
    }
}

/// Brokers ask for no more in-sync replicas than there are: this topic has one.
#[test]
fn a_topic_with_fewer_replicas_than_it_asks_for_can_be_written() {
    let topic = new_topic(2, &[("max.message.bytes", "12345"), ("min.insync.replicas", "2")]);
    assert_eq!(admin_client().topic_state(&topic).unwrap(), TopicState::usable(2, 12_345));
    let producer = transactional(&topic);
    producer.begin().unwrap();
    producer.send(record(&topic, 1, "acknowledged")).unwrap();
    producer.flush(TIMEOUT).unwrap();
    producer.abort(TIMEOUT).unwrap();
}

#[test]
fn a_broker_that_does_not_answer_says_nothing_about_a_topic() {
    let timeout = Duration::from_millis(100);
    let client = KafkaAdminClient::open(&unreachable_settings(), timeout).unwrap();
    let began = clock::monotonic();
    let state = client.topic_state("orders");
    let took = clock::monotonic() - began;
    assert!(state.is_err() && took < timeout + MARGIN, "{took:?}: {state:?}");
    assert!(client.bounds("orders", 0).is_err() && client.partitions("orders").is_err());
    assert!(client.end_offsets("orders", &[0], timeout).is_err());
    assert!(client.leaders("orders").is_err());
    assert_eq!(client.cluster_id(), None);
}

#[test]
fn the_cluster_and_its_brokers_are_known() {
    let (topic, client) = (new_topic(1, &[]), admin_client());
    let server = kafka_server::shared();
    let other: BaseConsumer = server.client().create().unwrap();
    let id = other.client().fetch_cluster_id(TIMEOUT);
    assert!(id.as_ref().is_some_and(|id| !id.is_empty()));
    assert_eq!(client.cluster_id(), id);
    let brokers = client.brokers(&topic).unwrap();
    let brokers: Vec<_> = brokers.iter().map(|(host, port)| format!("{host}:{port}")).collect();
    assert_eq!(brokers, [server.bootstrap()]);
}
