//! The log: every rdkafka type ends here.
//!
//! Invariant: what the protocol owns (isolation, offsets, idempotence, partitioner, transactional
//! ids) is set here and nowhere else; the user's `[kafka]` table is laid under it.
//!
//! ```text
//!  Member  ── the group: assignment, committed offsets, the fence
//!  Reader  ── triggers, signals, ledger by plain assignment, read_committed
//!  Probe   ── ends of logs as the broker sees them (read_uncommitted), topics' state
//!  Transactor ── one transaction at a time
//! ```

pub mod admin_client;
pub mod group_members;
pub mod group_metadata;
pub mod member;
pub mod orphaned_transactions;
pub mod producer_pair;
pub mod reader;
pub mod schema_cache;
pub mod standby_client;
pub mod topics;
pub mod transaction;

use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::config::Settings;

/// librdkafka's own limit of 1,000,000 bytes is for a whole record: a payload of that size would
/// not fit with its headers. Beyond this one the topic's `max.message.bytes` decides.
const RECORD_BYTES_MAX: &str = "2097152";

/// The names that `topics.prefix` gives to everything in the cluster.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// The names under a prefix.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// Registrations, commands, tombstones.
    #[must_use]
    pub fn triggers(&self) -> String {
        self.topic("triggers")
    }

    /// What workers tell owners.
    #[must_use]
    pub fn signals(&self) -> String {
        self.topic("signals")
    }

    /// What outlives the replay tail.
    #[must_use]
    pub fn ledger(&self) -> String {
        self.topic("ledger")
    }

    /// Callbacks that are due, of the default pool.
    #[must_use]
    pub fn fires(&self) -> String {
        self.topic("fires")
    }

    /// Callbacks that are due, of a pool; the default pool's name is empty.
    #[must_use]
    pub fn fires_of(&self, pool: &str) -> String {
        let fires = self.fires();
        if pool.is_empty() { fires } else { format!("{fires}.{pool}") }
    }

    /// Whether a topic is that of a pool other than the default one.
    #[must_use]
    pub fn is_pool_topic(&self, topic: &str) -> bool {
        topic.strip_prefix(&self.fires()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// The audit trail.
    #[must_use]
    pub fn outcomes(&self) -> String {
        self.topic("outcomes")
    }

    /// What no client tries again by itself.
    #[must_use]
    pub fn dead_letters(&self) -> String {
        self.topic("dead-letters")
    }

    /// The schedulers' consumer group.
    #[must_use]
    pub fn scheduler_group(&self) -> String {
        format!("{}.schedulers", self.prefix)
    }

    /// The workers' consumer group of a pool; the default pool's name is empty.
    #[must_use]
    pub fn worker_group(&self, pool: &str) -> String {
        if pool.is_empty() {
            format!("{}.workers", self.prefix)
        } else {
            format!("{}.workers.{pool}", self.prefix)
        }
    }

    /// The notifiers' consumer group.
    #[must_use]
    pub fn notifier_group(&self) -> String {
        format!("{}.notifiers", self.prefix)
    }

    /// A transactional id: `<prefix>.<role>.<instance>`.
    #[must_use]
    pub fn transactional_id(&self, role: &str, instance: &str) -> String {
        format!("{}.{role}.{instance}", self.prefix)
    }

    /// Whether a topic is one of ours, which no trigger may fire into.
    #[must_use]
    pub fn owns(&self, topic: &str) -> bool {
        topic.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    fn topic(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }
}

/// The settings every client starts from: the user's, and what must be the same for all.
#[must_use]
pub fn client_config(settings: &Settings) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("message.max.bytes", RECORD_BYTES_MAX);
    for (name, value) in settings.kafka.iter() {
        let _set = config.set(name, value);
    }
    config.set_log_level(RDKafkaLogLevel::Warning);
    config
        .set("allow.auto.create.topics", "false")
        .set("socket.nagle.disable", "true")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000");
    config
}

/// A wait that librdkafka can keep: it counts whole ms, and the crate asks again and again for what
/// is left of one, which takes a processor of its own.
fn whole_ms(wait: Duration) -> Duration {
    let part = wait.subsec_nanos() % 1_000_000;
    if part == 0 { wait } else { wait + Duration::from_nanos(u64::from(1_000_000 - part)) }
}

/// Passes librdkafka's errors on to the log, except that a partition's end is no error.
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

/// A consumer that commits nothing by itself and reads only what is committed.
fn consumer_config(settings: &Settings, group: &str) -> ClientConfig {
    let mut config = client_config(settings);
    config.remove("compression.type");
    config
        .set("group.id", group)
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error");
    config
}

/// A producer whose partitioner is Java's, without transactions: gateway and command line.
#[must_use]
pub fn producer_config(settings: &Settings) -> ClientConfig {
    let mut config = client_config(settings);
    config
        .set("partitioner", "murmur2_random")
        .set("enable.idempotence", "true")
        .set("linger.ms", "2");
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_rounded_up_to_whole_milliseconds() {
        let us = Duration::from_micros;
        let waits = [(0, 0), (1, 1_000), (1_000, 1_000), (2_300, 3_000), (1_999_999, 2_000_000)];
        for (wait, kept) in waits {
            assert_eq!(whole_ms(us(wait)), us(kept));
        }
    }
}
