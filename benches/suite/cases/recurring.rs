//! Recurring triggers beside one-time ones: how late they are at one rate, and how many fire in a
//! second when all are due in the same millisecond.
//!
//! Invariant: each fire of a recurring trigger writes its next occurrence into the ledger, in its
//! own transaction; what that costs is measured against one-time triggers of the same run.

use orloj::clock;
use orloj::model::Millis;

use super::burst::moment;
use super::lateness::{WARM_UP_S, of_scheduler};
use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::figures::{Figure, amount};
use crate::load_generator::LoadGenerator;
use crate::measured_process::MeasuredProcess;
use crate::output_reader::{Lateness, OutputReader};
use crate::progress::print_progress;

/// Recurring triggers.
const COUNT: u32 = 100_000;
/// From one occurrence to the next, in s.
const STEP_S: u32 = 20;
/// From the first registration to the first occurrence, in ms: all are taken in by then.
const LEAD_MS: Millis = 30_000;

/// What a round has measured.
struct RecurringRound {
    one_time: Lateness,
    recurring: Lateness,
    fired: f64,
    fired_one_time: f64,
}

/// Lateness at one rate, and the pace at which all of them fire at once.
pub(crate) fn beside_one_time(run: &BenchRun) -> CaseResult {
    let count = run.count(COUNT);
    let rate = count / STEP_S;
    let rounds: Vec<_> = run.rounds().map(|number| round(run, number, count, rate)).collect();
    let figure = |name: String, unit, of: &dyn Fn(&RecurringRound) -> f64| {
        Figure::new(name, unit, rounds.iter().map(of).collect())
    };
    let rate = amount(rate.into());
    let mut figures = Vec::new();
    for (percentile, of) in [("p50", (|l| l.p50_ms) as fn(&Lateness) -> f64), ("p99", |l| l.p99_ms)]
    {
        let late = |which: &str, of_round: &dyn Fn(&RecurringRound) -> Lateness| {
            figure(format!("{percentile} at {rate}/s, {which}"), "ms", &|round| {
                of(&of_round(round))
            })
        };
        let recurring = late("recurring", &|round| round.recurring);
        let one_time = late("one-time", &|round| round.one_time);
        figures.push(Figure::ratio(format!("{percentile} ÷ one-time"), &recurring, &one_time));
        figures.extend([recurring, one_time]);
    }
    let fired = figure("fired at once, recurring".to_owned(), "/s", &|round| round.fired);
    let one_time = figure("fired at once, one-time".to_owned(), "/s", &|r| r.fired_one_time);
    figures.push(Figure::ratio("fired at once ÷ one-time", &fired, &one_time));
    figures.extend([fired, one_time]);
    CaseResult { figures, ..CaseResult::default() }
}

fn round(run: &BenchRun, number: u32, count: u32, rate: u32) -> RecurringRound {
    let cluster = BenchCluster::prepare(run.bootstrap);
    let scheduler = MeasuredProcess::scheduler(&cluster);
    scheduler.wait_until_idle();
    let one_time = of_scheduler(run, &cluster, "once", rate);
    let recurring = spread_out(run, &cluster, count, rate);
    scheduler.terminate();
    let fired = at_once(&BenchCluster::prepare(run.bootstrap), count, true);
    let fired_one_time = at_once(&BenchCluster::prepare(run.bootstrap), count, false);
    print_progress(&format!(
        "round {number}: recurring {recurring}; one-time {one_time}; at once {fired:.0}/s, \
         one-time {fired_one_time:.0}/s"
    ));
    RecurringRound { one_time, recurring, fired, fired_one_time }
}

/// All of them at times spread evenly over a step, again and again.
fn spread_out(run: &BenchRun, cluster: &BenchCluster, count: u32, rate: u32) -> Lateness {
    let mut reader = OutputReader::open(cluster, "scheduler");
    let mut generator = LoadGenerator::open(cluster);
    let begin = clock::now_ms() + LEAD_MS;
    for n in 0..count {
        let start = begin + u64::from(n) * 1_000 / u64::from(rate);
        generator.recurring("again", n, &format!(r#"{{"every":"PT{STEP_S}S","start":{start}}}"#));
    }
    generator.flush();
    let seen = rate * (WARM_UP_S + run.plan.measured_s);
    reader.lateness("again", seen, Millis::from(WARM_UP_S) * 1_000)
}

/// All of them in one millisecond: how many are seen in a second.
fn at_once(cluster: &BenchCluster, count: u32, recurring: bool) -> f64 {
    let due = clock::now_ms() + LEAD_MS;
    let mut reader = OutputReader::open(cluster, "scheduler");
    let mut generator = LoadGenerator::open(cluster);
    for n in 0..count {
        if recurring {
            // An hour from one to the next: each comes once while it is looked at.
            generator.recurring("all", n, &format!(r#"{{"every":"PT1H","start":{due}}}"#));
        } else {
            generator.register("all", n, due);
        }
    }
    let mark = generator.write_marker();
    generator.flush();
    let _scheduler = MeasuredProcess::scheduler(cluster);
    reader.wait_for_marker(mark);
    assert!(clock::now_ms() + 1_000 < due, "all must be taken in before their time");
    let started = moment(due);
    f64::from(count) / (reader.count("all", count) - started).as_secs_f64()
}
