//! Faults on a real Kafka: each is a named case with a criterion, run one after the other by
//! `make faults`; the short ones also by `make test`.
//!
//! Invariant: a case passes by the judge's result on what Kafka acknowledged and what readers saw,
//! and by processes that recover by themselves. A case that cannot run here says why.

mod all_roles;
mod assignments;
pub(crate) mod background;
mod broker;
mod broker_roles;
mod cases;
mod clock_skew;
mod cluster;
mod delayed_requests;
mod delivered;
mod disk;
mod disk_space;
mod downtime;
mod failed_round;
mod five_brokers;
mod fixture;
mod foreign_partitioner;
pub(crate) mod gateway_load;
mod held_receiver;
mod kills;
mod lateness;
mod logged_turns;
mod lost_responses;
mod offline_partition;
mod offsets;
mod other_kinds;
mod part;
mod poison;
mod processes;
pub(crate) mod proxy;
mod readiness;
mod receiver;
mod recorded;
mod refused_signals;
mod registry_away;
mod report;
mod rng;
mod second_look;
mod steady_load;
mod takeover;
mod timeouts;
pub(crate) mod topic_admin;
mod topics;
mod unwritable_topics;
mod upgrades;
mod versions;
mod worker_ends;
mod worker_moves;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use orloj::clock;

use crate::skip;
use crate::test_cluster::exclusive_machine;
use cases::{BY_NAME, CASES, FaultCase, LONGER, SHORT};
use fixture::{FaultFixture, assert_clean, record_letter};
use report::{FaultCaseReport, FaultResult, closing_line};

/// From the end of a fault until everything has fired.
const COMPLETION_DEADLINE: Duration = Duration::from_secs(120);

/// How much of a case is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scale {
    /// Within a minute, as part of `make test`.
    Short,
    /// Everything: `make faults`.
    Full,
    /// Until one is tired of it: `make faults-long`.
    Long,
}

#[test]
fn short_fault_cases_pass() {
    let _machine = exclusive_machine();
    run_all(Scale::Short, |case| SHORT.contains(&case.name));
}

/// `CASES` names the ones to run, by a part of their names; `PART` is a commit's hash, which
/// chooses some; `LONG` runs them for longer.
#[test]
#[ignore = "more than an hour; `make faults` runs it"]
fn all_fault_cases_pass() {
    let _machine = exclusive_machine();
    let wanted = std::env::var("CASES").unwrap_or_default();
    let scale = if std::env::var_os("LONG").is_some() { Scale::Long } else { Scale::Full };
    if let Ok(commit) = std::env::var("PART") {
        let kept: Vec<_> = CASES.iter().map(|case| case.name).filter(is_kept).collect();
        let part = part::cases_of(&commit, &kept);
        return run_all(scale, |case| part.contains(&case.name));
    }
    run_all(scale, |case| {
        let is_named = wanted.split(',').any(|part| !part.is_empty() && case.name.contains(part));
        let is_wanted = is_named || wanted.is_empty() && is_kept(&case.name);
        is_wanted && (scale != Scale::Long || LONGER.contains(&case.name))
    });
}

fn is_kept(case: &&str) -> bool {
    !BY_NAME.contains(case)
}

fn run_all(scale: Scale, wanted: impl Fn(&FaultCase) -> bool) {
    let cases: Vec<_> = CASES.iter().filter(|case| wanted(case)).collect();
    if scale != Scale::Short {
        recorded::remove_all();
    }
    let mut ended = Vec::with_capacity(cases.len());
    for (place, case) in cases.iter().enumerate() {
        print_progress(&format!(
            "[{}/{}] {}: {}",
            place + 1,
            cases.len(),
            case.name,
            case.criterion
        ));
        let started = clock::monotonic();
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(scale)));
        let result = match result.unwrap_or_else(|panic| FaultResult::Failed(reason(&*panic))) {
            FaultResult::Skipped(why) if skip::is_failure() => {
                FaultResult::Failed(format!("not tested, which CI=true does not allow: {why}"))
            }
            result => result,
        };
        let seconds = (clock::monotonic() - started).as_secs();
        let FaultCase { name, criterion, late_max_ms, .. } = **case;
        let result = result.within(late_max_ms);
        ended.push(FaultCaseReport { case: name, criterion, late_max_ms, seconds, result });
        print_progress(&ended.last().expect("it was just pushed").line());
        if scale != Scale::Short {
            save_report(&ended, scale);
        }
    }
    print_progress(&closing_line(&ended));
    let failed = ended.iter().any(|ended| matches!(ended.result, FaultResult::Failed(_)));
    assert!(!failed && !ended.is_empty(), "{}", closing_line(&ended));
}

fn save_report(ended: &[FaultCaseReport], scale: Scale) {
    let all: Vec<_> = CASES.iter().map(|case| case.name).filter(is_kept).collect();
    let longer: Vec<_> = LONGER.into_iter().filter(is_kept).collect();
    let (files, order) =
        if scale == Scale::Long { (report::LONG, longer) } else { (report::FULL, all) };
    report::save(&files, ended, &order, std::env::var_os("PART").is_none());
}

/// Past the test harness, which would hide it when all is well.
fn print_progress(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}
