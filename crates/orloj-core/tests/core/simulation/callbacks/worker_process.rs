//! A worker process: the production worker in a simulated world.
//!
//! Invariant: nothing of the worker is repeated here. A process does a turn of the loop or a step
//! of a job, whichever is chosen, and may die in the middle of either.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use orloj_core::environment::transaction::{PRODUCERS_MAX, ProducerFactory as _};
use orloj_core::model::names::Names;
use orloj_core::model::retry::RetryPolicy;
use orloj_core::model::{Millis, Timestamp};
use orloj_core::worker::circuit::CircuitBreakerSettings;
use orloj_core::worker::config::{WorkerConfig, WorkerTiming};
use orloj_core::worker::deferral::DeferralDelays;
use orloj_core::worker::queue::QueueBounds;
use orloj_core::worker::{Worker, WorkerLoopError, WorkerParts};

use super::receivers::{RequestLog, SimulatedCallbacks, TIMEOUT};
use crate::simulation::cluster::SimulatedCluster;
use crate::simulation::group::{NodeId, transactional_id};
use crate::simulation::process::{
    ClusterLoan, ClusterSlot, ProcessEnd, ProcessQueues, ProcessState, SimulatedClock,
    SimulatedEnvironment, SimulatedLogReader, SimulatedMember, SimulatedProcess,
    SimulatedProducers, SimulatedQueries, SimulatedReporter, swap_reached,
};

/// How long the brokers keep the offsets of a group without members, in ms.
pub(super) const OFFSETS_RETENTION: Millis = 2_000;

/// What a turn has led to.
#[derive(Debug)]
pub(super) enum WorkerTurn {
    Runs,
    /// It has ended as requested.
    Left,
    Crashed,
    /// It ended itself.
    Aborted,
    /// It ended with an error.
    Failed(WorkerLoopError),
}

/// A running worker.
pub(super) struct WorkerProcess {
    loan: ClusterLoan,
    process: SimulatedProcess,
    queues: ProcessQueues,
    worker: Worker<SimulatedEnvironment>,
    is_leaving: bool,
    reached: &'static str,
}

impl WorkerProcess {
    pub(super) fn start(
        id: NodeId,
        start: u64,
        requests: RequestLog,
        cluster: &mut ClusterSlot,
    ) -> Self {
        let config = config(id, cluster);
        let SimulatedCluster { broker, rng, .. } = &mut **cluster;
        let membership = broker.group.join(id, rng);
        let now = broker.now;
        let state = ProcessState {
            late_of_ten: cluster.rng.pick(&[0, 2, 6]),
            ..ProcessState::new(id, membership, now, Vec::new())
        };
        let loan = ClusterLoan::default();
        let process = SimulatedProcess::new(loan.clone(), state);
        let queues: ProcessQueues = Rc::new(RefCell::new(Vec::new()));
        let schemas = Arc::clone(&cluster.reader.schemas);
        cluster.lend(&loan);
        let producers = SimulatedProducers(process.clone());
        let mut numbers = (0..PRODUCERS_MAX).cycle();
        let producer = loop {
            let number = numbers.next().expect("without end");
            if let Ok(producer) = producers.open(number) {
                process.state().producers = number;
                break (number, producer);
            }
            process.call(|cluster, _| cluster.broker.now += 1);
        };
        let parts = WorkerParts {
            environment: SimulatedEnvironment {
                process: process.clone(),
                queues: Rc::clone(&queues),
            },
            clock: SimulatedClock(process.clone()),
            reporter: SimulatedReporter,
            member: SimulatedMember(process.clone()),
            reader: SimulatedLogReader::new(process.clone()),
            cluster: SimulatedQueries(process.clone()),
            producers,
            producer,
            callbacks: SimulatedCallbacks::new(process.clone(), start, requests),
            schemas,
        };
        let worker = Worker::new(config, parts);
        cluster.take_back(&loan);
        Self { loan, process, queues, worker, is_leaving: false, reached: "" }
    }

    /// It finishes its callbacks and ends.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// It crashes soon, at any of its next calls.
    pub(super) fn crash_soon(&mut self, calls: u32) {
        let _earlier = self.process.state().crash_after.get_or_insert(calls);
    }

