//! The published results of the faults are about a program that is not much older than this one.
//!
//! Invariant: the report names a commit of this history.

use super::source::git;

/// After so many commits that change the program, all faults are run again. Tests and comments are
/// not the program.
const COMMITS_MAX: usize = 40;
/// The last whole run.
const REPORT: &str = "docs/reference/faults.json";
/// What it says of those that failed.
const LIMITS: &str = "docs/internals/reliability.md";
/// What the program is made of.
const PROGRAM: [&str; 3] = ["src", "crates/orloj-core/src", "vendor"];

#[test]
fn the_published_fault_results_are_of_a_recent_commit() {
    let report = std::fs::read_to_string(REPORT).unwrap();
    let commit = commit_of(&report).unwrap_or_else(|| panic!("{REPORT} names no commit"));
    assert!(
        git(&["merge-base", "--is-ancestor", commit, "HEAD"]).is_some(),
        "{REPORT} is about {commit}, which is not in this history; run `make faults`"
    );
    let since = format!("{commit}..HEAD");
    let list = ["rev-list", since.as_str(), "--"];
    let commits = git(&[&list[..], &PROGRAM].concat()).expect("git has them");
    let commits = commits.lines().filter(|commit| changes_program(commit)).count();
    if let Err(why) = check(commits) {
        panic!("{why}");
    }
}

/// What failed in the published run, or before it was run again, is a known limit by its name.
#[test]
fn cases_that_failed_in_the_published_run_are_explained() {
    let report = std::fs::read_to_string(REPORT).unwrap();
    let page = std::fs::read_to_string(LIMITS).unwrap();
    let (_, limits) = page.split_once("## Known limits").expect("the page has them");
    for case in failed_cases(&report) {
        assert!(
            limits.contains(&format!("`{case}`")),
            "{case} has failed, and {LIMITS} says no word"
        );
    }
}

/// The names of the cases that have failed, at last or before.
fn failed_cases(report: &str) -> Vec<&str> {
    let cases = report.split("\"case\": \"").skip(1);
    let words = ["\"failed\": ", "\"earlier_failures\": "];
    let failed = cases.filter(|case| words.iter().any(|word| case.contains(word)));
    failed.filter_map(|case| case.split('"').next()).collect()
}

/// Whether a commit changes more of the program than its tests and comments.
fn changes_program(commit: &str) -> bool {
    let list = ["diff-tree", "--no-commit-id", "--name-only", "-r", commit, "--"];
    let changed = git(&[&list[..], &PROGRAM].concat()).expect("git has the commit");
    let code_at = |commit: String, path| code(&git(&["show", &commit_path(&commit, path)]));
    changed
        .lines()
        .filter(|path| is_program(path))
        .any(|path| code_at(format!("{commit}^"), path) != code_at(commit.to_owned(), path))
}

fn commit_path(commit: &str, path: &str) -> String {
    format!("{commit}:{path}")
}

/// Whether a file is not one of tests alone.
fn is_program(path: &str) -> bool {
    !path.contains("/tests/") && !path.contains("/test_") && !path.ends_with("tests.rs")
}

/// The lines of a file that are neither tests nor comments; none if it does not exist.
fn code(source: &Option<String>) -> Vec<String> {
    let lines = source.iter().flat_map(|text| text.lines());
    let code = lines.take_while(|line| !line.starts_with("mod tests")).map(str::trim);
    let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
    code.filter(is_code).filter(|line| *line != "#[cfg(test)]").map(str::to_owned).collect()
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

#[test]
fn tests_and_comments_are_not_the_program() {
    let source = |text: &str| code(&Some(text.to_owned()));
    let before =
        source("//! It adds.\nfn add() {}\n\n#[cfg(test)]\nmod tests {\n    fn a() {}\n}\n");
    assert_eq!(before, ["fn add() {}"]);
    assert_eq!(source("fn add() {}\n// why\n"), before);
    assert_ne!(source("fn add() { }\n"), before);
    assert!(code(&None).is_empty());
    assert!(is_program("src/kafka/member.rs") && is_program("src/clock.rs"));
    let tests = ["src/a/tests.rs", "src/engine/tests/wheel.rs", "src/scheduler/test_reader.rs"];
    assert!(tests.iter().all(|path| !is_program(path)));
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

#[test]
fn a_case_that_failed_is_found_by_its_name() {
    let report = r#"{"cases": [
        {"case": "a", "result": {"passed": {}}},
        {"case": "b", "result": {"failed": "late"}},
        {"case": "c", "earlier_failures": ["late"], "result": {"passed": {}}}]}"#;
    assert_eq!(failed_cases(report), ["b", "c"]);
    assert!(failed_cases("{}").is_empty());
}
