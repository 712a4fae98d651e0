//! Commands within a sentence of a page: `orloj` knows them, and `make` has them.
//!
//! Invariant: they are not run, because a sentence names a command, often with a placeholder, and
//! does not tell a reader to run it here and now. What `--help` or a dry run accepts is there.

use std::fs;
use std::process::{Command, Stdio};

use super::pages;

#[test]
fn the_commands_within_sentences_are_there() {
    let mut findings = Vec::new();
    let mut seen = 0;
    for path in pages() {
        let page = fs::read_to_string(&path).unwrap();
        for command in commands(&page) {
            seen += 1;
            if !is_known(&command) {
                findings.push(format!("{}: `{command}`", path.display()));
            }
        }
    }
    assert!(findings.is_empty(), "no such commands:\n{}", findings.join("\n"));
    assert!(seen > 10, "only {seen} commands are seen");
}

#[test]
fn a_command_that_is_not_there_is_found() {
    let page = "Say `orloj pause ID`, `make test` or `orloj register --poool`.\n```sh\n`orloj x`\n\
                ```\n`orloj.fires`, `make nothing` and `orloj dead-letters list\n--since 2h`.";
    let all: Vec<_> = commands(page);
    let expected = [
        ("orloj pause ID", true),
        ("make test", true),
        ("orloj register --poool", false),
        ("make nothing", false),
        ("orloj dead-letters list --since 2h", true),
    ];
    assert_eq!(all, expected.map(|(command, _)| command));
    for (command, known) in expected {
        assert_eq!(is_known(command), known, "{command}");
    }
}

/// What stands between backquotes, outside of fences, and begins like a command.
fn commands(page: &str) -> Vec<String> {
    let mut is_fenced = false;
    let text = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fence && !is_fenced
    });
    let text: Vec<_> = text.collect();
    let mut commands = Vec::new();
    for paragraph in text.split(|line| line.trim().is_empty()) {
        let paragraph = paragraph.join(" ");
        let spans = paragraph.split('`').skip(1).step_by(2);
        let is_command = |span: &&str| span.starts_with("orloj ") || span.starts_with("make ");
        commands.extend(spans.filter(is_command).map(str::to_owned));
    }
    commands
}

/// An option at the end may want a value.
fn is_known(command: &str) -> bool {
    if let Some(targets) = command.strip_prefix("make ") {
        return succeeds(&format!("make --dry-run {targets}"));
    }
    let arguments = command.strip_prefix("orloj ").expect("there are only these two");
    let orloj = env!("CARGO_BIN_EXE_orloj");
    ["--help", "1 --help", "1h --help", "keep --help"]
        .iter()
        .any(|end| succeeds(&format!("{orloj} {arguments} {end}")))
}

fn succeeds(command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().unwrap().success()
}
