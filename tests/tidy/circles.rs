//! No circles: the modules of a folder use each other in one direction.
//!
//! Invariant: what stands in `CIRCLES` is a circle still, and says why; every other one is a
//! finding.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{SourceFile, after, sources};

/// Circles that stay: the folder, one of the modules, the reason.
const CIRCLES: &[(&str, &str, &str)] = &[];

/// Programs without a library: `crate::` starts here, and all of their code counts.
const PROGRAMS: &[&str] = &["benches/suite", "crates/orloj-core/tests/core", "tests/it"];

type Graph = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_form_no_circle() {
    let mut findings = Vec::new();
    let mut named = BTreeSet::new();
    for (folder, graph) in graphs(&sources()) {
        for circle in circles(&graph) {
            let is_named = |(of, module, _): &&(&str, &str, &str)| {
                *of == folder && circle.iter().any(|name| name == module)
            };
            match CIRCLES.iter().find(is_named) {
                Some((of, module, _)) => drop(named.insert((*of, *module))),
                None => findings.push(format!("{folder}: {}", circle.join(" <-> "))),
            }
        }
    }
    assert!(findings.is_empty(), "move what both use below both:\n{}\n", findings.join("\n"));
    for (folder, module, _) in CIRCLES {
        assert!(named.contains(&(*folder, *module)), "{folder}: {module} is in no circle any more");
    }
}

#[test]
fn a_circle_is_found() {
    let sources = [
        SourceFile::new("src/a/mod.rs", "mod one;\nmod two;\nmod three;\n"),
        SourceFile::new("src/a/one.rs", "use super::two::Two;\nuse crate::a::three;\n"),
        SourceFile::new("src/a/two/mod.rs", "use crate::a::one::One;\n"),
        SourceFile::new("src/a/three.rs", "#[cfg(test)]\nmod tests { use super::super::one; }\n"),
    ];
    let graphs_of_library = graphs(&sources);
    assert_eq!(circles(&graphs_of_library["src/a"]), [["one", "two"]]);
    let sources = [
        SourceFile::new("benches/suite/main.rs", "mod cases;\nmod run;\nuse crate::run::all;\n"),
        SourceFile::new("benches/suite/cases/mod.rs", "use crate::run::{BenchRun, CaseResult};\n"),
        SourceFile::new("benches/suite/run.rs", "use crate::cases::CASES;\n"),
        SourceFile::new("tests/it/faults/mod.rs", "mod one;\nmod two;\n"),
        SourceFile::new("tests/it/faults/one.rs", "use crate::faults::two::Two;\n"),
        SourceFile::new("tests/it/faults/two.rs", "use super::one::One;\n"),
    ];
    let graphs_of_programs = graphs(&sources);
    assert_eq!(circles(&graphs_of_programs["benches/suite"]), [["cases", "run"]]);
    assert_eq!(circles(&graphs_of_programs["tests/it/faults"]), [["one", "two"]]);
}

/// What the modules of each folder use of their siblings, in production code.
fn graphs(sources: &[SourceFile]) -> BTreeMap<String, Graph> {
    let mut graphs = BTreeMap::<String, Graph>::new();
    let folders: BTreeSet<_> = sources
        .iter()
        .filter_map(|source| {
            source.path.strip_suffix("/mod.rs").or_else(|| source.path.strip_suffix("/lib.rs"))
        })
        .chain(PROGRAMS.iter().copied())
        .map(str::to_owned)
        .collect();
    for source in sources.iter().filter(|source| source.is_rust()) {
        for folder in &folders {
            let Some(inside) = source.path.strip_prefix(&format!("{folder}/")) else { continue };
            let module = inside.split(['/', '.']).next().unwrap_or_default();
            if ["mod", "lib", "main", "tests"].contains(&module) {
                continue;
            }
            let uses = siblings(source, folder, inside.matches('/').count());
            graphs
                .entry(folder.clone())
                .or_default()
                .entry(module.to_owned())
                .or_default()
                .extend(uses);
        }
    }
    for graph in graphs.values_mut() {
        let modules: BTreeSet<_> = graph.keys().cloned().collect();
        for (module, uses) in graph {
            uses.retain(|used| modules.contains(used) && used != module);
        }
    }
    graphs
}

/// The names that `source`, `depth` folders below `folder`, takes from `folder`.
fn siblings(source: &SourceFile, folder: &str, depth: usize) -> BTreeSet<String> {
    let program = PROGRAMS.iter().find_map(|root| below(folder, root));
    let below_src = folder.split_once("src/").map(|(_, below)| below);
    let from_crate = match program.or(below_src) {
        Some("") => "crate::".to_owned(),
        Some(path) => format!("crate::{}::", path.replace('/', "::")),
        None if folder.ends_with("src") => "crate::".to_owned(),
        None => return BTreeSet::new(),
    };
    let is_mod = source.path.ends_with("/mod.rs");
    let ups = depth + usize::from(!is_mod) - usize::from(depth == 0 && is_mod);
    let relative = "super::".repeat(ups.max(1));
    let mut names = BTreeSet::new();
    for (_, production, line) in source.code() {
        if production || program.is_some() {
            names.extend(after(&line, &from_crate));
            let deeper = format!("super::{relative}");
            if ups > 0 && !line.contains(&deeper) {
                names.extend(after(&line, &relative));
            }
        }
    }
    names
}

/// The path of `folder` below `root`: empty for the root itself.
fn below<'a>(folder: &'a str, root: &str) -> Option<&'a str> {
    let rest = folder.strip_prefix(root)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

/// Groups of modules that all lead to each other, each in order.
fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let mut found = BTreeSet::new();
        let mut open = vec![from];
        while let Some(next) = open.pop() {
            open.extend(graph[next].iter().filter(|used| found.insert((*used).clone())));
        }
        found
    };
    let reached: BTreeMap<_, _> = graph.keys().map(|module| (module, reach(module))).collect();
    let mut groups = BTreeSet::new();
    for (module, found) in &reached {
        if found.contains(*module) {
            let both = found.iter().filter(|other| reached[other].contains(*module));
            groups.insert(both.cloned().collect::<Vec<_>>());
        }
    }
    groups.into_iter().collect()
}
