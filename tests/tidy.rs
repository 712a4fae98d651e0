//! The house rules, executed. Reads the sources as text and links nothing of the crate.
//!
//! Invariant: every rule says what to do instead, and has a self-test that shows it can fail. What
//! the compiler and clippy already hold (function length, `unwrap`, documentation) is not repeated.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/freshness.rs"]
mod freshness;
#[path = "tidy/kafka.rs"]
mod kafka;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/words.rs"]
mod plain_words;
#[path = "tidy/schemas.rs"]
mod schemas;
#[path = "tidy/simulator.rs"]
mod simulator;
#[path = "tidy/source.rs"]
mod source;

use std::collections::BTreeSet;

use dependencies::depends_downwards;
use source::{SourceFile, after, has_word, sources, words};

/// Lines of a file, inline tests excluded: beyond it, a file holds two concepts.
const LINES_MAX: usize = 500;
/// Columns of a line.
const COLUMNS_MAX: usize = 100;

/// Calls that the house does without: where they may not stand, and what stands there instead.
const BANNED: &[(&str, RuleScope, &str)] = &[
    ("todo!", RuleScope::Anywhere, "finish it, or return an error that says what is missing"),
    (
        "unimplemented!",
        RuleScope::Anywhere,
        "finish it, or return an error that says what is missing",
    ),
    ("dbg!", RuleScope::Anywhere, "use tracing::debug!"),
    ("to_le_bytes", RuleScope::Anywhere, "use to_be_bytes: keys sort as bytes"),
    ("to_ne_bytes", RuleScope::Anywhere, "use to_be_bytes: keys sort as bytes"),
    (
        "SystemTime::now",
        RuleScope::Production,
        "take the time as an argument; clock::now_ms at the edge",
    ),
    (
        "Instant::now",
        RuleScope::Production,
        "take the time as an argument; clock::monotonic at the edge",
    ),
    (
        "Timestamp::now",
        RuleScope::Production,
        "take the time as an argument; clock::now_ms at the edge",
    ),
    (
        "Zoned::now",
        RuleScope::Production,
        "take the time as an argument; clock::now_ms at the edge",
    ),
    (".elapsed()", RuleScope::Production, "subtract two readings of clock::monotonic"),
    ("set_var", RuleScope::Anywhere, "pass settings: the environment is shared by all threads"),
    ("thread_local!", RuleScope::Production, "pass it as an argument"),
    ("lazy_static!", RuleScope::Production, "pass it as an argument"),
    ("sleep(", RuleScope::Tests, "wait for a condition with a deadline: see tests/it/wait.rs"),
    ("sleep_ms(", RuleScope::Tests, "wait for a condition with a deadline: see tests/it/wait.rs"),
];

/// What `model` and `engine` must not name: everything that acts, waits or differs between runs.
const IO_PATHS: &[&str] = &[
    "tokio",
    "rdkafka",
    "rocksdb",
    "reqwest",
    "axum",
    "rand",
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "SystemTime",
    "Instant",
];

/// Names that say nothing about what a thing is.
const EMPTY_NAMES: &[&str] = &["util", "utils", "helper", "helpers", "common", "manager", "misc"];

#[derive(Clone, Copy, PartialEq)]
enum RuleScope {
    Anywhere,
    Production,
    Tests,
}

#[test]
fn every_file_opens_with_a_doc_comment() {
    check_all(opens_with_doc_comment);
}

#[test]
fn files_and_lines_are_short() {
    check_all(is_short);
}

#[test]
fn the_core_has_no_io() {
    check_all(core_is_pure);
}

#[test]
fn names_are_specific() {
    check_all(has_no_empty_name);
}

#[test]
fn banned_calls_are_absent() {
    check_all(has_no_banned_call);
}

#[test]
fn an_expect_says_why_it_cannot_fail() {
    check_all(expects_have_a_reason);
}

#[test]
fn there_are_no_statics() {
    check_all(has_no_static);
}

#[test]
fn nothing_names_a_machine_or_a_registry() {
    check_all(names_no_machine);
}

