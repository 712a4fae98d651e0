//! Why `group.protocol=consumer` (KIP-848) is refused in `[kafka]`: what its brokers allow.
//!
//! Invariant: a test here that fails says that the decision in docs/internals/timeouts.md is to be
//! taken again.

use std::time::Duration;

use orloj::clock;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::setup::{DEADLINE, POLL, TIMEOUT, settings};
use crate::faults::proxy::Proxy;
use crate::kafka_server::{self, KafkaServer, Options, free_ports};
use crate::wait::until;

/// After the death of a member its partitions wait for at least so long.
const SESSION_MIN: Duration = Duration::from_secs(40);
/// After it has left they wait for a heartbeat of the others, which is sent every 5 s.
const HEARTBEAT_MAX: Duration = Duration::from_secs(10);

/// The value of a setting of a broker.
fn broker_setting(client: &ClientConfig, name: &str) -> String {
    let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
    let options = AdminOptions::new().request_timeout(Some(TIMEOUT));
    let wanted = [ResourceSpecifier::Broker(1)];
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let described = runtime.block_on(admin.describe_configs(&wanted, &options)).unwrap();
    let entries = described.into_iter().flat_map(|resource| resource.unwrap().entries);
    let mut entries = entries.filter(|entry| entry.name == name);
    entries.next().and_then(|entry| entry.value).unwrap()
}

/// A member of the group of the topic's name by that protocol.
fn join(bootstrap: &str, topic: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("group.id", topic);
    let consumer: BaseConsumer = config.set("group.protocol", "consumer").create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    consumer
}

/// Polls until the last of them has so many partitions; how long that took.
fn poll_until_owned(members: &[&BaseConsumer], count: usize) -> Duration {
    let began = clock::monotonic();
    until("the assignment", DEADLINE * 2, || {
        for member in members {
            let _record = member.poll(POLL);
        }
        let owned = members.last()?.assignment().ok()?.count();
        (owned == count).then_some(())
    });
    clock::monotonic() - began
}

#[test]
fn a_session_of_the_consumer_protocol_is_the_brokers_and_longer_than_ours() {
    for (name, value) in [
        ("session.timeout.ms", "6000"),
        ("heartbeat.interval.ms", "100"),
        ("partition.assignment.strategy", "cooperative-sticky"),
    ] {
        let mut config = kafka_server::shared().client();
        config.set("group.id", "consumer-protocol").set("group.protocol", "consumer");
        let refused = config.set(name, value).create::<BaseConsumer>().err();
        let text = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("not supported for `group.protocol=consumer`"), "{name}: {text}");
    }
    let client = kafka_server::shared().client();
    let shortest = |name| Duration::from_millis(broker_setting(&client, name).parse().unwrap());
    let scheduler = settings().scheduler;
    assert!(shortest("group.consumer.min.session.timeout.ms") > scheduler.session_timeout * 5);
    let heartbeat = shortest("group.consumer.min.heartbeat.interval.ms");
    assert!(heartbeat > scheduler.heartbeat_interval * 10);
}

#[test]
#[ignore = "it takes a minute"]
fn partitions_of_the_consumer_protocol_wait_for_45_s_after_a_death_and_for_a_heartbeat_otherwise() {
    let [listener, port] = free_ports();
    let proxied = Some([listener, port]);
    let server = KafkaServer::start(&Options { proxied, ..Options::default() });
    let protocols = broker_setting(&server.client(), "group.coordinator.rebalance.protocols");
    if !protocols.contains("consumer") {
        println!("this broker has the protocol as a preview only: {protocols}");
        return;
    }
    let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
    let topic = server.new_topic(4, &[]);
    let mut left = Vec::new();
    let survivor = join(server.bootstrap(), &topic);
    poll_until_owned(&[&survivor], 4);
    for _ in 0..3 {
        let other = join(server.bootstrap(), &topic);
        poll_until_owned(&[&survivor, &other], 2);
        drop(other);
        left.push(poll_until_owned(&[&survivor], 4));
    }
    let dead = join(&format!("127.0.0.1:{port}"), &topic);
    poll_until_owned(&[&survivor, &dead], 2);
    // Where a standby process looks for the owners.
    let described = survivor.fetch_group_list(Some(&topic), TIMEOUT).unwrap();
    let members: usize = described.groups().iter().map(|group| group.members().len()).sum();
    assert_eq!(members, 0);
    proxy.close();
    let died = poll_until_owned(&[&survivor], 4);
    println!("partitions moved {died:?} after a death, and {left:?} after a member had left");
    proxy.release();
    assert!(died >= SESSION_MIN, "{died:?}");
    assert!(left.iter().all(|left| *left <= HEARTBEAT_MAX), "{left:?}");
}
