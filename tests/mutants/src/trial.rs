//! Tests that are built once and run in a process of their own for each mutation.
//!
//! Invariant: a test that does not end in time has ended as a failure.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Error, Read, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::sources::{CORE, target_dir};

/// The simulation's test: `seeds` of them, until a finding.
pub(crate) const SIMULATION: &str = "simulation::no_seed_breaks_the_promise";
/// What the finding of a panic begins with.
const PANIC: &str = "PANIC";

/// Tests of the core, built.
#[derive(Debug)]
pub(crate) struct TestPrograms {
    /// Where they are run.
    directory: PathBuf,
    /// Each with the names of its tests.
    programs: Vec<(PathBuf, BTreeSet<String>)>,
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Passed,
    /// The first lines that say what is wrong.
    Failed(String),
    /// A finding of the simulation.
    Found {
        seed: u64,
        finding: String,
    },
    /// In the simulation, but not by its audit.
    Panicked(String),
    TimedOut,
}

/// A line of cargo's messages.
#[derive(Deserialize)]
struct BuildMessage {
    reason: String,
    executable: Option<PathBuf>,
}

impl TestPrograms {
    /// Builds the tests of the core in the copy.
    pub(crate) fn build(copy: &Path) -> Result<Self> {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--package", "orloj-core", "--lib", "--test", "core", "--no-run"]);
        cargo.args(["--quiet", "--message-format", "json-render-diagnostics"]);
        cargo.current_dir(copy).env("CARGO_TARGET_DIR", target_dir()).stderr(Stdio::inherit());
        let output = cargo.output()?;
        if !output.status.success() {
            return Err(Error::other("the copy with the mutations does not compile"));
        }
        let directory = copy.join(CORE);
        let mut programs = Vec::new();
        for line in output.stdout.lines() {
            let message: BuildMessage = serde_json::from_str(&line?)?;
            if let ("compiler-artifact", Some(program)) = (&*message.reason, message.executable) {
                let tests = names_of_tests(&program, &directory)?;
                programs.push((program, tests));
            }
        }
        Ok(Self { directory, programs })
    }

    /// The program that has the test `name`.
    pub(crate) fn program_of(&self, name: &str) -> Option<&Path> {
        let has_it = |(_, tests): &&(PathBuf, BTreeSet<String>)| tests.contains(name);
        self.programs.iter().find(has_it).map(|(program, _)| program.as_path())
    }

    /// Runs all unit tests of these modules with mutant `number` until one fails, for at most
    /// `limit`.
    pub(crate) fn run_all(
        &self,
        modules: &[String],
        number: usize,
        limit: Duration,
    ) -> Result<Ending> {
        let is_unit = |tests: &BTreeSet<String>| {
            tests.iter().any(|test| modules.iter().any(|module| test.starts_with(module)))
        };
        let programs = self.programs.iter().filter(|(_, tests)| is_unit(tests));
        for (program, _) in programs {
            let mut tests = self.command(program, number);
            tests.args(modules);
            match run_for(&mut tests, limit, |line| line.ends_with("... FAILED"))? {
                None => return Ok(Ending::TimedOut),
                Some((true, _)) => {}
                Some((false, text)) => return Ok(Ending::Failed(failed_test(&text))),
            }
        }
        Ok(Ending::Passed)
    }

    fn command(&self, program: &Path, number: usize) -> Command {
        let mut test = Command::new(program);
        test.current_dir(&self.directory).env("ORLOJ_MUTANT", number.to_string());
        test.env("RUST_BACKTRACE", "0").env_remove("ORLOJ_SEED");
        test
    }

    /// Runs the test `name` with mutation `number` (0: none), for at most `limit`.
    pub(crate) fn run(
        &self,
        name: &str,
        number: usize,
        seeds: u64,
        limit: Duration,
    ) -> Result<Ending> {
        let Some(program) = self.program_of(name) else {
            return Err(Error::other(format!("there is no test {name}")));
        };
        let mut test = self.command(program, number);
        test.args([name, "--exact", "--nocapture"]).env("ORLOJ_SEEDS", seeds.to_string());
        Ok(match run_for(&mut test, limit, |_| false)? {
            None => Ending::TimedOut,
            Some((true, _)) => Ending::Passed,
            Some((false, text)) if name == SIMULATION => finding_in(&text),
            Some((false, text)) => Ending::Failed(first_failure(&text)),
        })
    }
}

