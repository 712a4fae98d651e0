//! Very many triggers that are due in the same millisecond.
//!
//! Invariant: all have been taken in before their time; what counts is from that millisecond until
//! the last one is visible. The pipe needs to read the same records first: we have them loaded.

use std::time::Duration;

use orloj::clock;
use orloj::model::{Millis, Timestamp};

use super::throughput::best_pipe;
use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::figures::{Figure, Goal};
use crate::load_generator::LoadGenerator;
use crate::measured_process::{MeasuredProcess, ProcessMemory};
use crate::output_reader::OutputReader;
use crate::progress::print_progress;
use crate::wait::until;

const SERIES: &str = "burst";
/// To start the scheduler, in ms.
const LEAD_MS: Millis = 15_000;
/// To write and take in a million triggers, in ms.
const LEAD_MS_PER_MILLION: Millis = 20_000;
const DEADLINE: Duration = Duration::from_secs(300);

/// B3: from the millisecond to the last fire, next to the pipe's time.
pub(crate) fn one_millisecond(run: &BenchRun) -> CaseResult {
    let count = run.plan.burst;
    let (mut ours, mut pipes) = (Vec::new(), Vec::new());
    for number in run.rounds() {
        let cluster = BenchCluster::prepare(run.bootstrap);
        let (seconds, _memory) = burst(&cluster, count);
        let pipe = f64::from(count) / best_pipe(run, &cluster, SERIES, count);
        print_progress(&format!("round {number}: visible after {seconds:.2} s, pipe {pipe:.2} s"));
        ours.push(seconds);
        pipes.push(pipe);
    }
    let (ours, pipe) =
        (Figure::new("all visible after", "s", ours), Figure::new("pipe", "s", pipes));
    let ratio = Figure::ratio("burst ÷ pipe", &ours, &pipe).with_goal(Goal::at_most(1.0));
    CaseResult { figures: vec![ratio, ours, pipe], ..CaseResult::default() }
}

/// Seconds until all are visible, and what the scheduler had in memory then.
pub(super) fn burst(cluster: &BenchCluster, count: u32) -> (f64, ProcessMemory) {
    let lead = LEAD_MS + u64::from(count) * LEAD_MS_PER_MILLION / 1_000_000;
    let due = clock::now_ms() + lead;
    let mut reader = OutputReader::open(cluster, "scheduler");
    let mut generator = LoadGenerator::open(cluster);
    let _rate = generator.register_all(SERIES, count, |_| due);
    let mark = generator.write_marker();
    generator.flush();
    let scheduler = MeasuredProcess::scheduler(cluster);
    reader.wait_for_marker(mark);
    assert!(clock::now_ms() + 1_000 < due, "all must be taken in before their time");
    let started = moment(due);
    let seconds = (reader.count(SERIES, count) - started).as_secs_f64();
    let memory = scheduler.memory();
    scheduler.terminate();
    (seconds, memory)
}

/// Waits for the moment of the wall clock and says when it was by the other one.
pub(super) fn moment(due: Timestamp) -> std::time::Instant {
    let left = until("the millisecond to come", DEADLINE, || {
        let now = clock::now_ms();
        (now + 20 >= due).then(|| due.saturating_sub(now))
    });
    clock::monotonic() + Duration::from_millis(left)
}
