//! The documents, checked: links, anchors, lengths, and the tests that they name.
//!
//! Invariant: every relative link leads to a file that exists and every anchor to a heading of it,
//! as a forge makes anchors of headings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::{SourceFile, after, sources};

/// Pages that are read in one go, with their lines at most.
const LENGTHS: [(&str, usize); 3] =
    [("README.md", 120), ("ARCHITECTURE.md", 250), ("docs/internals/life-of-a-trigger.md", 60)];
/// Each list item of this page is an invariant.
const INVARIANTS: &str = "docs/internals/invariants.md";
/// What stands in backticks and has so many underscores is the name of a test.
const UNDERSCORES_MIN: usize = 4;
/// Where modules are. `core/` in a page is short for the first.
const ROOTS: [&str; 2] = ["crates/orloj-core/src", "src"];

#[test]
fn every_link_leads_somewhere() {
    let pages: Vec<_> = sources().into_iter().filter(is_page).collect();
    let anchors = pages.iter().map(|page| (page.path.clone(), anchors(&page.text))).collect();
    let exists = |path: &str| Path::new(path).exists();
    let findings: Vec<_> =
        pages.iter().flat_map(|page| dead_links(page, &anchors, &exists)).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn every_invariant_names_its_test() {
    let sources = sources();
    let tests = sources.iter().filter(|source| source.is_rust()).flat_map(run_tests).collect();
    let page = sources.iter().find(|source| source.path == INVARIANTS).unwrap();
    assert!(!invariants(&page.text).is_empty(), "{INVARIANTS} has no list item");
    assert_eq!(untested_invariants(&page.text, &tests), Vec::<String>::new());
}

#[test]
fn every_test_that_a_page_names_exists() {
    let sources = sources();
    let rust = sources.iter().filter(|source| source.is_rust());
    let functions = rust.flat_map(functions).collect();
    let pages = sources.iter().filter(|source| is_page(source));
    let findings: Vec<_> = pages.flat_map(|page| unknown_tests(page, &functions)).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn every_file_and_module_that_a_page_names_exists() {
    let exists = |path: &str| Path::new(path).exists();
    let sources = sources();
    let pages = sources.iter().filter(|source| is_page(source));
    let functions = sources.iter().filter(|source| source.is_rust()).flat_map(functions).collect();
    let findings: Vec<_> =
        pages.flat_map(|page| unknown_files(page, &functions, &exists)).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn pages_to_read_in_one_go_are_short() {
    let sources = sources();
    for (path, most) in LENGTHS {
        let page = sources.iter().find(|source| source.path == path).unwrap();
        assert_eq!(too_long(page, most), Vec::<String>::new());
    }
}

#[test]
fn each_rule_of_documents_can_fail() {
    let page = SourceFile::new(
        "docs/a/page.md",
        "# A `page`: the 1st\n## Twice\n## Twice\n[x](../b.md) ![y](y.svg) [z](#twice-1)\n\
         ```sh\n[not a link](missing.md)\n```\n`[nor](this.md)` [web](https://example.com)\n",
    );
    let found = anchors(&page.text);
    assert_eq!(found, ["a-page-the-1st", "twice", "twice-1"].map(str::to_owned).into());
    let all = BTreeMap::from([
        ("docs/a/page.md".to_owned(), found),
        ("docs/b.md".to_owned(), BTreeSet::new()),
    ]);
    let exists = |path: &str| ["docs/b.md", "docs/a/y.svg"].contains(&path);
    assert_eq!(dead_links(&page, &all, &exists), Vec::<String>::new());
    for link in ["[x](b.md)", "[x](../b.md#x)", "[x](#nothing)", "![x](x.svg)", "[x]: b.md"] {
        let page = SourceFile::new("docs/a/page.md", link);
        assert_eq!(dead_links(&page, &all, &exists).len(), 1, "{link}");
    }

    let code = "#[test]\nfn one() {}\n#[test]\n#[ignore = \"slow\"]\nfn two() {}\nfn three() {}\n";
    let tests: BTreeSet<_> =
        run_tests(&SourceFile::new("tests/it/a.rs", code)).into_iter().collect();
    assert_eq!(tests, BTreeSet::from(["one".to_owned()]));
    assert_eq!(untested_invariants("- Held by\n  `one` (`two`).\n", &tests).len(), 0);
    for item in ["- Held by `two`.\n", "- Held by `three`.\n", "- Held by nothing: one.\n"] {
        assert_eq!(untested_invariants(item, &tests).len(), 1, "{item}");
    }
    let known = BTreeSet::from(["this_is_one_of_them".to_owned()]);
    let named = "`this_is_one_of_them` and `scheduler.not_a_test_but_a_setting`";
    assert_eq!(unknown_tests(&SourceFile::new("README.md", named), &known).len(), 0);
    let unknown = SourceFile::new("README.md", "`this_is_none_of_them`");
    assert_eq!(unknown_tests(&unknown, &known).len(), 1);
    assert_eq!(too_long(&SourceFile::new("README.md", "1\n2\n3\n"), 2).len(), 1);

    let there = ["src/kafka", "src/kafka/mod.rs", "crates/orloj-core/src/engine", "src/clock.rs"];
    let engine = ["crates/orloj-core/src/engine/wheel.rs", "crates/orloj-core/src/engine/mod.rs"];
    let exists = |path: &str| there.contains(&path) || engine.contains(&path);
    let named = "`core/engine/mod.rs`, `wheel.rs`; `src/clock.rs`, `engine::wheel` and `std::fs`";
    assert_eq!(
        unknown_files(&SourceFile::new("README.md", named), &known, &exists),
        Vec::<String>::new()
    );
    for name in ["`src/missing.rs`", "`src/kafka/mod.rs`, `missing.rs`", "`engine::missing`"] {
        assert_eq!(
            unknown_files(&SourceFile::new("README.md", name), &known, &exists).len(),
            1,
            "{name}"
        );
    }
}

fn is_page(source: &SourceFile) -> bool {
    source.path.ends_with(".md")
}

fn too_long(page: &SourceFile, most: usize) -> Vec<String> {
    let lines = page.text.lines().count();
    let what = format!("{lines} lines, {most} at most: move what few readers need to docs/");
    (lines > most).then(|| page.finding(lines, &what)).into_iter().collect()
}

/// Lines outside of code blocks, numbered from 1, without what stands in backticks if it is code.
fn prose(page: &str, keep_code: bool) -> Vec<(usize, String)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (at, line) in page.lines().enumerate() {
        let bare = line.trim_start();
        let ticks = &bare[..bare.len() - bare.trim_start_matches('`').len()];
        match fence {
            Some(open) if bare.trim_end() == open => fence = None,
            Some(_) => {}
            None if ticks.len() >= 3 => fence = Some(ticks),
            None if keep_code => lines.push((at + 1, line.to_owned())),
            None => lines.push((at + 1, line.split('`').step_by(2).collect())),
        }
    }
    lines
}

/// The anchors of a page's headings, as a forge makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (_, line) in prose(page, true) {
        let text = line.trim_start_matches('#');
        let level = line.len() - text.len();
        if !(1..=6).contains(&level) || !text.starts_with(' ') {
            continue;
        }
        let slug = slug(text.trim());
        let repeated = (1..).map(|n| format!("{slug}-{n}"));
        let mut names = std::iter::once(slug.clone()).chain(repeated);
        let _new = all.insert(names.find(|name| !all.contains(name)).unwrap());
    }
    all
}

