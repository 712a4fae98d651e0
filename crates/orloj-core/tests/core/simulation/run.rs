//! One run: a seed, a phase with faults, and a phase without.
//!
//! Invariant: the same seed is the same run. Faults inject_fault all the time (safety); then they
//! stop, and whatever is due must have happened within a bound (liveness).

use std::sync::Arc;

use orloj_core::codec::schemas::Schemas;

use orloj_core::engine::cursor::Cursor;
use orloj_core::model::signal::Signal;
use orloj_core::model::{Millis, Timestamp};

use super::clients::{Users, Workers};
use super::cluster::{CLOCK_STEP, GRACE, NODES, PARTITIONS, SimulatedCluster};
use super::disk::SimulatedDisk;
use super::fault_kinds::FaultKind;
use super::group::SESSION;
use super::node::{NodeTurn, SimulatedNode};
use super::process::ClusterSlot;
use super::replay::{CutLog, DeletedOffsets, Replayed};

/// What is due must have happened so long after the last fault, in ms.
const BOUND: Millis = 2_000;
/// So much later for each record that is parked then, in ms: those that wait for each other are
/// decided in one step after another.
const BOUND_PARKED: Millis = 2;
/// A call that hangs is abandoned, and what it delayed is decided, so long after it began, in ms.
const HANG_MAX: Millis = 1_000;
/// A turn of the loop that lasts longer does not poll the group in time, in ms.
const TURN_MAX: Millis = 60;
/// A process that is not paused has ended so long after it was requested to, in ms.
const LEAVE_MAX: Millis = 1_000;
/// Events in a run.
const EVENTS: usize = 5_000;
/// Once in so many of them time time_jumps, where there is something that recurs.
const JUMP_ONE_IN: u64 = 80;
/// The system is idle if nothing is written for so long after the last due time, in ms. Takeovers
/// that are under way end sooner.
const QUIET: Millis = 800;

/// A process, and whether it runs.
pub(super) enum Process {
    Running { node: Box<SimulatedNode>, paused_until: Option<(Timestamp, Timestamp)> },
    Down { disks: Vec<SimulatedDisk>, since: Timestamp, until: Timestamp },
}

/// Checks what has happened before a replay, which excuses what follows it and nothing else.
/// Returns the first finding.
pub(super) type CheckBeforeReplay = fn(&mut SimulationRun) -> Option<String>;

/// A run.
pub(super) struct SimulationRun {
    pub(super) cluster: ClusterSlot,
    pub(super) users: Users,
    pub(super) replayed: Replayed,
    pub(super) check_before_replay: CheckBeforeReplay,
    /// Its first finding.
    pub(super) found_before_replay: Option<String>,
    /// Why a process refused a partition, if nothing explains it.
    pub(super) unexpected_refusal: Option<String>,
    /// Why a process has ended that was neither killed nor asked to.
    pub(super) unexpected_end: Option<String>,
    /// Of each partition.
    pub(super) deleted: [DeletedOffsets; PARTITIONS],
    /// Of each partition.
    pub(super) cut: [CutLog; PARTITIONS],
    pub(super) processes: Vec<Process>,
    pub(super) workers: Workers,
    /// When the phase without faults began, by the clock of the brokers.
    calm_since: Timestamp,
}

impl SimulationRun {
    pub(super) fn new(seed: u64, schemas: Arc<Schemas>, check: CheckBeforeReplay) -> Self {
        Self::start(SimulatedCluster::new(seed, 100_000, schemas), check)
    }

    /// The same with this cluster.
    pub(super) fn start(cluster: SimulatedCluster, check: CheckBeforeReplay) -> Self {
        let mut cluster = ClusterSlot::new(cluster);
        let users = Users::new(&mut cluster);
        let node = |id, cluster: &mut ClusterSlot| {
            let disks = (0..PARTITIONS).map(|_| SimulatedDisk::default()).collect();
            running(SimulatedNode::start(id, disks, cluster))
        };
        let processes = (0..NODES).map(|id| node(id, &mut cluster)).collect();
        Self {
            cluster,
            users,
            replayed: [None; PARTITIONS],
            check_before_replay: check,
            found_before_replay: None,
            unexpected_refusal: None,
            unexpected_end: None,
            deleted: Default::default(),
            cut: Default::default(),
            processes,
            workers: Workers::default(),
            calm_since: 0,
        }
    }

