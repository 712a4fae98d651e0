//! One name, one meaning: type definitions that share their name are counted.
//!
//! Invariant: at most one definition in twenty shares its name with another one of the tree. The
//! associated types of a foreign trait do not count: their names are given.

use std::collections::BTreeMap;

use super::source::{SourceFile, after, sources};

/// Of a hundred definitions, how many may share their name with another.
const SHARED_PERCENT_MAX: usize = 5;

#[test]
fn type_names_mean_one_thing() {
    let places = definitions(&sources());
    let all: usize = places.values().map(Vec::len).sum();
    let shared: Vec<_> = places.iter().filter(|(_, places)| places.len() > 1).collect();
    let count: usize = shared.iter().map(|(_, places)| places.len()).sum();
    assert!(
        count * 100 <= all * SHARED_PERCENT_MAX,
        "{count} of {all} type definitions share their name: rename one of each pair\n{shared:#?}"
    );
}

#[test]
fn a_shared_type_name_is_found() {
    let one = SourceFile::new("src/a.rs", "pub struct Seen;\n// struct Comment;\nenum Own { A }\n");
    let other = SourceFile::new(
        "tests/it/b.rs",
        "impl X for Y {\n    type Seen = u8;\n}\ntype Seen = u8;\n",
    );
    let places = definitions(&[one, other]);
    assert_eq!(places["Seen"], ["src/a.rs:1", "tests/it/b.rs:4"]);
    assert_eq!(places["Own"].len(), 1);
    assert!(!places.contains_key("Comment"));
}

/// Where each type is defined. An indented `type` belongs to a trait or its implementation.
fn definitions(sources: &[SourceFile]) -> BTreeMap<String, Vec<String>> {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        for (number, _, line) in source.code() {
            let item = line.trim_start();
            let item = item.strip_prefix("pub").map_or(item, |rest| match rest.split_once(") ") {
                Some((scope, rest)) if scope.starts_with('(') => rest,
                _ => rest.trim_start(),
            });
            let keywords = ["struct ", "enum ", "trait ", "union ", "type "];
            for keyword in keywords.iter().filter(|keyword| item.starts_with(**keyword)) {
                let is_associated = *keyword == "type " && line.starts_with(' ');
                for name in after(item, keyword).into_iter().take(usize::from(!is_associated)) {
                    places.entry(name).or_default().push(format!("{}:{number}", source.path));
                }
            }
        }
    }
    places
}
