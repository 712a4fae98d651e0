//! The Kafka clients. No other module uses an rdkafka type (`dev` excepted, which starts
//! librdkafka's built-in broker).
//!
//! Invariant: the settings that the protocol needs (isolation, offsets, idempotence, partitioner,
//! transactional ids) are set here and nowhere else; they override the user's `[kafka]` table.
//!
//! ```text
//!  Member                ── consumer group: assignment, committed offsets, group metadata
//!  LogReader             ── triggers, signals, ledger: manual assignment, read_committed
//!  KafkaAdminClient      ── end offsets (read_uncommitted), topics
//!  TransactionalProducer ── one transaction at a time, with the offsets of its inputs
//!  BatchProducer         ── one transaction at a time, records only
//!  RecordProducer        ── single records
//! ```

mod absent_members;
pub mod admin_client;
mod asked_brokers;
pub mod batch_producer;
pub mod broker_requests;
pub mod environment;
pub mod error;
mod group_consumer;
pub mod group_members;
pub mod group_metadata;
pub mod member;
mod member_history;
pub mod orphaned_transactions;
mod producer_metadata;
pub mod producer_pair;
mod producer_turns;
mod queued_bytes;
pub mod reader;
pub mod record;
pub mod record_producer;
pub mod schema_cache;
pub mod spare_producers;
pub mod standby_client;
mod topic_limits;
mod topic_rights;
pub mod topics;
pub mod transaction;
mod transaction_error;
mod watermarks;

pub use crate::model::names::Names;

use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::Client;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::clock;
use crate::config::Settings;

/// librdkafka's default of 1,000,000 bytes counts the whole record, so a payload of that size does
/// not fit together with its headers. The topic's `max.message.bytes` is the limit that applies.
const RECORD_BYTES_MAX: &str = "2097152";

/// For how long a new client is waited for to be connected.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// For how long the id of the cluster is waited for at once.
const CLUSTER_ID_POLL: Duration = Duration::from_millis(50);

/// The settings that all clients share: the user's, and those that must not differ.
#[must_use]
pub fn client_config(settings: &Settings) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("message.max.bytes", RECORD_BYTES_MAX);
    for (name, value) in settings.kafka.iter() {
        let _set = config.set(name, value);
    }
    config.remove(reader::READ_AHEAD_MAX);
    config.set_log_level(RDKafkaLogLevel::Warning);
    config
        .set("allow.auto.create.topics", "false")
        .set("socket.nagle.disable", "true")
        .set("socket.timeout.ms", ms(settings.timeouts.request))
        .set("socket.connection.setup.timeout.ms", ms(settings.timeouts.connect))
        .set("topic.metadata.refresh.interval.ms", ms(settings.timeouts.metadata_refresh))
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000");
    config
}

/// Waits until a new client is connected, at most `timeout`, and a second: if its cluster has
/// fenced the broker that answers first, the client asks again only when it needs a broker.
fn await_connection(client: &Client<impl ClientContext>, timeout: Duration) {
    let _id = cluster_id(client, timeout.min(CONNECT_TIMEOUT));
}

/// The id of the cluster as soon as a broker has answered; `None` after `timeout`, or if it has
/// none.
///
/// librdkafka looks for the id, and then waits for an answer of a broker: one that comes between
/// the two is missed. So it looks again after a short time.
fn cluster_id(client: &Client<impl ClientContext>, timeout: Duration) -> Option<String> {
    await_cluster_id(timeout, clock::monotonic, |wait| client.fetch_cluster_id(wait))
}

/// `ask` waits for a given time, or returns at once if there is no id; `now` is on the monotonic
/// clock.
fn await_cluster_id(
    timeout: Duration,
    now: impl Fn() -> Instant,
    mut ask: impl FnMut(Duration) -> Option<String>,
) -> Option<String> {
    let deadline = now() + timeout;
    loop {
        let asked_at = now();
        let wait = deadline.saturating_duration_since(asked_at).min(CLUSTER_ID_POLL);
        let id = ask(wait);
        let took = now() - asked_at;
        let has_none = took < wait / 2;
        if id.is_some() || has_none || asked_at + took >= deadline {
            return id;
        }
    }
}

/// For the client library, which takes whole ms.
fn timeout_ms(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)
}

