//! One process that reads its inputs while a partition cannot be read or takes no records: the
//! others are not late.
//!
//! Invariant: lateness is measured in true time, which passes while the loop waits.

use std::sync::Arc;

use bytes::Bytes;
use orloj_core::codec::schemas::Schemas;
use orloj_core::engine::cursor::Cursor;
use orloj_core::model::definition::Header;
use orloj_core::model::fire_id::FireId;
use orloj_core::model::signal::{CallbackEnded, Signal};
use orloj_core::model::{Millis, Offset, Timestamp};

use super::broker::{SimulatedEffect, SimulatedOutput, SimulatedRawRecord, SimulatedSend};
use super::cluster::{PARTITIONS, SimulatedCluster, partition_of};
use super::disk::SimulatedDisk;
use super::log::SimulatedTransactionState;
use super::node::{NodeTurn, SimulatedNode};
use super::process::ClusterSlot;

/// Settings differ from seed to seed.
const SEEDS: u64 = 30;
/// How late a fire may be, in ms; undisturbed ones are late by a tenth of it.
const LATENESS_MAX: Millis = 100;
/// How long a record takes that is slow to decode, in ms.
const RECORD_TAKES: Millis = 50;
/// How long a turn may take then, in ms: `reading_max`, the record that began in it, and what else
/// waits.
const TURN_MAX: Millis = 50 + RECORD_TAKES + 20;
/// A producer of users.
const USERS: usize = 90;

/// One process without faults, which owns all partitions.
pub(super) struct SingleProcess {
    pub(super) cluster: ClusterSlot,
    pub(super) node: SimulatedNode,
}

impl SingleProcess {
    pub(super) fn start(seed: u64) -> Self {
        Self::with_skew(seed, 0)
    }

    /// Its clock is exact, but it reckons with clocks that differ by so many ms.
    pub(super) fn with_skew(seed: u64, skew: Millis) -> Self {
        let mut cluster = SimulatedCluster::new(seed, 100_000, Arc::new(Schemas::new()));
        cluster.skew = skew;
        cluster.calm_down();
        let mut cluster = ClusterSlot::new(cluster);
        let disks = (0..PARTITIONS).map(|_| SimulatedDisk::default()).collect();
        let node = SimulatedNode::start(0, disks, &mut cluster);
        node.set_exact_clock();
        let mut process = Self { cluster, node };
        process.run_for(300);
        let committed = &process.cluster.broker.group.committed;
        assert!(committed.iter().all(Option::is_some), "all partitions are taken over");
        process
    }

    pub(super) fn run_for(&mut self, length: Millis) {
        let until = self.cluster.broker.now + length;
        while self.cluster.broker.now < until {
            self.cluster.broker.now += 1;
            for _ in 0..16 {
                let turn = self.node.run_once(&mut self.cluster);
                assert!(matches!(turn, NodeTurn::Runs), "{turn:?}");
            }
        }
    }

    /// One turn; no time passes but what the process waits.
    pub(super) fn run_once(&mut self) {
        let turn = self.node.run_once(&mut self.cluster);
        assert!(matches!(turn, NodeTurn::Runs), "{turn:?}");
    }

    /// Registers a trigger of partition `p`; returns its id.
    fn register(&mut self, p: usize, number: usize, due: Timestamp) -> String {
        self.register_for(p, number, due, "topic-2")
    }

    /// The same, for that target.
    pub(super) fn register_for(
        &mut self,
        p: usize,
        number: usize,
        due: Timestamp,
        target: &str,
    ) -> String {
        let ids = (0..).map(|nth| format!("t{number}-{nth}"));
        let id = { ids }.find(|id| partition_of(id.as_bytes()) == p).unwrap();
        let header = |name: &str, value: String| Header {
            name: name.into(),
            value: Some(Bytes::from(value)),
        };
        let headers = vec![
            header("orloj-fire-at", due.to_string()),
            header("orloj-target-topic", target.to_owned()),
        ];
        let (key, value) = (Bytes::from(id.clone()), Some(Bytes::from(vec![b'x'; 100])));
        let raw = SimulatedRawRecord { key, value, headers };
        let _offset = self.cluster.broker.write(SimulatedOutput::Trigger(p, raw));
        id
    }

