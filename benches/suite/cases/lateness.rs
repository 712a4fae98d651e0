//! How late fires are seen, next to the ticker's, against what is pending.
//!
//! Invariant: from the due time to being received by a read_committed reader in another process.
//! The ticker runs alone, at the same rate, in the same round; the pending triggers fire meanwhile
//! into the same topic and are not counted. Beside it is the ticker *in company*: another process
//! registers at the same rate and a third one reads that, as for every scheduler. What it loses by
//! that is caused by the broker and the processor, not by the process that fires.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orloj::kafka::Names;
use orloj::kafka::reader::LogReader;
use orloj::model::Millis;

use crate::bench_cluster::{BenchCluster, PARTITIONS};
use crate::case::{BenchRun, CaseResult};
use crate::chart::{Axes, Chart, ChartLine};
use crate::figures::{Figure, Goal, amount};
use crate::load_generator::LoadGenerator;
use crate::measured_process::MeasuredProcess;
use crate::output_reader::{Lateness, OutputReader};
use crate::progress::print_progress;
use crate::ticker;

/// From a registration to its time, in ms.
const LEAD_MS: Millis = 3_000;
/// Seconds of firing before lateness is measured.
pub(super) const WARM_UP_S: u32 = 2;
/// The rate at which lateness is judged, if the plan has several.
const GOAL_RATE: u32 = 10_000;
/// When what is registered beside the ticker would be due, in ms from then.
const NEVER_MS: Millis = 24 * 3_600 * 1_000;
/// How long its reader waits for more at a time.
const POLL: Duration = Duration::from_millis(10);

/// What one round has measured: of the ticker by rate, of the scheduler by pending and rate.
struct LatenessRound {
    ticker: Vec<Lateness>,
    /// At the rate that is judged.
    ticker_under_load: Option<Lateness>,
    scheduler: Vec<Vec<Lateness>>,
}

