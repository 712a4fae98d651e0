//! Every statement of the module uses an index: their texts are read from the sources, so that none
//! is missing.

use std::path::Path;

use super::ViewFixture;

/// Statements that read something whole: small tables, at start or in steps of their own, and what
/// compares two views.
const FULL_SCANS: [&str; 3] = [
    "SELECT partition, offset, metadata FROM cursor",
    "SELECT coalesce(sum(count), 0) FROM tally",
    "SELECT coalesce(c.text, '-')",
];

/// The string literals of a Rust source, with continued lines joined.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut characters = source.chars().peekable();
    let (mut literal, mut inside) = (String::new(), false);
    while let Some(character) = characters.next() {
        match (inside, character) {
            (false, '/') if characters.peek() == Some(&'/') => {
                let _comment = characters.by_ref().take_while(|c| *c != '\n').count();
            }
            (false, '\'') if characters.clone().nth(1) == Some('\'') => {
                let _character = characters.by_ref().take(2).count();
            }
            (false, '"') => inside = true,
            (true, '"') => {
                inside = false;
                found.push(std::mem::take(&mut literal));
            }
            (true, '\\') => match characters.next() {
                Some('\n') => while characters.next_if(|c| c.is_whitespace()).is_some() {},
                Some(escaped) => literal.push(escaped),
                None => {}
            },
            (true, other) => literal.push(other),
            (false, _) => {}
        }
    }
    found
}

fn statements() -> Vec<String> {
    let verbs = ["SELECT ", "INSERT ", "UPDATE ", "DELETE "];
    let is_statement = |text: &String| verbs.iter().any(|verb| text.starts_with(verb));
    let mut all = Vec::new();
    for file in std::fs::read_dir(Path::new("src/view")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let production = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        if path.file_name().unwrap() != "dump.rs" {
            all.extend(literals(production).into_iter().filter(is_statement));
        }
    }
    all
}

/// What SQLite means to do, a line each.
fn plan(fixture: &ViewFixture, sql: &str) -> Vec<String> {
    let mut explain = fixture.db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut rows = explain.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get(3).unwrap());
    }
    lines
}

/// What a statement should not do.
fn full_scans(plan: &[String]) -> Vec<&String> {
    // A virtual table names its constraints after a colon: `M` is a match, `=` a row's number.
    let searches_words = |line: &str| line.contains("VIRTUAL TABLE INDEX") && !line.ends_with(':');
    let wrong = |line: &&String| {
        let scans = line.starts_with("SCAN") && !searches_words(line);
        scans && !line.contains("CONSTANT ROW") || line.contains("TEMP B-TREE")
    };
    plan.iter().filter(wrong).collect()
}

#[test]
fn every_statement_uses_an_index() {
    let fixture = ViewFixture::new();
    let all = statements();
    assert!(all.len() >= 50, "only {} statements were found", all.len());
    for sql in all {
        let plan = plan(&fixture, &sql);
        if !FULL_SCANS.iter().any(|whole| sql.starts_with(whole)) {
            assert!(full_scans(&plan).is_empty(), "{sql}\n{plan:#?}");
        }
    }
}

#[test]
fn a_statement_without_an_index_is_found() {
    let fixture = ViewFixture::new();
    for sql in [
        "SELECT place FROM listed WHERE executions = ?1",
        "SELECT place FROM listed WHERE sid = ?1 OR executions = 3",
        "SELECT lid FROM letter WHERE state = ?1 ORDER BY reason",
        "SELECT rowid FROM words",
    ] {
        assert_eq!(full_scans(&plan(&fixture, sql)).len(), 1, "{sql}");
    }
}
