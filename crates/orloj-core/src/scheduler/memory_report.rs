//! Reports the memory of the partitions and of their stores.
//!
//! Invariant: a store is asked beside the loop, because it may answer only when a flush has ended.
//! One report at a time, and a store that was released is closed after it.

use std::sync::Arc;
use std::time::Duration;

use super::Scheduler;
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::store::{RowStore, StoreDirectory as _, StoreMemoryUsage};
use crate::environment::{Clock as _, Environment, PartitionBytes, Reporter as _};

/// How often the memory of the stores is reported.
const INTERVAL: Duration = Duration::from_secs(5);

/// When the memory is measured, and by what.
pub(super) struct MemoryReport<E: Environment> {
    queue: E::Queue<MemoryJob<E::Store>>,
    /// When it was measured last, on the monotonic clock.
    measured_at: Option<Duration>,
    /// The same of the partitions, which do not wait for a store.
    reported_at: Option<Duration>,
}

impl<E: Environment> MemoryReport<E> {
    pub(super) fn start(environment: &E) -> Self {
        let queue = environment.start_queue("memory", Threads::Fixed(1), || ());
        Self { queue, measured_at: None, reported_at: None }
    }

    /// Whether it is time to measure, at `now` on the monotonic clock.
    fn is_due(&mut self, now: Duration) -> bool {
        let is_due = self.queue.in_flight() == 0 && is_time(self.measured_at, now);
        if is_due {
            self.measured_at = Some(now);
        }
        is_due
    }
}

fn is_time(last: Option<Duration>, now: Duration) -> bool {
    last.is_none_or(|at| now >= at + INTERVAL)
}

/// Adds up the memory of some stores.
#[derive(Debug)]
pub(super) struct MemoryJob<S> {
    left: Vec<Arc<S>>,
    sum: StoreMemoryUsage,
}

impl<S: RowStore> Job for MemoryJob<S> {
    type Output = StoreMemoryUsage;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<StoreMemoryUsage> {
        let Some(store) = self.left.pop() else { return JobStep::Done(self.sum) };
        // A store that fails here also fails at the next write, which handles the error.
        let memory = store.memory().unwrap_or_default();
        self.sum.memtables += memory.memtables;
        self.sum.tables += memory.tables;
        JobStep::Continue
    }
}

impl<E: Environment> Scheduler<E> {
    /// Reports the memory of the partitions if it is time, and has that of the stores measured,
    /// which is reported later.
    pub(super) fn report_memory(&mut self) {
        while let Some(sum) = self.memory_report.queue.poll(Duration::ZERO) {
            self.reporter.store_memory(sum, self.stores.cache_usage());
        }
        let now = self.clock.monotonic();
        if self.memory_report.is_due(now) {
            let left = self.tasks.values().map(|task| Arc::clone(&task.store)).collect();
            let job = MemoryJob { left, sum: StoreMemoryUsage::default() };
            self.memory_report.queue.submit(job);
        }
        if is_time(self.memory_report.reported_at, now) {
            self.memory_report.reported_at = Some(now);
            let mut bytes = PartitionBytes::default();
            self.tasks.values().for_each(|task| bytes += task.memory());
            self.reporter.partition_memory(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::test_partition::active_at;
    use crate::test_environment::TestEnvironment;
    use crate::test_environment::clock::{MS, SECOND};

    #[test]
    fn the_memory_of_all_stores_is_reported_every_five_seconds() {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler();
        for (id, memtables, tables) in [(0, 1, 20), (1, 300, 4_000)] {
            let task = active_at(id);
            task.store.contents().memory = StoreMemoryUsage { memtables, tables };
            let _none = scheduler.tasks.insert(id, task);
        }
        let mut reports = || {
            scheduler.report_memory();
            std::mem::take(&mut world.reporter.reported().memory)
        };
        let report = (StoreMemoryUsage { memtables: 301, tables: 4_020 }, 77);
        assert_eq!(reports(), [], "it is measured beside the loop");
        assert_eq!(reports(), [report]);
        world.clock.advance(SECOND * 5 - MS);
        assert_eq!(reports(), []);
        world.clock.advance(MS);
        assert_eq!(reports(), []);
        assert_eq!(reports(), [report]);
    }

    #[test]
    fn one_report_at_a_time_is_measured() {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler();
        scheduler.report_memory();
        let measured = scheduler.memory_report.queue.take();
        assert!(measured.left.is_empty());
        scheduler.memory_report.queue.submit(measured);
        assert!(!scheduler.memory_report.is_due(INTERVAL * 2), "the last one is not done");
    }

    /// Also while a store flushes, and does not answer.
    #[test]
    fn the_memory_of_partitions_is_reported_every_five_seconds() {
        let world = TestEnvironment::default();
        world.hold("memory");
        let mut scheduler = world.scheduler();
        let report = |scheduler: &mut Scheduler<TestEnvironment>| {
            world.reporter.reported().partition_memory = None;
            scheduler.report_memory();
            world.reporter.reported().partition_memory
        };
        assert_eq!(report(&mut scheduler), Some(PartitionBytes::default()));
        assert_eq!(report(&mut scheduler), None);
        world.clock.advance(SECOND * 5);
        assert!(report(&mut scheduler).is_some(), "the stores have not answered yet");
    }
}
