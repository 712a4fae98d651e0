//! The reader: a read_committed reader of what a process writes, in a process that is not the
//! process's.
//!
//! Invariant: all processes are seen by the same reader with the same clock, and a record counts
//! when it has been received here.

use std::collections::BTreeMap;
use std::fmt;
use std::str;
use std::time::{Duration, Instant};

use orloj::clock;
use orloj::model::{Millis, Timestamp};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use crate::bench_cluster::{BenchCluster, PARTITIONS, consumer_config};
use crate::load_generator::MARKER;

/// How long nothing comes when all has come.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long nothing may come before the measurement has failed.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// How late fires were seen, in ms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lateness {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) max_ms: f64,
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50_ms, p99_ms, p999_ms, max_ms } = self;
        write!(f, "p50 {p50_ms:.1} ms, p99 {p99_ms:.1}, p99.9 {p999_ms:.1}, most {max_ms:.1}")
    }
}

/// A reader of all partitions, from what has been written when it is opened.
pub(crate) struct OutputReader {
    consumer: BaseConsumer,
    markers: BTreeMap<u32, usize>,
}

impl OutputReader {
    /// Reads what `process` writes from now on.
    pub(crate) fn open(cluster: &BenchCluster, process: &str) -> Self {
        let topic = cluster.output(process);
        let consumer: BaseConsumer = consumer_config(&cluster.settings).create().unwrap();
        let mut list = TopicPartitionList::new();
        for (partition, end) in PARTITIONS.into_iter().zip(cluster.ends(&topic)) {
            list.add_partition_offset(&topic, partition, Offset::Offset(end)).unwrap();
        }
        consumer.assign(&list).unwrap();
        Self { consumer, markers: BTreeMap::new() }
    }

    /// Returns when `count` records of a series have been received: when that was.
    pub(crate) fn count(&mut self, series: &str, count: u32) -> Instant {
        let mut seen = 0;
        while seen < count {
            seen += u32::from(is_of(&self.receive(), series));
        }
        clock::monotonic()
    }

    /// Receives `count` fires of a series and says how late they were, those apart that were due
    /// in the first `warm_up` ms.
    pub(crate) fn lateness(&mut self, series: &str, count: u32, warm_up: Millis) -> Lateness {
        let mut seen = Vec::with_capacity(count as usize);
        while seen.len() < count as usize {
            let fire = self.receive();
            if is_of(&fire, series) {
                let due = due(&fire);
                seen.push((due, clock::since(due)));
            }
        }
        let first = seen.iter().map(|(due, _)| *due).min().unwrap();
        seen.retain(|(due, _)| *due >= first + warm_up);
        let mut late: Vec<_> = seen.into_iter().map(|(_, late)| late).collect();
        late.sort_unstable();
        let at = |per_mille: usize| late[(late.len() - 1) * per_mille / 1_000].as_secs_f64() * 1e3;
        Lateness { p50_ms: at(500), p99_ms: at(990), p999_ms: at(999), max_ms: at(1_000) }
    }

    /// Returns when the mark's fires of all partitions have been received.
    pub(crate) fn wait_for_marker(&mut self, mark: u32) {
        while !self.has_marker(mark) {
            self.read_one();
        }
    }

    /// Whether the mark's fires of all partitions have been received.
    pub(crate) fn has_marker(&self, mark: u32) -> bool {
        self.markers.get(&mark) == Some(&PARTITIONS.len())
    }

    /// Whether nothing comes any more.
    pub(crate) fn is_silent(&self) -> bool {
        self.consumer.poll(IDLE_TIMEOUT).is_none()
    }

    /// Receives one record, and says whether it was anything but a mark.
    pub(crate) fn read_one(&mut self) -> bool {
        let record = self.receive();
        let key = str::from_utf8(record.key().unwrap()).unwrap();
        let mark = key.strip_prefix(MARKER).map(|rest| rest[1..9].parse().unwrap());
        drop(record);
        if let Some(mark) = mark {
            *self.markers.entry(mark).or_default() += 1;
        }
        mark.is_none()
    }

    fn receive(&self) -> BorrowedMessage<'_> {
        let next = self.consumer.poll(RECEIVE_TIMEOUT);
        next.unwrap_or_else(|| panic!("nothing was received for {RECEIVE_TIMEOUT:?}")).unwrap()
    }
}

fn is_of(record: &BorrowedMessage<'_>, series: &str) -> bool {
    record.key().is_some_and(|key| key.starts_with(series.as_bytes()))
}

fn due(fire: &BorrowedMessage<'_>) -> Timestamp {
    let mut headers = fire.headers().unwrap().iter();
    let due = headers.find(|header| header.key == "orloj-due").unwrap();
    str::from_utf8(due.value.unwrap()).unwrap().parse().unwrap()
}
