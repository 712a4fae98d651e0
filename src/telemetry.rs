//! Log lines and metrics. All metric names are defined here.
//!
//! Invariant: every metric is defined here with its unit and meaning. Labels have few values (role,
//! partition, reason), never ids.

use std::io::IsTerminal;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{LogFormat, LogSettings};

/// Counter, scheduler: records of `triggers` and `signals` that were read and committed.
pub const INGESTED: &str = "orloj_ingested_total";
/// Counter, scheduler: records of `triggers` that could not be read; each is a dead letter.
pub const REJECTED: &str = "orloj_rejected_total";
/// Counter, scheduler: records written again to the right partition, because their producer's
/// partitioner had chosen another one, and registrations of batches.
pub const FORWARDED: &str = "orloj_forwarded_total";
/// Counter, scheduler: offsets of inputs and of the ledger that were deleted before they were read.
pub const OFFSETS_LOST: &str = "orloj_offsets_lost_total";
/// Gauge, scheduler: records that wait until the schema registry gives their schema.
pub const PARKED: &str = "orloj_parked_records";
/// Gauge, scheduler: for how long the first of them is parked in this process, in seconds.
pub const PARKED_OLDEST: &str = "orloj_parked_oldest_seconds";
/// Counter, scheduler: fires committed, by `target` (topic, http).
pub const FIRED: &str = "orloj_fired_total";
/// Histogram, scheduler: from the due time to the commit of the fire, in seconds.
pub const LATENESS: &str = "orloj_lateness_seconds";
/// Gauge, scheduler: partitions owned, by `state` (active, other).
pub const OWNED: &str = "orloj_owned_partitions";
/// Gauge, scheduler: partitions of other owners for which this process keeps a standby store.
pub const FOLLOWED: &str = "orloj_followed_partitions";
/// Histogram, scheduler: from the assignment of one partition until it is active, in seconds.
pub const TAKEOVER: &str = "orloj_takeover_seconds";
/// Histogram, scheduler: one turn of the loop that owns the partitions, with what it waits for, in
/// seconds. While one lasts, nothing fires.
pub const TURN: &str = "orloj_turn_seconds";
/// Histogram, scheduler and worker: one transaction, from its first record to its commit, in
/// seconds.
pub const COMMIT: &str = "orloj_commit_seconds";
/// Counter, scheduler and worker: transactions that were aborted, or whose outcome is not known.
pub const COMMIT_FAILURES: &str = "orloj_commit_failures_total";
/// Gauge, scheduler: bytes of memory that RocksDB uses, by `of` (block_cache, memtables, tables).
pub const STORE_MEMORY: &str = "orloj_store_memory_bytes";
/// Gauge, scheduler: bytes of partitions in memory, by `of` (wheel: triggers that are due soon,
/// write_buffer: decisions that are not in RocksDB yet, parked: records that wait for their schema,
/// takeover: records that takeovers have read).
pub const SCHEDULER_MEMORY: &str = "orloj_scheduler_memory_bytes";
/// Counter, scheduler and worker: records written to `dead-letters`. Those of workers have a
/// `reason` (exhausted, impossible, refused, unknown, unreadable), those of schedulers have none.
pub const DEAD_LETTERS: &str = "orloj_dead_letters_total";
/// Gauge, worker: callbacks in flight.
pub const CALLBACKS_IN_FLIGHT: &str = "orloj_callbacks_in_flight";
/// Counter, worker: callback attempts that ended, by `result` (delivered, retried, exhausted,
/// withdrawn).
pub const CALLBACKS: &str = "orloj_callbacks_total";
/// Histogram, worker: one callback attempt, in seconds.
pub const CALLBACK_DURATION: &str = "orloj_callback_seconds";
/// Gauge, worker: fires that wait for a free place, or for the rate limit of their caller.
pub const CALLBACKS_WAITING: &str = "orloj_callbacks_waiting";
/// Gauge, worker: bytes of fires and results in memory, by `of` (waiting, in_flight, results).
pub const WORKER_MEMORY: &str = "orloj_worker_memory_bytes";
/// Counter, worker: fires sent back to their owner without an attempt, by `reason` (queue_full,
/// circuit_open, held_back, shutting_down).
pub const DEFERRED: &str = "orloj_deferred_total";
/// Gauge, worker: circuits of this worker, by `state` (closed, open, half_open).
pub const CIRCUITS: &str = "orloj_circuits";
/// Counter, gateway: requests to the HTTP API, by `route` and `status`.
pub const REQUESTS: &str = "orloj_http_requests_total";
/// Gauge, gateway: requests to the HTTP API that are not answered yet.
pub const REQUESTS_IN_PROGRESS: &str = "orloj_requests_in_progress";
/// Histogram, gateway: one request to the HTTP API, in seconds.
pub const REQUEST_DURATION: &str = "orloj_http_request_seconds";

