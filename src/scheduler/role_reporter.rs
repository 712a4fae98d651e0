//! What the scheduler's loop reports, as metrics and as the health of the role.
//!
//! Invariant: each report is one metric or one part of the health; nothing waits for a reader.

use std::sync::Arc;
use std::time::Duration;

use crate::environment::store::StoreMemoryUsage;
use crate::environment::{CommittedRecords, Reporter};
use crate::health::Health;
use crate::telemetry;

/// Reports to the role's health and to the metrics.
#[derive(Clone, Debug)]
pub(super) struct RoleReporter(pub(super) Arc<Health>);

impl Reporter for RoleReporter {
    fn ready(&self, part: &'static str) {
        self.0.ready(part);
    }

    fn ready_with_remark(&self, part: &'static str, remark: String) {
        self.0.ready_with_remark(part, remark);
    }

    fn not_ready(&self, part: &'static str, reason: String) {
        self.0.not_ready(part, reason);
    }

    fn parked(&self, records: usize, oldest: Duration) {
        // A gauge is a float; no process has 2^52 records in memory.
        metrics::gauge!(telemetry::PARKED).set(records as f64);
        metrics::gauge!(telemetry::PARKED_OLDEST).set(oldest.as_secs_f64());
    }

    fn partitions_owned(&self, active: usize, other: usize) {
        // A gauge is a float; no process owns 2^52 partitions.
        metrics::gauge!(telemetry::OWNED, "state" => "active").set(active as f64);
        metrics::gauge!(telemetry::OWNED, "state" => "other").set(other as f64);
    }

    fn taken_over(&self, took: Duration) {
        metrics::histogram!(telemetry::TAKEOVER).record(took.as_secs_f64());
    }

    fn partitions_followed(&self, count: usize) {
        metrics::gauge!(telemetry::FOLLOWED).set(count as f64);
    }

    fn turn_ended(&self, took: Duration) {
        metrics::histogram!(telemetry::TURN).record(took.as_secs_f64());
    }

    fn transaction_ended(&self, took: Duration) {
        metrics::histogram!(telemetry::COMMIT).record(took.as_secs_f64());
    }

    fn transaction_failed(&self) {
        metrics::counter!(telemetry::COMMIT_FAILURES).increment(1);
    }

    fn offsets_lost(&self, count: u64) {
        metrics::counter!(telemetry::OFFSETS_LOST).increment(count);
    }

    fn committed(&self, counts: CommittedRecords) {
        metrics::counter!(telemetry::INGESTED).increment(counts.ingested);
        metrics::counter!(telemetry::FIRED, "target" => "topic").increment(counts.topic_fires);
        metrics::counter!(telemetry::FIRED, "target" => "http").increment(counts.callbacks);
        metrics::counter!(telemetry::DEAD_LETTERS).increment(counts.dead_letters);
        metrics::counter!(telemetry::REJECTED).increment(counts.rejected);
        metrics::counter!(telemetry::FORWARDED).increment(counts.forwarded);
    }

    fn lateness(&self) -> impl FnMut(Duration) {
        let lateness = metrics::histogram!(telemetry::LATENESS);
        move |late| lateness.record(late.as_secs_f64())
    }

    fn store_memory(&self, stores: StoreMemoryUsage, cache: usize) {
        let gauge = |of, bytes: u64| {
            // A gauge is a float; no process has 2^52 bytes.
            metrics::gauge!(telemetry::STORE_MEMORY, "of" => of).set(bytes as f64);
        };
        gauge("memtables", stores.memtables);
        gauge("tables", stores.tables);
        gauge("block_cache", u64::try_from(cache).unwrap_or(u64::MAX));
    }
}
