//! Long triggers: each goes through the ledger.
//!
//! Invariant: a setting makes triggers of half a minute long ones. What is measured is what a
//! trigger of a month costs at both its ends: to be registered, and to be fired.

use orloj::clock;
use orloj::kafka::Names;
use orloj::model::Millis;

use super::burst::moment;
use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::figures::Figure;
use crate::load_generator::LoadGenerator;
use crate::measured_process::MeasuredProcess;
use crate::output_reader::OutputReader;
use crate::progress::print_progress;

const SERIES: &str = "long";
/// Triggers.
const COUNT: u32 = 100_000;
/// What is due later is long.
const LONG: &str = "scheduler.ledger_after = '1s'";
/// To write and take in all of them, in ms.
const LEAD_MS: Millis = 30_000;

/// B8: registered and fired a second, and what the ledger has got for each.
pub(crate) fn long_triggers(run: &BenchRun) -> CaseResult {
    let count = run.count(COUNT);
    let rounds: Vec<_> = run.rounds().map(|number| round(run, number, count)).collect();
    let figure = |name: &str, unit, at: usize| {
        Figure::new(name, unit, rounds.iter().map(|round| round[at]).collect())
    };
    let figures = vec![
        figure("registered", "/s", 0),
        figure("fired", "/s", 1),
        figure("ledger records a trigger, markers included", "", 2),
    ];
    CaseResult { figures, ..CaseResult::default() }
}

fn round(run: &BenchRun, number: u32, count: u32) -> [f64; 3] {
    let cluster = BenchCluster::prepare_with(run.bootstrap, LONG);
    let due = clock::now_ms() + LEAD_MS;
    let mut reader = OutputReader::open(&cluster, "scheduler");
    let mut generator = LoadGenerator::open(&cluster);
    let _rate = generator.register_all(SERIES, count, |_| due);
    let mark = generator.write_marker();
    generator.flush();
    let _scheduler = MeasuredProcess::scheduler(&cluster);
    let started = clock::monotonic();
    reader.wait_for_marker(mark);
    let registered = f64::from(count) / (clock::monotonic() - started).as_secs_f64();
    assert!(clock::now_ms() + 1_000 < due, "all must be taken in before their time");
    let started = moment(due);
    let fired = f64::from(count) / (reader.count(SERIES, count) - started).as_secs_f64();
    let ledger: i64 =
        cluster.ends(&Names::new(&cluster.settings.topics.prefix).ledger()).iter().sum();
    print_progress(&format!("round {number}: registered {registered:.0}/s, fired {fired:.0}/s"));
    [registered, fired, ledger as f64 / f64::from(count)]
}