    /// The phase with faults.
    pub(super) fn run_with_faults(&mut self) {
        if !self.cluster.has_lifecycles && self.cluster.rng.one_in(12) {
            self.cluster.skew = CLOCK_STEP;
            self.stop_all(); // a process is set up for how far clocks are apart
        }
        for _ in 0..EVENTS {
            self.cluster.broker.now += self.cluster.rng.pick(&[0, 0, 1, 1, 2]);
            self.jump();
            self.cluster.advance();
            self.expire();
            match self.cluster.rng.below(1_000) {
                0..820 => {
                    let id = self.cluster.rng.place(NODES);
                    self.turn(id);
                }
                820..900 => self.users.write(&mut self.cluster),
                900..985 => {
                    let p = self.cluster.rng.place(PARTITIONS);
                    self.workers.work(p, &mut self.cluster);
                }
                _ => self.inject_fault(),
            }
        }
    }

    /// No fault but a target that refuses every record.
    pub(super) fn run_with_refusals(&mut self) {
        self.cluster.calm_down();
        self.refuse_records();
        for _ in 0..EVENTS {
            self.cluster.broker.now += 1;
            self.expire();
            let id = self.cluster.rng.place(NODES);
            self.turn(id);
            if self.cluster.rng.one_in(30) {
                self.users.write(&mut self.cluster);
            }
        }
    }

    /// The phase without faults. Returns whether the system became idle in time.
    pub(super) fn calm(&mut self) -> bool {
        self.cluster.calm_down();
        // An owner whose clock is behind waits until it has come to where the one before was.
        let through = (0..PARTITIONS).filter_map(|p| Some(self.cursor(p)?.fired_through.due));
        let calm_since = through.fold(self.cluster.broker.now, Timestamp::max);
        // A call that hangs is abandoned by then.
        let hung_at = self.processes.iter().filter_map(|process| match process {
            Process::Running { node, .. } => node.hung_at(),
            Process::Down { .. } => None,
        });
        self.calm_since = hung_at.fold(calm_since, |since, at| since.max(at + HANG_MAX));
        self.users.end_transaction(&mut self.cluster, |_| true);
        let bound = BOUND + BOUND_PARKED * self.most_parked();
        for process in &mut self.processes {
            match process {
                Process::Running { paused_until, .. } => *paused_until = None,
                Process::Down { until, .. } => *until = 0,
            }
        }
        let mut quiet_since = (self.calm_since, self.cluster.broker.written());
        // Clocks that were set back catch up first, once for each attempt of a callback.
        let (skew, time_jumps) = (self.cluster.skew, self.cluster.time_jumps);
        let step = if time_jumps || skew >= CLOCK_STEP { 10 } else { 2 };
        while self.cluster.broker.now < quiet_since.0 + QUIET {
            // A callback is tried again when its owner has come to it, a bounded number of times.
            let due = self.calm_since.max(self.users.last_due);
            let last = self.last_retry().clamp(due, due + 3 * BOUND);
            if self.cluster.broker.now > last + bound + 10 * skew {
                return false;
            }
            self.cluster.broker.now += step;
            self.expire();
            for id in (0..NODES).flat_map(|id| [id; 4]) {
                self.turn(id);
            }
            (0..PARTITIONS).for_each(|p| self.workers.work(p, &mut self.cluster));
            let written = self.cluster.broker.written();
            if !self.is_at_rest() || written != quiet_since.1 {
                quiet_since = (self.cluster.broker.now, written);
            }
        }
        true
    }

    /// Sometimes the time jumps to about the next full second. Mostly while no transaction is open:
    /// most would expire.
    fn jump(&mut self) {
        let SimulatedCluster { broker, rng, time_jumps, counts, .. } = &mut *self.cluster;
        if !*time_jumps || !rng.one_in(JUMP_ONE_IN) || broker.is_busy() && !rng.one_in(4) {
            return;
        }
        let second = (broker.now / 1_000 + 1) * 1_000;
        let to = second.saturating_add_signed(rng.pick(&[-60, -10, -10, 30, 150, 1_300]));
        broker.jump(to);
        counts.add(FaultKind::TimeJumped);
    }

