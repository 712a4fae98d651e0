//! What the cases have found, in figures: for people as they come, and for machines as a file.
//!
//! Invariant: a case that did not run is called skipped, with the reason; it is never called
//! passed. The report names the commit of the program that it is about. A case that has failed and
//! was run again keeps the reasons.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use orloj::clock;
use serde::Serialize;
use serde_json::{Value, json};

use crate::audit::{self, Violation};

/// What a case counted.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct FaultFigures {
    /// Registrations, replacements included.
    registered: usize,
    fired: usize,
    duplicates: usize,
    lost: usize,
    /// Of every takeover, in ms; the median and the longest.
    takeover_ms: [u64; 2],
    /// How late fires were, in ms: p50, p99, max.
    late_ms: [u64; 3],
    /// What only this case counts.
    more: BTreeMap<&'static str, usize>,
}

impl FaultFigures {
    pub(crate) fn of(report: &audit::AuditReport) -> Self {
        let count = |violation| {
            report.findings.iter().filter(|finding| finding.violation == violation).count()
        };
        Self {
            registered: report.registered,
            fired: report.fired,
            duplicates: count(Violation::Duplicate),
            lost: count(Violation::Lost),
            late_ms: [0.5, 0.99, 1.0].map(|share| report.lateness_at(share)),
            ..Self::default()
        }
    }

    /// How long takeovers lasted, in ms.
    pub(crate) fn takeovers(mut self, mut took: Vec<u64>) -> Self {
        took.sort_unstable();
        let at = |place: usize| took.get(place).copied().unwrap_or(0);
        self.takeover_ms = [at(took.len() / 2), at(took.len().saturating_sub(1))];
        self
    }

    /// How late these were, in ms, where the audit does not count it.
    pub(crate) fn late(mut self, mut late: Vec<u64>) -> Self {
        late.sort_unstable();
        let last = late.len().saturating_sub(1);
        self.late_ms = [last / 2, last * 99 / 100, last].map(|at| late.get(at).map_or(0, |ms| *ms));
        self
    }

    /// What the judge of callbacks counted.
    pub(crate) fn count(&mut self, registered: usize, fired: usize) {
        (self.registered, self.fired) = (registered, fired);
    }

    pub(crate) fn with(mut self, name: &'static str, count: usize) -> Self {
        *self.more.entry(name).or_default() += count;
        self
    }

    /// Of two loads that ran side by side.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.registered += other.registered;
        self.fired += other.fired;
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        for (mine, theirs) in self.takeover_ms.iter_mut().zip(other.takeover_ms) {
            *mine = theirs.max(*mine);
        }
        for (mine, theirs) in self.late_ms.iter_mut().zip(other.late_ms) {
            *mine = theirs.max(*mine);
        }
        for (name, count) in &other.more {
            *self.more.entry(name).or_default() += count;
        }
        self
    }
}

/// How a case ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultResult {
    Passed(FaultFigures),
    Failed(String),
    Skipped(String),
}

impl FaultResult {
    /// Failed if a fire was later than `late_max` ms.
    pub(crate) fn within(self, late_max: u64) -> Self {
        match self {
            Self::Passed(FaultFigures { late_ms: [.., late], .. }) if late > late_max => {
                Self::Failed(format!("a fire was {late} ms late; {late_max} are allowed"))
            }
            result => result,
        }
    }
}

/// A case that has ended.
#[derive(Debug, Serialize)]
pub(crate) struct FaultCaseReport {
    pub(crate) case: &'static str,
    pub(crate) criterion: &'static str,
    /// How late a fire may be in this case, in ms.
    pub(crate) late_max_ms: u64,
    pub(crate) seconds: u64,
    pub(crate) result: FaultResult,
}

impl FaultCaseReport {
    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let took = Duration::from_secs(self.seconds);
        let result = match &self.result {
            FaultResult::Passed(figures) => {
                let FaultFigures { registered, fired, takeover_ms, late_ms, more, .. } = figures;
                let more: String = more.iter().map(|(name, n)| format!(", {n} {name}")).collect();
                format!(
                    "passed: {registered} registered, {fired} fired, takeover {takeover_ms:?} ms, \
                     late {late_ms:?} ms{more}"
                )
            }
            FaultResult::Failed(why) => format!("FAILED: {why}"),
            FaultResult::Skipped(why) => format!("skipped: {why}"),
        };
        format!("{} ({took:?}) {result}", self.case)
    }
}

/// `N passed, M failed, K skipped`.
pub(crate) fn closing_line(all: &[FaultCaseReport]) -> String {
    let count = |is: fn(&FaultResult) -> bool| all.iter().filter(|ended| is(&ended.result)).count();
    let passed = count(|result| matches!(result, FaultResult::Passed(_)));
    let failed = count(|result| matches!(result, FaultResult::Failed(_)));
    let skipped = count(|result| matches!(result, FaultResult::Skipped(_)));
    format!("{passed} passed, {failed} failed, {skipped} skipped")
}

/// Where a report is written to.
pub(crate) struct ReportFiles {
    /// The runs of the same program so far.
    latest: &'static str,
    /// The last whole run, from which the documents are made.
    pub(crate) kept: &'static str,
}

/// Of every case.
pub(crate) const FULL: ReportFiles =
    ReportFiles { latest: "target/faults/report.json", kept: "docs/reference/faults.json" };
