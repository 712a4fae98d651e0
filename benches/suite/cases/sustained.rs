//! Registering and firing in steady state, with delays of 1 to 60 seconds.
//!
//! Invariant: the scheduler is always asked for more than it can do, and never left far behind:
//! triggers are registered as fast as it takes them in, a bounded number ahead. After a minute as
//! many fire as are registered, and only then is counted. The pipe is fed the same way, by the same
//! producer on the same machine.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use orloj::clock;
use orloj::model::Millis;

use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::figures::Figure;
use crate::load_generator::{LoadGenerator, scattered};
use crate::measured_process::MeasuredProcess;
use crate::output_reader::OutputReader;
use crate::progress::print_progress;
use crate::wait::until;

const SERIES: &str = "sustained";
/// Delays lie between these, in ms.
const DELAY_MS: (Millis, Millis) = (1_000, 60_000);
/// Triggers from one mark to the next.
const CHUNK: u32 = 10_000;
/// Lots that are written ahead of what has been taken in: a second's work.
const CHUNKS_AHEAD_MAX: u32 = 20;
/// Until as many fire as are registered.
const STEADY: Duration = Duration::from_secs(62);
/// Until the pipe moves at its pace.
const WARM: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_secs(120);
const BATCH: Duration = Duration::from_millis(50);

/// B2, live.
pub(crate) fn steady_state(run: &BenchRun) -> CaseResult {
    let (mut pipes, mut ours) = (Vec::new(), Vec::new());
    for number in run.rounds() {
        let cluster = BenchCluster::prepare(run.bootstrap);
        let pipe =
            rate(&cluster, "pipe", WARM, || MeasuredProcess::pipe(&cluster, i64::MAX, BATCH));
        let cluster = BenchCluster::prepare(run.bootstrap);
        let fired = rate(&cluster, "scheduler", STEADY, || MeasuredProcess::scheduler(&cluster));
        print_progress(&format!(
            "round {number}: pipe {pipe:.0}/s, registered and fired {fired:.0}/s"
        ));
        pipes.push(pipe);
        ours.push(fired);
    }
    let pipe = Figure::new("pipe, fed meanwhile", "/s", pipes);
    let ours = Figure::new("register-and-fire, registered meanwhile", "/s", ours);
    let ratio = Figure::ratio("sustained ÷ pipe", &ours, &pipe);
    CaseResult { figures: vec![ratio, ours, pipe], ..CaseResult::default() }
}

/// Records seen a second, once `warm` has passed.
fn rate(
    cluster: &BenchCluster,
    name: &str,
    warm: Duration,
    start: impl FnOnce() -> MeasuredProcess,
) -> f64 {
    let mut reader = OutputReader::open(cluster, name);
    let (lots, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let _contender = start();
    std::thread::scope(|scope| {
        let _joined = scope.spawn(|| register(cluster, &lots, &over));
        let started = clock::monotonic();
        let mut seen = 0_u32;
        while clock::monotonic() - started < warm + MEASURED {
            let is_fire = reader.read_one();
            if is_fire && clock::monotonic() - started >= warm {
                seen += 1;
            }
            let taken_in = lots.load(Relaxed);
            if !is_fire && reader.has_marker(taken_in) {
                lots.store(taken_in + 1, Relaxed);
            }
        }
        over.store(true, Relaxed);
        f64::from(seen) / MEASURED.as_secs_f64()
    })
}

/// Registers until it is over; `lots` says how many have been taken in.
fn register(cluster: &BenchCluster, lots: &AtomicU32, over: &AtomicBool) {
    let mut generator = LoadGenerator::open(cluster);
    let (least, most) = DELAY_MS;
    while !over.load(Relaxed) {
        let first = generator.marker_count() * CHUNK;
        let now = clock::now_ms();
        for n in first..first + CHUNK {
            generator.register(SERIES, n, now + least + scattered(n, most - least));
        }
        let written = generator.write_marker() + 1;
        until("what was registered to be taken in", DEADLINE, || {
            generator.poll();
            let ahead = written - lots.load(Relaxed);
            (ahead < CHUNKS_AHEAD_MAX || over.load(Relaxed)).then_some(())
        });
    }
}
