//! A plain transactional producer beside Orloj: what Kafka itself needs for a transaction.
//!
//! Invariant: each transaction is written with librdkafka's defaults. If the outcome of one is
//! unknown, a new producer ends it.

use std::ops::Range;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::error::KafkaResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::kafka_server::{create_topics, unique_prefix};
use crate::repeated_calls::RepeatedCalls;
use crate::transaction_ends::TransactionEnds;

/// Partitions of its topic: each of three brokers leads two.
const PARTITIONS: i32 = 6;
const DEADLINE: Duration = Duration::from_secs(120);

/// The producer; it ends with its value.
pub(crate) struct PlainTransactions {
    client: ClientConfig,
    topic: String,
    calls: RepeatedCalls,
}

impl PlainTransactions {
    /// Starts it on a topic of its own, which is replicated three times. A transaction writes a
    /// record to each of the next partitions.
    pub(crate) fn start(client: &ClientConfig, records: usize) -> Self {
        let topic = unique_prefix("plain-transactions");
        create_topics(client, &[NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(3))]);
        let mut config = client.clone();
        config.set("transactional.id", &topic);
        let mut producer = open(&config);
        let mut partitions = (0..PARTITIONS).cycle();
        let call = {
            let topic = topic.clone();
            move || {
                if transact(&producer, &topic, partitions.by_ref().take(records)).is_err() {
                    producer = open(&config);
                }
            }
        };
        let calls = RepeatedCalls::start("plain transactions to end", call);
        Self { client: client.clone(), topic, calls }
    }

    /// How long one took at most, in ms, of those that ended at this time or later.
    pub(crate) fn longest_since(&self, since: u64) -> u64 {
        self.calls.longest_in(since..u64::MAX)
    }

    /// How long one and the next took together at most, without the pause between them, in ms, if
    /// both were in progress at a time in `times`, in ms since the epoch. That is what a record
    /// waits for that comes at the start of one.
    pub(crate) fn longest_two_in(&self, times: Range<u64>) -> u64 {
        self.calls.longest_two_in(times)
    }

    /// How long a record waited at most until it could be seen, in ms, of those that could from
    /// this time on.
    pub(crate) fn longest_wait_since(&self, since: u64) -> u64 {
        self.calls.catch_up();
        TransactionEnds::read(&self.client, &self.topic).longest_wait_since(since)
    }
}

fn open(config: &ClientConfig) -> BaseProducer {
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(DEADLINE).unwrap();
    producer
}

fn transact(
    producer: &BaseProducer,
    topic: &str,
    partitions: impl Iterator<Item = i32>,
) -> KafkaResult<()> {
    producer.begin_transaction()?;
    for partition in partitions {
        let record = BaseRecord::<str, str>::to(topic).partition(partition).payload("plain");
        producer.send(record).map_err(|(error, _)| error)?;
    }
    producer.commit_transaction(DEADLINE)
}
