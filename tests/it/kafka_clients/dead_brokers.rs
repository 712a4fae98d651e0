//! What the clients do when a broker dies on which their request depends.
//!
//! Invariant: every call ends in time, also if no answer comes.

use orloj::kafka::reader::LogReader;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::setup::{DEADLINE, TIMEOUT, settings_of};
use crate::kafka_server::{KafkaServer, create_topics, unique_prefix};
use crate::test_cluster::exclusive_machine;
use crate::wait::until;

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
