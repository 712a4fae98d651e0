//! A plain consumer that commits its offset again and again: what Kafka itself needs until the
//! coordinator of a group answers.
//!
//! Invariant: its group has the same coordinator as another one, whichever broker that is: their
//! offsets are in one partition. A commit that fails is repeated, and is one commit.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::brokers::coordinator_partition;
use crate::repeated_calls::RepeatedCalls;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(120);

/// Starts to commit offset 0 of the first partition of `topic`, with the coordinator of `group`.
pub(crate) fn start(client: &ClientConfig, topic: &str, group: &str) -> RepeatedCalls {
    let mut names = (0..).map(|n| format!("{group}-plain-{n}"));
    let partition = coordinator_partition(group);
    let name = names.find(|name| coordinator_partition(name) == partition).unwrap();
    let mut config = client.clone();
    let consumer: BaseConsumer = config.set("group.id", name).create().unwrap();
    let mut offset = TopicPartitionList::new();
    offset.add_partition_offset(topic, 0, Offset::Offset(0)).unwrap();
    RepeatedCalls::start("plain commits to be answered", move || {
        until("a plain commit", DEADLINE, || consumer.commit(&offset, CommitMode::Sync).ok());
    })
}