    /// Whether it is paused now, of its own accord.
    pub(super) fn pauses_now(&self) -> bool {
        std::mem::take(&mut self.process.state().pauses_now)
    }

    /// When a call of its last transaction began to hang, in ms since the epoch.
    pub(super) fn hung_at(&self) -> Option<Timestamp> {
        self.process.state().hung_at
    }

    /// A turn of the loop, or a step of a job.
    pub(super) fn run_once(&mut self, cluster: &mut ClusterSlot) -> WorkerTurn {
        let (runs_job, choice) = (cluster.rng.one_in(2), cluster.rng.place(1 << 10));
        cluster.lend(&self.loan);
        let _other = swap_reached(self.reached);
        let turn = catch_unwind(AssertUnwindSafe(|| self.act(runs_job, choice)));
        self.reached = swap_reached("");
        cluster.take_back(&self.loan);
        match turn {
            Ok(Ok(false)) => WorkerTurn::Runs,
            Ok(Ok(true)) => WorkerTurn::Left,
            Ok(Err(error)) => WorkerTurn::Failed(error),
            Err(end) => match end.downcast_ref() {
                Some(ProcessEnd::Crash) => WorkerTurn::Crashed,
                Some(ProcessEnd::Abort) => WorkerTurn::Aborted,
                None => resume_unwind(end),
            },
        }
    }

    /// Returns whether the process has ended.
    fn act(&mut self, runs_job: bool, choice: usize) -> Result<bool, WorkerLoopError> {
        let queues = self.queues.borrow();
        let busy = queues.iter().map(|queue| queue.borrow_mut()).filter(|jobs| jobs.has_jobs());
        let mut busy: Vec<_> = busy.collect();
        let count = busy.len();
        if runs_job && count > 0 {
            let _goes_on = busy[choice % count].step(choice);
            return Ok(false);
        }
        drop(busy);
        drop(queues);
        if self.is_leaving { self.worker.leave() } else { self.worker.poll_once().map(|()| false) }
    }
}

/// Settings that are often smaller than the work needs. Times are those of a run.
fn config(id: NodeId, cluster: &mut SimulatedCluster) -> WorkerConfig {
    let (rng, ms) = (&mut cluster.rng, Duration::from_millis);
    let names = Names::new("o");
    WorkerConfig {
        topic: names.fires(),
        names,
        id: transactional_id(id).as_str().into(),
        name: transactional_id(id).as_str().into(),
        default_retry_policy: RetryPolicy::from_pauses(vec![10, 10]),
        in_flight_max: rng.pick(&[2, 8, 100]),
        queue: QueueBounds {
            fires: rng.pick(&[5, 50]),
            bytes: rng.pick(&[4_000, 1 << 20]),
            in_progress_bytes: rng.pick(&[2_000, 1 << 20]),
        },
        results_bytes_max: rng.pick(&[5_000, 1 << 20]),
        commit_bytes_max: rng.pick(&[1, 3_000, 1 << 20]),
        commit_interval: ms(rng.pick(&[1, 5, 20])),
        circuits: CircuitBreakerSettings {
            window: ms(50),
            attempts_min: rng.pick(&[4, 1_000]),
            failures_percent: 50,
            open_duration: ms(20),
            probes_required: 2,
            circuits_max: 10,
        },
        deferral: DeferralDelays {
            first: ms(2),
            longest: ms(20),
            after_probe: ms(10),
            bytes_per_second_max: rng.pick(&[200_000, 1 << 30]),
        },
        transaction_timeout: ms(60),
        drain_max: ms(2 * TIMEOUT),
        fetch_timeout: ms(5),
        offsets_retention: ms(OFFSETS_RETENTION),
        timing: WorkerTiming {
            overrun_max: ms(60),
            turn_max: ms(5),
            producers_late: ms(rng.pick(&[1, 5])),
            retry_pause: ms(2),
            position_pause: ms(rng.pick(&[1, 5])),
            call_timeout: ms(10),
            slow_callback: ms(rng.pick(&[2, 10, TIMEOUT])),
        },
    }
}
