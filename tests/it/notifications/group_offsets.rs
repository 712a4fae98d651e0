//! How far notifiers are: what their group has committed, and what they have written to their log.
//!
//! Invariant: it is asked of the brokers, and not of the notifiers.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use super::DEADLINE;
use crate::records;
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::wait::until;

/// How long a broker may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The committed offset of each partition that has one, by the key of its records.
pub(super) fn committed(cluster: &TestCluster) -> BTreeMap<String, i64> {
    let mut config = cluster.kafka().clone();
    config.set("group.id", cluster.names.notifier_group());
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    for topic in [cluster.names.dead_letters(), cluster.names.outcomes()] {
        for partition in 0..PARTITIONS {
            let _element = list.add_partition(&topic, partition);
        }
    }
    let found = until("the committed offsets", DEADLINE, || {
        consumer.committed_offsets(list.clone(), ANSWER_TIMEOUT).ok()
    });
    let elements = found.elements();
    let offsets = elements.iter().filter_map(|element| match element.offset() {
        Offset::Offset(offset) => {
            Some((format!("{}|{}", element.topic(), element.partition()), offset))
        }
        _ => None,
    });
    offsets.collect()
}

/// The offsets on the log in their order, by the key of their records.
pub(super) fn recorded(cluster: &TestCluster) -> BTreeMap<String, Vec<i64>> {
    let mut offsets = BTreeMap::<String, Vec<i64>>::new();
    for record in records::read_all(cluster.kafka(), &cluster.names.notifications()) {
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
        let (key, value) = (text(record.key()), text(record.payload()));
        let offset = value.split('|').nth(1).unwrap().parse().unwrap();
        offsets.entry(key).or_default().push(offset);
    }
    offsets
}

/// Whether the last record of each partition says what is committed.
pub(super) fn is_recorded(cluster: &TestCluster) -> bool {
    let recorded = recorded(cluster).into_iter();
    let last: BTreeMap<_, _> =
        recorded.filter_map(|(key, offsets)| Some((key, *offsets.last()?))).collect();
    last == committed(cluster)
}