#[test]
fn every_schema_file_exists() {
    let there: BTreeSet<_> = sources().into_iter().map(|source| source.path).collect();
    // Schemas and their codec arrive together.
    if there.iter().any(|path| path.starts_with("schemas/")) {
        for name in ["trigger", "fire", "signal", "ledger", "outcome", "dead-letter"] {
            assert!(
                there.contains(&format!("schemas/{name}.avsc")),
                "schemas/{name}.avsc is missing"
            );
        }
    }
}

#[test]
fn each_rule_can_fail() {
    type Rule = fn(&SourceFile) -> Vec<String>;
    let long = "//! Invariant.\n".repeat(LINES_MAX + 1);
    let wide = "x".repeat(COLUMNS_MAX + 1);
    let machine = concat!("cd /ro", "ot/x");
    let registry = concat!("https://crates", ".io");
    let cases: [(Rule, &str, &str); 24] = [
        (opens_with_doc_comment, "src/a.rs", "use std::fs;"),
        (is_short, "src/a.rs", &long),
        (is_short, "src/a.rs", &wide),
        (depends_downwards, "crates/orloj-core/src/model/a.rs", "use crate::engine::Step;"),
        (
            depends_downwards,
            "crates/orloj-core/src/engine/a.rs",
            "use crate::{model, store::Rows};",
        ),
        (depends_downwards, "src/worker/a.rs", "let x = crate::scheduler::X;"),
        (depends_downwards, "src/kafka/mod.rs", "use super::worker::Worker;"),
        (depends_downwards, "src/kafka/a.rs", "use super::super::model;"),
        (depends_downwards, "src/novelty.rs", "//! Where does it stand?"),
        (core_is_pure, "crates/orloj-core/src/engine/a.rs", "use tokio::time;"),
        (core_is_pure, "crates/orloj-core/src/model/a.rs", "fn f(now: std::time::SystemTime) {}"),
        (has_no_empty_name, "src/store/utils.rs", "//! Invariant."),
        (has_no_empty_name, "src/a.rs", "pub struct PartitionManager;"),
        (has_no_banned_call, "src/a.rs", "    todo!()"),
        (has_no_banned_call, "tests/it/a.rs", "    thread::sleep(second);"),
        (has_no_banned_call, "src/a.rs", "#[cfg(test)]\nmod tests { fn f() { sleep(1) } }"),
        (has_no_banned_call, "src/a.rs", "let t = Instant::now();"),
        (has_no_banned_call, "src/a.rs", "let b = n.to_le_bytes();"),
        (expects_have_a_reason, "src/a.rs", "x.expect(\"\")"),
        (expects_have_a_reason, "src/a.rs", "x.expect(\"no x\")"),
        (has_no_static, "src/a.rs", "static CACHE: LazyLock<u8> = LazyLock::new(f);"),
        (has_no_static, "src/a.rs", "pub(crate) static mut N: u8 = 0;"),
        (names_no_machine, "README.md", machine),
        (names_no_machine, "scripts/a.sh", registry),
    ];
    for (rule, path, text) in cases {
        assert_ne!(rule(&SourceFile::new(path, text)), Vec::<String>::new(), "{path}: {text}");
    }
}

#[test]
fn well_formed_source_passes() {
    let text = "//! Says `todo!` and \"sleep(\" only in words.\n\
        use crate::model::Fire;\n\
        fn f<'a>(x: &'static str) { x.expect(\"its caller checked it\"); g('\"', r#\"dbg!\"#) }\n\
        #[cfg(test)]\nmod tests { fn t() { Instant::now(); } }\n";
    let source = SourceFile::new("crates/orloj-core/src/engine/a.rs", text);
    for rule in
        [opens_with_doc_comment, is_short, depends_downwards, core_is_pure, has_no_empty_name]
    {
        assert_eq!(rule(&source), Vec::<String>::new());
    }
    for rule in [has_no_banned_call, expects_have_a_reason, has_no_static, names_no_machine] {
        assert_eq!(rule(&source), Vec::<String>::new());
    }
}

fn opens_with_doc_comment(source: &SourceFile) -> Vec<String> {
    let silent = source.is_rust() && !source.text.starts_with("//! ");
    let what = "open with `//!`: what this file is and the invariant it keeps";
    silent.then(|| source.finding(1, what)).into_iter().collect()
}

