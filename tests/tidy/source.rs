//! The project's files as text, and as much of Rust's syntax as the house rules need.
//!
//! Invariant: comments and literals are words, not code; no rule about code sees them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// A text file, by its path from the root.
pub(super) struct SourceFile {
    /// Relative to the root, with slashes.
    pub(super) path: String,
    /// As it is in the file.
    pub(super) text: String,
}

impl SourceFile {
    pub(super) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The path below the `src/` of its crate.
    pub(super) fn inside(&self) -> Option<&str> {
        self.path.strip_prefix("crates/orloj-core/").unwrap_or(&self.path).strip_prefix("src/")
    }

    /// The top-level module that a file of a crate belongs to.
    pub(super) fn module(&self) -> Option<&str> {
        self.inside()?.split('/').next()?.split('.').next()
    }

    /// Index of the first line of tests: 0 for a file of tests, the end for a file without.
    pub(super) fn tests_from(&self) -> usize {
        if self.inside().is_none() || self.path.ends_with("/tests.rs") {
            return 0;
        }
        let at = self.text.lines().position(|line| line == "#[cfg(test)]");
        at.unwrap_or_else(|| self.text.lines().count())
    }

    /// Lines without comments and literals, numbered from 1, and whether they are production's.
    pub(super) fn code(&self) -> Vec<(usize, bool, String)> {
        let tests_from = self.tests_from();
        let blanked = blank_out(&self.text);
        let lines = blanked.lines().enumerate();
        lines.map(|(at, line)| (at + 1, at < tests_from, line.to_owned())).collect()
    }

    pub(super) fn finding(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path)
    }
}

/// Every text file of the project, but not what tools generate.
pub(super) fn sources() -> Vec<SourceFile> {
    let root = Path::new("."); // where cargo runs tests
    let mut found = Vec::new();
    for folder in [
        "src", "crates", "tests", "benches", "scripts", "docs", "topics", "schemas", "deploy",
        ".ci",
    ] {
        collect(root, &root.join(folder), &mut found);
    }
    for entry in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_file() && !entry.ends_with(".git") {
            read(root, &entry, &mut found);
        }
    }
    assert!(
        found.iter().any(|source| source.path == "src/lib.rs"),
        "the sources are not at {root:?}"
    );
    found
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<SourceFile>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            collect(root, &path, found);
        } else {
            read(root, &path, found);
        }
    }
}

fn read(root: &Path, path: &Path, found: &mut Vec<SourceFile>) {
    if path.ends_with("Cargo.lock") {
        return; // cargo writes it
    }
    // Golden files may hold bytes that are not text; no rule is about them.
    if let Ok(text) = fs::read_to_string(path) {
        let path = path.strip_prefix(root).unwrap().to_str().unwrap();
        found.push(SourceFile::new(path, &text));
    }
}

/// The names that follow `marker` in a line, those of a braced group too.
pub(super) fn after(line: &str, marker: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut names = Vec::new();
    for (at, _) in line.match_indices(marker) {
        if line[..at].ends_with(is_name) {
            continue;
        }
        let rest = &line[at + marker.len()..];
        let group =
            rest.strip_prefix('{').map_or_else(|| vec![rest], |group| group.split(',').collect());
        let firsts = group.iter().map(|item| item.trim_start().split(|c| !is_name(c)).next());
        names.extend(firsts.flatten().filter(|name| !name.is_empty()).map(str::to_owned));
    }
    names
}

pub(super) fn has_word(line: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_name) && !line[at + word.len()..].starts_with(is_name)
    })
}

/// The words of a name or a path in small letters, whether written `FooBar` or `foo_bar`.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if !c.is_alphanumeric() || c.is_uppercase() {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c.is_alphanumeric(), words.last_mut()) {
            word.extend(c.to_lowercase());
        }
    }
    words
}

/// The text with comments and literals replaced by spaces, so that lines keep their numbers.
fn blank_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let opaque = opaque_length(rest);
        if opaque == 0 {
            out.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            out.extend(rest[..opaque].chars().map(|c| if c == '\n' { c } else { ' ' }));
            rest = &rest[opaque..];
        }
    }
    out
}

/// How many bytes of comment, string or character `rest` begins with.
fn opaque_length(rest: &str) -> usize {
    let until = |end: &str, from: usize| {
        rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until("*/", 2);
    }
    let raw = rest.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
    if let Some(hashes) = raw.filter(|hashes| rest[1 + hashes..].starts_with('"')) {
        return until(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
    }
    if rest.starts_with('"') {
        let mut escaped = true;
        let end = rest.char_indices().find(|&(_, c)| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        return end.map_or(rest.len(), |(at, _)| at + 1);
    }
    // A lifetime has no closing quote where a character has one.
    match rest.strip_prefix('\'').map(|inner| inner.chars().collect::<Vec<_>>()) {
        Some(inner) if inner.first() == Some(&'\\') => until("'", 3),
        Some(inner) if inner.get(1) == Some(&'\'') => inner[0].len_utf8() + 2,
        _ => 0,
    }
}

/// What git prints; `None` if it fails.
pub(super) fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}