    /// Cancels a trigger of partition `p`.
    pub(super) fn cancel(&mut self, p: usize, id: &str) {
        let (key, value, headers) = (Bytes::from(id.to_owned()), None, Vec::new());
        let raw = SimulatedRawRecord { key, value, headers };
        let _offset = self.cluster.broker.write(SimulatedOutput::Trigger(p, raw));
    }

    /// A transaction that was aborted is the last of partition `p`.
    pub(super) fn abort_transaction(&mut self, p: usize) {
        let broker = &mut self.cluster.broker;
        let producer = broker.init(USERS).unwrap();
        let (key, value) = (Bytes::from_static(b"aborted"), None);
        let raw = SimulatedRawRecord { key, value, headers: Vec::new() };
        broker.send(producer, SimulatedOutput::Trigger(p, raw)).unwrap();
        broker.end(producer, SimulatedTransactionState::Aborted).unwrap();
    }

    /// Writes a signal of partition `p` that changes nothing; returns its offset.
    pub(super) fn signal(&mut self, p: usize) -> Offset {
        let id = FireId {
            trigger: "unknown".into(),
            generation: 1,
            occurrence: 1,
            attempt: 1,
            deferral: 0,
        };
        let signal = Signal::CallbackEnded(CallbackEnded { id, ok: true });
        self.cluster.broker.write(SimulatedOutput::Signal(p, signal))
    }

    /// Writes signals of partition 0.
    pub(super) fn write_signals(&mut self, count: u64) {
        (0..count).for_each(|_| {
            self.signal(0);
        });
    }

    /// The store of partition 0 fails for so long, also when it is new.
    fn fail_store_for(&mut self, length: Millis) {
        for _ in 0..length {
            self.node.fail_store(0);
            self.run_for(1);
        }
    }

    /// Retention deletes what was not read yet of `signals` of partition `p`.
    fn delete_unread_signals(&mut self, p: usize) {
        let last = self.signal(p);
        self.cluster.broker.signals[p].low = last + 1;
    }

    /// The first offset of `signals` of partition `p` that is not decided.
    pub(super) fn next_signal(&self, p: usize) -> Offset {
        let (offset, metadata) = self.cluster.broker.group.committed[p].as_ref().unwrap();
        Cursor::from_metadata(*offset, metadata).unwrap().0.next_signal_offset
    }

    pub(super) fn has_fired(&self, p: usize, id: &str) -> bool {
        self.fires(p, id) > 0
    }

    /// How often a trigger of partition `p` has fired.
    pub(super) fn fires(&self, p: usize, id: &str) -> usize {
        let broker = &self.cluster.broker;
        let is_of = |sent: &SimulatedSend| match &sent.effect {
            SimulatedEffect::TopicFire(fire) => fire.id.trigger == *id,
            _ => false,
        };
        let sent = broker.others[p].committed(&broker.transaction_states);
        sent.filter(|(_, _, sent)| is_of(sent)).count()
    }

    /// Asserts that no turn takes long although each record does.
    fn assert_turns_are_short(&mut self, seed: u64) {
        self.cluster.record_takes = RECORD_TAKES;
        for _ in 0..100 {
            let began = self.cluster.broker.now;
            self.run_once();
            let took = self.cluster.broker.now - began;
            assert!(took <= TURN_MAX, "seed {seed}: a turn takes {took} ms");
        }
    }