fn is_short(source: &SourceFile) -> Vec<String> {
    if !source.is_rust() {
        return Vec::new();
    }
    let is_tests = source.tests_from() == 0;
    let lines = if is_tests { source.text.lines().count() } else { source.tests_from() };
    let too_long = (lines > LINES_MAX)
        .then(|| source.finding(lines, "a file has 500 lines at most: split it by concept"));
    let too_wide = source.text.lines().enumerate().filter(|(_, l)| l.chars().count() > COLUMNS_MAX);
    let too_wide = too_wide.map(|(at, _)| source.finding(at + 1, "a line has 100 columns at most"));
    too_long.into_iter().chain(too_wide).collect()
}

fn core_is_pure(source: &SourceFile) -> Vec<String> {
    if !matches!(source.module(), Some("model" | "codec" | "engine")) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, _, line) in source.code().into_iter().filter(|(_, production, _)| *production) {
        for name in IO_PATHS.iter().filter(|name| has_word(&line, name)) {
            let what = format!("take what {name} would tell as an argument, return what to do");
            findings.push(source.finding(number, &what));
        }
    }
    findings
}

fn has_no_empty_name(source: &SourceFile) -> Vec<String> {
    let is_empty = |name: &str| words(name).iter().any(|word| EMPTY_NAMES.contains(&word.as_str()));
    let what = "name it by what it is, not by being useful";
    let mut findings = Vec::new();
    if source.is_rust() && is_empty(&source.path) {
        findings.push(source.finding(1, what));
    }
    for (number, _, line) in source.code().into_iter().filter(|_| source.is_rust()) {
        let named = ["struct ", "enum ", "trait ", "mod ", "fn ", "type "];
        let declared = named.iter().flat_map(|keyword| after(&line, keyword));
        findings
            .extend(declared.filter(|name| is_empty(name)).map(|_| source.finding(number, what)));
    }
    findings
}

fn has_no_banned_call(source: &SourceFile) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, production, line) in source.code().into_iter().filter(|_| source.is_rust()) {
        for (call, place, instead) in BANNED {
            let applies = match place {
                RuleScope::Anywhere => true,
                RuleScope::Production => production && source.path != "src/clock.rs",
                RuleScope::Tests => !production,
            };
            if applies && line.contains(call) {
                findings.push(source.finding(number, &format!("not `{call}`: {instead}")));
            }
        }
    }
    findings
}

fn expects_have_a_reason(source: &SourceFile) -> Vec<String> {
    let production = source.text.lines().take(source.tests_from()).enumerate();
    let reasonless = |line: &str| {
        let message = line.split_once(".expect(\"").and_then(|(_, rest)| rest.split('"').next());
        message.is_some_and(|message| message.split_whitespace().count() < 3)
    };
    let what = "return an error, or say in the message why this cannot happen";
    production.filter(|(_, l)| reasonless(l)).map(|(at, _)| source.finding(at + 1, what)).collect()
}

fn has_no_static(source: &SourceFile) -> Vec<String> {
    let is_static = |line: &str| {
        let item = line.trim_start();
        let item = item.strip_prefix("pub(crate) ").unwrap_or(item);
        item.strip_prefix("pub ").unwrap_or(item).starts_with("static ")
    };
    // What is planted in a thread is known to no argument: that is what it is for.
    // The allocator cannot be anything else.
    let allowed = source.module() == Some("fault") || source.path == "src/allocator.rs";
    let lines = source
        .code()
        .into_iter()
        .filter(|(_, production, l)| *production && !allowed && is_static(l));
    lines
        .map(|(number, ..)| source.finding(number, "pass it as an argument; const if it is one"))
        .collect()
}

fn names_no_machine(source: &SourceFile) -> Vec<String> {
    let machines = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];
    let registries =
        [concat!("crates", ".io"), concat!("repo1.", "maven"), concat!("index.", "crates")];
    let mut findings = Vec::new();
    for (at, line) in source.text.lines().enumerate() {
        if machines.iter().any(|path| line.contains(path)) {
            findings.push(source.finding(at + 1, "a path of one machine means nothing on another"));
        }
        if registries.iter().any(|host| line.contains(host)) {
            findings.push(source.finding(at + 1, "the tool knows its registry; name the package"));
        }
    }
    findings
}

/// Applies a rule to every file and fails with all findings at once.
fn check_all(rule: fn(&SourceFile) -> Vec<String>) {
    let findings: Vec<_> = sources().iter().flat_map(rule).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}
