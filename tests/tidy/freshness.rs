//! The published results of the faults are about a program that is not much older than this one.
//!
//! Invariant: the report names a commit of this history.

use std::process::Command;

/// After so many commits that change the program, all faults are run again.
const COMMITS_MAX: usize = 40;
/// The last whole run.
const REPORT: &str = "docs/reference/faults.json";
/// What the program is made of.
const PROGRAM: [&str; 2] = ["src", "crates/orloj-core/src"];

#[test]
fn the_published_fault_results_are_of_a_recent_commit() {
    let report = std::fs::read_to_string(REPORT).unwrap();
    let commit = commit_of(&report).unwrap_or_else(|| panic!("{REPORT} names no commit"));
    assert!(
        git(&["merge-base", "--is-ancestor", commit, "HEAD"]).is_some(),
        "{REPORT} is about {commit}, which is not in this history; run `make faults`"
    );
    let since = format!("{commit}..HEAD");
    let commits = git(&["rev-list", "--count", &since, "--", PROGRAM[0], PROGRAM[1]]);
    let commits = commits.and_then(|count| count.trim().parse().ok()).expect("git counts commits");
    if let Err(why) = check(commits) {
        panic!("{why}");
    }
}

fn check(commits: usize) -> Result<(), String> {
    if commits <= COMMITS_MAX {
        return Ok(());
    }
    Err(format!(
        "{commits} commits have changed the program since {REPORT}, and {COMMITS_MAX} may; run \
         `make faults`, commit the report, and renew its page: \
         ORLOJ_DOCS=write cargo test --test reference"
    ))
}

/// The value of the field `commit`.
fn commit_of(report: &str) -> Option<&str> {
    let (_, rest) = report.split_once("\"commit\": \"")?;
    rest.split('"').next()
}

/// What git prints; `None` if it fails.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn an_old_report_and_one_of_an_unknown_commit_are_refused() {
    assert!(check(COMMITS_MAX).is_ok());
    assert!(check(COMMITS_MAX + 1).unwrap_err().contains("make faults"));
    assert_eq!(commit_of("{\n  \"cases\": [],\n  \"commit\": \"abc\",\n"), Some("abc"));
    assert_eq!(commit_of("{}"), None);
    let unknown = "0123456789012345678901234567890123456789";
    assert_eq!(git(&["merge-base", "--is-ancestor", unknown, "HEAD"]), None);
}
