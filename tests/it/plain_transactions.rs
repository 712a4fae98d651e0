//! A plain transactional producer beside Orloj: what Kafka itself needs for a transaction.
//!
//! Invariant: each transaction has one record, which is written with librdkafka's defaults, and the
//! next one begins when the one before has ended.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use orloj::clock;
use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::kafka_server::{create_topics, unique_prefix};
use crate::wait::{until, within};

/// Partitions of its topic; a transaction writes to the next one.
const PARTITIONS: i32 = 6;
/// Pause between two transactions.
const PAUSE: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_secs(120);

/// When a transaction began, in ms since the epoch, and how long it took, in ms.
type Times = Arc<Mutex<Vec<(u64, u64)>>>;

/// The producer; it ends with its value.
pub(crate) struct PlainTransactions {
    times: Times,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PlainTransactions {
    /// Starts it on a topic of its own, which is replicated three times.
    pub(crate) fn start(client: &ClientConfig) -> Self {
        let topic = unique_prefix("plain-transactions");
        create_topics(client, &[NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(3))]);
        let (times, stop) = (Times::default(), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (client, times, stop) = (client.clone(), Arc::clone(&times), Arc::clone(&stop));
            thread::spawn(move || write(&client, &topic, &times, &stop))
        };
        let producer = Self { times, stop, thread: Some(thread) };
        until("a plain transaction", DEADLINE, || producer.last_began());
        producer
    }

    /// How long one took at most, in ms, of those that began at this time or later, once each that
    /// began before now has ended.
    pub(crate) fn longest_since(&self, since: u64) -> u64 {
        let now = clock::now_ms();
        until("the plain transactions to catch up", DEADLINE, || {
            self.last_began().filter(|began| *began > now)
        });
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = times.iter().filter(|(began, _)| *began >= since);
        counted.map(|(_, took)| *took).max().unwrap_or(0)
    }

    fn last_began(&self) -> Option<u64> {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.last().map(|(began, _)| *began)
    }
}

impl Drop for PlainTransactions {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn write(client: &ClientConfig, topic: &str, times: &Times, stop: &AtomicBool) {
    let mut config = client.clone();
    let producer: BaseProducer = config.set("transactional.id", topic).create().unwrap();
    producer.init_transactions(DEADLINE).unwrap();
    let partitions = (0..PARTITIONS).cycle();
    for partition in partitions.take_while(|_| !stop.load(Relaxed)) {
        let began = clock::now_ms();
        producer.begin_transaction().unwrap();
        let record = BaseRecord::<str, str>::to(topic).partition(partition).payload("plain");
        producer.send(record).unwrap();
        producer.commit_transaction(DEADLINE).unwrap();
        let time = (began, clock::now_ms().saturating_sub(began));
        times.lock().unwrap_or_else(PoisonError::into_inner).push(time);
        let _stopped = within(PAUSE, || stop.load(Relaxed).then_some(()));
    }
}
