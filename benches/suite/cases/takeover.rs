//! How long a partition's new owner needs, against what is pending.
//!
//! Law: from the assignment of the first partition to the last one being active, as the owner
//! itself says. *Cold* is a process that has never seen the partitions, *warm* one that was killed
//! and finds its disk as it left it.

use std::time::Duration;

use crate::chart::{Axes, Chart, Line};
use crate::contender::Contender;
use crate::figures::{Figure, Goal, amount};
use crate::run::{Outcome, Run, say};
use crate::site::Site;
use crate::stock;

/// With this everything that is pending is in the log of the triggers, nothing in the ledger.
const NOTHING_IS_LONG: &str = "scheduler.ledger_after = '25h'";
/// What is pending in the log of the triggers.
const TAIL: u32 = 1_000_000;

const AXES: Axes = Axes { x: "pending", y: "s", logarithmic: false };

/// B7.
pub(crate) fn against_pending(run: &Run) -> Outcome {
    let mut outcome = Outcome::default();
    let mut lines = ["cold", "warm"].map(Line::new);
    for &pending in &run.plan.pending {
        let site = run.stock.with_pending(run.bootstrap, pending);
        let what = format!("{} pending", amount(pending.into()));
        for (line, seconds) in lines.iter_mut().zip(cold_and_warm(&site)) {
            let figure = Figure::new(format!("{}, {what}", line.name), "s", vec![seconds]);
            say(&format!("{}: {}", figure.name, figure.value()));
            line.points.push((pending.into(), figure.median));
            outcome.figures.push(figure);
        }
    }
    if let Some((most, seconds)) = lines[0].points.last().copied() {
        let name = format!("entries a second, cold, {} pending", amount(most));
        let figure = Figure::new(name, "/s", vec![most / seconds]);
        outcome.figures.insert(0, figure.asked(Goal::at_least(300_000.0)));
    }
    let tail = stock::prepare(run.bootstrap, run.count(TAIL), NOTHING_IS_LONG);
    let [cold, _warm] = cold_and_warm(&tail);
    let tail = amount(run.count(TAIL).into());
    let name = format!("entries a second, cold, {tail} pending in the log of the triggers");
    outcome.figures.push(Figure::new(name, "/s", vec![f64::from(run.count(TAIL)) / cold]));

    let title = "Takeover of four partitions against pending triggers";
    outcome.charts.push(Chart::lines("takeover", title, AXES, lines.into()));
    outcome
}

/// Seconds.
fn cold_and_warm(site: &Site) -> [f64; 2] {
    let empty = site.with_empty_disk();
    let first = Contender::scheduler(&empty);
    let cold = longest(&first);
    first.terminate();
    let second = Contender::scheduler(&empty);
    second.rest();
    second.kill();
    let third = Contender::scheduler(&empty);
    let warm = longest(&third);
    third.terminate();
    [cold, warm]
}

/// All partitions are assigned at once: the longest takeover is that of all.
fn longest(scheduler: &Contender) -> f64 {
    let takeovers = scheduler.takeovers();
    takeovers.iter().max().map_or(0.0, Duration::as_secs_f64)
}
