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
use orloj_core::engine::takeover::TakeoverError;
use orloj_core::environment::transaction::{PRODUCERS_MAX, ProducerFactory as _};
use orloj_core::model::names::Names;
use orloj_core::model::{Millis, Offset, PartitionId, Timestamp};
use orloj_core::scheduler::config::{
    Mode, ParkingLimits, SchedulerConfig, SchedulerTiming, StandbyConfig, TargetPolicy, WheelConfig,
};
use orloj_core::scheduler::standby::StandbyParts;
use orloj_core::scheduler::{LoopError, Scheduler, SchedulerParts};

use super::cluster::{PARTITIONS, SimulatedCluster};
use super::disk::SimulatedDisk;
use super::fault_kinds::FaultKind;
use super::group::{NodeId, SESSION, transactional_id};
use super::process::{
    ClusterLoan, ClusterSlot, ProcessEnd, ProcessQueues, ProcessState, SimulatedClock,
    SimulatedEnvironment, SimulatedGroup, SimulatedLogReader, SimulatedMember, SimulatedProcess,
    SimulatedProducers, SimulatedQueries, SimulatedReporter, SimulatedSchemas, SimulatedStores,
    index, swap_reached, take_counted,
};

/// A running process.
pub(super) struct SimulatedNode {
    loan: ClusterLoan,
    process: SimulatedProcess,
    queues: ProcessQueues,
    scheduler: Scheduler<SimulatedEnvironment>,
    /// When it was requested to leave; later by the pauses since.
    leaves_since: Option<Timestamp>,
    /// The last point in the code that it has reached.
    reached: &'static str,
}

/// What acts in a turn of a process.
#[derive(Clone, Copy, Debug)]
struct TurnChoice {
    /// The standby, before the others.
    follows: bool,
    /// A job instead of the loop.
    runs_job: bool,
    /// Of which job, and for how long.
    choice: usize,
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
    pub(super) fn start(
        id: NodeId,
        mut disks: Vec<SimulatedDisk>,
        cluster: &mut ClusterSlot,
    ) -> Self {
        disks.iter_mut().for_each(SimulatedDisk::close);
        let ledger_after = cluster.rng.pick(&[50, 50, 90]);
        if ledger_after != 50 {
            cluster.counts.add(FaultKind::SettingsChanged);
        }
        let lead_max = cluster.rng.pick(&[0, 0, 3, 20]);
        let config = config(id, ledger_after, lead_max, cluster);
        let SimulatedCluster { broker, rng, .. } = &mut **cluster;
        let membership = broker.group.join(id, rng);
        let now = broker.now;
        let state = ProcessState {
            skew: cluster.any_skew(),
            lead_max,
            late_of_ten: cluster.rng.pick(&[0, 2, 6]),
            ..ProcessState::new(id, membership, now, disks)
        };
        let loan = ClusterLoan::default();
        let process = SimulatedProcess::new(loan.clone(), state);
        let standby = standby(&process, cluster);
        let queues: ProcessQueues = Rc::new(RefCell::new(Vec::new()));
        let codec = Arc::clone(&cluster.reader.schemas);
        cluster.lend(&loan);
        let mut parts = parts(&process, &queues, codec);
        parts.standby = standby;
        let scheduler = Scheduler::new(config, parts);
        cluster.take_back(&loan);
        Self { loan, process, queues, scheduler, leaves_since: None, reached: "" }
    }

    pub(super) fn move_clock(&mut self, cluster: &mut SimulatedCluster) {
        self.process.state().skew = cluster.any_skew();
    }

    /// Starts to release all partitions.
    pub(super) fn leave(&mut self, cluster: &SimulatedCluster) {
        let _earlier = self.leaves_since.get_or_insert(cluster.broker.now - cluster.broker.jumped);
    }

    /// A pause does not count as a part of the time in which it leaves.
    pub(super) fn note_pause(&mut self, length: Millis) {
        self.leaves_since = self.leaves_since.map(|since| since + length);
    }

    /// Whether it was requested to leave more than `bound` ms ago.
    pub(super) fn is_late_to_leave(&self, cluster: &SimulatedCluster, bound: Millis) -> bool {
        let now = cluster.broker.now.saturating_sub(cluster.broker.jumped);
        self.leaves_since.is_some_and(|since| now > since + bound)
    }

    /// It crashes soon, at any of its next calls.
    pub(super) fn crash_soon(&mut self, calls: u32) {
        let _earlier = self.process.state().crash_after.get_or_insert(calls);
    }

