//! The program's own help as a page: a block for each command.
//!
//! Invariant: each command that the help names is on the page; options that all commands take stand
//! there once.

use std::fmt::Write as _;
use std::process::{Command, Stdio};

/// Options of every command, shown with the first.
const GLOBAL: [&str; 5] =
    ["--config <", "--set <", "--bootstrap-servers <", "--print-config", "-h, --help"];

/// The page.
pub(super) fn page() -> String {
    let mut page = String::new();
    write_command(&[], &mut page);
    page
}

/// What `orloj` prints on standard output.
pub(super) fn run(arguments: &[&str]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_orloj"));
    // No terminal and no environment: the width of the text is always the same.
    program.args(arguments).env_clear().stdin(Stdio::null());
    let done = program.output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

fn write_command(path: &[&str], page: &mut String) {
    let help = run(&[path, &["--help"]].concat());
    let title = [&["orloj"], path].concat().join(" ");
    let text = if path.is_empty() { help.clone() } else { without_global(&help) };
    let gap = if page.is_empty() { "" } else { "\n" };
    write!(page, "{gap}## `{title}`\n\n```text\n{}\n```\n", text.trim_end()).unwrap();
    for name in subcommands(&help) {
        write_command(&[path, &[name]].concat(), page);
    }
}

/// The commands that the help lists.
fn subcommands(help: &str) -> Vec<&str> {
    let Some((_, rest)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = rest.lines().take_while(|line| !line.is_empty());
    let own = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    own.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

fn without_global(help: &str) -> String {
    let (mut kept, mut skips) = (Vec::new(), false);
    for line in help.lines() {
        let indent = line.len() - line.trim_start().len();
        let is_global = indent < 8 && GLOBAL.iter().any(|flag| line.trim_start().starts_with(flag));
        skips = is_global || skips && (line.is_empty() || indent >= 8);
        if skips {
            continue;
        }
        if indent == 0 && kept.last() == Some(&"Options:") {
            kept.pop();
        } else if indent == 0 && kept.last().is_some_and(|last: &&str| !last.is_empty()) {
            kept.extend((!line.is_empty() && line.ends_with(':')).then_some(""));
        }
        kept.push(line);
    }
    if kept.last() == Some(&"Options:") {
        kept.pop();
    }
    kept.join("\n")
}

#[test]
fn options_of_every_command_are_left_out() {
    let help = "Does it.\n\nUsage: orloj a [OPTIONS]\n\nOptions:\n      --own <X>\n\
                \x20         Own.\n\n      --config <FILE>\n          A file.\n\n\
                \x20 -h, --help\n          Print help\n\nExamples:\n  orloj a\n";
    let expected = "Does it.\n\nUsage: orloj a [OPTIONS]\n\nOptions:\n      --own <X>\n\
                    \x20         Own.\n\nExamples:\n  orloj a";
    assert_eq!(without_global(help), expected);
    let alone = "Does it.\n\nOptions:\n      --config <FILE>  A file\n  -h, --help  Print help\n";
    assert_eq!(without_global(alone).trim_end(), "Does it.");
}

#[test]
fn the_commands_of_the_help_are_found() {
    let help = "X\n\nCommands:\n  dev  Runs\n       more\n  help  Print\n\nOptions:\n  -h\n";
    assert_eq!(subcommands(help), ["dev"]);
}
