//! The fixture itself: a record goes in and comes out, plainly and through TLS with a password.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use crate::kafka_server::{self, KafkaServer, Options, unique_prefix};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn a_record_goes_through_the_shared_broker() {
    round_trip(&kafka_server::shared().client());
}

#[test]
fn a_record_goes_through_tls_with_a_password() {
    let server = KafkaServer::start(&Options { secured: true, ..Options::default() });
    let mut client = ClientConfig::new();
    for (name, value) in server.secured_settings() {
        client.set(name, value);
    }
    round_trip(&client);
}

#[test]
fn a_killed_broker_comes_back_with_its_records() {
    let mut server = KafkaServer::start(&Options::default());
    let topic = round_trip(&server.client());
    let first = server.process_id();
    server.kill();
    server.start_again();
    assert_ne!(server.process_id(), first);
    assert_eq!(read_first(&server.client(), &topic), b"on time");
}

/// Returns the topic, which holds one record.
fn round_trip(client: &ClientConfig) -> String {
    let topic = unique_prefix("smoke");
    create_topic(client, &topic);
    let producer: BaseProducer = client.create().unwrap();
    producer.send(BaseRecord::to(&topic).key("k").payload("on time")).unwrap();
    producer.flush(DEADLINE).unwrap();
    assert_eq!(read_first(client, &topic), b"on time");
    topic
}

fn create_topic(client: &ClientConfig, topic: &str) {
    kafka_server::create_topics(client, &[NewTopic::new(topic, 1, TopicReplication::Fixed(1))]);
}

fn read_first(client: &ClientConfig, topic: &str) -> Vec<u8> {
    let mut config = client.clone();
    config.set("group.id", "smoke").set("isolation.level", "read_committed");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut assignment = TopicPartitionList::new();
    assignment.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&assignment).unwrap();
    until("the record to be read", DEADLINE, || {
        let record = consumer.poll(Duration::from_millis(100))?.ok()?;
        record.payload().map(<[u8]>::to_vec)
    })
}
