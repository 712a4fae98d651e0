//! Rules about several settings, or about the form of one.
//!
//! Invariant: a rule says which setting to change, and what is expected of it.

use std::ops::RangeInclusive;
use std::time::Duration;

use reqwest::Url;

use super::settings::{KafkaSettings, Settings};
use crate::model::definition::is_pool_name;

/// `delete.retention.ms` of the ledger, as `topics/ledger.toml` has it.
pub(super) const LEDGER_TOMBSTONE_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What the client takes for the answer to a request (`socket.timeout.ms`).
const REQUEST_TIMEOUT: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(300);
/// The same for a fetch: at least a second above `fetch.wait.max.ms`, which is 500 ms.
const FETCH_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(300);
/// It counts ms in 31 bits.
const LONGEST: Duration = Duration::from_secs(24 * 24 * 60 * 60);
/// What it takes for a connection (`socket.connection.setup.timeout.ms`), and for a transaction.
const SECOND_OR_MORE: RangeInclusive<Duration> = Duration::from_secs(1)..=LONGEST;
/// The longest that it takes between two questions who leads a partition
/// (`topic.metadata.refresh.interval.ms`), and for a session.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// The client ends the membership of a consumer that does not poll for so long.
const POLL_INTERVAL: &str = "max.poll.interval.ms";
/// Its default of that.
const POLL_INTERVAL_DEFAULT: Duration = Duration::from_secs(300);

/// The rule for a pool's name.
const POOL_NAME: &str = "a pool's name has 1 to 64 letters, digits, underscores or dashes";

/// Whether it holds, which setting to change if not, and the reason.
type Rule = (bool, &'static str, &'static str);

/// Returns the setting to change and the reason if a rule does not hold.
pub(super) fn check(settings: &Settings) -> Result<(), (&'static str, &'static str)> {
    let rules = [name_rules, client_limits, client_rules, store_rules, worker_rules];
    let mut broken = rules.iter().flat_map(|rules| rules(settings)).filter(|(holds, ..)| !holds);
    broken.next().map_or(Ok(()), |(_, key, why)| Err((key, why)))
}

/// Names of topics, and what becomes a part of one.
fn name_rules(settings: &Settings) -> Vec<Rule> {
    let Settings { topics, scheduler, .. } = settings;
    let topic_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    vec![
        (
            !topics.prefix.is_empty()
                && topics.prefix.len() <= 200
                && topics.prefix.chars().all(topic_name),
            "topics.prefix",
            "a topic name has letters, digits, '.', '_' and '-', and at most 200 of them leave \
             room for our suffixes",
        ),
        (
            scheduler.instance_id.chars().all(topic_name),
            "scheduler.instance_id",
            "it may have letters, digits, '.', '_' and '-': it is part of transactional ids",
        ),
        (topics.pools.iter().all(|pool| is_pool_name(pool)), "topics.pools", POOL_NAME),
    ]
}

/// What the client takes. It would refuse others when it is created, under a name of its own.
fn client_limits(settings: &Settings) -> Vec<Rule> {
    let Settings { kafka, timeouts, scheduler, .. } = settings;
    vec![
        (SECOND_OR_MORE.contains(&timeouts.connect), "timeouts.connect", "write 1s to 24d"),
        (REQUEST_TIMEOUT.contains(&timeouts.request), "timeouts.request", "write 10ms to 5min"),
        (
            FETCH_TIMEOUT.contains(&timeouts.fetch),
            "timeouts.fetch",
            "write 2s to 5min: a broker without news answers a fetch after 500ms",
        ),
        (timeouts.delivery <= LONGEST, "timeouts.delivery", "write at most 24d"),
        (timeouts.metadata_refresh <= HOUR, "timeouts.metadata_refresh", "write at most 1h"),
        (
            timeouts.metadata_refresh_producers <= HOUR,
            "timeouts.metadata_refresh_producers",
            "write at most 1h",
        ),
        (
            SECOND_OR_MORE.contains(&scheduler.transaction_timeout),
            "scheduler.transaction_timeout",
            "write 1s to 24d",
        ),
        (scheduler.session_timeout <= HOUR, "scheduler.session_timeout", "write at most 1h"),
        (
            scheduler.session_timeout <= poll_interval_max(kafka),
            "scheduler.session_timeout",
            "at most kafka.max.poll.interval.ms, which is 300000 (5 min) unless you set it",
        ),
    ]
}

