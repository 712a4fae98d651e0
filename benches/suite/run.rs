//! One run: the cases of a plan, one after the other, and what came of them.
//!
//! Law: a case that cannot go on fails alone; the others are measured all the same. The report is
//! written after each case, so that a run cut short has said what it knew.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use orloj::clock;

use crate::cases::{CASES, Case};
use crate::chart::Chart;
use crate::figures::Figure;
use crate::kafka_server;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::report::{Ended, Report};
use crate::stock::Stock;

/// What the cases of a run share.
pub(crate) struct Run {
    pub(crate) plan: Plan,
    /// Where the broker is.
    pub(crate) bootstrap: &'static str,
    pub(crate) stock: Stock,
}

/// What a case has measured.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) figures: Vec<Figure>,
    pub(crate) charts: Vec<Chart>,
    /// Sentences beside the figures.
    pub(crate) notes: Vec<String>,
}

impl Run {
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
pub(crate) fn all(plan: Plan) -> ExitCode {
    let wanted = std::env::var("CASES").unwrap_or_default();
    let is_wanted = |case: &&Case| {
        let named = wanted.split(',').any(|part| case.name.contains(part));
        if wanted.is_empty() { case.plans.contains(&plan.name) } else { named }
    };
    let cases: Vec<_> = CASES.iter().filter(is_wanted).collect();
    let machine = Machine::look();
    say(&machine.to_string());
    let run = Run { bootstrap: kafka_server::shared().bootstrap(), stock: Stock::default(), plan };
    let mut report = Report::new(run.plan.name, machine);
    for (place, case) in cases.iter().enumerate() {
        say(&format!("[{}/{}] {}: {}", place + 1, cases.len(), case.name, case.criterion));
        let begun = clock::monotonic();
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(&run)));
        let result = result.map_err(|panic| reason(&*panic));
        let seconds = (clock::monotonic() - begun).as_secs();
        let ended = Ended { case: case.name, criterion: case.criterion, seconds, result };
        say(&ended.to_string());
        report.add(ended);
        report.write();
    }
    say(&report.closing_line());
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A line of progress.
pub(crate) fn say(line: &str) {
    let _nobody_listens = writeln!(std::io::stdout().lock(), "{line}");
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
