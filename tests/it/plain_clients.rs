//! A plain producer and a plain consumer, which commits its offsets, beside Orloj: what Kafka
//! itself needs when a broker dies.
//!
//! Invariant: they have the timeouts that librdkafka has by default, and every record is written
//! with `acks=all`. How long each record took is known for the time in which it was written. The
//! offsets have the same coordinator as those of the schedulers.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use orloj::clock;
use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::TopicPartitionList;

use crate::background_thread::BackgroundThread;
use crate::kafka_server::{create_topics, unique_prefix};
use crate::plain_commits;
use crate::repeated_calls::RepeatedCalls;
use crate::wait::{until, within};

/// Partitions of their topic: each of three brokers leads two.
const PARTITIONS: i32 = 6;
/// Pause between two records of a partition: they are not to take the processors from what they are
/// compared with.
const PAUSE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_millis(10);
const DEADLINE: Duration = Duration::from_secs(120);

/// What is known of each record, in the order in which it became known.
type Times = Arc<Mutex<Vec<RecordTime>>>;

#[derive(Clone, Copy, Debug)]
struct RecordTime {
    partition: i32,
    /// When it was written, in ms since the epoch.
    at: u64,
    /// How long it took since then, in ms.
    took: u64,
}

/// The clients; they end with their value.
pub(crate) struct PlainClients {
    acknowledged: Times,
    read: Times,
    commits: RepeatedCalls,
    _threads: [BackgroundThread; 2],
}

/// How long a record, or a commit, took at most, in ms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlainTimes {
    /// From its time until the producer knew that it is written.
    pub(crate) producer: u64,
    /// From its time until the consumer had it.
    pub(crate) consumer: u64,
    /// Until the commit of an offset was answered.
    pub(crate) commit: u64,
}

impl PlainTimes {
    pub(crate) fn longest(&self) -> u64 {
        self.producer.max(self.consumer).max(self.commit)
    }
}

/// Notes when a record is acknowledged.
struct Acknowledged(Times);

impl ClientContext for Acknowledged {}

impl ProducerContext for Acknowledged {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        // One that is not written when the clients end took as long as the others before it.
        if let Ok(record) = result {
            note(&self.0, record);
        }
    }
}

fn note(times: &Times, record: &impl Message) {
    let at = record.timestamp().to_millis().unwrap().cast_unsigned();
    let (partition, took) = (record.partition(), clock::now_ms().saturating_sub(at));
    let time = RecordTime { partition, at, took };
    times.lock().unwrap_or_else(PoisonError::into_inner).push(time);
}

impl PlainClients {
    /// Starts them on a topic of their own, which is replicated three times, with the coordinator
    /// of `group`.
    pub(crate) fn start(client: &ClientConfig, group: &str) -> Self {
        let topic = unique_prefix("plain");
        create_topics(client, &[NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(3))]);
        let (acknowledged, read) = (Times::default(), Times::default());
        let writing = {
            let (client, topic, times) = (client.clone(), topic.clone(), Arc::clone(&acknowledged));
            BackgroundThread::start(move |stop| write(&client, &topic, stop, times))
        };
        let commits = plain_commits::start(client, &topic, group);
        let reading = {
            let (client, times) = (client.clone(), Arc::clone(&read));
            BackgroundThread::start(move |stop| read_all(&client, &topic, stop, &times))
        };
        let _threads = [writing, reading];
        let clients = Self { acknowledged, read, commits, _threads };
        until("the plain clients to work", DEADLINE, || {
            (count(&clients.acknowledged) > 0 && count(&clients.read) > 0).then_some(())
        });
        clients
    }

    /// Of the records of this time and later, once each of an earlier time than now is read.
    pub(crate) fn times_since(&self, since: u64) -> PlainTimes {
        self.times_between(since, u64::MAX)
    }

    /// Of the records from this time on until `end`, both in ms since the epoch.
    pub(crate) fn times_between(&self, since: u64, end: u64) -> PlainTimes {
        let now = clock::now_ms();
        until("the plain clients to catch up", DEADLINE, || {
            let has_later = |times: &Times| known_until(times) > now;
            (has_later(&self.acknowledged) && has_later(&self.read)).then_some(())
        });
        let longest = |times: &Times| {
            let times = times.lock().unwrap_or_else(PoisonError::into_inner);
            let counted = times.iter().filter(|time| (since..end).contains(&time.at));
            counted.map(|time| time.took).max().unwrap_or(0)
        };
        PlainTimes {
            producer: longest(&self.acknowledged),
            consumer: longest(&self.read),
            commit: self.commits.longest_in(since..end),
        }
    }
}

fn count(times: &Times) -> usize {
    times.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// All records of this time and earlier are known, in every partition.
fn known_until(times: &Times) -> u64 {
    let times = times.lock().unwrap_or_else(PoisonError::into_inner);
    let newest = |partition| {
        let mut last = times.iter().rev().filter(|time| time.partition == partition);
        last.next().map_or(0, |time| time.at)
    };
    (0..PARTITIONS).map(newest).min().unwrap_or(0)
}

fn write(client: &ClientConfig, topic: &str, stop: &AtomicBool, times: Times) {
    let mut config = client.clone();
    config.set("enable.idempotence", "true");
    let producer: ThreadedProducer<_> = config.create_with_context(Acknowledged(times)).unwrap();
    while !stop.load(Relaxed) {
        for partition in 0..PARTITIONS {
            let record = BaseRecord::<str, str>::to(topic).partition(partition).payload("plain");
            producer.send(record.timestamp(clock::now_ms().cast_signed())).unwrap();
        }
        let _stopped = within(PAUSE, || stop.load(Relaxed).then_some(()));
    }
    let _all_are_known = producer.flush(DEADLINE);
}

fn read_all(client: &ClientConfig, topic: &str, stop: &AtomicBool, times: &Times) {
    let mut config = client.clone();
    let consumer: BaseConsumer = config.set("group.id", topic).create().unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(topic, partition, rdkafka::Offset::Beginning).unwrap();
    }
    consumer.assign(&all).unwrap();
    while !stop.load(Relaxed) {
        if let Some(Ok(record)) = consumer.poll(POLL) {
            note(times, &record);
        }
    }
}
