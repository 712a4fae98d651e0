//! One run: the cases of a plan, one after the other, and their results.
//!
//! Invariant: a case that cannot go on fails alone; the others are measured all the same. The
//! report is written after each case, so that a run cut short has said what it knew.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use orloj::clock;

use crate::case::{BenchCase, BenchRun};
use crate::cases::CASES;
use crate::kafka_server;
use crate::machine::Machine;
use crate::pending_clusters::PendingClusters;
use crate::plan::BenchPlan;
use crate::progress::print_progress;
use crate::report::{BenchReport, CaseReport};

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
        let started = clock::monotonic();
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&run)));
        let result = result.map_err(|panic| reason(&*panic));
        let seconds = (clock::monotonic() - started).as_secs();
        let ended = CaseReport { case: case.name, criterion: case.criterion, seconds, result };
        print_progress(&ended.to_string());
        report.add(ended);
        report.write();
    }
    print_progress(&report.closing_line());
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
