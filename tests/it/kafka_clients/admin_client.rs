//! Questions about topics.

use orloj::clock;
use orloj::engine::catalog::TopicState;
use orloj::kafka::admin_client::KafkaAdminClient;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::setup::{
    DEADLINE, TIMEOUT, delete_before, new_topic, reader, record, settings, transactional,
    unreachable_settings, write,
};
use crate::kafka_server::{self, unique_prefix};
use crate::wait::until;

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
    assert_eq!(client.topic_state(&topic), usable);
    let missing = unique_prefix("missing");
    assert_eq!(client.partitions(&missing).unwrap(), None);
    for (topic, what) in [(missing.as_str(), "does not exist"), ("no topic", "not a valid topic")] {
        let state = client.topic_state(topic);
        let TopicState::Unusable(reason) = &state else { panic!("{topic}: {state:?}") };
        assert!(reason.contains(topic) && reason.contains(what), "{reason}");
    }
}

/// Brokers ask for no more in-sync replicas than there are: this topic has one.
#[test]
fn a_topic_with_fewer_replicas_than_it_asks_for_can_be_written() {
    let topic = new_topic(2, &[("max.message.bytes", "12345"), ("min.insync.replicas", "2")]);
    assert_eq!(admin_client().topic_state(&topic), TopicState::usable(2, 12_345));
    let producer = transactional(&topic);
    producer.begin().unwrap();
    producer.send(record(&topic, 1, "acknowledged")).unwrap();
    producer.flush(TIMEOUT).unwrap();
    producer.abort(TIMEOUT).unwrap();
}

#[test]
fn a_broker_that_does_not_answer_makes_a_topic_unavailable() {
    let timeout = std::time::Duration::from_millis(100);
    let client = KafkaAdminClient::open(&unreachable_settings(), timeout).unwrap();
    let state = client.topic_state("orders");
    assert!(matches!(&state, TopicState::Unavailable(why) if why.contains("orders")), "{state:?}");
    assert!(client.bounds("orders", 0).is_err() && client.partitions("orders").is_err());
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
