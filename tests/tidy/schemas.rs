//! The schemas that were ever committed are still read.
//!
//! Invariant: what a release has written stays readable, so each version of a schema in this
//! history is in `schemas/` or in `schemas/before/`. Documentation and defaults are no part of what
//! is written.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::source::git;

/// Where the codec embeds them.
const CODEC: &str = "crates/orloj-core/src/codec/schemas.rs";

#[test]
fn every_schema_that_was_committed_is_still_read() {
    let codec = fs::read_to_string(CODEC).unwrap();
    let read: BTreeSet<String> = embedded(&codec).map(|path| written_form(&file(&path))).collect();
    // Those that were renamed or removed too, on any branch that was merged.
    let names = git(&["log", "--full-history", "--format=", "--name-only", "--", "schemas"]);
    let names: BTreeSet<_> = names.as_deref().unwrap().lines().collect();
    let is_schema = |name: &&str| name.ends_with(".avsc");
    for schema in names.into_iter().filter(is_schema) {
        let commits = git(&["log", "--full-history", "--format=%h", "--", schema]).unwrap();
        for commit in commits.lines() {
            // Of the commit that removes it there is nothing to read.
            let text = git(&["show", &format!("{commit}:{schema}")]).unwrap_or_default();
            assert!(
                text.is_empty() || read.contains(&written_form(&text)),
                "{schema} of {commit} is not read: keep it in schemas/before/, with a golden file"
            );
        }
    }
}

/// Every file that is kept is embedded.
#[test]
fn every_earlier_schema_is_embedded() {
    let codec = fs::read_to_string(CODEC).unwrap();
    let embedded: BTreeSet<String> = embedded(&codec).collect();
    for schema in file_names("schemas/before") {
        assert!(embedded.contains(&schema), "{CODEC} does not read {schema}");
    }
}

/// The schema files that the codec names.
fn embedded(codec: &str) -> impl Iterator<Item = String> {
    let paths = codec.split("include_str!(\"").skip(1).filter_map(|rest| rest.split('"').next());
    paths.map(|path| path.trim_start_matches("../").to_owned())
}

/// The schema files of a folder.
fn file_names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|it| it == "avsc"));
    files.map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn file(path: &str) -> String {
    fs::read_to_string(path).unwrap()
}

/// The part of a schema that decides what bytes mean.
fn written_form(schema: &str) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| name != "doc" && name != "default");
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut schema = serde_json::from_str(schema).unwrap();
    strip(&mut schema);
    schema.to_string()
}

#[test]
fn documentation_and_defaults_are_not_written() {
    let plain = r#"{"type": "record", "fields": [{"name": "a", "type": "int"}]}"#;
    let more = r#"{"type": "record", "doc": "x", "fields": [
        {"name": "a", "type": "int", "default": 1, "doc": "y"}]}"#;
    assert_eq!(written_form(plain), written_form(more));
    assert_ne!(written_form(plain), written_form(&plain.replace("int", "long")));
}
