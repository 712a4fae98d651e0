//! Logs that are cut: they end below an offset that is read or committed, and are written again
//! from there on.
//!
//! Invariant: records that are written again below a committed offset are never passed over: the
//! partition waits for an operator. Only the operator ends that.

use orloj_core::model::{Millis, Offset};

use super::cluster::{REFUSING, Refusal, SimulatedCluster};
use super::reading::SingleProcess;

const SEEDS: u64 = 20;
/// Where the log is cut.
const END: Offset = 2;
/// A cancel this long before the due time, in ms, is in time.
const CANCELLED_BEFORE: Millis = 20;
/// How far clocks may differ, in ms: much longer than that.
const SKEW: Millis = 50;
/// Time, in ms, in which a process handles an answer.
const LATER: Millis = 50;

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

    /// Cuts `triggers` to two of the five records that are read, and waits until a broker has
    /// answered that it is shorter.
    fn cut_until_seen(&mut self, seed: u64) {
        self.register_some(5);
        self.run_for(100);
        assert_eq!(self.committed(), 5, "seed {seed}");
        self.cluster.broker.triggers[0].cut(END);
        self.run_until_bounds_are_asked_for();
    }

    /// Writes signals of partition 0, which are handled.
    fn read_signals(&mut self, count: u64, seed: u64) {
        self.write_signals(count);
        self.run_for(100);
        assert_eq!(self.next_signal(0), count, "seed {seed}");
    }

    /// Runs until the bounds of a log of partition 0 were asked for because of what its reader has
    /// met.
    fn run_until_bounds_are_asked_for(&mut self) {
        let (asked, until) = (self.cluster.stable_asked[0], self.cluster.broker.now + 500);
        while self.cluster.stable_asked[0] == asked {
            assert!(self.cluster.broker.now < until, "no bounds are asked for");
            self.run_once();
        }
    }

    /// Writes a little later, by the clock of the broker.
    fn write_later(&mut self, write: impl FnOnce(&mut Self)) {
        self.cluster.broker.now += LATER;
        write(self);
        self.cluster.broker.now -= LATER;
    }

    fn run_until_refused(&mut self, seed: u64) {
        let until = self.cluster.broker.now + 500;
        while self.node.refusal(0).is_none() {
            assert!(self.cluster.broker.now < until, "seed {seed}: it is not refused");
            self.run_for(1);
        }
    }

    /// A transaction fails: its partitions are taken over again.
    fn fail_transaction(&mut self) {
        let due = self.cluster.broker.now + 10;
        let _none = self.cluster.refusing.insert(REFUSING.into(), Refusal::Records);
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

/// It is longer than before when it is looked at for the second time.
#[test]
fn a_log_that_grows_after_it_was_first_seen_to_be_cut_waits_for_an_operator() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.cut_until_seen(seed);
        process.write_later(|process| process.register_some(8));
        process.run_until_refused(seed);
        assert_eq!(process.committed(), 5, "seed {seed}: the first records are passed over");
    }
}

/// A cancel is in time that is written to it after it was cut.
#[test]
fn a_partition_whose_log_is_cut_fires_nothing_that_may_be_cancelled() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::with_skew(seed, SKEW);
        let due = process.cluster.broker.now + 200;
        let id = process.register_for(0, usize::MAX, due, "topic-2");
        process.register_some(4);
        process.run_for(200 - CANCELLED_BEFORE);
        assert_eq!(process.committed(), 5, "seed {seed}");
        process.cluster.broker.triggers[0].cut(END);
        process.cancel(0, &id);
        process.run_for(CANCELLED_BEFORE + 100);
        assert!(!process.has_fired(0, &id), "seed {seed}: it fires although it is cancelled");
    }
}

/// Nothing is fetched meanwhile, but the end offset is asked for.
#[test]
fn a_log_whose_end_was_once_below_what_was_read_waits_for_an_operator() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.register_some(5);
        process.run_for(100);
        assert_eq!(process.committed(), 5, "seed {seed}");
        process.cluster.unfetched = Some(0);
        process.cluster.broker.triggers[0].cut(END);
        process.run_for(30);
        process.write_later(|process| process.register_some(8));
        process.cluster.unfetched = None;
        process.run_until_refused(seed);
        assert_eq!(process.committed(), 5, "seed {seed}: the first records are passed over");
    }
}

/// Only the end of a transaction was cut, and aborted records.
#[test]
fn a_log_that_has_lost_no_record_goes_on_after_a_cut() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        let due = process.cluster.broker.now + 200;
        let id = process.register_for(0, 0, due, "topic-2");
        process.abort_transaction(0);
        process.run_for(100);
        process.cluster.broker.triggers[0].cut(1);
        process.run_for(400);
        assert!(process.has_fired(0, &id), "seed {seed}: the partition is stuck");
    }
}

/// It was cut before all of it was read.
#[test]
fn a_log_that_was_longer_and_has_lost_no_record_that_was_read_goes_on_after_a_cut() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        let due = process.cluster.broker.now + 200;
        let id = process.register_for(0, 0, due, "topic-2");
        process.run_for(100);
        process.cluster.unfetched = Some(0);
        process.register_some(1);
        process.run_for(30);
        process.cluster.broker.triggers[0].cut(1);
        process.cluster.unfetched = None;
        process.run_for(400);
        assert!(process.has_fired(0, &id), "seed {seed}: the partition is stuck");
    }
}