    /// The last point in the code that it has reached.
    pub(super) fn last_reached(&self) -> &'static str {
        self.reached
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

    /// The store of partition `p` fails from now on, until it is deleted.
    pub(super) fn fail_store(&self, p: usize) {
        self.process.state().disks[p].has_failed = true;
    }

    /// The store of a partition can be neither deleted nor opened.
    pub(super) fn refuse_to_open(&self, p: usize, refuse: bool) {
        self.process.state().disks[p].is_refused = refuse;
    }

    /// Its clock shows true time.
    pub(super) fn set_exact_clock(&self) {
        self.process.state().skew = 0;
    }

    /// When a call of its last transaction began to hang, in ms since the epoch.
    pub(super) fn hung_at(&self) -> Option<Timestamp> {
        self.process.state().hung_at
    }

    /// A call of its next transaction hangs.
    pub(super) fn hang_next_transaction(&mut self) {
        self.process.state().hangs_next = true;
    }

    /// The jobs of this queue do not go on.
    pub(super) fn hold_queue(&self, name: &'static str) {
        self.process.state().held_queue = Some(name);
    }

    pub(super) fn holds_partitions(&self) -> bool {
        !self.process.state().held.is_empty()
    }

    /// What a process that has ended leaves.
    pub(super) fn take_disks(&mut self) -> Vec<SimulatedDisk> {
        std::mem::take(&mut self.process.state().disks)
    }

    /// Why it has not taken partition `p` over, if an operator must act first.
    pub(super) fn refusal(&self, p: usize) -> Option<String> {
        let refused = self.scheduler.refused_partitions();
        { refused }.find(|(id, _)| index(*id) == p).map(|(_, refusal)| refusal.to_string())
    }

    /// The partitions whose cursor is lost, and the offset that the error names.
    pub(super) fn lost_cursors(&self) -> Vec<(usize, Offset)> {
        let lost = |(id, refusal): (PartitionId, &TakeoverError)| match refusal {
            TakeoverError::CursorLost { offset, .. } => Some((index(id), *offset)),
            _ => None,
        };
        self.scheduler.refused_partitions().filter_map(lost).collect()
    }

    /// Whether it does not take over a partition because its log is shorter than it was read.
    pub(super) fn is_refused_as_cut(&self, p: usize) -> bool {
        let mut refused = self.scheduler.refused_partitions();
        refused.any(|(id, refusal)| {
            index(id) == p
                && matches!(
                    refusal,
                    TakeoverError::TopicTruncated { .. } | TakeoverError::WrittenAgain { .. }
                )
        })
    }

    /// Why it refuses a partition, if nothing of what happens in a run explains it. `is_cut` tells
    /// whether the log of a partition was cut.
    pub(super) fn unexpected_refusal(&self, is_cut: impl Fn(usize) -> bool) -> Option<String> {
        let unexpected = |(id, refusal): (PartitionId, &TakeoverError)| match refusal {
            TakeoverError::WrittenAgain { .. } if is_cut(index(id)) => None,
            TakeoverError::CursorLost { .. }
            | TakeoverError::TakenOverByOther { .. }
            | TakeoverError::TopicTruncated { .. } => None,
            other => Some(other.to_string()),
        };
        self.scheduler.refused_partitions().find_map(unexpected)
    }

    /// A turn of the loop, or a step of a job.
    pub(super) fn run_once(&mut self, cluster: &mut ClusterSlot) -> NodeTurn {
        let turn = TurnChoice {
            follows: cluster.rng.one_in(8),
            runs_job: cluster.rng.one_in(2),
            choice: cluster.rng.place(1 << 10),
        };
        cluster.lend(&self.loan);
        let _other = swap_reached(self.reached);
        let waiting = self.scheduler.partitions_waiting_for_clock();
        let turn = catch_unwind(AssertUnwindSafe(|| self.act(turn)));
        self.reached = swap_reached("");
        cluster.take_back(&self.loan);
        take_counted().into_iter().for_each(|kind| cluster.counts.add(kind));
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
    fn act(&mut self, turn: TurnChoice) -> Result<bool, LoopError> {
        let TurnChoice { follows, runs_job, choice } = turn;
        let queues = self.queues.borrow();
        let busy = queues.iter().map(|queue| queue.borrow_mut()).filter(|jobs| jobs.has_jobs());
        let (mut standby, mut busy): (Vec<_>, Vec<_>) =
            busy.partition(|jobs| jobs.name() == "standby");
        if let Some(standby) = standby.first_mut().filter(|_| follows) {
            let steps = [1, 2, 8, 64][choice % 4];
            let _pauses = (0..steps).any(|_| !standby.step(0));
        }
        let count = busy.len();
        if runs_job && count > 0 {
            let _goes_on = busy[choice % count].step(choice);
            return Ok(false);
        }
        drop((standby, busy));
        drop(queues);
        if self.leaves_since.is_some() {
            return self.scheduler.leave();
        }
        self.scheduler.poll_once().map(|()| false)
    }
}

fn parts(
    process: &SimulatedProcess,
    queues: &ProcessQueues,
    codec: Arc<Schemas>,
) -> SchedulerParts<SimulatedEnvironment> {
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
        standby: None,
        codec,
        schemas: SimulatedSchemas(process.clone()),
        targets: Box::new(AllTopics),
    }
}

