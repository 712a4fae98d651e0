//! A broker does not answer while a marker of a transaction is under way to it: how long readers of
//! committed records wait, and which setting of the brokers decides that.
//!
//! Invariant: what coordinates the transaction has no replica on the broker that is stopped, so the
//! transaction is committed at once. Clients can do nothing about its markers.

use std::time::Duration;

use orloj::clock;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::topic_partition_list::TopicPartitionList;
use rustix::process::Signal;

use crate::brokers::{BrokerCluster, BrokerRole};
use crate::kafka_server::create_topics;
use crate::test_cluster::exclusive_machine;
use crate::wait::until;

const TOPIC: &str = "markers";
const DEADLINE: Duration = Duration::from_secs(120);
/// The broker's session is over after 9 s, and after 13 s if it was the controller.
const FENCED: Duration = Duration::from_secs(14);
/// Where the transaction's state is, and where its record is: the leader first.
const COORDINATORS: [i32; 3] = [1, 2, 3];
const RECORDS: [i32; 3] = [4, 5, 3];

#[test]
#[ignore = "it starts five brokers twice and waits for one that is stopped"]
fn a_marker_under_way_waits_for_the_request_timeout_of_the_brokers() {
    let _machine = exclusive_machine();
    let default = until_read(&[]);
    let shorter = until_read(&[("request.timeout.ms", "3500")]);
    println!("a committed record is read after {default:.1?}, with 3.5 s after {shorter:.1?}");
    assert!(default >= Duration::from_secs(25), "30 s are the default: {default:.1?}");
    assert!(shorter <= FENCED, "the broker is fenced by then: {shorter:.1?}");
}

/// How long after the stop of a broker the record of a transaction is read that was committed then.
fn until_read(properties: &[(&'static str, &str)]) -> Duration {
    let brokers = BrokerCluster::<5>::start_with(properties);
    let client = brokers.client();
    create_topics(&client, &[NewTopic::new(TOPIC, 1, TopicReplication::Fixed(3))]);
    let mut config = client.clone();
    let producer: BaseProducer = config.set("transactional.id", TOPIC).create().unwrap();
    producer.init_transactions(DEADLINE).unwrap();
    let place = |(topic, count): (String, i32)| {
        let replicas = if topic == TOPIC { RECORDS } else { COORDINATORS };
        (0..count).map(move |partition| ((topic.clone(), partition), replicas))
    };
    brokers.move_replicas(&brokers.topics().into_iter().flat_map(place).collect());
    let leader = brokers.place_of(BrokerRole::Leader(TOPIC));
    producer.begin_transaction().unwrap();
    let record = BaseRecord::<str, str>::to(TOPIC).partition(0).payload("committed");
    producer.send(record).unwrap();
    producer.flush(DEADLINE).unwrap();
    let stopped = clock::monotonic();
    brokers.signal(leader, Signal::STOP);
    producer.commit_transaction(DEADLINE).unwrap();
    let mut config = client;
    config.set("group.id", TOPIC).set("fetch.wait.max.ms", "100");
    config.set("socket.timeout.ms", "2000").set("topic.metadata.refresh.interval.ms", "500");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut all = TopicPartitionList::new();
    all.add_partition_offset(TOPIC, 0, rdkafka::Offset::Beginning).unwrap();
    consumer.assign(&all).unwrap();
    until("the committed record", DEADLINE, || {
        consumer.poll(Duration::from_millis(100)).and_then(Result::ok).map(drop)
    });
    let waited = clock::monotonic() - stopped;
    brokers.signal(leader, Signal::CONT);
    waited
}