/// Of those that can be run for longer.
pub(crate) const LONG: ReportFiles = ReportFiles {
    latest: "target/faults/report-long.json",
    kept: "docs/reference/faults-long.json",
};
/// The field of a case that has failed and was run again.
const EARLIER_FAILURES: &str = "earlier_failures";
/// What the program is made of.
const SOURCES: [&str; 3] = ["src", "crates/orloj-core/src", "vendor"];

/// Writes the latest report: what has ended, and the other cases of earlier runs of the same
/// program. To be kept it must have all of `order`, each passed, and be about a program that is
/// committed.
pub(crate) fn save(
    files: &ReportFiles,
    ended: &[FaultCaseReport],
    order: &[&str],
    may_be_kept: bool,
) {
    let (commit, is_changed) = program();
    let ReportFiles { latest, kept } = *files;
    let earlier = fs::read_to_string(latest).ok().and_then(|text| serde_json::from_str(&text).ok());
    let earlier = earlier.filter(|report: &Value| report["commit"] == commit.as_str());
    let cases = merged(earlier.as_ref(), ended, order);
    let is_whole = cases.len() == order.len()
        && cases.iter().all(|case| case["result"].get("passed").is_some());
    let date = Timestamp::from_millisecond(clock::now_ms().cast_signed()).unwrap();
    let date = date.strftime("%Y-%m-%d").to_string();
    let report = json!({"commit": commit, "date": date, "cases": cases});
    let text = serde_json::to_string_pretty(&report).unwrap() + "\n";
    fs::create_dir_all(Path::new(latest).parent().expect("a folder")).unwrap();
    fs::write(latest, &text).unwrap();
    if may_be_kept && is_whole && !is_changed {
        fs::write(kept, text).unwrap();
    }
}

/// The cases of both, in the order of the table. What has ended now replaces what was there, except
/// for the reasons of earlier failures.
fn merged(earlier: Option<&Value>, ended: &[FaultCaseReport], order: &[&str]) -> Vec<Value> {
    let earlier = earlier.and_then(|report| report["cases"].as_array());
    let mut cases: BTreeMap<String, Value> = BTreeMap::new();
    let ended = ended.iter().map(|ended| serde_json::to_value(ended).unwrap());
    for case in earlier.into_iter().flatten().cloned().chain(ended) {
        let name = case["case"].as_str().expect("every case has a name").to_owned();
        let case = with_failures_of(cases.remove(&name), case);
        let _new = cases.insert(name, case);
    }
    order.iter().filter_map(|name| cases.remove(*name)).collect()
}

/// A case with the reasons for which earlier runs of it have failed.
fn with_failures_of(earlier: Option<Value>, mut case: Value) -> Value {
    let Some(mut earlier) = earlier else { return case };
    let mut reasons = match earlier[EARLIER_FAILURES].take() {
        Value::Array(reasons) => reasons,
        _ => Vec::new(),
    };
    // The report is written after each case, with all that have ended by then.
    let is_same_run = ["result", "seconds"].iter().all(|field| earlier[*field] == case[*field]);
    if let reason @ Value::String(_) = earlier["result"]["failed"].take()
        && !is_same_run
    {
        reasons.push(reason);
    }
    if !reasons.is_empty() {
        case[EARLIER_FAILURES] = Value::Array(reasons);
    }
    case
}

/// The last commit that changed the program, and whether there are changes since.
fn program() -> (String, bool) {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).arg("--").args(SOURCES).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    (git(&["log", "-1", "--format=%H"]), !git(&["status", "--porcelain"]).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(case: &'static str, seconds: u64) -> FaultCaseReport {
        let result = FaultResult::Passed(FaultFigures::default());
        FaultCaseReport { case, criterion: "", late_max_ms: 0, seconds, result }
    }

    #[test]
    fn runs_of_parts_add_up() {
        let order = ["a", "b", "c"];
        let first = json!({"cases": merged(None, &[ended("c", 1), ended("a", 1)], &order)});
        let both = merged(Some(&first), &[ended("b", 2), ended("a", 2)], &order);
        let seconds = |case: &Value| (case["case"].clone(), case["seconds"].clone());
        let expected = [("a", 2), ("b", 2), ("c", 1)].map(|(name, s)| (json!(name), json!(s)));
        assert_eq!(both.iter().map(seconds).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_case_that_is_run_again_keeps_the_reasons_of_its_failures() {
        let failed = |why: &str| {
            let result = FaultResult::Failed(why.to_owned());
            FaultCaseReport { case: "a", criterion: "", late_max_ms: 0, seconds: 0, result }
        };
        let mut report = json!({});
        for run in [failed("late"), failed("late"), failed("lost"), ended("a", 1), ended("a", 2)] {
            report = json!({"cases": merged(Some(&report), &[run], &["a"])});
        }
        let case = &report["cases"][0];
        assert_eq!(case[EARLIER_FAILURES], json!(["late", "lost"]));
        assert!(case["result"].get("passed").is_some());
    }

    #[test]
    fn a_case_that_is_too_late_has_failed() {
        let late = |ms| FaultFigures { late_ms: [0, 0, ms], ..FaultFigures::default() };
        assert!(matches!(FaultResult::Passed(late(500)).within(500), FaultResult::Passed(_)));
        assert!(matches!(FaultResult::Passed(late(501)).within(500), FaultResult::Failed(_)));
    }
}