/// A standby, unless the ledger may be compacted while a pass reads it.
fn standby(
    process: &SimulatedProcess,
    cluster: &mut SimulatedCluster,
) -> Option<StandbyParts<SimulatedEnvironment>> {
    let ms = Duration::from_millis;
    let pass_max = cluster.compaction_lag.checked_sub(1)?;
    Some(StandbyParts {
        config: StandbyConfig {
            replicas: cluster.rng.place(3),
            member_id_prefix: format!("{}-", transactional_id(process.state().id)),
            flush_interval: ms(cluster.rng.pick(&[0, 20])),
            round_pause: Duration::ZERO,
            members_interval: ms(cluster.rng.pick(&[0, 5, 50])),
            read_timeout: ms(10),
            pass_max: ms(pass_max),
            batch: cluster.rng.pick(&[1, 5, 50]),
        },
        ledger: SimulatedLogReader::new(process.clone()),
        triggers: SimulatedLogReader::new(process.clone()),
        cluster: SimulatedQueries(process.clone()),
        group: SimulatedGroup(process.clone()),
        schemas: SimulatedSchemas(process.clone()),
    })
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
        parking: ParkingLimits {
            records_max: cluster.rng.pick(&[3, 30, 1_000]),
            bytes_max: cluster.rng.pick(&[500, 1 << 20]),
        },
        fires_per_step_max: cluster.fires_per_step_max(),
        partitions_per_commit_max: 1 + cluster.rng.place(PARTITIONS),
        bytes_per_commit_max: partition.bytes_per_step_max * 2,
        write_buffer: partition.spill_bytes as u64 * PARTITIONS as u64,
        partition,
        names: Names::new("o"),
        cluster_id: String::new(),
        mode: Mode::Guaranteed,
        commit_interval_min: ms(cluster.rng.pick(&[0, 0, 2])),
        commit_lead_max: ms(lead_max),
        transaction_timeout: ms(cluster.broker.transaction_timeout),
        session_timeout: ms(SESSION),
        revocation_grace: cluster.rng.pick(&[0, 3, 10]),
        leave_on_shutdown: true,
        wheel: WheelConfig { tick, horizon, memory_max: memory_max as u64 * PARTITIONS as u64 },
        state_age_max: ms(cluster.state_age_max()),
        lookup_ttl: ms(60),
        restore_threads: 2,
        timing: SchedulerTiming {
            end_offset_interval: ms(cluster.end_offset_interval()),
            ledger_end_rounds: cluster.rng.pick(&[1, 3]),
            leader_silence_max: ms(20),
            leaders_interval: ms(10),
            stall: ms(cluster.rng.pick(&[2, 10])),
            end_retry: ms(cluster.rng.pick(&[1, 5])),
            silence_max: ms(cluster.rng.pick(&[5, 50])),
            truncated_retry: ms(3),
            store_retry: ms(5),
            clock_skew: ms(2 * cluster.skew),
            full_max: ms(cluster.rng.pick(&[0, 2])),
            registry_retry: ms(5),
            parked_retry: ms(cluster.rng.pick(&[0, 1, 5])),
            unreachable_ttl: 1,
            leave_timeout: ms(5_000),
            reading_max: ms(cluster.rng.pick(&[1, 1, 50])),
            firing_max: ms(cluster.rng.pick(&[1, 1, 50])),
            overrun_max: ms(60),
            turn_max: ms(5),
            slow_lookup_interval: ms(cluster.rng.pick(&[5, 20])),
            producers_late: ms(cluster.rng.pick(&[1, 5])),
        },
    }
}
