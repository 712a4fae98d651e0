//! The environment of a process for tests of its methods: a test sets what is answered, and reads
//! what was asked for.
//!
//! Invariant: it decides nothing. A job is done when its queue is polled, unless the queue is held.

pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod member;
pub(crate) mod producer;
pub(crate) mod reader;
pub(crate) mod reporter;
pub(crate) mod store;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clock::TestClock;
use cluster::{TestCluster, TestGroup, TestSchemas};
use member::TestMember;
use producer::TestProducer;
use reader::TestReader;
use reporter::TestReporter;
use store::{TestStore, TestStores};

use crate::environment::job::{Job, JobQueue, JobStep, Threads};
use crate::environment::{Environment, ProcessEnvironment};
use crate::model::Timestamp;

/// When a process that owns partitions starts, in ms since the epoch.
pub(crate) const NOW: Timestamp = 1_000_000;

/// What a process works with. Clones share it.
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
