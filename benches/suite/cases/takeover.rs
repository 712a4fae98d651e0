//! How long a partition's new owner needs, against what is pending.
//!
//! Invariant: from the assignment of the first partition to the last one being active, as the owner
//! itself says. An entry is a record of the ledger, or one of the log that is replayed (what was
//! registered in the last ten minutes, here most of it). *Cold* is a process that has never seen
//! the partitions, *warm* one that was killed and finds its disk as it left it.

use crate::bench_cluster::BenchCluster;
use crate::case::{BenchRun, CaseResult};
use crate::chart::{Axes, Chart, ChartLine};
use crate::figures::{Figure, Goal, amount};
use crate::measured_process::MeasuredProcess;
use crate::pending_clusters;
use crate::progress::print_progress;

/// With this everything that is pending is in the log of the triggers, nothing in the ledger.
const LEDGER_UNUSED: &str = "scheduler.ledger_after = '25h'";
/// What is pending in the log of the triggers.
const TAIL: u32 = 1_000_000;

const AXES: Axes = Axes { x: "pending", y: "s", logarithmic: false };

/// B7.
pub(crate) fn against_pending(run: &BenchRun) -> CaseResult {
    let mut outcome = CaseResult::default();
    let mut lines = ["cold", "warm"].map(ChartLine::new);
    let mut rates = Vec::new();
    for &pending in &run.plan.pending {
        let cluster = run.pending_clusters.with_pending(run.bootstrap, pending);
        let what = format!("{} pending", amount(pending.into()));
        let takeovers = cold_and_warm(&cluster);
        for (line, takeover) in lines.iter_mut().zip(&takeovers) {
            let name = format!("{}, {what}", line.name);
            let figure = Figure::new(name, "s", vec![takeover.seconds]);
            print_progress(&format!("{}: {}", figure.name, figure.value()));
            line.points.push((pending.into(), figure.median));
            outcome.figures.push(figure);
        }
        rates.push(takeovers[0].rate(format!("cold, {what}")));
    }
    if let Some(most) = rates.pop() {
        outcome.figures.insert(0, most.with_goal(Goal::at_least(300_000.0)));
    }
    let tail = pending_clusters::prepare(run.bootstrap, run.count(TAIL), LEDGER_UNUSED);
    let [cold, _warm] = cold_and_warm(&tail);
    let tail = amount(run.count(TAIL).into());
    outcome.figures.push(cold.rate(format!("cold, {tail} pending in the log of the triggers")));

    let title = "Takeover of four partitions against pending triggers";
    outcome.charts.push(Chart::lines("takeover", title, AXES, lines.into()));
    outcome
}

/// The takeover of all partitions.
struct TakeoverTime {
    seconds: f64,
    /// Of the ledger and of the log.
    records: u64,
}

impl TakeoverTime {
    fn rate(&self, what: String) -> Figure {
        let name = format!("entries a second, {what} ({} read)", amount(self.records as f64));
        Figure::new(name, "/s", vec![self.records as f64 / self.seconds])
    }
}

fn cold_and_warm(cluster: &BenchCluster) -> [TakeoverTime; 2] {
    let empty = cluster.with_empty_disk();
    let first = MeasuredProcess::scheduler(&empty);
    let cold = of(&first);
    first.terminate();
    let second = MeasuredProcess::scheduler(&empty);
    second.wait_until_idle();
    second.kill();
    let third = MeasuredProcess::scheduler(&empty);
    let warm = of(&third);
    third.terminate();
    [cold, warm]
}

/// All partitions are assigned at once: the longest takeover is that of all.
fn of(scheduler: &MeasuredProcess) -> TakeoverTime {
    let takeovers = scheduler.takeovers();
    let longest = takeovers.iter().map(|(took, _)| took.as_secs_f64()).fold(0.0, f64::max);
    TakeoverTime { seconds: longest, records: takeovers.iter().map(|(_, records)| records).sum() }
}
