//! One run: a seed, its faults, and then calm.
//!
//! Invariant: the same seed is the same run. Faults strike all the time (safety); then they stop,
//! and whatever is due must have happened within a bound (liveness).

use std::collections::BTreeSet;

use orloj_core::engine::cursor::Cursor;
use orloj_core::model::ledger::{LedgerRecord, LedgerValue};
use orloj_core::model::signal::Signal;
use orloj_core::model::{Millis, Offset, Timestamp};

use super::calamity::Calamity;
use super::disk::SimulatedDisk;
use super::lane::SimulatedTaskState;
use super::node::SimulatedNode;
use super::people::{Users, Workers};
use super::site::{PARTITIONS, SimulatedCluster};

/// Processes.
const NODES: usize = 3;
/// A process that is silent for so long is no member any more, in ms.
const SESSION: Millis = 40;
/// What is due must have happened after so much calm, in ms.
const BOUND: Millis = 2_000;
/// How many things happen in a run.
const EVENTS: usize = 5_000;
/// Once in so many of them time leaps, where there is something that recurs.
const LEAPS: u64 = 80;
/// Looks in a row that must find everything at rest: what a worker says may set something free.
const RESTS: u32 = 20;

/// A process, and whether it runs.
enum Process {
    Running { node: Box<SimulatedNode>, silent_until: Option<(Timestamp, Timestamp)> },
    Down { disks: Vec<SimulatedDisk>, since: Timestamp, until: Timestamp },
}

/// What an operator has asked for by a replay of a partition: what is repeated is what was asked
/// for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedReplay {
    /// Records of `triggers` from here on count as new.
    pub(super) from: Offset,
    /// What was sent after so many records came after it: see
    /// [`SimulatedSend::order`](super::broker::SimulatedSend).
    pub(super) since: u64,
}

/// Of each partition.
pub(super) type Replayed = [Option<RequestedReplay>; PARTITIONS];

/// A run.
pub(super) struct SimulationRun {
    pub(super) site: SimulatedCluster,
    pub(super) users: Users,
    pub(super) replayed: Replayed,
    processes: Vec<Process>,
    pub(super) workers: Workers,
}

impl SimulationRun {
    pub(super) fn new(seed: u64) -> Self {
        let mut site = SimulatedCluster::new(seed, 100_000);
        let users = Users::new(&mut site);
        let node = |id, site: &mut SimulatedCluster| {
            let disks = (0..PARTITIONS).map(|_| SimulatedDisk::default()).collect();
            running(SimulatedNode::start(id, disks, site))
        };
        let processes = (0..NODES).map(|id| node(id, &mut site)).collect();
        Self { site, users, replayed: [None; PARTITIONS], processes, workers: Workers::default() }
    }

    /// Faults all the time.
    pub(super) fn storm(&mut self) {
        for _ in 0..EVENTS {
            self.site.broker.now += self.site.dice.pick(&[0, 0, 1, 1, 2]);
            self.leap();
            self.keep_time();
            match self.site.dice.roll(1_000) {
                0..820 => {
                    let id = self.site.dice.place(NODES);
                    self.turn(id);
                }
                820..900 => self.users.write(&mut self.site),
                900..985 => {
                    let p = self.site.dice.place(PARTITIONS);
                    self.workers.work(p, &mut self.site);
                }
                _ => self.strike(),
            }
        }
    }

    /// No more faults. Says whether everything came to rest in time.
    pub(super) fn calm(&mut self) -> bool {
        self.site.calm = true;
        self.site.away.clear();
        self.users.end_transaction(&mut self.site, |_| true);
        for process in &mut self.processes {
            match process {
                Process::Running { silent_until, .. } => *silent_until = None,
                Process::Down { until, .. } => *until = 0,
            }
        }
        let (mut rest_at, mut rests) = (0, 0);
        let step = if self.site.leaps { 10 } else { 2 };
        while rests < RESTS {
            let busy = self.site.broker.now.max(self.users.last_due) + BOUND;
            rest_at = if rest_at == 0 { busy } else { rest_at };
            if self.site.broker.now > rest_at {
                return false;
            }
            self.site.broker.now += step;
            self.keep_time();
            for id in (0..NODES).flat_map(|id| [id; 4]) {
                self.turn(id);
            }
            (0..PARTITIONS).for_each(|p| self.workers.work(p, &mut self.site));
            rests = if self.is_at_rest() { rests + 1 } else { 0 };
        }
        true
    }

