//! The world of one process: what it shares with the others, and what is its own. Here the traits
//! of `orloj_core::environment` meet the simulated cluster.
//!
//! Invariant: the scheduler above is the production one. It may die at each call of the world.

mod clock;
mod cluster_queries;
mod environment;
mod log_reader;
mod member;
mod producer;
mod queue;
mod registry;
mod reporter;
mod sent_record;
mod stores;

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orloj_core::environment::call_error::{CallError, CallResult};
use orloj_core::model::{Millis, Timestamp};

pub(super) use clock::SimulatedClock;
pub(super) use cluster_queries::SimulatedQueries;
pub(super) use environment::{
    ProcessQueues, SimulatedEnvironment, swap_reached, take_counted, takeovers_started,
};
pub(super) use log_reader::SimulatedLogReader;
pub(super) use member::{SimulatedGroup, SimulatedMember};
pub(super) use producer::{MESSAGE_TIMEOUT, SimulatedProducer, SimulatedProducers};
pub(super) use queue::JobSteps;
pub(super) use registry::SimulatedSchemas;
pub(super) use reporter::SimulatedReporter;
pub(super) use stores::SimulatedStores;

use super::cluster::{PARTITIONS, SimulatedCluster, TransactionFaults};
use super::disk::SimulatedDisk;
use super::fault_kinds::FaultKind;
use super::group::{Membership, NodeId};

/// The longest timeout of a call, in ms.
const CALL_TIMEOUT: Millis = 60;
/// For how long a call hangs that should have returned, in ms.
const HANGS: [Millis; 2] = [1_000, 5_000];
/// How many calls may hang at the same time.
const HANGING_MAX: usize = 3;
/// How long a request waits for a leader, in ms.
const LEADER_TIMEOUT: Millis = 500;

/// What ends a process at once, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    /// It crashed.
    Crash,
    /// It ended itself, because a call did not return.
    Abort,
}

/// The cluster while a process uses it, and while none does.
#[derive(Clone, Default)]
pub(super) struct ClusterLoan(Arc<Mutex<Option<Box<SimulatedCluster>>>>);

impl ClusterLoan {
    pub(super) fn lend(&self, cluster: Box<SimulatedCluster>) {
        *lock(&self.0) = Some(cluster);
    }

    pub(super) fn take_back(&self) -> Box<SimulatedCluster> {
        lock(&self.0).take().expect("it was lent")
    }
}

/// The cluster, except while a process uses it.
pub(super) struct ClusterSlot(Option<Box<SimulatedCluster>>);

impl ClusterSlot {
    pub(super) fn new(cluster: SimulatedCluster) -> Self {
        Self(Some(Box::new(cluster)))
    }

    pub(super) fn lend(&mut self, to: &ClusterLoan) {
        to.lend(self.0.take().expect("one process acts at a time"));
    }

    pub(super) fn take_back(&mut self, from: &ClusterLoan) {
        self.0 = Some(from.take_back());
    }
}

impl Deref for ClusterSlot {
    type Target = SimulatedCluster;

    fn deref(&self) -> &SimulatedCluster {
        self.0.as_ref().expect("no process uses it")
    }
}

impl DerefMut for ClusterSlot {
    fn deref_mut(&mut self) -> &mut SimulatedCluster {
        self.0.as_mut().expect("no process uses it")
    }
}

/// What belongs to one process.
pub(super) struct ProcessState {
    pub(super) id: NodeId,
    /// By how many ms its clock is ahead of true time.
    pub(super) skew: i64,
    /// The latest time its clock has shown, or would have shown had it not been set back, and the
    /// true time then.
    pub(super) shown: (Timestamp, Timestamp),
    /// How far ahead of its clock it decides at most, in ms.
    pub(super) lead_max: Timestamp,
    /// Of ten times that the loop looks for the result of a job, it is not there yet so often.
    pub(super) late_of_ten: u64,
    /// How long the calls of the running step of a job take, in ms; `None` while none runs.
    pub(super) job_takes: Option<Millis>,
    /// How many calls have hung.
    pub(super) hangs: usize,
    /// When a call of the last transaction began to hang, in ms since the epoch.
    pub(super) hung_at: Option<Timestamp>,
    /// The next transaction hangs.
    pub(super) hangs_next: bool,
    /// How many queues of transactions it has started.
    pub(super) committers: u32,
    /// A queue whose jobs do not go on.
    pub(super) held_queue: Option<&'static str>,
    /// The number of the producers that it uses.
    pub(super) producers: usize,
    /// It is paused after this turn.
    pub(super) pauses_now: bool,
    /// It crashes at the call after so many.
    pub(super) crash_after: Option<u32>,
    pub(super) membership: Membership,
    /// Nodes that were not members when it has asked for these the last time.
    pub(super) absent: Vec<NodeId>,
    /// The membership of the last assignment.
    pub(super) reported_session: Option<u64>,
    /// The coordinator has answered that it is not a member.
    pub(super) is_lost: bool,
    /// It must join again at the next poll.
    pub(super) must_join: bool,
    /// It was expelled while its client waits until revoked partitions are released.
    pub(super) is_rebalancing: bool,
    /// It has joined as another member, and has no assignment yet.
    pub(super) awaits_assignment: bool,
    pub(super) is_leaving: bool,
    /// How often each partition was assigned to it, and when the last time, in ms since the epoch.
    pub(super) assignments: [(u64, Timestamp); PARTITIONS],
    /// What it was assigned and has not released.
    pub(super) held: BTreeSet<usize>,
    /// Those of them that it must release.
    pub(super) revoked: BTreeSet<usize>,
    /// The number of the takeover of each partition.
    pub(super) takeovers: [u64; PARTITIONS],
    /// The writer schemas that the registry has answered it.
    pub(super) known_schemas: BTreeSet<u32>,
    /// Since when the schema registry has denied it access to a schema, on the monotonic clock.
    pub(super) denied_since: Option<Duration>,
    pub(super) disks: Vec<SimulatedDisk>,
    /// When the standby has read the cursor of its pass, in true time.
    pub(super) cursor_read_at: Timestamp,
    /// The name of the job that acts; empty if it is the loop.
    pub(super) job: &'static str,
}

