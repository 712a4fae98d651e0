//! One run: the cases of a plan, one after the other, and what came of them.
//!
//! Invariant: a case that cannot go on fails alone; the others are measured all the same. The
//! report is written after each case, so that a run cut short has said what it knew.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use orloj::clock;

use crate::cases::{BenchCase, CASES};
use crate::chart::Chart;
use crate::figures::Figure;
use crate::kafka_server;
use crate::machine::Machine;
use crate::pending_clusters::PendingClusters;
use crate::plan::BenchPlan;
use crate::report::{BenchReport, CaseReport};

/// What the cases of a run share.
pub(crate) struct BenchRun {
    pub(crate) plan: BenchPlan,
    /// Where the broker is.
    pub(crate) bootstrap: &'static str,
    pub(crate) pending_clusters: PendingClusters,
}

/// What a case has measured.
#[derive(Debug, Default)]
pub(crate) struct CaseResult {
    pub(crate) figures: Vec<Figure>,
    pub(crate) charts: Vec<Chart>,
    /// Sentences beside the figures.
    pub(crate) notes: Vec<String>,
}

impl BenchRun {
    /// A count of a case's own, divided by what all are divided by.
    pub(crate) fn count(&self, full: u32) -> u32 {
        full / self.plan.shrink
    }

    /// Numbers of the rounds of what is judged by a ratio.
    pub(crate) fn rounds(&self) -> std::ops::RangeInclusive<u32> {
        1..=self.plan.rounds
    }
}

/// Measures what `CASES` names by a part of their names, or everything that the plan has.
pub(crate) fn all(plan: BenchPlan) -> ExitCode {
    let wanted = std::env::var("CASES").unwrap_or_default();
    let is_wanted = |case: &&BenchCase| {
        let named = wanted.split(',').any(|part| case.name.contains(part));
        if wanted.is_empty() { case.plans.contains(&plan.name) } else { named }
    };
    let cases: Vec<_> = CASES.iter().filter(is_wanted).collect();
    let machine = Machine::detect();
    print_progress(&machine.to_string());
    let run = BenchRun {
        bootstrap: kafka_server::shared().bootstrap(),
        pending_clusters: PendingClusters::default(),
        plan,
    };
    let mut report = BenchReport::new(run.plan.name, machine);
    for (place, case) in cases.iter().enumerate() {
        print_progress(&format!(
            "[{}/{}] {}: {}",
            place + 1,
            cases.len(),
            case.name,
            case.criterion
        ));
        let begun = clock::monotonic();
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&run)));
        let result = result.map_err(|panic| reason(&*panic));
        let seconds = (clock::monotonic() - begun).as_secs();
        let ended = CaseReport { case: case.name, criterion: case.criterion, seconds, result };
        print_progress(&ended.to_string());
        report.add(ended);
        report.write();
    }
    print_progress(&report.closing_line());
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A line of progress.
pub(crate) fn print_progress(line: &str) {
    let _nobody_listens = writeln!(std::io::stdout().lock(), "{line}");
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