/// A percentile, and where it stands.
type Percentile = (&'static str, fn(&Lateness) -> f64);

const PERCENTILES: [Percentile; 3] =
    [("p50", |l| l.p50_ms), ("p99", |l| l.p99_ms), ("p99.9", |l| l.p999_ms)];

/// B0 and B4.
pub(crate) fn against_pending(run: &BenchRun) -> CaseResult {
    let plan = &run.plan;
    let cluster = |&pending: &u32| run.pending_clusters.with_pending(run.bootstrap, pending);
    let clusters: Vec<_> = plan.pending.iter().map(cluster).collect();
    let rounds: Vec<_> = run
        .rounds()
        .map(|number| LatenessRound {
            ticker: plan.rates.iter().map(|&rate| of_ticker(run, rate)).collect(),
            ticker_under_load: plan
                .rates
                .contains(&GOAL_RATE)
                .then(|| ticker_under_load(run, GOAL_RATE)),
            scheduler: clusters.iter().map(|cluster| at_all_rates(run, cluster, number)).collect(),
        })
        .collect();
    let mut outcome = CaseResult::default();
    for percentile in PERCENTILES {
        let lines = (0..plan.rates.len())
            .flat_map(|at| compare_with_ticker(run, &rounds, percentile, at, &mut outcome.figures));
        let lines = lines.collect();
        let name = format!("lateness-{}", percentile.0.replace('.', ""));
        let title = format!("Lateness against pending triggers, {}", percentile.0);
        let axes = Axes { x: "pending", y: "ms", logarithmic: true };
        outcome.charts.push(Chart::lines(&name, &title, axes, lines));
    }
    outcome
}

pub(super) fn of_ticker(run: &BenchRun, rate: u32) -> Lateness {
    let cluster = BenchCluster::prepare(run.bootstrap);
    let mut reader = OutputReader::open(&cluster, "ticker");
    let count = rate * (WARM_UP_S + run.plan.measured_s);
    let _ticker = MeasuredProcess::ticker(&cluster, count, rate);
    let lateness = reader.lateness(ticker::SERIES, count, Millis::from(WARM_UP_S) * 1_000);
    print_progress(&format!("ticker at {}/s: {lateness}", amount(rate.into())));
    lateness
}

/// The ticker, while one process registers at the same rate and another reads it.
fn ticker_under_load(run: &BenchRun, rate: u32) -> Lateness {
    let cluster = BenchCluster::prepare(run.bootstrap);
    let mut reader = OutputReader::open(&cluster, "ticker");
    let mut generator = LoadGenerator::open(&cluster);
    let count = rate * (WARM_UP_S + run.plan.measured_s);
    let is_over = AtomicBool::new(false);
    let lateness = std::thread::scope(|scope| {
        let _reader = scope.spawn(|| read_triggers(&cluster, &is_over));
        let _ticker = MeasuredProcess::ticker(&cluster, count, rate);
        let _joined =
            scope.spawn(move || generator.register_at_rate("company", count, rate, NEVER_MS));
        let lateness = reader.lateness(ticker::SERIES, count, Millis::from(WARM_UP_S) * 1_000);
        is_over.store(true, Ordering::Relaxed);
        lateness
    });
    print_progress(&format!("ticker in company at {}/s: {lateness}", amount(rate.into())));
    lateness
}

/// Reads what is registered as a scheduler does, and does nothing with it.
fn read_triggers(cluster: &BenchCluster, is_over: &AtomicBool) {
    let reader = LogReader::open(&cluster.settings, "company").unwrap();
    let triggers = Names::new(&cluster.settings.topics.prefix).triggers();
    for partition in PARTITIONS {
        reader.start(&triggers, partition, 0).unwrap();
    }
    while !is_over.load(Ordering::Relaxed) {
        let _record = reader.poll(POLL).unwrap();
    }
}

/// One life of a scheduler, which is at rest when it begins.
fn at_all_rates(run: &BenchRun, cluster: &BenchCluster, round: u32) -> Vec<Lateness> {
    let scheduler = MeasuredProcess::scheduler(cluster);
    scheduler.wait_until_idle();
    let measure = |&rate: &u32| {
        let lateness = of_scheduler(run, cluster, &format!("live{round}-{rate}"), rate);
        print_progress(&format!("scheduler at {}/s: {lateness}", amount(rate.into())));
        lateness
    };
    let all = run.plan.rates.iter().map(measure).collect();
    scheduler.terminate();
    all
}

/// Of triggers that are registered meanwhile, with a running scheduler.
pub(super) fn of_scheduler(
    run: &BenchRun,
    cluster: &BenchCluster,
    series: &str,
    rate: u32,
) -> Lateness {
    let mut reader = OutputReader::open(cluster, "scheduler");
    let count = rate * (WARM_UP_S + run.plan.measured_s);
    let mut generator = LoadGenerator::open(cluster);
    std::thread::scope(|scope| {
        let _joined = scope.spawn(move || generator.register_at_rate(series, count, rate, LEAD_MS));
        reader.lateness(series, count, Millis::from(WARM_UP_S) * 1_000)
    })
}

/// Adds the results of the `at`-th rate, and returns its lines in the chart.
fn compare_with_ticker(
    run: &BenchRun,
    rounds: &[LatenessRound],
    (percentile, of): Percentile,
    at: usize,
    figures: &mut Vec<Figure>,
) -> [ChartLine; 2] {
    let plan = &run.plan;
    let rate = amount(plan.rates[at].into());
    let figure = |name: String, lateness: &dyn Fn(&LatenessRound) -> Lateness| {
        let values = rounds.iter().map(|round| of(&lateness(round)));
        Figure::new(name, "ms", values.collect())
    };
    // The quick plan has one rate, and floors for one percentile.
    let is_judged = match plan.rates {
        [_] => percentile == "p99",
        rates => percentile != "p99.9" && rates[at] == GOAL_RATE,
    };
    let ask = |figure: Figure, goal| if is_judged { figure.with_goal(goal) } else { figure };

    let ticker = figure(format!("{percentile} at {rate}/s, ticker"), &|round| round.ticker[at]);
    let ours: Vec<_> = (0..plan.pending.len())
        .map(|place| {
            let pending = amount(plan.pending[place].into());
            let name = format!("{percentile} at {rate}/s, {pending} pending");
            figure(name, &|round| round.scheduler[place][at])
        })
        .collect();
    for ours in &ours {
        let ratio = Figure::ratio(format!("{} ÷ ticker", ours.name), ours, &ticker);
        figures.push(ask(ratio, plan.of_ticker));
    }
    if let (GOAL_RATE, Some(most)) = (plan.rates[at], ours.last()) {
        let beside = figure(format!("{percentile} at {rate}/s, ticker in company"), &|round| {
            round.ticker_under_load.expect("it is measured at this rate")
        });
        let name = format!("{} ÷ ticker in company", most.name);
        figures.push(Figure::ratio(name, most, &beside));
        figures.push(beside);
    }
    if let [none, .., most] = &ours[..]
        && percentile == "p99"
    {
        let growth = Figure::ratio(format!("{} ÷ none pending", most.name), most, none);
        figures.push(ask(growth, Goal::at_most(1.5)));
        let floor = Figure::ratio(format!("{} ÷ plain ticker", none.name), none, &ticker);
        figures.push(ask(floor, Goal::at_most(0.65)));
    }
    let line = |name, is_reference, value: &dyn Fn(usize) -> f64| ChartLine {
        name,
        is_reference,
        points: (0..plan.pending.len()).map(|n| (plan.pending[n].into(), value(n))).collect(),
    };
    let lines = [
        line(format!("{rate}/s"), false, &|place| ours[place].median),
        line(format!("ticker at {rate}/s"), true, &|_| ticker.median),
    ];
    figures.extend(ours);
    figures.push(ticker);
    lines
}
