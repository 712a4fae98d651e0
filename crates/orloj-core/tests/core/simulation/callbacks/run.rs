//! One run: a seed, a phase with faults, and a phase without.
//!
//! Invariant: the same seed is the same run. Faults happen all the time (safety); then they stop,
//! and every fire must have ended within a bound (liveness).

use std::sync::Arc;

use orloj_core::codec::schemas::Schemas;
use orloj_core::model::{Millis, Offset, Timestamp};

use super::owner::Owner;
use super::receivers::{RequestLog, TIMEOUT};
use super::worker_process::{OFFSETS_RETENTION, WorkerProcess, WorkerTurn};
use crate::simulation::cluster::{NODES, PARTITIONS, SimulatedCluster};
use crate::simulation::group::SESSION;
use crate::simulation::process::ClusterSlot;
use crate::simulation::transaction::{LogPlace, OFFSETS, TRANSACTIONS, Topic};

/// Events in a run.
const EVENTS: usize = 4_000;
/// Everything must have ended so long after the last fault, in ms.
const BOUND: Millis = 20_000;
/// The system is idle if nothing is written for so long, in ms.
const QUIET: Millis = 300;
/// No record of `signals` may be larger, in bytes.
const SIGNAL_BYTES_MAX: usize = 2_500;

/// A process, and whether it runs.
enum Process {
    Running { worker: Box<WorkerProcess>, paused_until: Option<(Timestamp, Timestamp)> },
    Down { since: Timestamp, until: Timestamp },
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunFaults {
    pub(super) crashes: u64,
    pub(super) zombies: u64,
    pub(super) rebalances: u64,
    pub(super) left: u64,
    pub(super) expired_offsets: u64,
    /// How often fires were deleted.
    pub(super) deletions: u64,
}

/// A run.
pub(super) struct CallbackRun {
    pub(super) cluster: ClusterSlot,
    pub(super) owner: Owner,
    pub(super) requests: RequestLog,
    pub(super) faults: RunFaults,
    /// Why a process has ended that was neither killed nor asked to.
    pub(super) unexpected_end: Option<String>,
    processes: Vec<Process>,
    starts: u64,
    /// The brokers drop the offsets of the group when it has no members for long.
    offsets_expire: bool,
}

impl CallbackRun {
    pub(super) fn new(seed: u64, schemas: Arc<Schemas>) -> Self {
        let mut cluster = SimulatedCluster::new(seed, 100_000, schemas);
        cluster.skew = 0;
        cluster.signal_bytes_max = Some(SIGNAL_BYTES_MAX);
        let offsets_expire = cluster.rng.one_in(5);
        let mut run = Self {
            cluster: ClusterSlot::new(cluster),
            owner: Owner::default(),
            requests: RequestLog::default(),
            faults: RunFaults::default(),
            unexpected_end: None,
            processes: Vec::new(),
            starts: 0,
            offsets_expire,
        };
        for id in 0..NODES {
            let process = run.start(id);
            run.processes.push(process);
        }
        run
    }

    fn start(&mut self, id: usize) -> Process {
        self.starts += 1;
        let requests = RequestLog::clone(&self.requests);
        let worker = WorkerProcess::start(id, self.starts, requests, &mut self.cluster);
        Process::Running { worker: Box::new(worker), paused_until: None }
    }

    /// The phase with faults.
    pub(super) fn run_with_faults(&mut self) {
        for _ in 0..EVENTS {
            self.cluster.broker.now += self.cluster.rng.pick(&[0, 0, 1, 1, 2]);
            self.cluster.advance();
            self.expire();
            match self.cluster.rng.below(1_000) {
                0..820 => {
                    let id = self.cluster.rng.place(NODES);
                    self.turn(id);
                }
                820..900 => self.owner.act(&mut self.cluster),
                900..985 => self.owner.serve(&mut self.cluster),
                _ => self.inject_fault(),
            }
        }
    }