/// Counter, gateway: records written into the view, by `topic` (triggers, ledger, outcomes,
/// dead_letters).
pub const VIEW_FOLDED: &str = "orloj_view_records_total";
/// Counter, gateway: times that the file of the view was deleted and built again.
pub const VIEW_REBUILDS: &str = "orloj_view_rebuilds_total";
/// Gauge, gateway: how far the view is behind the topics, in seconds.
pub const VIEW_LAG: &str = "orloj_view_lag_seconds";
/// Gauge, gateway: triggers in the view.
pub const VIEW_ROWS: &str = "orloj_view_triggers";

/// Gauge, gateway: callbacks that have not ended one hour after their last attempt was due, by its
/// view.
pub const UNSETTLED: &str = "orloj_unsettled";
/// Gauge, gateway, worker and notifier: 1 while `callers.toml` has an error and the callers read
/// before stay in force, else 0.
pub const CALLERS_REFUSED: &str = "orloj_callers_refused";
/// Counter, gateway: requests for the public keys of token issuers, by `result` (read, failed).
pub const JWKS_READINGS: &str = "orloj_jwks_readings_total";

/// Counter, notifier: attempts to send a notification, by `channel` (mail, webhook) and `result`
/// (delivered, failed, refused, given_up).
pub const NOTIFICATIONS: &str = "orloj_notifications_total";
/// Gauge, notifier: recipients with a notification that is not sent yet.
pub const NOTIFICATIONS_WAITING: &str = "orloj_notifications_waiting";

/// Counter, worker: spans of callbacks that did not reach the collector.
pub const SPANS_DROPPED: &str = "orloj_spans_dropped_total";

/// Bucket bounds of all histograms, in seconds: fine near the duration of a commit, coarse above.
const BUCKETS: [f64; 16] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 600.0];

/// Why logging or metrics could not be started: print it and exit.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// Correct the setting.
    #[error(
        "`log.filter = {filter:?}` is invalid: {source}; \
         write a level such as info, or directives such as info,orloj_core::scheduler=debug"
    )]
    Filter {
        /// The configured filter.
        filter: String,
        /// The error in it.
        source: ParseError,
    },
    /// Call it once: a process has one logger and one recorder.
    #[error("telemetry is already started: {0}")]
    AlreadyStarted(String),
}

