//! Memory and disk of a scheduler against what is pending.
//!
//! Invariant: looked at while it fires 10,000 a second, after it has come to rest; as the kernel
//! counts.

use super::lateness::of_scheduler;
use crate::case::{BenchRun, CaseResult};
use crate::chart::{Axes, Chart, ChartLine};
use crate::figures::{Figure, Goal, amount};
use crate::measured_process::MeasuredProcess;
use crate::progress::print_progress;

/// Fires a second meanwhile.
const RATE: u32 = 10_000;
const MIB: f64 = 1_048_576.0;

const AXES: Axes = Axes { x: "pending", y: "MiB", logarithmic: false };

/// B6.
pub(crate) fn against_pending(run: &BenchRun) -> CaseResult {
    let mut outcome = CaseResult::default();
    let mut residents: Vec<Figure> = Vec::new();
    let mut lines = ["resident", "anonymous"].map(ChartLine::new);
    let mut disk = ChartLine::new("disk");
    for &pending in &run.plan.pending {
        let cluster = run.pending_clusters.with_pending(run.bootstrap, pending);
        let scheduler = MeasuredProcess::scheduler(&cluster);
        scheduler.wait_until_idle();
        let _lateness = of_scheduler(run, &cluster, "remembered", RATE);
        let memory = scheduler.memory();
        let stores = MeasuredProcess::store_memory(&cluster);
        scheduler.terminate();
        let on_disk = cluster.disk_bytes();
        let what = format!("{} pending", amount(pending.into()));
        let mib = |name: &str, bytes: u64| {
            Figure::new(format!("{name}, {what}"), "MiB", vec![bytes as f64 / MIB])
        };
        let resident = mib("resident", memory.resident);
        let others =
            [mib("anonymous", memory.anonymous), mib("peak", memory.peak), mib("disk", on_disk)];
        print_progress(&format!("{what}: {}", resident.value()));
        for (of, bytes) in stores {
            let part = Figure::new(format!("{of}, {what}"), "MiB", vec![bytes / MIB]);
            print_progress(&format!("  {of}: {}", part.value()));
            outcome.figures.push(part);
        }
        lines[0].points.push((pending.into(), resident.median));
        lines[1].points.push((pending.into(), others[0].median));
        disk.points.push((pending.into(), others[2].median));
        outcome.figures.extend(others);
        residents.push(resident);
    }
    if let [.., some, most] = &residents[..] {
        let growth = Figure::ratio(format!("{} ÷ {}", most.name, some.name), most, some);
        outcome.figures.push(growth.with_goal(Goal::at_most(1.2)));
    }
    let bounded = residents.into_iter().map(|figure| figure.with_goal(Goal::at_most(1_024.0)));
    outcome.figures.extend(bounded);
    let title = "Memory against pending triggers";
    outcome.charts.push(Chart::lines("memory", title, AXES, lines.into()));
    let title = "Disk against pending triggers";
    outcome.charts.push(Chart::lines("disk", title, AXES, vec![disk]));
    outcome
}
