//! The witness: a read_committed reader of what a contender writes, in a process that is not the
//! contender's.
//!
//! Law: all contenders are seen by the same reader with the same clock, and a record counts when it
//! has been received here.

use std::fmt;
use std::str;
use std::time::Duration;

use orloj::clock;
use orloj::config::Settings;
use orloj::kafka::client_config;
use orloj::model::{Millis, Timestamp};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use serde::Serialize;

use crate::WARM_UP_S;
use crate::site::{self, PARTITIONS};

/// How long nothing may come before the measurement has failed.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How late fires were seen.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Lateness {
    /// Half of them were seen sooner after their time.
    pub(crate) p50_ms: Millis,
    /// All but one in a hundred were seen sooner after their time.
    pub(crate) p99_ms: Millis,
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {} ms, p99 {} ms", self.p50_ms, self.p99_ms)
    }
}

/// A reader of all partitions from the beginning on.
pub(crate) struct Witness {
    consumer: BaseConsumer,
}

impl Witness {
    /// Reads what `contender` writes.
    pub(crate) fn open(settings: &Settings, contender: &str) -> Self {
        let mut config = client_config(settings);
        config.remove("compression.type");
        let consumer: BaseConsumer = config
            .set("group.id", "witness")
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("fetch.wait.max.ms", "10")
            .create()
            .unwrap();
        let topic = site::output(settings, contender);
        let mut list = TopicPartitionList::new();
        for partition in PARTITIONS {
            list.add_partition_offset(&topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&list).unwrap();
        Self { consumer }
    }

    /// Returns when `count` records have been received.
    pub(crate) fn count(&self, count: u32) {
        for _ in 0..count {
            self.next();
        }
    }

    /// Receives `count` fires and says how late they were, those of the warm-up apart.
    pub(crate) fn lateness(&self, count: u32) -> Lateness {
        let mut seen = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let due = due(&self.next());
            seen.push((due, clock::now_ms().saturating_sub(due)));
        }
        let first = seen.iter().map(|(due, _)| *due).min().unwrap();
        let measured_from = first + Millis::from(WARM_UP_S) * 1_000;
        seen.retain(|(due, _)| *due >= measured_from);
        let mut late: Vec<_> = seen.into_iter().map(|(_, late)| late).collect();
        late.sort_unstable();
        Lateness { p50_ms: late[late.len() / 2], p99_ms: late[late.len() * 99 / 100] }
    }

    fn next(&self) -> BorrowedMessage<'_> {
        let next = self.consumer.poll(SILENCE_MAX);
        next.unwrap_or_else(|| panic!("nothing came for {SILENCE_MAX:?}")).unwrap()
    }
}

fn due(fire: &BorrowedMessage<'_>) -> Timestamp {
    let mut headers = fire.headers().unwrap().iter();
    let due = headers.find(|header| header.key == "orloj-due").unwrap();
    str::from_utf8(due.value.unwrap()).unwrap().parse().unwrap()
}