    pub(super) fn expire(&mut self) {
        let expired = self.cluster.broker.expire_transactions();
        self.cluster.counts.add_many(FaultKind::TransactionExpired, expired);
        let now = self.cluster.broker.now;
        let SimulatedCluster { broker, rng, counts, .. } = &mut *self.cluster;
        for (id, process) in self.processes.iter().enumerate() {
            let (since, holds) = match process {
                Process::Down { since, .. } => (*since, false),
                Process::Running { node, paused_until: Some((since, _)) } => {
                    (*since, node.holds_partitions())
                }
                Process::Running { .. } => continue,
            };
            let expelled = since + SESSION <= now && broker.group.expel(id, rng);
            counts.add_many(FaultKind::Zombie, u64::from(expelled && holds));
        }
    }

    pub(super) fn turn(&mut self, id: usize) {
        let now = self.cluster.broker.now;
        let cluster = &mut self.cluster;
        match &mut self.processes[id] {
            Process::Running { paused_until: Some((_, until)), .. } if now < *until => {}
            Process::Running { node, paused_until } => {
                *paused_until = None;
                let mut turn = NodeTurn::Runs;
                for _ in 0..1 + cluster.rng.below(8) {
                    let began = cluster.broker.now;
                    turn = node.run_once(cluster);
                    let took = cluster.broker.now - began;
                    assert!(took <= TURN_MAX, "a turn of process {id} takes {took} ms");
                    assert!(!node.is_late_to_leave(cluster, LEAVE_MAX), "process {id} goes on");
                    if !matches!(turn, NodeTurn::Runs) {
                        break;
                    }
                    if node.pauses_now() {
                        self.pause(id);
                        return;
                    }
                }
                self.end_turn(id, turn);
            }
            Process::Down { disks, until, .. } if *until <= now => {
                let disks = std::mem::take(disks);
                self.processes[id] = running(SimulatedNode::start(id, disks, cluster));
            }
            Process::Down { .. } => {}
        }
        self.accept_lost_cursors();
    }

    /// What follows from a turn of process `id`.
    pub(super) fn end_turn(&mut self, id: usize, turn: NodeTurn) {
        match turn {
            NodeTurn::Runs => {}
            NodeTurn::Left => {
                let SimulatedCluster { broker, rng, .. } = &mut *self.cluster;
                broker.group.expel(id, rng);
                self.stop(id, 20);
            }
            NodeTurn::Crashed => {
                if let Process::Running { node, .. } = &self.processes[id] {
                    let kind = node.crash_kind();
                    self.cluster.counts.add(kind);
                }
                self.crash(id);
            }
            // It took a pause of its own for a call that hangs.
            NodeTurn::Aborted => self.end_unexpectedly(id, format!("process {id} ended itself")),
            NodeTurn::Failed(error) => {
                self.end_unexpectedly(id, format!("process {id} ended: {error}"));
            }
        }
    }

    fn end_unexpectedly(&mut self, id: usize, why: String) {
        self.unexpected_end.get_or_insert(why);
        self.crash(id);
    }

    /// A fault, somewhere.
    fn inject_fault(&mut self) {
        let id = self.cluster.rng.place(NODES);
        match self.cluster.rng.below(100) {
            0..14 => {
                let calls = self.cluster.rng.pick(&[0, 3, 30, 200]);
                let calls = self.cluster.rng.below(calls + 1) as u32;
                self.with_node(id, |node, _| node.crash_soon(calls));
            }
            14..24 => self.pause(id),
            24..30 => self.with_node(id, |node, cluster| node.leave(cluster)),
            30..44 => {
                self.cluster.counts.add(FaultKind::Rebalance);
                let SimulatedCluster { broker, rng, .. } = &mut *self.cluster;
                broker.group.rebalance(rng);
            }
            44..58 => self.with_node(id, |node, cluster| {
                let steps = cluster.skew >= CLOCK_STEP;
                cluster.counts.add(FaultKind::ClockMoved);
                cluster.counts.add_many(FaultKind::ClockStepped, u64::from(steps));
                node.move_clock(cluster);
            }),
            58..75 => self.compact(),
            75 => self.cluster.leave_lookups_unanswered(),
            76 => self.silence_leader(),
            77 => self.move_leader(),
            78..81 => self.cluster.lose_registry(),
            81 => self.cut_triggers(),
            82..84 => self.delete_triggers(),
            84 => self.lag_behind(),
            85 => self.answer_with_old_end(),
            86 => self.delete_unread(),
            87..91 => self.lose_topic(),
            91..94 => self.refuse_records(),
            94..98 => self.cluster.lose_leader(),
            _ => self.outage(),
        }
    }