    /// Now and then nothing happens until about the next full second. Mostly while no transaction
    /// is open: few would live to see its end.
    fn leap(&mut self) {
        let SimulatedCluster { broker, dice, leaps, counts, .. } = &mut self.site;
        if !*leaps || !dice.one_in(LEAPS) || broker.is_busy() && !dice.one_in(4) {
            return;
        }
        let second = (broker.now / 1_000 + 1) * 1_000;
        let to = second.saturating_add_signed(dice.pick(&[-60, -10, -10, 30, 150, 1_300]));
        broker.leap(to);
        counts.add(Calamity::TimeLeapt);
    }

    fn keep_time(&mut self) {
        let expired = self.site.broker.expire_transactions();
        self.site.counts.add_many(Calamity::TransactionExpired, expired);
        let now = self.site.broker.now;
        let SimulatedCluster { broker, dice, counts, .. } = &mut self.site;
        for (id, process) in self.processes.iter().enumerate() {
            let (since, holds) = match process {
                Process::Down { since, .. } => (*since, false),
                Process::Running { node, silent_until: Some((since, _)) } => {
                    (*since, !node.lanes.is_empty())
                }
                Process::Running { .. } => continue,
            };
            let expelled = since + SESSION <= now && broker.group.expel(id, dice);
            counts.add_many(Calamity::Zombie, u64::from(expelled && holds));
        }
    }

    fn turn(&mut self, id: usize) {
        let now = self.site.broker.now;
        let site = &mut self.site;
        match &mut self.processes[id] {
            Process::Running { silent_until: Some((_, until)), .. } if now < *until => {}
            Process::Running { node, silent_until } => {
                *silent_until = None;
                for _ in 0..1 + site.dice.roll(8) {
                    node.turn(site);
                }
                if node.has_left() {
                    site.broker.group.expel(id, &mut site.dice);
                    self.stop(id, 20);
                }
            }
            Process::Down { disks, until, .. } if *until <= now => {
                let disks = std::mem::take(disks);
                self.processes[id] = running(SimulatedNode::start(id, disks, site));
            }
            Process::Down { .. } => {}
        }
        self.help();
    }

    /// A fault, somewhere.
    fn strike(&mut self) {
        let id = self.site.dice.place(NODES);
        match self.site.dice.roll(100) {
            0..14 => self.crash(id),
            14..24 => self.silence(id),
            24..30 => self.with_node(id, |node, _| node.leave()),
            30..44 => {
                self.site.counts.add(Calamity::Rebalance);
                let SimulatedCluster { broker, dice, .. } = &mut self.site;
                broker.group.rebalance(dice);
            }
            44..58 => self.with_node(id, |node, site| {
                site.counts.add(Calamity::ClockMoved);
                node.move_clock(site);
            }),
            58..82 => self.compact(),
            82..90 => self.delete_triggers(),
            90..98 => self.lose_topic(),
            _ => self.outage(),
        }
    }

    fn with_node(
        &mut self,
        id: usize,
        act: impl FnOnce(&mut SimulatedNode, &mut SimulatedCluster),
    ) {
        if let Process::Running { node, .. } = &mut self.processes[id] {
            act(node, &mut self.site);
        }
    }

    /// A crash takes its disks back to the last flush, or away.
    fn crash(&mut self, id: usize) {
        let Process::Running { node, .. } = &mut self.processes[id] else { return };
        self.site.counts.add(node.crash_site());
        let lost = self.site.dice.one_in(3);
        for disk in &mut node.disks {
            if lost {
                disk.wipe();
                self.site.counts.add(Calamity::DiskLost);
            } else {
                disk.crash();
            }
        }
        let down = self.site.dice.pick(&[1, 1, 10, 10, 60, 900]);
        self.stop(id, down);
    }

