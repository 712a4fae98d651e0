//! The simulation drives the production engine and does not repeat its rules.
//!
//! Invariant: a name that the engine exports is not defined in the simulation again.

use std::collections::BTreeSet;

use super::source::{SourceFile, after, sources, words};

#[test]
fn the_simulator_does_not_reimplement_the_engine() {
    let all = sources();
    let (rules, simulator) = (rules_of(&all), all.iter().filter(|source| is_simulator(source)));
    let findings: Vec<_> = simulator.flat_map(|source| reimplements(source, &rules)).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
    let drives = |name: &str| {
        let uses =
            |source: &SourceFile| source.text.contains(&format!("orloj_core::engine::{name}"));
        all.iter().any(|source| is_simulator(source) && uses(source))
    };
    for name in ["cursor", "partition", "takeover", "wheel"] {
        assert!(drives(name), "the simulator must drive the production engine::{name}");
    }
}

#[test]
fn a_simulator_that_reimplements_the_engine_is_found() {
    let engine = "pub struct Watermark;\npub enum Ask {}\npub fn take_due() {}\nfn own() {}\n";
    let rules = rules_of(&[SourceFile::new("crates/orloj-core/src/engine/a.rs", engine)]);
    assert_eq!(rules, ["Ask", "Watermark", "take_due"].map(str::to_owned).into());
    for copy in ["enum Ask { Now }", "fn take_due(&mut self) {}", "pub(super) struct Watermark;"] {
        let source = SourceFile::new("crates/orloj-core/tests/core/simulation/a.rs", copy);
        assert_eq!(reimplements(&source, &rules).len(), 1, "{copy}");
    }
    let driver = SourceFile::new(
        "crates/orloj-core/tests/core/simulation/a.rs",
        "fn own() { partition.take_due(3); }",
    );
    assert_eq!(reimplements(&driver, &rules), Vec::<String>::new());
}

fn is_simulator(source: &SourceFile) -> bool {
    source.path.starts_with("crates/orloj-core/tests/core/simulation")
}

/// The names under which the engine decides: its types, and its functions of several words.
fn rules_of(sources: &[SourceFile]) -> BTreeSet<String> {
    let engine = sources.iter().filter(|source| source.module() == Some("engine"));
    let lines = engine.flat_map(SourceFile::code).filter(|(_, production, _)| *production);
    let keywords = ["pub struct ", "pub enum ", "pub fn "];
    let names = lines.flat_map(|(_, _, line)| keywords.map(|keyword| after(&line, keyword)));
    names.flatten().filter(|name| words(name).len() > 1).collect()
}

/// The simulator drives the engine; what it defines under a name of the engine's is a copy.
fn reimplements(source: &SourceFile, rules: &BTreeSet<String>) -> Vec<String> {
    let defined = |line: &str| ["struct ", "enum ", "fn "].map(|keyword| after(line, keyword));
    let mut findings = Vec::new();
    for (number, _, line) in source.code() {
        for name in defined(&line).into_iter().flatten().filter(|name| rules.contains(name)) {
            let what = format!("drive the engine's {name}; a copy proves nothing about it");
            findings.push(source.finding(number, &what));
        }
    }
    findings
}