    /// The phase without faults. Returns whether everything has ended in time.
    pub(super) fn calm(&mut self) -> bool {
        self.cluster.calm_down();
        let now = self.cluster.broker.now;
        for process in &mut self.processes {
            match process {
                Process::Running { paused_until, .. } => *paused_until = None,
                Process::Down { until, .. } => *until = 0,
            }
        }
        let hung_at = self.processes.iter().filter_map(|process| match process {
            Process::Running { worker, .. } => worker.hung_at(),
            Process::Down { .. } => None,
        });
        let since = hung_at.fold(now, Timestamp::max);
        let mut quiet_since = (since, self.cluster.broker.written());
        while self.cluster.broker.now < quiet_since.0 + QUIET + TIMEOUT {
            if self.cluster.broker.now > since + BOUND {
                return false;
            }
            self.cluster.broker.now += 1;
            self.cluster.advance();
            self.expire();
            self.owner.serve(&mut self.cluster);
            (0..NODES).flat_map(|id| [id; 4]).for_each(|id| self.turn(id));
            let written = self.cluster.broker.written();
            if !self.is_at_rest() || written != quiet_since.1 {
                quiet_since = (self.cluster.broker.now, written);
            }
        }
        true
    }

    /// Whether every fire has ended, and the owners know it.
    fn is_at_rest(&self) -> bool {
        self.owner.is_done(&self.cluster) && (0..PARTITIONS).all(|p| self.unfinished(p) == 0)
    }

    /// How many records of a partition are not finished, as far as the lowest one tells.
    fn unfinished(&self, p: usize) -> usize {
        let broker = &self.cluster.broker;
        let committed = broker.group.committed[p].as_ref().map_or(0, |(offset, _)| *offset);
        broker.fires[p].read(&broker.transaction_states, committed, 10).records.len()
    }

    pub(super) fn describe_rest(&self) -> String {
        let left: Vec<usize> = (0..PARTITIONS).map(|p| self.unfinished(p)).collect();
        let committed: Vec<Option<(Offset, String)>> = self.cluster.broker.group.committed.clone();
        format!("{left:?} of {committed:?}, owner: {}", self.owner.is_done(&self.cluster))
    }

    fn expire(&mut self) {
        let _expired = self.cluster.broker.expire_transactions();
        let now = self.cluster.broker.now;
        let SimulatedCluster { broker, rng, .. } = &mut *self.cluster;
        for (id, process) in self.processes.iter().enumerate() {
            let (since, is_running) = match process {
                Process::Down { since, .. } => (*since, false),
                Process::Running { paused_until: Some((since, _)), .. } => (*since, true),
                Process::Running { .. } => continue,
            };
            let is_expelled = since + SESSION <= now && broker.group.expel(id, rng);
            self.faults.zombies += u64::from(is_expelled && is_running);
        }
    }

    fn turn(&mut self, id: usize) {
        let now = self.cluster.broker.now;
        match &mut self.processes[id] {
            Process::Running { paused_until: Some((_, until)), .. } if now < *until => {}
            Process::Running { worker, paused_until } => {
                *paused_until = None;
                let mut turn = WorkerTurn::Runs;
                for _ in 0..1 + self.cluster.rng.below(8) {
                    turn = worker.run_once(&mut self.cluster);
                    if !matches!(turn, WorkerTurn::Runs) {
                        break;
                    }
                    if worker.pauses_now() {
                        return self.pause(id);
                    }
                }
                self.end_turn(id, turn);
            }
            Process::Down { until, .. } if *until <= now => self.processes[id] = self.start(id),
            Process::Down { .. } => {}
        }
    }