fn names_of_tests(program: &Path, directory: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new(program).arg("--list").current_dir(directory).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Runs a command until a line that it writes is the last one needed. Returns whether it succeeded
/// and what it wrote, or `None` if it did not end in time.
#[expect(clippy::disallowed_methods, reason = "a limit of real time")]
fn run_for(
    command: &mut Command,
    limit: Duration,
    is_last: impl Fn(&str) -> bool,
) -> Result<Option<(bool, String)>> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (sender, receiver) = mpsc::channel();
    let outputs = [child.stdout.take().map(boxed), child.stderr.take().map(boxed)];
    for output in outputs.into_iter().flatten() {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
            lines
                .map(|line| String::from_utf8_lossy(&line).into_owned())
                .all(|line| sender.send(line).is_ok())
        });
    }
    drop(sender);
    let (until, mut text) = (Instant::now() + limit, String::new());
    loop {
        match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                text.push_str(&line);
                text.push('\n');
                if is_last(&line) {
                    end(&mut child)?;
                    return Ok(Some((false, text)));
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                end(&mut child)?;
                return Ok(None);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(Some((child.wait()?.success(), text)))
}

fn boxed(output: impl Read + Send + 'static) -> Box<dyn Read + Send> {
    Box::new(output)
}

fn end(child: &mut Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// The first test that failed.
fn failed_test(text: &str) -> String {
    let failed = text.lines().find_map(|line| line.strip_suffix(" ... FAILED"));
    failed.map_or_else(|| first_failure(text), |test| test.trim_start_matches("test ").to_owned())
}

/// What a failed run of the simulation has found.
fn finding_in(text: &str) -> Ending {
    let line = text.lines().position(|line| line.starts_with("seed ") && line.contains(": "));
    let lines: Vec<&str> = text.lines().collect();
    let seed_line = line.map(|at| &lines[at..]);
    // The totals are printed first, and begin with a number of seeds.
    let Some([first, rest @ ..]) = seed_line else {
        return Ending::Panicked(first_failure(text));
    };
    let (seed, why) = first["seed ".len()..].split_once(": ").unwrap_or_default();
    let detail = rest.iter().find(|line| line.starts_with("  ")).copied().unwrap_or(why).trim();
    match seed.parse() {
        Ok(_) if why.contains(PANIC) => Ending::Panicked(why.trim().to_owned()),
        Ok(seed) => Ending::Found { seed, finding: detail.to_owned() },
        Err(_) => Ending::Panicked(first_failure(text)),
    }
}

/// The message of the first panic.
fn first_failure(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    let place = lines.next().unwrap_or("it failed without a panic");
    format!("{} {}", place.trim(), lines.next().unwrap_or_default().trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_no_finding() {
        let found = "thread 'x' panicked at a.rs:1:1:\nseed 12: after faults: 1 finding\n  \
            LOST t-1: due\n  EARLY\nrun it again";
        let finding = "LOST t-1: due".to_owned();
        assert_eq!(finding_in(found), Ending::Found { seed: 12, finding });
        let panic = "thread 'x' panicked at a.rs:1:1:\nseed 3:   PANIC an assertion\nrun it again";
        assert_eq!(finding_in(panic), Ending::Panicked("PANIC an assertion".to_owned()));
        let other = "thread 'x' panicked at a.rs:1:1:\na kind of fault never happened";
        assert!(matches!(finding_in(other), Ending::Panicked(_)));
    }

    #[test]
    fn what_does_not_end_is_ended() {
        let limit = Duration::from_millis(50);
        let mut endless = Command::new("cat");
        let run = |command: &mut Command| run_for(command, limit, |_| false).unwrap();
        assert_eq!(run(endless.stdin(Stdio::piped())), None);
    }

    #[test]
    fn the_first_failure_ends_a_run() {
        let (limit, script) = (Duration::from_secs(60), "echo 'test a::b ... FAILED'; cat");
        let mut failing = Command::new("sh");
        failing.args(["-c", script]).stdin(Stdio::piped());
        let ended = run_for(&mut failing, limit, |line| line.ends_with("... FAILED")).unwrap();
        let (succeeded, text) = ended.unwrap();
        assert!(!succeeded && failed_test(&text) == "a::b", "{text}");
    }
}
