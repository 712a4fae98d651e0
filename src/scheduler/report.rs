//! What the scheduler says of itself: whether it is ready, which partitions it has, what its stores
//! take up.
//!
//! Law: whoever asks is answered from what was said last; nobody's question holds up the loop.

use std::time::Duration;

use super::Scheduler;
use super::lane::Stage;
use crate::clock;
use crate::store::Memory;
use crate::telemetry;

/// How often the memory of the stores is told.
const MEASURED_EVERY: Duration = Duration::from_secs(5);

impl Scheduler {
    pub(super) fn report_readiness(&self) {
        let refused = self.lanes.values().find_map(|lane| match &lane.stage {
            Stage::Refused(refusal) => Some(refusal.to_string()),
            _ => None,
        });
        let active = self.active_lanes().len();
        let gauge = |state, lanes: usize| {
            // A gauge is a float; no process owns 2^52 partitions.
            metrics::gauge!(telemetry::OWNED, "state" => state).set(lanes as f64);
        };
        gauge("active", active);
        gauge("other", self.lanes.len() - active);
        if let Some(reason) = refused {
            self.health.not_ready("partitions", reason);
        } else if active == self.lanes.len() {
            self.health.ready("partitions");
        } else {
            let all = self.lanes.len();
            self.health.not_ready("partitions", format!("{active} of {all} partitions active"));
        }
    }

    /// From time to time: what the stores take up in memory.
    pub(super) fn report_memory(&mut self) {
        let now = clock::monotonic();
        if self.measured_at.is_some_and(|at| now.duration_since(at) < MEASURED_EVERY) {
            return;
        }
        self.measured_at = Some(now);
        // A store that cannot say is found out when it is next written.
        let of = |lane: &super::Lane| lane.store.memory().unwrap_or_default();
        let all: Vec<Memory> = self.lanes.values().map(of).collect();
        let gauge = |of, bytes: u64| {
            // A gauge is a float; no process has 2^52 bytes.
            metrics::gauge!(telemetry::STORE_MEMORY, "of" => of).set(bytes as f64);
        };
        gauge("memtables", all.iter().map(|memory| memory.memtables).sum());
        gauge("tables", all.iter().map(|memory| memory.tables).sum());
        gauge("block_cache", u64::try_from(self.stores.cached()).unwrap_or(u64::MAX));
    }
}
