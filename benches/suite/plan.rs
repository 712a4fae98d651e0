//! How much is measured: in three minutes, in an hour, or for as long as it takes.
//!
//! Invariant: a smaller plan has fewer and smaller measurements, never other ones; one that has a
//! single figure may take longer over it. `SHRINK=n` divides every count by n: for trying the suite
//! itself, not for figures.

use crate::figures::Goal;

/// The size of a run.
#[derive(Clone, Debug)]
pub(crate) struct BenchPlan {
    /// What it is called on the command line, and in the names of its reports.
    pub(crate) name: &'static str,
    /// How often everything that is judged by a ratio is measured, in turn. The medians count.
    pub(crate) rounds: u32,
    /// How long the pipe's transactions take records, in ms. The best of them counts.
    pub(crate) batches_ms: &'static [u64],
    /// Records of a backlog: seconds of work, so that starting and stopping do not count.
    pub(crate) backlog: u32,
    /// Triggers that are due in one millisecond.
    pub(crate) burst: u32,
    /// Fires a second while lateness is measured.
    pub(crate) rates: &'static [u32],
    /// Triggers pending meanwhile.
    pub(crate) pending: Vec<u32>,
    /// Seconds in which lateness is measured.
    pub(crate) measured_s: u32,
    /// What is asked of register-and-fire ÷ pipe.
    pub(crate) of_pipe: Goal,
    /// What is asked of lateness ÷ the ticker's.
    pub(crate) of_ticker: Goal,
    /// What every count has been divided by.
    pub(crate) shrink: u32,
}

/// The plan of that name.
pub(crate) fn named(name: &str) -> Option<BenchPlan> {
    let plan = match name {
        "quick" => quick(),
        "full" => full(),
        "floor" => floor(),
        "long" => BenchPlan { name: "long", pending: vec![0, 1_000_000, 100_000_000], ..full() },
        _ => return None,
    };
    let shrink = std::env::var("SHRINK").map_or(1, |by| by.parse().unwrap());
    Some(BenchPlan {
        backlog: plan.backlog / shrink,
        burst: plan.burst / shrink,
        pending: plan.pending.iter().map(|count| count / shrink).collect(),
        shrink,
        ..plan
    })
}

fn full() -> BenchPlan {
    BenchPlan {
        name: "full",
        rounds: 3,
        batches_ms: &[25, 50, 100],
        backlog: 2_000_000,
        burst: 1_000_000,
        rates: &[2_000, 10_000, 50_000],
        pending: vec![0, 1_000_000, 10_000_000],
        measured_s: 10,
        of_pipe: Goal::at_least(0.60),
        of_ticker: Goal::at_most(1.25),
        shrink: 1,
    }
}

/// One figure of [`full`], measured for so long that it does not hang on when the broker happens
/// to collect garbage: p99 at 10,000/s with nothing pending.
fn floor() -> BenchPlan {
    BenchPlan {
        name: "floor",
        rates: &[10_000],
        pending: vec![0],
        measured_s: 40,
        of_ticker: Goal::at_most(0.65),
        ..full()
    }
}

/// By how much a machine that does other things as well may miss the floors: CI's.
const CI_TOLERANCE: f64 = 1.5;

/// Its goals are floors: below them, something is broken.
fn quick() -> BenchPlan {
    let tolerance = if std::env::var_os("CI").is_some() { CI_TOLERANCE } else { 1.0 };
    BenchPlan {
        name: "quick",
        batches_ms: &[50],
        backlog: 400_000,
        rates: &[2_000],
        pending: vec![0],
        of_pipe: Goal::at_least(0.35 / tolerance).or_fail(),
        of_ticker: Goal::at_most(2.0 * tolerance).or_fail(),
        ..full()
    }
}
