//! Registering and firing at full speed, next to the pipe.
//!
//! Invariant: *register-and-fire* is a backlog of which everything is due when the scheduler
//! starts. It still has to take each trigger into its timeline first, because until it has read all
//! input it fires only what was due when the last record that it has read was written.

use std::time::Duration;

use orloj::clock;
use orloj::kafka::Names;
use orloj::model::{Millis, Timestamp};

use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::chart::Chart;
use crate::figures::{Figure, Goal};
use crate::load_generator::{LoadGenerator, scattered};
use crate::measured_process::MeasuredProcess;
use crate::output_reader::OutputReader;
use crate::progress::print_progress;
use crate::wait::until;

const SERIES: &str = "backlog";
/// A million triggers are written within this time, in ms.
const WRITTEN_MS_PER_MILLION: Millis = 12_000;
/// Over how long its triggers are due after that, in ms.
const DUE_MS: Millis = 3_000;
const DEADLINE: Duration = Duration::from_secs(300);

/// B1 and B2: plain fill, pipe, register-and-fire.
pub(crate) fn backlog(run: &BenchRun) -> CaseResult {
    // A broker that has just started spends its first seconds compiling itself.
    let _warm = round(run, run.plan.backlog.min(400_000));
    let mut rounds = Vec::new();
    for number in run.rounds() {
        let round = round(run, run.plan.backlog);
        let [fill, pipe, fired] = round;
        print_progress(&format!(
            "round {number}: fill {fill:.0}/s, pipe {pipe:.0}/s, fired {fired:.0}/s"
        ));
        rounds.push(round);
    }
    let figure = |name: &str, at: usize| {
        Figure::new(name, "/s", rounds.iter().map(|round| round[at]).collect())
    };
    let (fill, pipe) = (figure("fill", 0), figure("pipe", 1));
    let fired = figure("register-and-fire", 2);
    let of_fill = Figure::ratio("pipe ÷ fill", &pipe, &fill);
    let of_pipe = Figure::ratio("register-and-fire ÷ pipe", &fired, &pipe);
    let bars = [&fill, &pipe, &fired].map(|figure| (figure.name.clone(), figure.median));
    CaseResult {
        // A slow pipe would make the processes compared with it look fast.
        figures: vec![
            of_fill.with_goal(Goal::at_least(0.5).or_fail()),
            of_pipe.with_goal(run.plan.of_pipe),
            fill,
            pipe,
            fired,
        ],
        charts: vec![Chart::bars("throughput", "Records a second", &bars)],
        ..CaseResult::default()
    }
}

/// Records a second: plain producer, pipe, scheduler. The last two work off the same backlog, one
/// after the other.
fn round(run: &BenchRun, count: u32) -> [f64; 3] {
    let cluster = BenchCluster::prepare(run.bootstrap);
    let (fill, all_due) = write_backlog(&cluster, count);
    let pipe = best_pipe(run, &cluster, SERIES, count);
    [fill, pipe, fire_backlog(&cluster, count, all_due)]
}

/// Triggers a second of a backlog.
pub(super) fn register_and_fire(run: &BenchRun, count: u32) -> f64 {
    let cluster = BenchCluster::prepare(run.bootstrap);
    let (_fill, all_due) = write_backlog(&cluster, count);
    fire_backlog(&cluster, count, all_due)
}

/// Returns the records that were written a second, and when all of them are due.
fn write_backlog(cluster: &BenchCluster, count: u32) -> (f64, Timestamp) {
    let begin = clock::now_ms() + u64::from(count) * WRITTEN_MS_PER_MILLION / 1_000_000 + 2_000;
    let mut generator = LoadGenerator::open(cluster);
    let rate = generator.register_all(SERIES, count, |n| begin + scattered(n, DUE_MS));
    assert!(clock::now_ms() < begin, "each trigger has to wait in the timeline");
    (rate, begin + DUE_MS)
}

/// The scheduler's records a second, when no clock holds it back.
fn fire_backlog(cluster: &BenchCluster, count: u32, all_due: Timestamp) -> f64 {
    until("all triggers to be due", DEADLINE, || (clock::now_ms() > all_due).then_some(()));
    let mut reader = OutputReader::open(cluster, "scheduler");
    let _scheduler = MeasuredProcess::scheduler(cluster);
    rate(&mut reader, SERIES, count)
}

/// The pipe's records a second with the best of the plan's batches. It moves whatever there is.
pub(super) fn best_pipe(run: &BenchRun, cluster: &BenchCluster, series: &str, count: u32) -> f64 {
    let triggers = Names::new(&cluster.settings.topics.prefix).triggers();
    let all = cluster.ends(&triggers).into_iter().sum();
    let rate = |&batch_ms: &u64| {
        let mut reader = OutputReader::open(cluster, "pipe");
        let _pipe = MeasuredProcess::pipe(cluster, all, Duration::from_millis(batch_ms));
        rate(&mut reader, series, count)
    };
    run.plan.batches_ms.iter().map(rate).fold(0.0, f64::max)
}

/// Records a second, from now, when the process has its partitions, to the last visible one.
fn rate(reader: &mut OutputReader, series: &str, count: u32) -> f64 {
    let started = clock::monotonic();
    f64::from(count) / (reader.count(series, count) - started).as_secs_f64()
}
