//! The environment of the production scheduler in a run.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use orloj_core::environment::job::{Job, Threads};
use orloj_core::environment::{Environment, ProcessEnvironment};

use super::queue::SimulatedQueue;
use super::stores::SimulatedStore;
use super::{
    HANGING_MAX, JobSteps, ProcessEnd, SimulatedClock, SimulatedGroup, SimulatedLogReader,
    SimulatedMember, SimulatedProcess, SimulatedProducer, SimulatedProducers, SimulatedQueries,
    SimulatedReporter, SimulatedSchemas, SimulatedStores,
};
use crate::simulation::fault_kinds::FaultKind;

/// All job queues of a process.
pub(in crate::simulation) type ProcessQueues = Rc<RefCell<Vec<Rc<RefCell<dyn JobSteps>>>>>;

std::thread_local! {
    /// The point that the running process has reached last.
    static REACHED: Cell<&'static str> = const { Cell::new("") };
    /// The points that the running process has reached and that are counted.
    static COUNTED: RefCell<Vec<FaultKind>> = const { RefCell::new(Vec::new()) };
    /// How many takeovers it has started.
    static TAKEOVERS: Cell<u64> = const { Cell::new(0) };
}

/// What the process has reached since the last call, of the points that are counted.
pub(in crate::simulation) fn take_counted() -> Vec<FaultKind> {
    COUNTED.take()
}

/// How many takeovers all processes of this thread have started.
pub(in crate::simulation) fn takeovers_started() -> u64 {
    TAKEOVERS.get()
}

/// Goes on with a process whose last point this was; returns that of the process before it.
pub(in crate::simulation) fn swap_reached(point: &'static str) -> &'static str {
    REACHED.replace(point)
}

/// The world of a process.
pub(in crate::simulation) struct SimulatedEnvironment {
    pub(in crate::simulation) process: SimulatedProcess,
    pub(in crate::simulation) queues: ProcessQueues,
}

impl ProcessEnvironment for SimulatedEnvironment {
    type Clock = SimulatedClock;
    type Reader = SimulatedLogReader;
    type Member = SimulatedMember;
    type Producer = SimulatedProducer;
    type Producers = SimulatedProducers;
    type Cluster = SimulatedQueries;
    type Reporter = SimulatedReporter;
    type Queue<J: Job> = SimulatedQueue<J>;

    fn start_queue<J: Job>(
        &self,
        name: &'static str,
        threads: Threads,
        worker: impl Fn() -> J::Worker + Send + Sync + 'static,
    ) -> SimulatedQueue<J> {
        if name == "committer" {
            self.on_committer_started();
        }
        let queue = SimulatedQueue::new(self.process.clone(), name, threads, worker());
        self.queues.borrow_mut().push(queue.steps());
        queue
    }

    fn reached(point: &'static str) {
        REACHED.set(point);
        COUNTED.with_borrow_mut(|counted| counted.extend(FaultKind::of_point(point)));
        TAKEOVERS.set(TAKEOVERS.get() + u64::from(point == "takeover.before_offsets"));
    }

    fn abort(&self) -> ! {
        let too_many_hang = self.process.state().hangs > HANGING_MAX;
        let end = if too_many_hang { ProcessEnd::Crash } else { ProcessEnd::Abort };
        std::panic::resume_unwind(Box::new(end))
    }
}

impl Environment for SimulatedEnvironment {
    type Store = SimulatedStore;
    type Stores = SimulatedStores;
    type Group = SimulatedGroup;
    type Schemas = SimulatedSchemas;

    fn nonce(&self) -> u64 {
        self.process.call(|cluster, _| cluster.next_takeover_number())
    }
}

impl SimulatedEnvironment {
    /// A process starts a second queue for its transactions only if a call of the last one hangs.
    fn on_committer_started(&self) {
        let mut state = self.process.state();
        state.committers += 1;
        if state.committers > 1 && state.hung_at.is_none() {
            drop(state);
            std::panic::resume_unwind(Box::new(ProcessEnd::Abort));
        }
    }
}
