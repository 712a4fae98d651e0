//! What the loops report, as metrics and as the health of their role.
//!
//! Invariant: each report is one metric or one part of the health; nothing waits for a reader.

use std::sync::Arc;
use std::time::Duration;

use crate::environment::store::StoreMemoryUsage;
use crate::environment::{CommittedRecords, PartitionBytes, ProcessReporter, Reporter};
use crate::health::Health;
use crate::telemetry;

/// Reports to the role's health and to the metrics.
#[derive(Clone, Debug)]
pub(crate) struct RoleReporter(pub(crate) Arc<Health>);

impl ProcessReporter for RoleReporter {
    fn ready(&self, part: &'static str) {
        self.0.ready(part);
    }

    fn ready_with_remark(&self, part: &'static str, remark: String) {
        self.0.ready_with_remark(part, remark);
    }

    fn not_ready(&self, part: &'static str, reason: String) {
        self.0.not_ready(part, reason);
    }

    fn transaction_ended(&self, took: Duration) {
        metrics::histogram!(telemetry::COMMIT).record(took.as_secs_f64());
    }

    fn transaction_failed(&self) {
        metrics::counter!(telemetry::COMMIT_FAILURES).increment(1);
    }
}

impl Reporter for RoleReporter {
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

    fn partition_memory(&self, bytes: PartitionBytes) {
        let gauge = |of, bytes: usize| {
            metrics::gauge!(telemetry::SCHEDULER_MEMORY, "of" => of).set(bytes as f64);
        };
        gauge("wheel", bytes.wheel);
        gauge("write_buffer", bytes.write_buffer);
        gauge("parked", bytes.parked);
        gauge("takeover", bytes.takeover);
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn each_report_is_a_metric_with_its_value() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let reporter = RoleReporter(Health::new("scheduler"));
        let seconds = Duration::from_secs;
        metrics::with_local_recorder(&recorder, || {
            reporter.parked(2, seconds(3));
            reporter.partitions_owned(4, 5);
            reporter.taken_over(seconds(6));
            reporter.partitions_followed(7);
            reporter.turn_ended(seconds(8));
            reporter.transaction_ended(seconds(9));
            reporter.transaction_failed();
            reporter.offsets_lost(10);
            reporter.committed(CommittedRecords {
                ingested: 11,
                topic_fires: 12,
                callbacks: 13,
                dead_letters: 14,
                rejected: 15,
                forwarded: 16,
            });
            reporter.lateness()(seconds(17));
            reporter.store_memory(StoreMemoryUsage { memtables: 18, tables: 19 }, 20);
            reporter.partition_memory(PartitionBytes {
                wheel: 21,
                write_buffer: 22,
                parked: 23,
                takeover: 24,
            });
        });
        let rendered = recorder.handle().render();
        let is_value = |line: &&str| !line.is_empty() && !line.contains(['#', '=']);
        let mut values: Vec<_> = rendered.lines().filter(is_value).collect();
        values.sort_unstable();
        assert_eq!(
            values,
            [
                "orloj_commit_failures_total 1",
                "orloj_commit_seconds_count 1",
                "orloj_commit_seconds_sum 9",
                "orloj_dead_letters_total 14",
                "orloj_followed_partitions 7",
                "orloj_forwarded_total 16",
                "orloj_ingested_total 11",
                "orloj_lateness_seconds_count 1",
                "orloj_lateness_seconds_sum 17",
                "orloj_offsets_lost_total 10",
                "orloj_parked_oldest_seconds 3",
                "orloj_parked_records 2",
                "orloj_rejected_total 15",
                "orloj_takeover_seconds_count 1",
                "orloj_takeover_seconds_sum 6",
                "orloj_turn_seconds_count 1",
                "orloj_turn_seconds_sum 8",
            ]
        );
        for labelled in [
            "orloj_owned_partitions{state=\"active\"} 4",
            "orloj_owned_partitions{state=\"other\"} 5",
            "orloj_fired_total{target=\"topic\"} 12",
            "orloj_fired_total{target=\"http\"} 13",
            "orloj_store_memory_bytes{of=\"memtables\"} 18",
            "orloj_store_memory_bytes{of=\"tables\"} 19",
            "orloj_store_memory_bytes{of=\"block_cache\"} 20",
            "orloj_scheduler_memory_bytes{of=\"wheel\"} 21",
            "orloj_scheduler_memory_bytes{of=\"write_buffer\"} 22",
            "orloj_scheduler_memory_bytes{of=\"parked\"} 23",
            "orloj_scheduler_memory_bytes{of=\"takeover\"} 24",
        ] {
            assert!(rendered.lines().any(|line| line == labelled), "{labelled}: {rendered}");
        }
    }

    #[test]
    fn each_part_of_the_role_is_ready_or_says_why_not() {
        let reporter = RoleReporter(Health::new("scheduler"));
        reporter.not_ready("partitions", "none is assigned".to_owned());
        assert!(!reporter.0.is_ready());
        assert!(reporter.0.describe().contains("none is assigned"));
        reporter.ready("partitions");
        assert!(reporter.0.is_ready());
        assert!(!reporter.0.describe().contains("none is assigned"));
        reporter.ready_with_remark("schemas", "one is denied".to_owned());
        assert!(reporter.0.is_ready());
        assert!(reporter.0.describe().contains("one is denied"));
    }
}