impl ProcessState {
    /// A process that starts at `now`, with a clock that shows true time.
    pub(super) fn new(
        id: NodeId,
        membership: Membership,
        now: Timestamp,
        disks: Vec<SimulatedDisk>,
    ) -> Self {
        Self {
            id,
            skew: 0,
            shown: (0, now),
            lead_max: 0,
            late_of_ten: 0,
            job_takes: None,
            hangs: 0,
            hung_at: None,
            hangs_next: false,
            committers: 0,
            held_queue: None,
            producers: 0,
            pauses_now: false,
            crash_after: None,
            membership,
            absent: Vec::new(),
            reported_session: None,
            is_lost: false,
            must_join: false,
            is_rebalancing: false,
            awaits_assignment: false,
            is_leaving: false,
            assignments: [(0, 0); PARTITIONS],
            held: BTreeSet::new(),
            revoked: BTreeSet::new(),
            takeovers: [0; PARTITIONS],
            known_schemas: BTreeSet::new(),
            denied_since: None,
            disks,
            cursor_read_at: 0,
            job: "",
        }
    }

    /// Whether the standby acts.
    pub(super) fn is_standby(&self) -> bool {
        self.job == "standby"
    }
}

/// One process.
#[derive(Clone)]
pub(super) struct SimulatedProcess {
    loan: ClusterLoan,
    state: Arc<Mutex<ProcessState>>,
}

impl SimulatedProcess {
    pub(super) fn new(loan: ClusterLoan, state: ProcessState) -> Self {
        Self { loan, state: Arc::new(Mutex::new(state)) }
    }

    /// A call of the world: what it does with the cluster and with the process.
    pub(super) fn call<T>(
        &self,
        act: impl FnOnce(&mut SimulatedCluster, &mut ProcessState) -> T,
    ) -> T {
        self.crash_if_due();
        let mut cluster = lock(&self.loan.0);
        act(cluster.as_mut().expect("a process acts in its turn"), &mut self.state())
    }

    /// The state, without a call.
    pub(super) fn state(&self) -> MutexGuard<'_, ProcessState> {
        lock(&self.state)
    }

    /// True time, in ms since the epoch, without a call.
    pub(super) fn true_time(&self) -> Timestamp {
        lock(&self.loan.0).as_ref().expect("a process acts in its turn").broker.now
    }

    fn crash_if_due(&self) {
        let mut state = self.state();
        if let Some(left) = &mut state.crash_after {
            if *left == 0 {
                drop(state);
                std::panic::resume_unwind(Box::new(ProcessEnd::Crash));
            }
            *left -= 1;
        }
    }
}

/// A crash unwinds with a lock held; what it protects is consistent at every call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request about a partition, which waits for its leader: so does the thread of the job that sent
/// it, or the loop.
fn wait_for_leader(
    cluster: &mut SimulatedCluster,
    state: &mut ProcessState,
    p: usize,
) -> CallResult<()> {
    if cluster.leaderless_partition != Some(p) {
        return Ok(());
    }
    match &mut state.job_takes {
        Some(took) => *took += LEADER_TIMEOUT,
        None => cluster.broker.now += LEADER_TIMEOUT,
    }
    Err(CallError::new("the partition has no leader"))
}

/// A call that gets no response: sometimes it takes its whole timeout, if a job makes it. The loop
/// makes none that does.
fn wait_for_response(cluster: &mut SimulatedCluster, state: &mut ProcessState) {
    if let Some(took) = &mut state.job_takes
        && cluster.rng.one_in(3)
    {
        cluster.counts.add(FaultKind::CallTimedOut);
        *took += cluster.rng.pick(&[5, 30, CALL_TIMEOUT]);
    }
}

/// A call of a transaction that may return much later than it should. Returns whether its request
/// is late, too.
fn hang_sometimes(cluster: &mut SimulatedCluster, state: &mut ProcessState) -> bool {
    let may_hang = !matches!(cluster.failing, TransactionFaults::Some { .. });
    let hangs = std::mem::take(&mut state.hangs_next) || may_hang && cluster.fails(400);
    if hangs {
        let length = cluster.rng.pick(&HANGS);
        cluster.counts.add(FaultKind::CallHung);
        (state.hangs, state.hung_at) = (state.hangs + 1, Some(cluster.broker.now));
        *state.job_takes.as_mut().expect("a job makes the calls of transactions") += length;
    }
    hangs && cluster.rng.one_in(2)
}

/// A question that may get no response.
fn ask(cluster: &mut SimulatedCluster, state: &mut ProcessState) -> CallResult<()> {
    let asked = cluster.fail_sometimes();
    if asked.is_err() {
        wait_for_response(cluster, state);
    }
    asked
}

/// A partition as an index into the tables of a run.
pub(super) fn index(partition: orloj_core::model::PartitionId) -> usize {
    usize::try_from(partition).unwrap()
}

/// The name of the topic after its prefix.
fn suffix(topic: &str) -> &str {
    topic.strip_prefix("o.").unwrap_or("")
}
