//! Reports readiness, the partitions, and the memory of the stores.
//!
//! Invariant: a health request is answered from the last report, so no request delays the loop.

use std::time::Duration;

use super::Scheduler;
use super::partition_task::PartitionState;
use crate::engine::takeover::TakeoverError;
use crate::environment::store::{RowStore as _, StoreDirectory as _, StoreMemoryUsage};
use crate::environment::{Clock as _, Environment, Reporter as _};
use crate::model::PartitionId;

/// How often the memory of the stores is reported.
const MEMORY_REPORT_INTERVAL: Duration = Duration::from_secs(5);

impl<E: Environment> Scheduler<E> {
    /// The partitions that are not taken over until an operator acts, and why.
    pub fn refused_partitions(&self) -> impl Iterator<Item = (PartitionId, &TakeoverError)> {
        self.tasks.values().filter_map(|task| match &task.state {
            PartitionState::Refused(refusal) => Some((task.id, refusal)),
            _ => None,
        })
    }

    /// How many partitions wait until the local clock has caught up with an earlier owner's.
    pub fn partitions_waiting_for_clock(&self) -> usize {
        let waits = |task: &&super::PartitionTask<E::Store>| {
            matches!(task.state, PartitionState::WaitingForClock(_))
        };
        self.tasks.values().filter(waits).count()
    }

    pub(super) fn report_readiness(&self) {
        let refused = self.refused_partitions().next().map(|(_, refusal)| refusal.to_string());
        let refused = refused.or_else(|| self.truncated_logs.reason());
        let active = self.active_partitions().len();
        let all = self.tasks.len() + self.awaited_stores.len();
        self.reporter.partitions_owned(active, all - active);
        if let Some(reason) = refused {
            self.reporter.not_ready("partitions", reason);
        } else if active == all {
            self.reporter.ready("partitions");
        } else {
            self.reporter.not_ready("partitions", format!("{active} of {all} partitions active"));
        }
    }

    /// Reports whether a person must act for the schemas of producers.
    pub(super) fn report_registry(&mut self) {
        let is_paused = self.tasks.values().any(|task| task.pause.is_long(&self.config.timing));
        let full = || "records wait for the schema registry, and no more can be parked".to_owned();
        let reason =
            self.decoder.registry_refusal(self.clock.monotonic()).or_else(|| is_paused.then(full));
        if reason == self.registry_reported {
            return;
        }
        match &reason {
            Some(reason) => self.reporter.not_ready("registry", reason.clone()),
            None => self.reporter.ready("registry"),
        }
        self.registry_reported = reason;
    }

    /// Reports the memory of the stores, if it is time.
    pub(super) fn report_memory(&mut self) {
        let now = self.clock.monotonic();
        if self.measured_at.is_some_and(|at| now < at + MEMORY_REPORT_INTERVAL) {
            return;
        }
        self.measured_at = Some(now);
        // A store that fails here also fails at the next write, which handles the error.
        let memory_of =
            |task: &super::PartitionTask<E::Store>| task.store.memory().unwrap_or_default();
        let mut sum = StoreMemoryUsage::default();
        for memory in self.tasks.values().map(memory_of) {
            sum.memtables += memory.memtables;
            sum.tables += memory.tables;
        }
        self.reporter.store_memory(sum, self.stores.cache_usage());
    }
}
