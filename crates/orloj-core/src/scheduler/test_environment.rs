//! The environment of a scheduler for tests of its methods: a test sets what is answered, and reads
//! what was asked for.
//!
//! Invariant: it decides nothing. A job is done when its queue is polled, unless the queue is held.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::config::{Mode, ParkingLimits, SchedulerConfig, SchedulerTiming};
use super::config::{TargetPolicy, WheelConfig};
use super::partition_task::PartitionTask;
use super::test_clock::TestClock;
use super::test_cluster::{TestCluster, TestGroup, TestSchemas};
use super::test_member::TestMember;
use super::test_partition::partition_config;
use super::test_producer::TestProducer;
use super::test_reader::TestReader;
use super::test_reporter::TestReporter;
use super::test_store::{TestStore, TestStores};
use super::{Scheduler, SchedulerParts};
use crate::codec::schemas::Schemas;
use crate::engine::assignment::AssignmentChange;
use crate::environment::job::{Job, JobQueue, JobStep, Threads};
use crate::environment::{Environment, ProcessEnvironment};
use crate::model::Timestamp;
use crate::model::names::Names;

/// When a scheduler that owns partitions starts, in ms since the epoch.
pub(crate) const NOW: Timestamp = 1_000_000;

/// What a scheduler works with. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestEnvironment {
    pub(crate) clock: TestClock,
    pub(crate) reporter: TestReporter,
    pub(crate) triggers: TestReader,
    pub(crate) signals_and_ledger: TestReader,
    pub(crate) cluster: TestCluster,
    pub(crate) member: TestMember,
    pub(crate) producer: TestProducer,
    pub(crate) stores: Arc<TestStores>,
    pub(crate) schemas: TestSchemas,
    /// The queues whose jobs are not done.
    held: Arc<Mutex<BTreeSet<&'static str>>>,
    nonces: Arc<AtomicU64>,
}

impl TestEnvironment {
    /// The jobs of this queue are not done until it is let go.
    pub(crate) fn hold(&self, queue: &'static str) {
        let _new = self.held.lock().unwrap().insert(queue);
    }

    /// The jobs of this queue are done when it is polled.
    pub(crate) fn let_go(&self, queue: &'static str) {
        let _was = self.held.lock().unwrap().remove(queue);
    }

    /// The next number that no other call returns is this one.
    pub(crate) fn set_nonce(&self, nonce: u64) {
        self.nonces.store(nonce, Ordering::SeqCst);
    }

    /// A scheduler that owns nothing.
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

impl ProcessEnvironment for TestEnvironment {
    type Clock = TestClock;
    type Reader = TestReader;
    type Member = TestMember;
    type Producer = TestProducer;
    type Producers = TestProducer;
    type Cluster = TestCluster;
    type Reporter = TestReporter;
    type Queue<J: Job> = TestQueue<J>;

    fn start_queue<J: Job>(
        &self,
        name: &'static str,
        threads: Threads,
        worker: impl Fn() -> J::Worker + Send + Sync + 'static,
    ) -> TestQueue<J> {
        TestQueue { name, threads, world: self.clone(), jobs: VecDeque::new(), worker: worker() }
    }

    fn reached(_point: &'static str) {}

    fn abort(&self) -> ! {
        panic!("the process ends")
    }
}

impl Environment for TestEnvironment {
    type Store = TestStore;
    type Stores = TestStores;
    type Group = TestGroup;
    type Schemas = TestSchemas;

    fn nonce(&self) -> u64 {
        self.nonces.fetch_add(1, Ordering::SeqCst)
    }
}

/// Jobs that are done in the order of submission.
#[derive(Debug)]
pub(crate) struct TestQueue<J: Job> {
    name: &'static str,
    threads: Threads,
    world: TestEnvironment,
    jobs: VecDeque<J>,
    worker: J::Worker,
}

impl<J: Job> TestQueue<J> {
    /// The first job, for a test that does its steps.
    pub(crate) fn take(&mut self) -> J {
        self.jobs.pop_front().expect("a job was submitted")
    }
}

impl<J: Job> JobQueue<J> for TestQueue<J> {
    fn submit(&mut self, job: J) {
        self.jobs.push_back(job);
    }

    /// Does the first job, until it pauses; and then the others, if each has a thread of its own.
    /// The clock moves if there is nothing to return.
    fn poll(&mut self, timeout: Duration) -> Option<J::Output> {
        let is_held = self.world.held.lock().unwrap().contains(self.name);
        let mut place = 0;
        while !is_held && let Some(job) = self.jobs.get_mut(place) {
            match job.step(&mut self.worker) {
                JobStep::Continue => {}
                JobStep::Pause(_) if matches!(self.threads, Threads::PerJob) => place += 1,
                JobStep::Pause(_) => break,
                JobStep::Done(output) => {
                    self.jobs.remove(place).expect("it is done").on_delivered();
                    return Some(output);
                }
            }
        }
        self.world.clock.advance(timeout);
        None
    }

    fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    fn drain(&mut self) -> Vec<J::Output> {
        std::iter::from_fn(|| self.poll(Duration::ZERO)).collect()
    }
}
