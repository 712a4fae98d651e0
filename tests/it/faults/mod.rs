//! Faults on a real Kafka: each is a named case with a criterion, run one after the other by
//! `make faults`; the short ones also by `make test`.
//!
//! Law: a case passes by the judge's verdict on what Kafka acknowledged and what readers saw, and
//! by processes that recover by themselves. A case that cannot run here says why.

mod flow;
mod kills;
mod receiver;
mod report;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use std::time::Duration;

use orloj::clock;

use crate::audit::{self, Command, Kind};
use crate::client::Client;
use crate::load::MARGIN;
use crate::stage::{Stage, whole_machine};
use crate::wait::until;
use report::{Ended, Verdict, closing_line, save};

/// From the end of a fault until everything has fired.
const SETTLE: Duration = Duration::from_secs(120);

/// A fault, and what must hold through it.
struct Case {
    name: &'static str,
    criterion: &'static str,
    run: fn(Scale) -> Verdict,
}

/// How much of a case is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scale {
    /// Within a minute, as part of `make test`.
    Short,
    /// Everything, within the hour: `make faults`.
    Full,
    /// Until one is tired of it: `make faults-long`.
    Long,
}

const CASES: &[Case] = &[
    Case {
        name: "kill-scheduler",
        criterion: "SIGKILL at every named step loses, repeats and hurries nothing",
        run: kills::schedulers,
    },
    Case {
        name: "kill-worker",
        criterion: "SIGKILL at every named step repeats only what was under way at a kill",
        run: kills::workers,
    },
];

/// Of these a little is run by `make test`.
const SHORT: [&str; 2] = ["kill-scheduler", "kill-worker"];

#[test]
fn a_few_faults_harm_nothing() {
    let _machine = whole_machine();
    run_all(Scale::Short, |case| SHORT.contains(&case.name));
}

/// `CASES` names the ones to run, by a part of their names; `LONG` runs them for longer.
#[test]
#[ignore = "an hour; `make faults` runs it"]
fn no_fault_harms_anything() {
    let _machine = whole_machine();
    let wanted = std::env::var("CASES").unwrap_or_default();
    let scale = if std::env::var_os("LONG").is_some() { Scale::Long } else { Scale::Full };
    run_all(scale, |case| {
        wanted.is_empty() || wanted.split(',').any(|part| case.name.contains(part))
    });
}

fn run_all(scale: Scale, wanted: impl Fn(&Case) -> bool) {
    let cases: Vec<_> = CASES.iter().filter(|case| wanted(case)).collect();
    let mut ended = Vec::with_capacity(cases.len());
    for (place, case) in cases.iter().enumerate() {
        say(&format!("[{}/{}] {}: {}", place + 1, cases.len(), case.name, case.criterion));
        let begun = clock::monotonic();
        let verdict = catch_unwind(AssertUnwindSafe(|| (case.run)(scale)));
        let verdict = verdict.unwrap_or_else(|panic| Verdict::Failed(reason(&*panic)));
        let seconds = (clock::monotonic() - begun).as_secs();
        ended.push(Ended { case: case.name, criterion: case.criterion, seconds, verdict });
        say(&ended.last().expect("it was just pushed").line());
        save(&ended);
    }
    say(&closing_line(&ended));
    let failed = ended.iter().any(|ended| matches!(ended.verdict, Verdict::Failed(_)));
    assert!(!failed && !ended.is_empty(), "{}", closing_line(&ended));
}

/// Past the test harness, which would hide it when all is well.
fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}

/// Waits until everything is due and has fired, and judges: nothing may be wrong.
fn settled(stage: &Stage, client: &Client) -> audit::Report {
    let commands = client.acknowledged();
    let due = |command: &Command| match command.kind {
        Kind::Register { due, .. } => Some(due),
        Kind::Cancel => None,
    };
    let soon = clock::now_ms() + 60_000;
    let last = commands.values().flatten().filter_map(due).filter(|due| *due < soon).max();
    let last = last.unwrap_or_default();
    until("everything to be due", SETTLE, || (clock::now_ms() > last).then_some(()));
    let report = stage.settled(&commands, MARGIN, SETTLE);
    assert!(report.is_clean(), "{report}");
    report
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
