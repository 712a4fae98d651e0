//! Transactions of unknown outcome while the group survives: no partition is taken over again.
//!
//! Invariant: calls of transactions fail, and requests are lost or late; nothing else happens.

use orloj_core::model::Millis;

use super::cluster::{PARTITIONS, TransactionFaults};
use super::fault_kinds::FaultKind;
use super::process::takeovers_started;
use super::reading::SingleProcess;

const SEEDS: u64 = 30;
/// For how long calls fail, in ms.
const FAILING: Millis = 1_500;
/// After that everything fires by then, in ms.
const REST: Millis = 500;
/// A trigger is registered so often, in ms.
const EVERY: Millis = 7;

impl SingleProcess {
    /// Calls of transactions fail for a time. Returns the triggers with their partitions.
    fn fail_transactions(&mut self) -> Vec<(usize, String)> {
        self.cluster.failing = TransactionFaults::Some { has_failed: false };
        self.cluster.broker.coordinator.delays_markers = true;
        let mut ids = Vec::new();
        let until = self.cluster.broker.now + FAILING;
        while self.cluster.broker.now < until {
            let number = ids.len();
            let (p, due) = (number % PARTITIONS, self.cluster.broker.now + 20);
            ids.push((p, self.register_for(p, number, due, "topic-2")));
            for _ in 0..EVERY {
                self.cluster.advance();
                self.run_for(1);
            }
        }
        self.cluster.failing = TransactionFaults::Any;
        self.cluster.calm_down();
        self.run_for(REST);
        ids
    }
}

#[test]
fn while_the_group_survives_no_partition_is_taken_over_again() {
    let mut counts = super::fault_kinds::FaultCounts::default();
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        let started = takeovers_started();
        let ids = process.fail_transactions();
        assert_eq!(takeovers_started(), started, "seed {seed}: takeovers begin");
        for (p, id) in &ids {
            assert_eq!(process.fires(*p, id), 1, "seed {seed}: {id} of {p}");
        }
        counts.merge(&process.cluster.counts);
    }
    println!("{counts}");
    for kind in [FaultKind::InterruptedCommitted, FaultKind::InterruptedSentAgain] {
        assert!(counts.of(kind) > SEEDS, "{kind:?} happens too seldom:\n{counts}");
    }
    assert_eq!(counts.of(FaultKind::InterruptedTakenOver), 0);
}
