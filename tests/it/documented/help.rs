//! The examples that `orloj --help` prints, and each command's own help, run as they are printed.
//!
//! Invariant: an example is run, or [`NOT_RUN`] says why it cannot be.

use std::process::Command;

use super::shell::{Shell, ShellResult};
use super::{Setup, check_result};

/// Examples that are not run, each with the reason.
const NOT_RUN: [(&str, &str); 6] = [
    ("orloj dead-letters show 3:41", LETTER),
    ("orloj dead-letters replay 3:41", LETTER),
    ("orloj dead-letters archive 3:41 --note 'the order was cancelled by phone'", LETTER),
    ("orloj scheduler --set scheduler.data_dir=/var/lib/orloj", "the folder is the system's"),
    ("orloj gateway --set gateway.listen=0.0.0.0:8470", "others would reach it"),
    (
        "orloj notifier --set notifier.smtp_url=smtps://mail.example.com",
        "it needs a sender, as docs say; tests/it/delivery/mail.rs has a server",
    ),
];
const LETTER: &str = "3:41 is the id of a dead letter of yours";

/// What an example needs that does not come with it.
const NEEDS: [(&str, &str); 2] =
    [("orloj resume ", "orloj pause report --wait"), ("orloj tail ", "orloj fire-now tea --wait")];
/// Commands for a trigger that is registered.
const COMMANDS: [&str; 4] = ["cancel", "pause", "resume", "fire-now"];
const ROLES: [&str; 5] = ["dev", "scheduler", "worker", "gateway", "notifier"];

#[test]
fn the_examples_of_the_help_work() {
    let examples = examples(&[]);
    assert!(examples.len() > 40, "{examples:#?}");
    for (listed, _reason) in NOT_RUN {
        assert!(examples.iter().any(|example| example == listed), "no help has `{listed}`");
    }
    let is_run = |example: &&String| !NOT_RUN.iter().any(|(listed, _)| listed == example);
    let run: Vec<_> = examples.iter().filter(is_run).collect();
    let others: Vec<_> = run.iter().filter(|example| !is_role(example)).collect();
    let others: Vec<_> = others.iter().map(|example| example.as_str()).collect();
    let mut setup = setup(&others.join("\n"));
    let mut findings = Vec::new();
    for example in &run {
        let outcome = if is_role(example) {
            start_role(&setup, example)
        } else {
            setup.shell.run(&setup.at_home(&prepared(example, &run)))
        };
        findings.extend(check_result(example, &outcome).err());
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
}

/// An example, behind those that register the trigger which it is about.
fn prepared(example: &str, all: &[&String]) -> String {
    let needed = NEEDS.iter().filter(|(begin, _)| example.starts_with(begin));
    let mut commands: Vec<_> = needed.map(|(_, needed)| *needed).collect();
    commands.push(example);
    let is_about = |command: &str| {
        let mut words = command.split_whitespace().skip(1);
        let command = words.next().filter(|word| COMMANDS.contains(word));
        command.and_then(|_| words.next()).map(|id| format!("orloj register {id} "))
    };
    let registered: Vec<_> = commands.iter().filter_map(|command| is_about(command)).collect();
    let registers = |example: &&&String| registered.iter().any(|begin| example.starts_with(begin));
    let mut all: Vec<_> = all.iter().filter(registers).map(|example| example.as_str()).collect();
    all.extend(commands);
    all.join("\n")
}

fn setup(commands: &str) -> Setup {
    let mut setup = Setup::for_commands(commands, &[("ORLOJ_TOPICS__POOLS", "[\"slow\"]")]);
    let kafka = setup.at_home("localhost:9092");
    setup.addresses.push(("kafka:9092".to_owned(), kafka));
    setup.shell.write("job.json", "{}");
    setup.shell.write("schedule.json", r#"{"every": "1h"}"#);
    let batch = r#"[{"id": "extract", "delay": "1h", "topic": "jobs", "payload": {}}]"#;
    setup.shell.write("pipeline.json", batch);
    setup
}

fn is_role(example: &str) -> bool {
    example.split_whitespace().nth(1).is_some_and(|command| ROLES.contains(&command))
}

/// In a shell of its own, which ends with it.
fn start_role(setup: &Setup, example: &str) -> ShellResult {
    let mut shell = Shell::new();
    shell.set("ORLOJ_KAFKA__BOOTSTRAP_SERVERS", setup.at_home("localhost:9092"));
    shell.set("ORLOJ_TOPICS__POOLS", "[\"slow\"]");
    let outcome = shell.run(&setup.at_home(example));
    assert_eq!(shell.stop_roles().len(), 1, "{example}: {outcome:?}");
    outcome
}

/// The examples of a command and of those below it.
fn examples(command: &[&str]) -> Vec<String> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_orloj")).args(command).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let mut examples: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in help.lines() {
        if goes_on {
            let example = examples.last_mut().expect("a line goes on");
            example.push('\n');
            example.push_str(line);
        } else if line.starts_with("  orloj ") {
            examples.push(line.trim().to_owned());
        }
        goes_on = (goes_on || line.starts_with("  orloj ")) && line.ends_with('\\');
    }
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in commands.take_while(|line| !line.is_empty()) {
        let Some(name) = line.strip_prefix("  ").and_then(|rest| rest.split(' ').next()) else {
            continue;
        };
        if !name.is_empty() && name != "help" {
            examples.extend(self::examples(&[command, &[name]].concat()));
        }
    }
    examples
}