/// The same as first, and the partition is taken over before.
#[test]
fn a_takeover_knows_that_a_log_was_seen_to_be_cut() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.cut_until_seen(seed);
        process.write_later(|process| process.register_some(8));
        process.fail_transaction();
        process.run_until_refused(seed);
        assert_eq!(process.committed(), 5, "seed {seed}: the first records are passed over");
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

/// The broker that answers that all is stable is not the one that is read.
#[test]
fn a_takeover_reads_on_after_an_end_that_was_too_early() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        // So soon that they are not in the ledger.
        let due = process.cluster.broker.now + 45;
        let ids: Vec<_> =
            (0..5).map(|number| process.register_for(0, number, due, "topic-2")).collect();
        while process.committed() < 5 {
            process.run_for(1);
        }
        assert!(process.cluster.broker.now < due, "seed {seed}: they are pending");
        process.node.fail_stores();
        process.fail_transaction();
        let until = process.cluster.broker.now + 500;
        while process.node.last_reached() != "takeover.before_offsets" {
            assert!(process.cluster.broker.now < until, "seed {seed}: it is not taken over");
            process.run_once();
        }
        process.cluster.lags_at_fetch = Some((0, 100));
        process.cluster.another_answers = true;
        process.run_for(500);
        assert_eq!(process.cluster.lags_at_fetch, None, "seed {seed}");
        let missing = ids.iter().filter(|id| !process.has_fired(0, id)).count();
        assert_eq!(missing, 0, "seed {seed}: fires are missing");
    }
}

#[test]
fn a_leader_that_catches_up_little_by_little_stops_no_partition() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.register_some(9);
        process.run_for(100);
        assert_eq!(process.committed(), 9, "seed {seed}");
        let until = process.cluster.broker.now + 200;
        let _none = process.cluster.old_ends.insert(("triggers", 0), (END, until));
        process.fail_transaction();
        process.run_until_refused(seed);
        process.run_for(500);
        assert_eq!(process.node.refusal(0), None, "seed {seed}");
    }
}

/// That they seem to be shorter proves nothing.
#[test]
fn signals_that_were_handled_are_not_handled_again_because_a_broker_lags_behind() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.read_signals(9, seed);
        let until = process.cluster.broker.now + 200;
        let _none = process.cluster.old_ends.insert(("signals", 0), (END, until));
        process.cluster.refuses_signals = Some(0);
        process.signal(0);
        process.run_until_bounds_are_asked_for();
        process.fail_transaction();
        let until = process.cluster.broker.now + 500;
        while process.cluster.broker.now < until {
            process.signal(0);
            process.run_for(10);
            assert!(process.next_signal(0) >= 9, "seed {seed}: it is read again");
            assert_eq!(process.node.refusal(0), None, "seed {seed}");
        }
        process.run_for(50);
        let high = process.cluster.broker.signals[0].high();
        assert_eq!(process.next_signal(0), high, "seed {seed}: they are read again");
    }
}

/// There is nothing in them for which the partition should wait.
#[test]
fn a_partition_whose_signals_are_cut_fires_and_reads_on_from_the_cut() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.read_signals(5, seed);
        process.cluster.broker.signals[0].cut(END);
        process.run_for(50);
        let due = process.cluster.broker.now + 50;
        let id = process.register_for(0, usize::MAX, due, "topic-2");
        process.run_for(200);
        assert!(process.has_fired(0, &id), "seed {seed}: the partition fires");
        assert_eq!(process.next_signal(0), 5, "seed {seed}: nothing is known yet");
        let last = process.signal(0);
        process.run_for(200);
        assert_eq!(process.next_signal(0), last + 1, "seed {seed}: it is read");
        assert_eq!(process.node.refusal(0), None, "seed {seed}");
    }
}

#[test]
fn signals_that_were_cut_and_have_grown_since_are_read_from_the_cut() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.read_signals(5, seed);
        process.cluster.broker.signals[0].cut(END);
        process.run_until_bounds_are_asked_for();
        process.write_later(|process| process.write_signals(8));
        let (mut lowest, until) = (5, process.cluster.broker.now + 500);
        while process.cluster.broker.now < until {
            process.run_once();
            process.cluster.broker.now += 1;
            lowest = lowest.min(process.next_signal(0));
        }
        assert_eq!(lowest, END, "seed {seed}: from there on they are new");
        assert_eq!(process.next_signal(0), END + 8, "seed {seed}");
    }
}

/// The next owner knows the committed offset only.
#[test]
fn a_partition_is_taken_over_whose_signals_were_cut_before() {
    for seed in 1..=SEEDS {
        let mut process = SingleProcess::start(seed);
        process.read_signals(5, seed);
        process.cluster.broker.signals[0].cut(END);
        process.fail_transaction();
        process.run_for(300);
        assert_eq!(process.node.refusal(0), None, "seed {seed}");
        let last = process.signal(0);
        process.run_for(200);
        assert_eq!(process.next_signal(0), last + 1, "seed {seed}: it is read");
    }
}