/// A value that is no number is left to the client to refuse.
fn poll_interval_max(kafka: &KafkaSettings) -> Duration {
    let ms = kafka.get(POLL_INTERVAL).and_then(|ms| ms.parse().ok());
    ms.map_or(POLL_INTERVAL_DEFAULT, Duration::from_millis)
}

/// How long the clients wait, and members of the group: one beside another.
fn client_rules(settings: &Settings) -> Vec<Rule> {
    let Settings { timeouts, scheduler, .. } = settings;
    vec![
        (
            scheduler.heartbeat_interval * 3 <= scheduler.session_timeout,
            "scheduler.heartbeat_interval",
            "at least three heartbeats must fit into scheduler.session_timeout",
        ),
        (
            timeouts.request <= timeouts.delivery,
            "timeouts.delivery",
            "a record is sent again after timeouts.request: at least as long",
        ),
        (
            timeouts.delivery + timeouts.request <= scheduler.transaction_timeout,
            "scheduler.transaction_timeout",
            "a transaction delivers its records, and is committed: at least timeouts.delivery and \
             timeouts.request together",
        ),
    ]
}

/// What is kept in memory and on disk.
fn store_rules(settings: &Settings) -> Vec<Rule> {
    let Settings { wheel, store, .. } = settings;
    vec![
        (
            wheel.tick <= wheel.horizon
                && wheel.horizon.as_millis() <= 65_536 * wheel.tick.as_millis(),
            "wheel.tick",
            "wheel.horizon must be between 1 and 65536 ticks",
        ),
        (
            store.state_age_max * 2 <= LEDGER_TOMBSTONE_RETENTION,
            "store.state_age_max",
            "it may be at most half of the ledger's delete.retention.ms, 7 d: older state could \
             miss a tombstone",
        ),
    ]
}

/// Callbacks and traces.
fn worker_rules(settings: &Settings) -> Vec<Rule> {
    let Settings { worker, trace, .. } = settings;
    vec![
        (
            worker.connect_timeout <= worker.timeout,
            "worker.connect_timeout",
            "connecting is a part of the attempt: at most worker.timeout",
        ),
        (
            worker.timeout <= worker.timeout_max,
            "worker.timeout",
            "what a trigger gets that does not say is at most worker.timeout_max",
        ),
        (worker.response_head_max.bytes() >= 8_192, "worker.response_head_max", "at least 8KiB"),
        (
            worker.dns_lookups_max.get() <= 500,
            "worker.dns_lookups_max",
            "each is a thread: at most 500",
        ),
        (worker.retry_jitter <= 100, "worker.retry_jitter", "write percent of a pause, 0 to 100"),
        (
            worker.final_statuses.iter().all(|status| (300..=599).contains(status)),
            "worker.final_statuses",
            "write statuses from 300 to 599; 2xx is success",
        ),
        (worker.pool.is_empty() || is_pool_name(&worker.pool), "worker.pool", POOL_NAME),
        (
            worker.circuit_failures_percent <= 100,
            "worker.circuit_failures_percent",
            "it is a part of all attempts: at most 100",
        ),
        (
            trace.endpoint.is_empty()
                || Url::parse(&trace.endpoint).is_ok_and(|url| url.scheme().starts_with("http")),
            "trace.endpoint",
            "write the base URL of a collector, such as http://localhost:4318",
        ),
    ]
}
