//! Reports readiness, the partitions, and the memory of the stores.
//!
//! Invariant: a health request is answered from the last report, so no request delays the loop.

use std::time::Duration;

use super::Scheduler;
use super::partition_task::PartitionState;
use crate::clock;
use crate::store::StoreMemoryUsage;
use crate::telemetry;

/// How often the memory of the stores is reported.
const MEMORY_REPORT_INTERVAL: Duration = Duration::from_secs(5);

impl Scheduler {
    pub(super) fn report_readiness(&self) {
        let refused = self.tasks.values().find_map(|task| match &task.state {
            PartitionState::Refused(refusal) => Some(refusal.to_string()),
            _ => None,
        });
        let active = self.active_partitions().len();
        let gauge = |state, tasks: usize| {
            // A gauge is a float; no process owns 2^52 partitions.
            metrics::gauge!(telemetry::OWNED, "state" => state).set(tasks as f64);
        };
        gauge("active", active);
        gauge("other", self.tasks.len() - active);
        if let Some(reason) = refused {
            self.health.not_ready("partitions", reason);
        } else if active == self.tasks.len() {
            self.health.ready("partitions");
        } else {
            let all = self.tasks.len();
            self.health.not_ready("partitions", format!("{active} of {all} partitions active"));
        }
    }

    /// Reports the memory of the stores, if it is time.
    pub(super) fn report_memory(&mut self) {
        let now = clock::monotonic();
        if self.measured_at.is_some_and(|at| now.duration_since(at) < MEMORY_REPORT_INTERVAL) {
            return;
        }
        self.measured_at = Some(now);
        // A store that fails here also fails at the next write, which handles the error.
        let memory_of = |task: &super::PartitionTask| task.store.memory().unwrap_or_default();
        let all: Vec<StoreMemoryUsage> = self.tasks.values().map(memory_of).collect();
        let gauge = |of, bytes: u64| {
            // A gauge is a float; no process has 2^52 bytes.
            metrics::gauge!(telemetry::STORE_MEMORY, "of" => of).set(bytes as f64);
        };
        gauge("memtables", all.iter().map(|memory| memory.memtables).sum());
        gauge("tables", all.iter().map(|memory| memory.tables).sum());
        gauge("block_cache", u64::try_from(self.stores.cache_usage()).unwrap_or(u64::MAX));
    }
}
