//! A scheduler process: the production scheduler in a simulated world.
//!
//! Invariant: nothing of the scheduler is repeated here. A node does a turn of the loop or a step
//! of a job, whichever is chosen, and may die in the middle of either.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use orloj_core::codec::schemas::Schemas;
use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::partition::LIFECYCLE_COST;
use orloj_core::engine::takeover::TakeoverError;
use orloj_core::environment::transaction::ProducerFactory as _;
use orloj_core::model::names::Names;
use orloj_core::model::{Millis, Offset, PartitionId, Timestamp};
use orloj_core::scheduler::config::{
    Mode, SchedulerConfig, SchedulerTiming, TargetPolicy, WheelConfig,
};
use orloj_core::scheduler::{LoopError, Scheduler, SchedulerParts};

use super::cluster::{PARTITIONS, SimulatedCluster};
use super::disk::SimulatedDisk;
use super::fault_kinds::FaultKind;
use super::group::{NodeId, transactional_id};
use super::process::{
    ClusterLoan, ClusterSlot, ProcessEnd, ProcessQueues, ProcessState, SimulatedClock,
    SimulatedEnvironment, SimulatedLogReader, SimulatedMember, SimulatedProcess,
    SimulatedProducers, SimulatedQueries, SimulatedReporter, SimulatedStandby, SimulatedStores,
    index, swap_reached,
};
use super::standby::{PassEnd, SimulatedStandbyRead, pass};

/// A running process.
pub(super) struct SimulatedNode {
    loan: ClusterLoan,
    process: SimulatedProcess,
    queues: ProcessQueues,
    scheduler: Scheduler<SimulatedEnvironment>,
    /// A partition that it is a standby of, the cursor that it has read, and when.
    followed: Option<(usize, Cursor, Timestamp)>,
    is_shut_down: bool,
    /// The last point in the code that it has reached.
    reached: &'static str,
}

/// What a turn has led to.
#[derive(Debug)]
pub(super) enum NodeTurn {
    Runs,
    /// It has released everything and ended.
    Left,
    Crashed,
    /// It ended itself.
    Aborted,
    /// It ended with an error.
    Failed(LoopError),
}

/// Every topic may be fired into.
#[derive(Debug)]
struct AllTopics;

impl TargetPolicy for AllTopics {
    fn refusal(&self, _topic: &str) -> Option<String> {
        None
    }
}

impl SimulatedNode {
    /// A process starts with the disks that an earlier one left.
    pub(super) fn start(id: NodeId, disks: Vec<SimulatedDisk>, cluster: &mut ClusterSlot) -> Self {
        let ledger_after = cluster.rng.pick(&[50, 50, 90]);
        if ledger_after != 50 {
            cluster.counts.add(FaultKind::SettingsChanged);
        }
        let lead_max = cluster.rng.pick(&[0, 0, 3, 20]);
        let config = config(id, ledger_after, lead_max, cluster);
        let SimulatedCluster { broker, rng, .. } = &mut **cluster;
        let membership = broker.group.join(id, rng);
        let state = ProcessState {
            id,
            skew: cluster.any_skew(),
            shown: (0, cluster.broker.now),
            lead_max,
            late_of_ten: cluster.rng.pick(&[0, 2, 6]),
            has_producers: false,
            pauses_now: false,
            crash_after: None,
            membership,
            is_lost: false,
            must_join: false,
            is_leaving: false,
            held: std::collections::BTreeSet::new(),
            revoked: std::collections::BTreeSet::new(),
            takeovers: [0; PARTITIONS],
            disks,
        };
        let loan = ClusterLoan::default();
        let process = SimulatedProcess::new(loan.clone(), state);
        let queues: ProcessQueues = Rc::new(RefCell::new(Vec::new()));
        let codec = Arc::clone(&cluster.reader.schemas);
        cluster.lend(&loan);
        let scheduler = Scheduler::new(config, parts(&process, &queues, codec));
        cluster.take_back(&loan);
        Self { loan, process, queues, scheduler, followed: None, is_shut_down: false, reached: "" }
    }

    pub(super) fn move_clock(&mut self, cluster: &mut SimulatedCluster) {
        self.process.state().skew = cluster.any_skew();
    }

