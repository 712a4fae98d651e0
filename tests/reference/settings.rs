//! The settings as a page: a heading for each, its default, and the comment above it.
//!
//! Invariant: every key of the file is on the page, with the very text of its default.

use std::fmt::Write as _;

/// The page of a file in TOML in which comments stand directly above what they explain.
pub(super) fn page(toml: &str) -> String {
    let (mut page, mut section, mut comment) = (String::new(), "", String::new());
    for line in toml.lines() {
        if let Some(text) = line.strip_prefix('#') {
            comment += text.strip_prefix(' ').unwrap_or(text);
            comment.push('\n');
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            let gap = if page.is_empty() { "" } else { "\n" };
            writeln!(page, "{gap}## `[{section}]`").unwrap();
            if !comment.is_empty() {
                write!(page, "\n{comment}").unwrap();
            }
            comment.clear();
        } else if let Some((key, default)) = line.split_once(" = ") {
            let key = key.trim_matches('"');
            assert!(!comment.is_empty(), "{section}.{key} has no comment");
            write!(page, "\n### `{section}.{key}`\n\nDefault: `{default}`\n\n{comment}").unwrap();
            comment.clear();
        } else {
            comment.clear();
        }
    }
    page
}

#[test]
fn a_setting_has_its_default_and_its_comment() {
    let toml =
        "# The file.\n\n# About it.\n[a]\n# One.\n# Two.\n\"b.c\" = 3\n\n[d]\n# E.\ne = []\n";
    let expected = "## `[a]`\n\nAbout it.\n\n### `a.b.c`\n\nDefault: `3`\n\nOne.\nTwo.\n\n\
                    ## `[d]`\n\n### `d.e`\n\nDefault: `[]`\n\nE.\n";
    assert_eq!(page(toml), expected);
}
