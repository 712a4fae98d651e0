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

/// A record that is parked for longer needs a person. A registry is started again in less, and one
/// schema to which access is denied is none of the scheduler's faults at first.
const PARKED_MAX: Duration = Duration::from_secs(600);

/// What was reported last of the schemas of producers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RegistryReport {
    /// Records that are parked.
    records: usize,
    /// The age of the oldest, in whole seconds.
    oldest: Duration,
    state: RegistryReadiness,
}

/// Whether the registry gives what is needed.
#[derive(Debug, Default, PartialEq, Eq)]
enum RegistryReadiness {
    #[default]
    Ready,
    Remark(String),
    NotReady(String),
}

impl RegistryReadiness {
    /// `is_full`: no more can be parked; `oldest`: the age of the oldest parked record; `refusal`:
    /// what the registry answers instead of a schema.
    fn new(is_full: bool, oldest: Duration, refusal: Option<String>) -> Self {
        let reason = if is_full {
            "records wait for the schema registry, and no more can be parked"
        } else if oldest >= PARKED_MAX {
            "records have waited for the schema registry for ten minutes"
        } else {
            return refusal.map_or(Self::Ready, Self::Remark);
        };
        let refusal = refusal.map(|refusal| format!(": {refusal}")).unwrap_or_default();
        Self::NotReady(format!("{reason}{refusal}"))
    }
}

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
        let refused =
            refused.or_else(|| self.tasks.keys().find_map(|id| self.truncated_logs.reason(*id)));
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

    /// Reports what is parked, and whether a person must act for the schemas of producers.
    pub(super) fn report_registry(&mut self) {
        let is_full = self.tasks.values().any(|task| task.pause.is_long(&self.config.timing));
        let records: usize = self.tasks.values().map(|task| task.parking.len()).sum();
        let oldest = self.tasks.values().filter_map(|task| task.parking.oldest()).min();
        let age = oldest.map_or(0, |at| self.clock.now_ms().saturating_sub(at));
        let oldest = Duration::from_secs(age / 1_000);
        let refusal = self.decoder.registry_refusal(self.clock.monotonic());
        let state = RegistryReadiness::new(is_full, oldest, refusal);
        let report = RegistryReport { records, oldest, state };
        if report == self.registry_reported {
            return;
        }
        self.reporter.parked(records, oldest);
        match &report.state {
            RegistryReadiness::Ready => self.reporter.ready("registry"),
            RegistryReadiness::Remark(text) => {
                self.reporter.ready_with_remark("registry", text.clone());
            }
            RegistryReadiness::NotReady(reason) => {
                self.reporter.not_ready("registry", reason.clone());
            }
        }
        self.registry_reported = report;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_schema_that_is_denied_is_a_remark_until_its_records_have_waited_for_long() {
        let denied = || Some("the schema registry answers 403".to_owned());
        let state = |is_full, seconds, refusal| {
            RegistryReadiness::new(is_full, Duration::from_secs(seconds), refusal)
        };
        assert_eq!(state(false, 599, None), RegistryReadiness::Ready, "it may be starting");
        assert_eq!(state(false, 599, denied()), RegistryReadiness::Remark(denied().unwrap()));
        let not_ready = |state| matches!(state, RegistryReadiness::NotReady(_));
        assert!(not_ready(state(false, 600, None)) && not_ready(state(true, 0, None)));
        match state(false, 600, denied()) {
            RegistryReadiness::NotReady(text) => assert!(text.ends_with("answers 403"), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}
