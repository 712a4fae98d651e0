//! Rules about several settings, or about the form of one.
//!
//! Invariant: a rule says which setting to change, and what is expected of it.

use std::time::Duration;

use reqwest::Url;

use super::settings::Settings;
use crate::model::definition::is_pool_name;

/// `delete.retention.ms` of the ledger, as `topics/ledger.toml` has it.
pub(super) const LEDGER_TOMBSTONE_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The client refuses less than a second above `fetch.wait.max.ms`, which is 500 ms.
const FETCH_TIMEOUT_MIN: Duration = Duration::from_secs(2);

/// The rule for a pool's name.
const POOL_NAME: &str = "a pool's name has 1 to 64 letters, digits, underscores or dashes";

/// Whether it holds, which setting to change if not, and the reason.
type Rule = (bool, &'static str, &'static str);

/// Returns the setting to change and the reason if a rule does not hold.
pub(super) fn check(settings: &Settings) -> Result<(), (&'static str, &'static str)> {
    let rules = [name_rules, client_rules, store_rules, worker_rules];
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

/// How long the clients wait, and members of the group.
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
        (
            timeouts.fetch >= FETCH_TIMEOUT_MIN,
            "timeouts.fetch",
            "a broker without news answers a fetch after 500ms: at least 2s",
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