    fn stop(&mut self, id: usize, down: Millis) {
        let now = self.site.broker.now;
        if let Process::Running { node, .. } = &mut self.processes[id] {
            let disks = std::mem::take(&mut node.disks);
            self.processes[id] = Process::Down { disks, since: now, until: now + down };
        }
    }

    /// A process stands still, perhaps for so long that it loses its partitions and wakes a zombie.
    fn silence(&mut self, id: usize) {
        let now = self.site.broker.now;
        let length = self.site.dice.pick(&[10, 50, 90]);
        if let Process::Running { silent_until, .. } = &mut self.processes[id] {
            silent_until.get_or_insert((now, now + length));
        }
    }

    fn compact(&mut self) {
        let life = self.site.tombstone_life();
        let SimulatedCluster { broker, dice, counts, compaction_lag, .. } = &mut self.site;
        let old = broker.now.saturating_sub(*compaction_lag);
        // Takeovers are not made for leaps: tombstones stay as long as one lasts.
        let awake = broker.now - broker.leapt;
        let key = |record: &LedgerRecord| (record.key.clone(), record.value.is_none());
        for ledger in &mut broker.ledger {
            let end = ledger.written_until(old);
            let cut = if dice.one_in(2) { end } else { dice.roll(end + 1) };
            let (superseded, expired) = ledger.compact(&broker.fates, cut, awake, life, key);
            counts.add_many(Calamity::LedgerCompacted, u64::from(superseded > 0));
            counts.add_many(Calamity::TombstonesExpired, expired);
        }
    }

    /// Retention may delete what lies below the committed L, and signals below their N.
    fn delete_triggers(&mut self) {
        let p = self.site.dice.place(PARTITIONS);
        let Some(cursor) = self.cursor(p) else { return };
        let SimulatedCluster { broker, dice, counts, .. } = &mut self.site;
        let low = dice.roll(cursor.replay_from + 1);
        if low > broker.triggers[p].low {
            broker.triggers[p].low = low;
            counts.add(Calamity::TriggersDeleted);
        }
        broker.signals[p].low = broker.signals[p].low.max(dice.roll(cursor.next_signal_offset + 1));
    }

    fn lose_topic(&mut self) {
        let topic = format!("topic-{}", 2 + self.site.dice.roll(3)).as_str().into();
        if !self.site.away.remove(&topic) {
            self.site.counts.add(Calamity::TopicAway);
            self.site.away.insert(topic);
        }
    }

    /// Every process is stopped, in order or not; then an operator moves an offset, or the broker
    /// forgets one.
    fn outage(&mut self) {
        self.stop_all();
        let p = self.site.dice.place(PARTITIONS);
        let Some(cursor) = self.cursor(p) else { return };
        let clean = self.mirror_is(p, &cursor);
        let SimulatedCluster { broker, dice, counts, .. } = &mut self.site;
        match dice.roll(3) {
            0 => {
                let low = broker.triggers[p].low.min(cursor.next_offset);
                let to = low + dice.roll(cursor.next_offset - low + 1);
                counts.add(Calamity::OffsetMoved);
                self.move_offset(p, to, clean);
            }
            1 => {
                broker.group.committed[p] = None;
                counts.add(if clean {
                    Calamity::OffsetLostMirrorClean
                } else {
                    Calamity::OffsetLostMirrorUnclean
                });
            }
            _ => {}
        }
    }

    /// Moves the offset of a group without members. If the mirror is not what was committed last,
    /// more than what lies above is repeated.
    fn move_offset(&mut self, p: usize, to: Offset, exact: bool) {
        self.site.broker.group.committed[p] = Some((to, String::new()));
        let from = if exact { to } else { 0 };
        let since = self.site.broker.sent;
        let new = RequestedReplay { from, since };
        let asked = self.replayed[p].get_or_insert(new);
        asked.from = asked.from.min(from);
    }