    pub(super) fn with_node(
        &mut self,
        id: usize,
        act: impl FnOnce(&mut SimulatedNode, &mut SimulatedCluster),
    ) {
        if let Process::Running { node, .. } = &mut self.processes[id] {
            act(node, &mut self.cluster);
        }
    }

    /// A crash takes its disks back to the last flush, or unavailable.
    pub(super) fn crash(&mut self, id: usize) {
        let down = self.cluster.rng.pick(&[1, 1, 10, 10, 60, 900]);
        self.crash_for(id, down);
    }

    /// The same; it starts again after so long, in ms.
    pub(super) fn crash_for(&mut self, id: usize, down: Millis) {
        let Process::Running { node, .. } = &mut self.processes[id] else { return };
        let lost = self.cluster.rng.one_in(3);
        let mut disks = node.take_disks();
        for disk in &mut disks {
            if lost {
                disk.wipe();
                self.cluster.counts.add(FaultKind::DiskLost);
            } else {
                let was_during_pass = disk.is_followed && disk.has_loose_rows;
                let count = u64::from(was_during_pass);
                self.cluster.counts.add_many(FaultKind::CrashDuringPass, count);
                disk.crash();
            }
        }
        let since = self.cluster.broker.now;
        self.processes[id] = Process::Down { disks, since, until: since + down };
    }

    fn stop(&mut self, id: usize, down: Millis) {
        let now = self.cluster.broker.now;
        if let Process::Running { node, .. } = &mut self.processes[id] {
            let disks = node.take_disks();
            self.processes[id] = Process::Down { disks, since: now, until: now + down };
        }
    }

    /// A process is paused, perhaps for so long that it loses its partitions and continues as a
    /// zombie.
    fn pause(&mut self, id: usize) {
        let length = self.cluster.rng.pick(&[10, 50, 90]);
        self.pause_for(id, length);
    }

    /// The same, for so long, in ms.
    pub(super) fn pause_for(&mut self, id: usize, length: Millis) {
        let now = self.cluster.broker.now;
        if let Process::Running { paused_until, node } = &mut self.processes[id] {
            node.note_pause(length);
            paused_until.get_or_insert((now, now + length));
        }
    }

    /// The committed cursor, unless an operator has moved it.
    pub(super) fn cursor(&self, p: usize) -> Option<Cursor> {
        let (offset, metadata) = self.cluster.broker.group.committed[p].as_ref()?;
        Cursor::from_metadata(*offset, metadata).ok().map(|(cursor, _owner)| cursor)
    }

    /// How many records of a partition may be parked, of the one with the most.
    fn most_parked(&self) -> u64 {
        let parked = |cursor: Cursor| cursor.next_offset - cursor.decided_until();
        (0..PARTITIONS).filter_map(|p| self.cursor(p)).map(parked).max().unwrap_or(0)
    }

    /// Whether the last due time has passed and all inputs are decided. An owner may still fire
    /// what was due: it writes then.
    fn is_at_rest(&self) -> bool {
        // Past the beginning of this phase, too: every partition has an owner that goes on.
        let last = self.users.last_due.max(self.last_retry()).max(self.calm_since);
        let broker = &self.cluster.broker;
        let states = &broker.transaction_states;
        let is_decided = |p: usize| {
            let Some(cursor) = self.cursor(p) else { return false };
            let triggers = broker.triggers[p].read(states, cursor.next_offset, 1);
            let signals = broker.signals[p].read(states, cursor.next_signal_offset, 1);
            triggers.records.is_empty()
                && triggers.ended
                && signals.records.is_empty()
                && signals.ended
        };
        broker.now > last + self.cluster.skew + GRACE
            && self.workers.are_done(&self.cluster)
            && (0..PARTITIONS).all(is_decided)
    }

    fn last_retry(&self) -> Timestamp {
        let broker = &self.cluster.broker;
        let due = |p: usize| {
            let retry = |signal: &Signal| match signal {
                Signal::Retry(request) => Some(request.due),
                _ => None,
            };
            let signals = broker.signals[p].committed(&broker.transaction_states);
            signals.filter_map(|(_, _, signal)| retry(signal)).max()
        };
        (0..PARTITIONS).filter_map(due).max().unwrap_or(0)
    }
}

fn running(node: SimulatedNode) -> Process {
    Process::Running { node: Box::new(node), paused_until: None }
}