    fn end_turn(&mut self, id: usize, turn: WorkerTurn) {
        match turn {
            WorkerTurn::Runs => {}
            WorkerTurn::Left => {
                self.faults.left += 1;
                let SimulatedCluster { broker, rng, .. } = &mut *self.cluster;
                let _was_member = broker.group.expel(id, rng);
                self.stop(id, 20);
            }
            WorkerTurn::Crashed => {
                self.faults.crashes += 1;
                let down = self.cluster.rng.pick(&[1, 10, 60, 300]);
                self.stop(id, down);
            }
            WorkerTurn::Aborted => self.end_unexpectedly(id, format!("worker {id} ended itself")),
            WorkerTurn::Failed(error) => {
                self.end_unexpectedly(id, format!("worker {id} ended: {error}"));
            }
        }
    }

    fn end_unexpectedly(&mut self, id: usize, why: String) {
        self.unexpected_end.get_or_insert(why);
        self.stop(id, 10);
    }

    fn stop(&mut self, id: usize, down: Millis) {
        let now = self.cluster.broker.now;
        self.processes[id] = Process::Down { since: now, until: now + down };
    }

    fn pause(&mut self, id: usize) {
        let (now, length) = (self.cluster.broker.now, self.cluster.rng.pick(&[10, 50, 90, 200]));
        if let Process::Running { paused_until, .. } = &mut self.processes[id] {
            paused_until.get_or_insert((now, now + length));
        }
    }

    /// A fault, somewhere.
    fn inject_fault(&mut self) {
        let id = self.cluster.rng.place(NODES);
        match self.cluster.rng.below(100) {
            0..20 => {
                let calls = self.cluster.rng.pick(&[0, 3, 30, 200]);
                let calls = self.cluster.rng.below(calls + 1) as u32;
                self.with_worker(id, |worker| worker.crash_soon(calls));
            }
            20..40 => self.pause(id),
            40..50 => self.with_worker(id, WorkerProcess::leave),
            50..71 => self.lose_leader(),
            71..75 if self.offsets_expire => self.expire_offsets(),
            75..79 => self.delete_fires(),
            _ => {
                self.faults.rebalances += 1;
                let SimulatedCluster { broker, rng, .. } = &mut *self.cluster;
                broker.group.rebalance(rng);
            }
        }
    }

    fn with_worker(&mut self, id: usize, act: impl FnOnce(&mut WorkerProcess)) {
        if let Process::Running { worker, .. } = &mut self.processes[id] {
            act(worker);
        }
    }

    fn lose_leader(&mut self) {
        let p = self.cluster.rng.place(PARTITIONS);
        let places: [LogPlace; 4] =
            [(Topic::Signals, p), (Topic::Others, p), OFFSETS, TRANSACTIONS];
        let (place, length) = (self.cluster.rng.pick(&places), self.cluster.rng.pick(&[10, 60]));
        let until = self.cluster.broker.now + length;
        self.cluster.broker.lose_leader(place, until);
    }

    /// A retention that is too short deletes fires, all but a few at most.
    fn delete_fires(&mut self) {
        let p = self.cluster.rng.place(PARTITIONS);
        let left = self.cluster.rng.below(4);
        let log = &mut self.cluster.broker.fires[p];
        log.low = log.low.max(log.high().saturating_sub(left));
        self.faults.deletions += 1;
    }

    /// All workers die, and none is started before the brokers have dropped the group's offsets.
    fn expire_offsets(&mut self) {
        self.faults.expired_offsets += 1;
        let until = self.cluster.broker.now + OFFSETS_RETENTION + 10;
        for id in 0..NODES {
            self.stop(id, until - self.cluster.broker.now);
            let SimulatedCluster { broker, rng, .. } = &mut *self.cluster;
            let _was_member = broker.group.expel(id, rng);
        }
        for step in 0..OFFSETS_RETENTION {
            self.cluster.broker.now += 1;
            self.cluster.advance();
            self.expire();
            if step % 200 == 0 {
                self.owner.act(&mut self.cluster);
                self.owner.serve(&mut self.cluster);
            }
        }
        let broker = &mut self.cluster.broker;
        for p in 0..PARTITIONS {
            if broker.stable_offset(p).is_some() {
                broker.group.committed[p] = None;
            }
        }
    }
}