    /// Orderly, or all at once.
    fn stop_all(&mut self) {
        if self.site.dice.one_in(3) {
            (0..NODES).for_each(|id| self.crash(id));
        } else {
            for id in 0..NODES {
                self.with_node(id, |node, _| node.leave());
            }
            for _ in 0..200 {
                for id in 0..NODES {
                    if let Process::Running { node, silent_until } = &mut self.processes[id] {
                        *silent_until = None;
                        node.turn(&mut self.site);
                        if node.has_left() {
                            self.stop(id, 1);
                        }
                    }
                }
            }
            (0..NODES).for_each(|id| self.crash(id));
        }
        let SimulatedCluster { broker, dice, .. } = &mut self.site;
        (0..NODES).for_each(|id| {
            broker.group.expel(id, dice);
        });
        assert!(broker.group.is_deserted(), "all are stopped");
        broker.now += broker.transaction_timeout;
        self.keep_time();
    }

    /// A person answers a partition that asks for one, as the refusal says: a moment's outage.
    fn help(&mut self) {
        let lost: BTreeSet<(usize, Offset)> = self
            .processes
            .iter()
            .flat_map(|process| match process {
                Process::Running { node, .. } => node.lost_cursors(),
                Process::Down { .. } => Vec::new(),
            })
            .collect();
        if lost.is_empty() {
            return;
        }
        self.stop_all();
        for (p, offset) in lost {
            self.move_offset(p, offset, false);
        }
    }

    /// The committed cursor, unless an operator has moved it.
    fn cursor(&self, p: usize) -> Option<Cursor> {
        let (offset, metadata) = self.site.broker.group.committed[p].as_ref()?;
        Cursor::from_metadata(*offset, metadata).ok().map(|(cursor, _owner)| cursor)
    }

    /// Whether the ledger's mirror is exactly this cursor, written at a shutdown.
    fn mirror_is(&self, p: usize, cursor: &Cursor) -> bool {
        let broker = &self.site.broker;
        let ledger = broker.ledger[p].committed(&broker.fates);
        let mirrors = ledger.filter_map(|(_, _, record)| match &record.value {
            Some(LedgerValue::Cursor { metadata, offset, clean }) => {
                Some((Cursor::from_metadata(*offset, metadata).unwrap().0, *clean))
            }
            _ => None,
        });
        mirrors.last() == Some((*cursor, true))
    }

    fn is_at_rest(&self) -> bool {
        let horizon = self.users.last_due.max(self.last_retry()) + self.site.skew + 50;
        let broker = &self.site.broker;
        let active = |p: usize| {
            self.processes.iter().any(|process| match process {
                Process::Running { node, .. } if !node.is_in_flight() => {
                    node.lanes.get(&p).is_some_and(|lane| match &lane.stage {
                        SimulatedTaskState::Active(partition) => {
                            let cursor = partition.cursor();
                            let triggers =
                                broker.triggers[p].read(&broker.fates, cursor.next_offset, 1);
                            let signals =
                                broker.signals[p].read(&broker.fates, cursor.next_signal_offset, 1);
                            partition.drafted_records() == 0
                                && cursor.fired_through.due > horizon
                                && triggers.records.is_empty()
                                && signals.records.is_empty()
                                && lane.sealed.triggers == cursor.next_offset
                        }
                        _ => false,
                    })
                }
                _ => false,
            })
        };
        self.workers.are_done(&self.site) && (0..PARTITIONS).all(active)
    }

    fn last_retry(&self) -> Timestamp {
        let broker = &self.site.broker;
        let due = |p: usize| {
            let retry = |signal: &Signal| match signal {
                Signal::Retry(request) => Some(request.due),
                _ => None,
            };
            let signals = broker.signals[p].committed(&broker.fates);
            signals.filter_map(|(_, _, signal)| retry(signal)).max()
        };
        (0..PARTITIONS).filter_map(due).max().unwrap_or(0)
    }
}

fn running(node: SimulatedNode) -> Process {
    Process::Running { node: Box::new(node), silent_until: None }
}
