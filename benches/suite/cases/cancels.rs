//! Triggers of which nine in ten are cancelled before their time.
//!
//! Invariant: what counts is how fast commands are taken in, whatever they say, and that exactly
//! what was not cancelled fires.

use orloj::clock;
use orloj::model::Millis;

use super::throughput::best_pipe;
use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::figures::Figure;
use crate::load_generator::{LoadGenerator, scattered};
use crate::measured_process::MeasuredProcess;
use crate::output_reader::OutputReader;
use crate::progress::print_progress;

const SERIES: &str = "fickle";
/// Triggers.
const COUNT: u32 = 1_000_000;
/// One of so many is not cancelled.
const KEPT: u32 = 10;
/// To start the scheduler, in ms.
const LEAD_MS: Millis = 15_000;
/// To write and take in a million triggers and their cancels, in ms.
const LEAD_MS_PER_MILLION: Millis = 30_000;
/// Over how long what is kept is due, in ms.
const DUE_MS: Millis = 5_000;

/// B5: commands a second, next to the pipe.
pub(crate) fn nine_in_ten(run: &BenchRun) -> CaseResult {
    let count = run.count(COUNT);
    let (mut ours, mut pipes) = (Vec::new(), Vec::new());
    for number in run.rounds() {
        let cluster = BenchCluster::prepare(run.bootstrap);
        let rate = commands(&cluster, count);
        let pipe = best_pipe(run, &cluster, SERIES, count + count / KEPT * (KEPT - 1));
        print_progress(&format!("round {number}: {rate:.0} commands/s, pipe {pipe:.0}/s"));
        ours.push(rate);
        pipes.push(pipe);
    }
    let (ours, pipe) = (Figure::new("commands", "/s", ours), Figure::new("pipe", "/s", pipes));
    let ratio = Figure::ratio("commands ÷ pipe", &ours, &pipe);
    CaseResult { figures: vec![ratio, ours, pipe], ..CaseResult::default() }
}

/// Commands taken in a second: registrations and tombstones of a backlog, no fire among them.
fn commands(cluster: &BenchCluster, count: u32) -> f64 {
    let lead = LEAD_MS + u64::from(count) * LEAD_MS_PER_MILLION / 1_000_000;
    let due = clock::now_ms() + lead;
    let mut reader = OutputReader::open(cluster, "scheduler");
    let mut generator = LoadGenerator::open(cluster);
    let _rate = generator.register_all(SERIES, count, |n| due + scattered(n, DUE_MS));
    let cancelled = (0..count).filter(|n| n % KEPT != 0);
    cancelled.for_each(|n| generator.cancel(SERIES, n));
    let mark = generator.write_marker();
    generator.flush();
    let _scheduler = MeasuredProcess::scheduler(cluster);
    let started = clock::monotonic();
    reader.wait_for_marker(mark);
    let seconds = (clock::monotonic() - started).as_secs_f64();
    assert!(clock::now_ms() < due, "all must be cancelled before their time");
    let (kept, cancelled) = (count.div_ceil(KEPT), count - count.div_ceil(KEPT));
    reader.count(SERIES, kept);
    assert!(reader.is_silent(), "what was cancelled has fired");
    f64::from(count + cancelled) / seconds
}