/// A duration as the client's settings have it.
fn ms(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// Rounds a wait up to whole ms. librdkafka counts in ms, and rdkafka polls repeatedly for a
/// remainder of less than 1 ms, which uses a full CPU core.
fn whole_ms(wait: Duration) -> Duration {
    let remainder = wait.subsec_nanos() % 1_000_000;
    if remainder == 0 {
        wait
    } else {
        wait + Duration::from_nanos(u64::from(1_000_000 - remainder))
    }
}

/// Logs librdkafka's errors. The end of a partition is not an error.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogContext;

impl ClientContext for LogContext {
    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for LogContext {}

fn log_error(error: &KafkaError, reason: &str) {
    if error.rdkafka_error_code() != Some(RDKafkaErrorCode::PartitionEOF) {
        tracing::warn!(%error, reason, "librdkafka");
    }
}

/// A consumer that does not commit by itself and reads committed records only.
fn consumer_config(settings: &Settings, group: &str) -> ClientConfig {
    let mut config = client_config(settings);
    config.remove("compression.type");
    config
        .set("group.id", group)
        .set("socket.timeout.ms", ms(settings.timeouts.fetch))
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error");
    config
}

/// What producers have beside the timeouts of all clients.
fn set_producer_timeouts(config: &mut ClientConfig, settings: &Settings) {
    let timeouts = &settings.timeouts;
    config
        .set("message.timeout.ms", ms(timeouts.delivery))
        .set("topic.metadata.refresh.interval.ms", ms(timeouts.metadata_refresh_producers));
}

/// A producer with the Java client's partitioner, without transactions.
#[must_use]
pub fn producer_config(settings: &Settings) -> ClientConfig {
    let mut config = client_config(settings);
    config
        .set("partitioner", "murmur2_random")
        .set("enable.idempotence", "true")
        .set("linger.ms", "2");
    set_producer_timeouts(&mut config, settings);
    config
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rdkafka::consumer::BaseConsumer;
    use rdkafka::producer::BaseProducer;

    use super::*;
    use crate::config::Layers;

    /// Creates each kind of client. None of them finds a broker.
    fn create_clients(overrides: &[&str]) {
        let overrides = ["kafka.bootstrap.servers=127.0.0.1:1"].iter().chain(overrides);
        let overrides = overrides.map(|&text| text.to_owned()).collect();
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let scheduler = &settings.scheduler;
        let _plain: BaseProducer = client_config(&settings).create().unwrap();
        let _producer: BaseProducer = producer_config(&settings).create().unwrap();
        let transactor =
            transaction::producer_config(&settings, "id", scheduler.transaction_timeout);
        let _transactor: BaseProducer = transactor.create().unwrap();
        let _reader: BaseConsumer = consumer_config(&settings, "group").create().unwrap();
        let _member = member::Member::join(&settings, "group", "topic", "instance").unwrap();
    }

    /// `config::rules` knows the limits of the client.
    #[test]
    fn the_client_takes_the_shortest_and_the_longest_durations_that_the_settings_may_have() {
        create_clients(&[
            "timeouts.connect=1s",
            "timeouts.request=10ms",
            "timeouts.fetch=2s",
            "timeouts.delivery=10ms",
            "timeouts.metadata_refresh=1ms",
            "timeouts.metadata_refresh_producers=1ms",
            "scheduler.transaction_timeout=1s",
            "scheduler.session_timeout=3ms",
            "scheduler.heartbeat_interval=1ms",
        ]);
        create_clients(&[
            "timeouts.connect=24d",
            "timeouts.request=5min",
            "timeouts.fetch=5min",
            "timeouts.delivery=23d",
            "timeouts.metadata_refresh=1h",
            "timeouts.metadata_refresh_producers=1h",
            "scheduler.transaction_timeout=24d",
            "scheduler.session_timeout=1h",
            "scheduler.heartbeat_interval=20min",
            "kafka.max.poll.interval.ms=3600000",
        ]);
    }

    #[test]
    fn an_answer_that_the_client_has_missed_is_found_at_once() {
        let now = Cell::new(clock::monotonic());
        let mut waits = Vec::new();
        let id = await_cluster_id(
            Duration::from_secs(30),
            || now.get(),
            |wait| {
                waits.push(wait);
                now.set(now.get() + wait);
                (waits.len() > 1).then(|| "cluster".to_owned())
            },
        );
        assert_eq!(id.as_deref(), Some("cluster"));
        assert!(waits[0] <= Duration::from_millis(100), "{waits:?}");
    }

    #[test]
    fn the_id_of_a_cluster_that_does_not_answer_is_waited_for_until_the_timeout() {
        let began = clock::monotonic();
        let now = Cell::new(began);
        let timeout = Duration::from_millis(120);
        let id = await_cluster_id(
            timeout,
            || now.get(),
            |wait| {
                now.set(now.get() + wait);
                None
            },
        );
        assert_eq!(id, None);
        assert!(now.get() - began >= timeout);
    }

    #[test]
    fn a_cluster_without_an_id_is_not_waited_for() {
        let (now, mut asked) = (clock::monotonic(), 0);
        let id = await_cluster_id(
            Duration::from_secs(30),
            || now,
            |_| {
                asked += 1;
                assert_eq!(asked, 1, "it is asked again");
                None
            },
        );
        assert_eq!((id, asked), (None, 1));
    }

    #[test]
    fn a_wait_is_rounded_up_to_whole_milliseconds() {
        let us = Duration::from_micros;
        let waits = [(0, 0), (1, 1_000), (1_000, 1_000), (2_300, 3_000), (1_999_999, 2_000_000)];
        for (wait, rounded) in waits {
            assert_eq!(whole_ms(us(wait)), us(rounded));
        }
    }
}
