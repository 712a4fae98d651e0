//! How late fires are at most, fault by fault: a steady load, one fault, and nothing else.
//!
//! Invariant: a bound is stated in terms of the session timeout and of how far clocks are apart,
//! and holds for every seed.

use std::sync::Arc;

use bytes::Bytes;
use orloj_core::codec::schemas::Schemas;
use orloj_core::model::definition::Header;
use orloj_core::model::{Millis, Timestamp};

use super::broker::{SimulatedOutput, SimulatedRawRecord};
use super::check::{check_run, lateness_of_fires};
use super::clients::{Intent, command_headers};
use super::cluster::{NODES, partition_of};
use super::group::SESSION;
use super::run::SimulationRun;
use crate::audit::CommandKind;

/// Seeds of each case.
const SEEDS: u64 = 30;
/// The load begins after the first takeovers, in ms.
const WARM_UP: Millis = 300;
/// Triggers that do not count are registered so long before, in ms.
const FIRST_FIRES: Millis = 100;
/// From the beginning of the load to the fault, in ms.
const BEFORE_FAULT: Millis = 200;
/// From the fault to the end of the load, in ms.
const AFTER_FAULT: Millis = 400;
/// A trigger is due so long after its registration at least and at most, in ms.
const AHEAD: [Millis; 4] = [20, 30, 45, 60];
/// The time between two registrations, in ms. A process with the smallest settings that owns all
/// partitions decides one fire in a few turns, and must not fall behind.
const REGISTERED_EVERY: Millis = 20;
/// Turns of each process in 1 ms.
const TURNS: usize = 4;
/// What a decision and its transaction take, in ms: a few turns of three processes, which act one
/// after the other. A wait of one moves the time of all: of 300 seeds the slowest takes 125 ms.
const STEP: Millis = 130;
/// A pause that the group does not notice, in ms.
const SHORT: Millis = SESSION - 10;
/// What a takeover takes, in ms: a step, and three jobs that follow each other (opening the store,
/// the committed offset, the ends of the logs). Another process can act between any two. It cannot
/// be less than a step takes without a takeover: of 300 seeds the slowest takes 140 ms.
const TAKEOVER: Millis = STEP + 20;

/// After how long a call counts as one that does not return, in ms: the longest timeout of a
/// transaction, and by how much calls may exceed it; and as long again, because of the time between
/// two turns of the loop only 5 ms count, and here the turns of other processes take longer.
const HANG: Millis = 2 * (150 + 60);

/// A run with a steady load. Returns how late its fires were at most, and how far clocks are apart.
fn worst_lateness(seed: u64, fault: impl Fn(&mut SimulationRun)) -> (Millis, Millis) {
    let mut run = SimulationRun::new(seed, Arc::new(Schemas::new()), |_| None);
    run.cluster.calm_down();
    let begins = run.cluster.broker.now + WARM_UP;
    let breaks = begins + BEFORE_FAULT;
    let ends = breaks + AFTER_FAULT;
    let until = ends + AHEAD[AHEAD.len() - 1] + SESSION + TAKEOVER + 200;
    // The first fires of a process wait until their topic is looked up; they do not count.
    let (mut is_broken, mut registered_at) = (false, begins - FIRST_FIRES);
    // Waiting calls of a process move the time, too.
    while run.cluster.broker.now < until {
        run.cluster.broker.now += 1;
        let now = run.cluster.broker.now;
        if now >= breaks && !std::mem::replace(&mut is_broken, true) {
            fault(&mut run);
        }
        if now >= registered_at && now < ends {
            register(&mut run, now);
            registered_at = now + REGISTERED_EVERY;
        }
        run.expire();
        (0..NODES).flat_map(|id| [id; TURNS]).for_each(|id| run.turn(id));
    }
    let report = check_run(&mut run, None);
    assert!(report.is_clean(), "seed {seed}: {report}");
    (latest_fire(&run, seed, begins), run.cluster.skew)
}

/// One registration, of a trigger of its own.
fn register(run: &mut SimulationRun, now: Timestamp) {
    let serial = run.users.intents.len();
    let due = now + run.cluster.rng.pick(&AHEAD);
    let (id, payload) = (format!("t{serial}"), format!("payload {serial}"));
    let kind = CommandKind::Register { due, payload: payload.clone().into_bytes() };
    run.users.intents.push(Intent::Plain(kind));
    let headers =
        [("orloj-fire-at", due.to_string()), ("orloj-target-topic", "topic-2".to_owned())];
    let headers: Vec<Header> = command_headers(serial, headers.to_vec());
    let p = partition_of(id.as_bytes());
    let record =
        SimulatedRawRecord { key: Bytes::from(id), value: Some(Bytes::from(payload)), headers };
    let _offset = run.cluster.broker.write(SimulatedOutput::Trigger(p, record));
}

/// How late the fires were at most that were due after `begins`. All have fired.
fn latest_fire(run: &SimulationRun, seed: u64, begins: Timestamp) -> Millis {
    let fires = lateness_of_fires(run);
    assert_eq!(fires.len(), run.users.intents.len(), "seed {seed}: all have fired");
    let counted = fires.into_iter().filter(|(due, _)| *due > begins);
    counted.map(|(_, late)| late).max().unwrap_or(0)
}

/// Runs all seeds of a case; `bound` is added to how far clocks are apart.
fn assert_late_at_most(bound: Millis, fault: impl Fn(&mut SimulationRun)) {
    let mut worst = (0, 0);
    for seed in 1..=SEEDS {
        let (late, skew) = worst_lateness(seed, &fault);
        worst = worst.max((late.saturating_sub(skew), seed));
        assert!(
            late <= bound + skew,
            "seed {seed}: {late} ms late, with clocks {skew} ms off; the bound is {bound} ms"
        );
    }
    println!("at most {} ms late, of {bound} (seed {})", worst.0, worst.1);
}

#[test]
fn without_a_fault_fires_are_as_late_as_a_step_takes() {
    assert_late_at_most(STEP, |_| {});
}

#[test]
fn a_crash_delays_fires_by_the_session_timeout_and_a_takeover() {
    assert_late_at_most(SESSION + TAKEOVER, |run| run.crash_for(0, 100 * SESSION));
}

#[test]
fn a_short_pause_delays_fires_by_its_length() {
    assert_late_at_most(SHORT + STEP, |run| run.pause_for(0, SHORT));
}

#[test]
fn a_long_pause_delays_fires_by_the_session_timeout_and_a_takeover() {
    assert_late_at_most(SESSION + TAKEOVER, |run| run.pause_for(0, 5 * SESSION));
}

#[test]
fn a_process_that_leaves_delays_fires_by_a_takeover() {
    assert_late_at_most(TAKEOVER, |run| run.with_node(0, |node, cluster| node.leave(cluster)));
}

#[test]
fn a_rebalance_delays_fires_by_a_takeover() {
    assert_late_at_most(TAKEOVER, |run| {
        let cluster = &mut *run.cluster;
        cluster.broker.group.rebalance(&mut cluster.rng);
    });
}

#[test]
fn a_store_that_fails_delays_fires_by_a_takeover() {
    assert_late_at_most(TAKEOVER, |run| run.with_node(0, |node, _| node.fail_stores()));
}

#[test]
fn a_call_that_does_not_return_delays_fires_by_the_timeout_of_a_transaction_and_a_takeover() {
    assert_late_at_most(HANG + TAKEOVER, |run| {
        run.with_node(0, |node, _| node.hang_next_transaction());
    });
}