    /// Asserts that the next trigger of partition 1 fires in time.
    fn assert_neighbour_fires(&mut self, seed: u64) {
        let due = self.cluster.broker.now + 50;
        let id = self.register(1, usize::MAX, due);
        while !self.has_fired(1, &id) {
            self.run_for(1);
            let late = self.cluster.broker.now.saturating_sub(due);
            assert!(late <= LATENESS_MAX, "seed {seed}: late by {late} ms or more");
        }
    }
}

#[test]
fn a_partition_without_a_leader_delays_no_other_one() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.abort_transaction(0);
        process.run_for(3);
        process.cluster.leaderless_partition = Some(0);
        process.run_for(20);
        process.assert_neighbour_fires(seed);
    }
}

#[test]
fn a_partition_that_is_full_delays_no_other_one() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.node.hold_queue("writer");
        let due = process.cluster.broker.now + 100_000;
        for number in 0..300 {
            process.register(0, number, due);
            if number % 10 == 0 {
                process.run_for(1);
            }
        }
        process.assert_neighbour_fires(seed);
    }
}

#[test]
fn a_store_that_takes_long_to_open_delays_no_other_partition() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.node.hold_queue("openings");
        process.node.fail_store(0);
        let due = process.cluster.broker.now + 10;
        let id = process.register(0, 0, due);
        process.run_for(20);
        process.assert_neighbour_fires(seed);
        assert!(!process.has_fired(0, &id), "seed {seed}: the store did not fail");
        process.node.hold_queue("none");
        process.run_for(2_000);
        assert!(process.has_fired(0, &id), "seed {seed}: it is not taken over again");
    }
}

/// The disk is full, or fails, for a time.
#[test]
fn a_store_that_cannot_be_opened_stops_its_partition_for_a_time_and_no_other_one() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.node.refuse_to_open(0, true);
        process.node.fail_store(0);
        let due = process.cluster.broker.now + 10;
        let id = process.register(0, 0, due);
        process.run_for(50);
        process.assert_neighbour_fires(seed);
        assert!(!process.has_fired(0, &id), "seed {seed}: the store did not fail");
        process.node.refuse_to_open(0, false);
        process.run_for(2_000);
        assert!(process.has_fired(0, &id), "seed {seed}: it is not taken over again");
    }
}

/// The store fails again and again, so that it is not rebuilt at once.
#[test]
fn a_partition_whose_store_has_failed_is_not_taken_over_again_when_it_is_taken_away() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        let due = process.cluster.broker.now + 100_000;
        process.register(0, 0, due);
        process.fail_store_for(20);
        process.cluster.broker.group.take_away(0);
        let owns = |process: &SingleProcess| {
            process.cluster.broker.group.members().any(|(.., owned)| owned.contains(&0))
        };
        let is_released = (0..10_000).any(|_| {
            process.fail_store_for(1);
            !owns(&process)
        });
        assert!(is_released, "seed {seed}: it keeps the partition");
        let end = process.cluster.broker.ledger[0].high();
        process.run_for(200);
        let end_later = process.cluster.broker.ledger[0].high();
        assert_eq!(end_later, end, "seed {seed}: it is taken over");
    }
}

#[test]
fn a_turn_of_the_loop_reads_for_a_limited_time() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        let due = process.cluster.broker.now + 100_000;
        (0..100).for_each(|number| {
            process.register(0, number, due);
        });
        process.assert_turns_are_short(seed);
    }
}

#[test]
fn a_turn_of_the_loop_reads_signals_for_a_limited_time() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.write_signals(100);
        process.assert_turns_are_short(seed);
    }
}

#[test]
fn signals_of_all_partitions_are_read_on_after_a_part_of_each_was_deleted() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        (0..PARTITIONS).for_each(|p| process.delete_unread_signals(p));
        process.run_for(50);
        let last: Vec<_> = (0..PARTITIONS).map(|p| process.signal(p)).collect();
        process.run_for(100);
        for (p, last) in last.into_iter().enumerate() {
            assert!(process.next_signal(p) > last, "seed {seed}: partition {p} is not read");
        }
    }
}
