//! Schedulers in a test environment.
//!
//! Invariant: with the times that production uses.

use std::sync::Arc;
use std::time::Duration;

use super::config::{Mode, ParkingLimits, SchedulerConfig, SchedulerTiming};
use super::config::{TargetPolicy, WheelConfig};
use super::partition_task::PartitionTask;
use super::test_partition::partition_config;
use super::{Scheduler, SchedulerParts};
use crate::codec::schemas::Schemas;
use crate::engine::assignment::AssignmentChange;
use crate::model::names::Names;
use crate::test_environment::store::TestStore;
use crate::test_environment::{NOW, TestEnvironment};

impl TestEnvironment {
    /// A scheduler to which the group has assigned nothing.
    pub(super) fn scheduler(&self) -> Scheduler<Self> {
        self.scheduler_with(config())
    }

    /// A scheduler that owns these partitions. It is [`NOW`].
    pub(super) fn scheduler_owning(
        &self,
        tasks: impl IntoIterator<Item = PartitionTask<TestStore>>,
    ) -> Scheduler<Self> {
        self.clock.set(NOW);
        let mut scheduler = self.scheduler();
        for task in tasks {
            let assigned = AssignmentChange::Assigned(vec![task.id]);
            let _actions = scheduler.assignment.on_assignment_change(assigned, 0);
            let _none = scheduler.tasks.insert(task.id, task);
        }
        scheduler
    }

    pub(super) fn scheduler_with(&self, config: SchedulerConfig) -> Scheduler<Self> {
        for reader in [&self.triggers, &self.signals_and_ledger] {
            reader.reading().clock = self.clock.clone();
        }
        let world = self.clone();
        let parts = SchedulerParts {
            environment: world.clone(),
            clock: world.clock,
            reporter: world.reporter,
            member: world.member,
            triggers: world.triggers,
            signals_and_ledger: world.signals_and_ledger,
            cluster: world.cluster,
            producers: world.producer.clone(),
            producer: (0, world.producer),
            stores: world.stores,
            standby: None,
            codec: Arc::new(Schemas::new()),
            schemas: world.schemas,
            targets: Box::new(AllAllowed),
        };
        let mut scheduler = Scheduler::new(config, parts);
        // All producers but the first are opened and closed.
        scheduler.poll_producer_jobs(Duration::ZERO).unwrap();
        let none = AssignmentChange::Assigned(Vec::new());
        let _actions = scheduler.assignment.on_assignment_change(none, 0);
        scheduler
    }
}

/// Triggers may fire into every topic.
#[derive(Debug)]
struct AllAllowed;

impl TargetPolicy for AllAllowed {
    fn refusal(&self, _topic: &str) -> Option<String> {
        None
    }
}

/// With the times that production uses, and no room for nothing.
pub(super) fn config() -> SchedulerConfig {
    SchedulerConfig {
        partition: partition_config(),
        names: Names::new("o"),
        cluster_id: "here".to_owned(),
        mode: Mode::Guaranteed,
        records_per_step_max: 1_000,
        parking: ParkingLimits { records_max: 1_000, bytes_max: 1_000_000 },
        fires_per_step_max: 1_000,
        partitions_per_commit_max: 10,
        bytes_per_commit_max: usize::MAX,
        commit_interval_min: Duration::ZERO,
        commit_lead_max: Duration::from_millis(50),
        transaction_timeout: Duration::from_secs(10),
        session_timeout: Duration::from_secs(6),
        revocation_grace: 0,
        leave_on_shutdown: true,
        wheel: WheelConfig { tick: 1, horizon: 1_000, memory_max: 1_000_000 },
        write_buffer: 1_000_000,
        state_age_max: Duration::from_secs(3_600),
        lookup_ttl: Duration::from_secs(30),
        restore_threads: 1,
        timing: SchedulerTiming::default(),
    }
}