    /// Starts to release all partitions.
    pub(super) fn leave(&mut self) {
        self.is_shut_down = true;
    }

    /// It crashes soon, at any of its next calls.
    pub(super) fn crash_soon(&mut self, calls: u32) {
        let _earlier = self.process.state().crash_after.get_or_insert(calls);
    }

    /// All its stores fail from now on, until they are wiped.
    pub(super) fn fail_stores(&mut self) {
        let mut state = self.process.state();
        state.disks.iter_mut().for_each(|disk| disk.has_failed = true);
    }

    /// Whether it is paused now, of its own accord.
    pub(super) fn pauses_now(&self) -> bool {
        std::mem::take(&mut self.process.state().pauses_now)
    }

    /// At which point it crashed.
    pub(super) fn crash_kind(&self) -> FaultKind {
        match self.reached {
            "step.sealed" => FaultKind::CrashBeforeSend,
            "step.sent" | "commit.before_offsets" | "commit.before_end" => {
                FaultKind::CrashBeforeCommit
            }
            "commit.after_end" | "step.before_settle" => FaultKind::CrashBeforeApply,
            point if point.starts_with("takeover.") => FaultKind::CrashInTakeover,
            _ => FaultKind::CrashAfterApply,
        }
    }

    pub(super) fn holds_partitions(&self) -> bool {
        !self.process.state().held.is_empty()
    }

    /// What a process that has ended leaves.
    pub(super) fn take_disks(&mut self) -> Vec<SimulatedDisk> {
        std::mem::take(&mut self.process.state().disks)
    }

    /// The partitions whose cursor is lost, and the offset that the error names.
    pub(super) fn lost_cursors(&self) -> Vec<(usize, Offset)> {
        let lost = |(id, refusal): (PartitionId, &TakeoverError)| match refusal {
            TakeoverError::CursorLost { offset, .. } => Some((index(id), *offset)),
            TakeoverError::TakenOverByOther { .. } => None,
            other => panic!("{other}"),
        };
        self.scheduler.refused_partitions().filter_map(lost).collect()
    }

    /// A turn of the loop, or a step of a job.
    pub(super) fn run_once(&mut self, cluster: &mut ClusterSlot) -> NodeTurn {
        if cluster.rng.one_in(40) {
            self.follow_standby(cluster);
        }
        let (runs_job, choice) = (cluster.rng.one_in(2), cluster.rng.place(1 << 10));
        cluster.lend(&self.loan);
        let _other = swap_reached(self.reached);
        let waiting = self.scheduler.partitions_waiting_for_clock();
        let turn = catch_unwind(AssertUnwindSafe(|| self.act(runs_job, choice)));
        self.reached = swap_reached("");
        cluster.take_back(&self.loan);
        let more = self.scheduler.partitions_waiting_for_clock().saturating_sub(waiting);
        cluster.counts.add_many(FaultKind::ClockBehindWatermark, more as u64);
        match turn {
            Ok(Ok(false)) => NodeTurn::Runs,
            Ok(Ok(true)) => NodeTurn::Left,
            Ok(Err(error)) => NodeTurn::Failed(error),
            Err(end) => match end.downcast_ref() {
                Some(ProcessEnd::Crash) => NodeTurn::Crashed,
                Some(ProcessEnd::Abort) => NodeTurn::Aborted,
                None => resume_unwind(end),
            },
        }
    }

    /// Returns whether the process has left.
    fn act(&mut self, runs_job: bool, choice: usize) -> Result<bool, LoopError> {
        let queues = self.queues.borrow();
        let busy: Vec<_> = queues.iter().filter(|queue| queue.borrow().has_jobs()).collect();
        if runs_job && !busy.is_empty() {
            busy[choice % busy.len()].borrow_mut().step(choice);
            return Ok(false);
        }
        drop(busy);
        drop(queues);
        if self.is_shut_down {
            return self.scheduler.leave();
        }
        self.scheduler.poll_once().map(|()| false)
    }