/// Writes log lines to standard error in the configured format.
pub fn start_logging(settings: &LogSettings) -> Result<(), TelemetryError> {
    let filter = EnvFilter::try_new(&settings.filter)
        .map_err(|source| TelemetryError::Filter { filter: settings.filter.clone(), source })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let started = match settings.format {
        LogFormat::Text => lines.finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    started.map_err(|error: TryInitError| TelemetryError::AlreadyStarted(error.to_string()))
}

/// Starts recording. The handle renders the answer to `/metrics`. Its owner calls `run_upkeep`
/// every few seconds, so that histograms stay bounded even if they are never scraped.
pub fn start_metrics() -> Result<PrometheusHandle, TelemetryError> {
    let already_started = |error: BuildError| TelemetryError::AlreadyStarted(error.to_string());
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(already_started)?;
    describe();
    Ok(handle)
}

fn describe() {
    let counters = [
        (INGESTED, "records of triggers and signals that were ingested"),
        (REJECTED, "records that could not be read"),
        (FORWARDED, "records written again to the right partition, and registrations of batches"),
        (OFFSETS_LOST, "offsets that were deleted before they were read"),
        (FIRED, "committed fires"),
        (COMMIT_FAILURES, "transactions that were not committed, or whose outcome is unknown"),
        (DEAD_LETTERS, "records written to the dead letters"),
        (CALLBACKS, "callback attempts that ended"),
        (DEFERRED, "fires sent back to their owner without an attempt"),
        (REQUESTS, "requests to the HTTP API"),
        (JWKS_READINGS, "requests for the public keys of token issuers"),
        (NOTIFICATIONS, "attempts to notify a caller of failures"),
        (SPANS_DROPPED, "spans that did not reach the collector"),
        (VIEW_FOLDED, "records applied to the view"),
        (VIEW_REBUILDS, "times that the view's file was deleted and rebuilt"),
    ];
    for (name, meaning) in counters {
        describe_counter!(name, Unit::Count, meaning);
    }
    let gauges = [
        (OWNED, Unit::Count, "owned partitions"),
        (PARKED, Unit::Count, "records that wait for their schema"),
        (PARKED_OLDEST, Unit::Seconds, "for how long the first record waits for its schema"),
        (FOLLOWED, Unit::Count, "partitions of which this process is a standby"),
        (STORE_MEMORY, Unit::Bytes, "memory that the stores use"),
        (SCHEDULER_MEMORY, Unit::Bytes, "memory that the partitions use"),
        (REQUESTS_IN_PROGRESS, Unit::Count, "requests to the HTTP API in progress"),
        (CALLBACKS_IN_FLIGHT, Unit::Count, "callbacks in progress"),
        (CALLBACKS_WAITING, Unit::Count, "fires that wait to start their callback"),
        (WORKER_MEMORY, Unit::Bytes, "memory that fires and results use"),
        (CIRCUITS, Unit::Count, "circuits of this worker"),
        (NOTIFICATIONS_WAITING, Unit::Count, "recipients with an undelivered notification"),
        (VIEW_LAG, Unit::Seconds, "lag of the view behind the topics"),
        (VIEW_ROWS, Unit::Count, "triggers that the view lists"),
        (UNSETTLED, Unit::Count, "callbacks that have not ended an hour after their last attempt"),
        (CALLERS_REFUSED, Unit::Count, "1 while the callers file is refused"),
    ];
    for (name, unit, meaning) in gauges {
        describe_gauge!(name, unit, meaning);
    }
    let histograms = [
        (LATENESS, "time from the due time to the commit of the fire"),
        (TAKEOVER, "time from the assignment of a partition until it is active"),
        (TURN, "duration of a turn of the scheduler's loop"),
        (COMMIT, "duration of a transaction"),
        (CALLBACK_DURATION, "duration of a callback attempt"),
        (REQUEST_DURATION, "duration of a request to the HTTP API"),
    ];
    for (name, meaning) in histograms {
        describe_histogram!(name, Unit::Seconds, meaning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_described() {
        let source = include_str!("telemetry.rs");
        let (names, rest) = source.split_once("const BUCKETS").unwrap();
        let (_, description) = rest.split_once("fn describe()").unwrap();
        for line in names.lines().filter_map(|line| line.strip_prefix("pub const ")) {
            let name = line.split(':').next().unwrap();
            assert!(description.contains(&format!("({name}, ")), "{name} is not described");
        }
    }

    #[test]
    fn a_wrong_filter_is_named() {
        let settings = LogSettings { filter: "loud=very".to_owned(), format: LogFormat::Text };
        let error = start_logging(&settings).unwrap_err().to_string();
        assert!(error.starts_with("`log.filter = \"loud=very\"` is invalid: "), "{error}");
    }
}