/// Small letters, hyphens for spaces, and no punctuation; of a link its text alone.
fn slug(heading: &str) -> String {
    let text = heading.split("](").enumerate().map(|(at, part)| {
        let behind_target = part.split_once(')').map_or("", |(_, rest)| rest);
        if at == 0 { part } else { behind_target }
    });
    let text: String = text.collect();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Links that lead nowhere. `anchors` has those of each page; `exists` knows the files.
fn dead_links(
    page: &SourceFile,
    anchors: &BTreeMap<String, BTreeSet<String>>,
    exists: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in prose(&page.text, false) {
        for link in links(&line) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { page.path.clone() } else { resolve(&page.path, file) };
            if !file.is_empty() && !exists(&path) {
                findings.push(page.finding(number, &format!("{link}: there is no {path}")));
            } else if !anchor.is_empty()
                && !anchors.get(&path).is_some_and(|known| known.contains(anchor))
            {
                findings.push(page.finding(number, &format!("{link}: {path} has no such heading")));
            }
        }
    }
    findings
}

/// The targets of a line's links and images, other than those of the web.
fn links(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let sources = line.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let defined = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    let all = inline.chain(sources).chain(defined.map(|(_, target)| target.trim()));
    all.filter(|link| !link.contains("://") && !link.starts_with("mailto:")).collect()
}