    /// Keeps the store of a partition that another node owns nearly up to date: reads the cursor;
    /// later, while the ledger's newest records are still there, makes a catch-up pass.
    fn follow_standby(&mut self, cluster: &mut SimulatedCluster) {
        let now = cluster.broker.now;
        let Some((id, cursor, at)) = self.followed.take() else {
            let id = cluster.rng.place(PARTITIONS);
            let metadata =
                cluster.broker.stable_offset(id).and_then(|committed| committed.committed);
            let cursor =
                metadata.and_then(|(n, metadata)| Cursor::from_metadata(n, &metadata).ok());
            self.followed = cursor.map(|(cursor, _owner)| (id, cursor, now));
            return;
        };
        let mut state = self.process.state();
        if state.held.contains(&id) || now >= at + cluster.compaction_lag {
            return;
        }
        let breaks = match cluster.rng.below(8) {
            0 => Some(SimulatedStandbyRead::Ledger),
            1 => Some(SimulatedStandbyRead::Triggers),
            _ => None,
        };
        let clock = at.saturating_add_signed(state.skew);
        match pass(id, cursor, &mut state.disks[id], clock, cluster, breaks) {
            PassEnd::Missing => {}
            PassEnd::Broken => cluster.counts.add(FaultKind::PassAborted),
            PassEnd::Whole => cluster.counts.add(FaultKind::Followed),
        }
    }
}

fn parts(
    process: &SimulatedProcess,
    queues: &ProcessQueues,
    codec: Arc<Schemas>,
) -> SchedulerParts<SimulatedEnvironment> {
    let producers = SimulatedProducers(process.clone());
    let producer = loop {
        if let Ok(producer) = producers.open() {
            break producer;
        }
    };
    SchedulerParts {
        environment: SimulatedEnvironment { process: process.clone(), queues: Rc::clone(queues) },
        clock: SimulatedClock(process.clone()),
        reporter: SimulatedReporter,
        member: SimulatedMember(process.clone()),
        triggers: SimulatedLogReader::new(process.clone()),
        signals_and_ledger: SimulatedLogReader::new(process.clone()),
        cluster: SimulatedQueries(process.clone()),
        producers,
        producer,
        stores: Arc::new(SimulatedStores(process.clone())),
        standby: None::<SimulatedStandby>,
        codec,
        schemas: super::process::NoWriterSchemas,
        targets: Box::new(AllTopics),
    }
}

/// Settings that are often smaller than the work needs. Times are those of a run.
fn config(
    id: NodeId,
    ledger_after: Millis,
    lead_max: Millis,
    cluster: &mut SimulatedCluster,
) -> SchedulerConfig {
    let partition = cluster.rules(transactional_id(id), ledger_after);
    let (tick, horizon, memory_max) = cluster.wheel();
    let ms = Duration::from_millis;
    SchedulerConfig {
        records_per_step_max: cluster.rng.pick(&[1, 5, 50, 1_000]),
        fires_per_step_max: cluster.rng.pick(&[1, 2, 50, 1_000])
            * cluster.rng.pick(&[1, LIFECYCLE_COST]),
        partitions_per_commit_max: 1 + cluster.rng.place(PARTITIONS),
        write_buffer: partition.spill_bytes as u64 * PARTITIONS as u64,
        partition,
        names: Names::new("o"),
        cluster_id: String::new(),
        mode: Mode::Guaranteed,
        commit_interval_min: ms(cluster.rng.pick(&[0, 0, 2])),
        commit_lead_max: ms(lead_max),
        transaction_timeout: ms(cluster.broker.transaction_timeout),
        revocation_grace: cluster.rng.pick(&[0, 3, 10]),
        leave_on_shutdown: true,
        wheel: WheelConfig { tick, horizon, memory_max: memory_max as u64 * PARTITIONS as u64 },
        state_age_max: ms(cluster.state_age_max()),
        lookup_ttl: ms(5),
        restore_threads: 2,
        timing: SchedulerTiming {
            end_offset_interval: ms(cluster.rng.pick(&[0, 1, 3])),
            ledger_end_rounds: cluster.rng.pick(&[1, 3]),
            stall: cluster.rng.pick(&[2, 10]),
            end_retry: cluster.rng.pick(&[1, 5]),
            registry_retry: 5,
            unreachable_ttl: 1,
            leave_timeout: ms(5_000),
            firing_max: ms(cluster.rng.pick(&[1, 1, 50])),
            turn_max: ms(5),
        },
    }
}
