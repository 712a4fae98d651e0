//! Logs that are cut: they end below an offset that is read or committed, and are written again
//! from there on.
//!
//! Invariant: records that are written again below a committed offset are never passed over: the
//! partition waits for an operator. Only the operator ends that.

use orloj_core::model::Offset;

use super::cluster::{REFUSING, SimulatedCluster};
use super::reading::SingleProcess;

const SEEDS: u64 = 20;
/// Where the log is cut.
const END: Offset = 2;

impl SingleProcess {
    /// Registers triggers of partition 0 that are due late.
    fn register_some(&mut self, count: usize) {
        let due = self.cluster.broker.now + 100_000;
        (0..count).for_each(|number| {
            self.register_for(0, number, due, "topic-2");
        });
    }

    /// The committed offset of partition 0.
    fn committed(&self) -> Offset {
        self.cluster.broker.group.committed[0].as_ref().unwrap().0
    }

    /// A process whose partition 0 has read and committed five records, of which `triggers` has
    /// lost all but two. It knows that.
    fn with_cut_log(seed: u64) -> Self {
        let mut process = Self::start(seed);
        process.register_some(5);
        process.run_for(100);
        assert_eq!(process.committed(), 5, "seed {seed}");
        process.cluster.broker.triggers[0].cut(END);
        process.run_until_refused(seed);
        process
    }

    fn run_until_refused(&mut self, seed: u64) {
        let until = self.cluster.broker.now + 500;
        while self.node.refusal(0).is_none() {
            assert!(self.cluster.broker.now < until, "seed {seed}: it is not refused");
            self.run_for(1);
        }
    }

    /// A transaction fails: all partitions are taken over again.
    fn fail_transaction(&mut self) {
        let due = self.cluster.broker.now + 10;
        self.cluster.refusing.insert(REFUSING.into());
        self.register_for(1, 0, due, REFUSING);
    }

    fn assert_waits(&mut self, seed: u64) {
        self.run_for(200);
        self.run_until_refused(seed);
        assert_eq!(self.committed(), 5, "seed {seed}");
    }
}

#[test]
fn a_log_that_is_cut_and_written_again_waits_for_an_operator() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::with_cut_log(seed);
        process.run_for(300);
        // All at once, so that it is longer than before at the next look.
        process.register_some(8);
        process.assert_waits(seed);
    }
}

#[test]
fn a_failed_transaction_does_not_take_over_a_log_that_was_cut() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::with_cut_log(seed);
        for _ in 0..6 {
            process.register_some(1);
            process.run_for(100);
        }
        process.fail_transaction();
        process.assert_waits(seed);
    }
}

#[test]
fn a_process_that_gets_a_partition_back_knows_that_its_log_was_cut() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::with_cut_log(seed);
        process.cluster.broker.group.take_away(0);
        process.run_for(300);
        assert_eq!(process.node.refusal(0), None, "seed {seed}: it is released");
        process.register_some(8);
        let SimulatedCluster { broker, rng, .. } = &mut *process.cluster;
        broker.group.rebalance(rng);
        process.assert_waits(seed);
    }
}

#[test]
fn nothing_is_lost_of_a_log_that_is_cut_at_the_committed_offset() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::with_cut_log(seed);
        process.cluster.broker.group.committed[0].as_mut().unwrap().0 = END;
        process.register_some(3);
        process.run_for(200);
        assert_eq!(process.node.refusal(0), None, "seed {seed}");
        assert_eq!(process.committed(), END + 3, "seed {seed}");
    }
}

#[test]
fn a_leader_that_catches_up_little_by_little_stops_no_partition() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        let last = (0..9).map(|_| process.signal(0)).last().unwrap();
        process.run_for(100);
        assert_eq!(process.next_signal(0), last + 1, "seed {seed}");
        let until = process.cluster.broker.now + 200;
        process.cluster.old_ends[0] = (Some(END), until);
        process.fail_transaction();
        process.run_until_refused(seed);
        process.run_for(500);
        assert_eq!(process.node.refusal(0), None, "seed {seed}");
    }
}
