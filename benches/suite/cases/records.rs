//! How many records a trigger costs the cluster.
//!
//! Invariant: counted by the ends of all logs, so that markers of transactions and what the broker
//! itself keeps of offsets and transactions are in it.

use orloj::kafka::Names;

use super::lateness::of_scheduler;
use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::figures::{Figure, Goal};
use crate::measured_process::MeasuredProcess;
use crate::progress::print_progress;

/// Triggers a second.
const RATE: u32 = 10_000;
/// What the broker itself writes to.
const INTERNAL: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

/// Records a short one-time trigger at 10,000/s, its registration included.
pub(crate) fn of_short_triggers(run: &BenchRun) -> CaseResult {
    let cluster = BenchCluster::prepare(run.bootstrap);
    let names = Names::new(&cluster.settings.topics.prefix);
    let topics = [names.triggers(), names.ledger(), cluster.output("scheduler"), names.outcomes()];
    let topics: Vec<_> = topics.into_iter().chain(INTERNAL.map(str::to_owned)).collect();
    let ends = || topics.iter().map(|topic| cluster.ends(topic).iter().sum());

    let scheduler = MeasuredProcess::scheduler(&cluster);
    let before: Vec<i64> = ends().collect();
    let lateness = of_scheduler(run, &cluster, "counted", RATE);
    let after: Vec<i64> = ends().collect();
    scheduler.terminate();

    print_progress(&format!("at {RATE}/s: {lateness}"));
    let count = f64::from(RATE * (super::lateness::WARM_UP_S + run.plan.measured_s));
    let written: Vec<_> = before.iter().zip(&after).map(|(b, a)| (a - b) as f64 / count).collect();
    let all = Figure::new("records a trigger", "", vec![written.iter().sum()]);
    let mut figures = vec![all.with_goal(Goal::at_most(2.1))];
    let names = ["triggers", "ledger", "target", "outcomes"].into_iter().chain(INTERNAL);
    figures.extend(
        names
            .zip(written)
            .map(|(name, value)| Figure::new(format!("of them {name}"), "", vec![value])),
    );
    CaseResult { figures, ..CaseResult::default() }
}