/// The path from the root of what a page calls `file`.
fn resolve(page: &str, file: &str) -> String {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<_> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The list items of a page.
fn invariants(page: &str) -> Vec<String> {
    let mut items: Vec<String> = Vec::new();
    let mut open = false;
    for line in page.lines() {
        if line.starts_with("- ") {
            items.push(line.to_owned());
            open = true;
        } else if open && line.starts_with("  ") {
            let item = items.last_mut().unwrap();
            item.push('\n');
            item.push_str(line);
        } else {
            open = false;
        }
    }
    items
}

/// Invariants that name none of these tests in backticks.
fn untested_invariants(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let names_test =
        |item: &String| item.split('`').skip(1).step_by(2).any(|name| tests.contains(name));
    invariants(page).into_iter().filter(|item| !names_test(item)).collect()
}

fn unknown_tests(page: &SourceFile, functions: &BTreeSet<String>) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in prose(&page.text, true) {
        for name in line.split('`').skip(1).step_by(2) {
            let is_name = name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '_'));
            let is_test = is_name && name.matches('_').count() >= UNDERSCORES_MIN;
            if is_test && !functions.contains(name) {
                findings.push(page.finding(number, &format!("there is no test {name}")));
            }
        }
    }
    findings
}

/// Files and modules in backticks that are not there. A file without a folder is in that of the
/// one before it; where there is none, its name tells too little.
fn unknown_files(
    page: &SourceFile,
    functions: &BTreeSet<String>,
    exists: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let mut findings = Vec::new();
    for (number, line) in prose(&page.text, true) {
        let mut folder = String::new();
        for name in line.split('`').skip(1).step_by(2) {
            let is_path = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:".contains(c));
            let is_there = if is_path && name.ends_with(".rs") {
                let path = match (name.strip_prefix("core/"), name.contains('/')) {
                    (Some(rest), _) => format!("{}/{rest}", ROOTS[0]),
                    (None, true) => name.to_owned(),
                    (None, false) => format!("{folder}{name}"),
                };
                folder = path.rfind('/').map_or_else(String::new, |at| path[..=at].to_owned());
                folder.is_empty() || exists(&path)
            } else if is_path && name.contains("::") {
                module_exists(name, functions, exists)
            } else {
                true
            };
            if !is_there {
                findings.push(page.finding(number, &format!("there is no {name}")));
            }
        }
    }
    findings
}

/// Whether the module or function of a path such as `engine::cursor::epoch` is there. Paths that do
/// not begin with a folder of ours, and types, are not judged.
fn module_exists(path: &str, functions: &BTreeSet<String>, exists: &dyn Fn(&str) -> bool) -> bool {
    let mut parts = path.split("::");
    let (Some(first), Some(second)) = (parts.next(), parts.next()) else { return true };
    let folders = ROOTS.map(|root| format!("{root}/{first}"));
    let mut folders = folders.iter().filter(|folder| exists(folder)).peekable();
    if folders.peek().is_none() || second.starts_with(|c: char| c.is_ascii_uppercase()) {
        return true;
    }
    let mut files = folders
        .flat_map(|folder| [format!("{folder}/{second}.rs"), format!("{folder}/{second}/mod.rs")]);
    files.any(|file| exists(&file)) || functions.contains(second)
}

fn functions(source: &SourceFile) -> Vec<String> {
    source.code().iter().flat_map(|(_, _, line)| after(line, "fn ")).collect()
}

/// The tests of a file that `cargo test` runs unasked.
fn run_tests(source: &SourceFile) -> Vec<String> {
    let (mut is_test, mut is_ignored) = (false, false);
    let mut tests = Vec::new();
    for (_, _, line) in source.code() {
        is_test |= line.contains("#[test]") || line.contains("#[tokio::test");
        is_ignored |= line.contains("#[ignore");
        for name in after(&line, "fn ") {
            if is_test && !is_ignored {
                tests.push(name);
            }
            (is_test, is_ignored) = (false, false);
        }
    }
    tests
}
