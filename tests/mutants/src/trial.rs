//! Tests that are built once and run in a process of their own for each mutation.
//!
//! Invariant: a test that does not end in time has ended as a failure. Nothing is left behind: what
//! a test has started ends with it, also when the tool is killed, and its files are removed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::sources::SourceCopy;

/// The simulation's test: `seeds` of them, until a finding.
pub(crate) const SIMULATION: &str = "simulation::no_seed_breaks_the_promise";
/// What the finding of a panic begins with.
const PANIC: &str = "PANIC";
/// Tests of a program that run at the same time: most of the time they wait.
const AT_ONCE: &str = "4";
/// Processes that were killed end within that time.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether they have.
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

/// $1: the process group of a test. It is killed when standard input closes.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
read -r order
kill -s KILL -- "-$1" 2>/dev/null
"#;

/// Tests of a copy, built.
#[derive(Debug)]
pub(crate) struct TestPrograms {
    /// Where they are run.
    directory: PathBuf,
    /// Where they may write.
    scratch: PathBuf,
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
    profile: Option<BuildProfile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct BuildProfile {
    /// Whether it is a program of tests.
    test: bool,
}

impl TestPrograms {
    /// Builds the tests of the copy.
    pub(crate) fn build(copy: &SourceCopy) -> Result<Self> {
        let mut cargo = copy.cargo();
        cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
        let output = cargo.output()?;
        if !output.status.success() {
            return Err(Error::other("the copy with the mutations does not compile"));
        }
        let directory = copy.directory();
        let mut programs = Vec::new();
        for line in output.stdout.lines() {
            let BuildMessage { reason, profile, executable } = serde_json::from_str(&line?)?;
            let is_test = reason == "compiler-artifact" && profile.is_some_and(|it| it.test);
            if let (true, Some(program)) = (is_test, executable) {
                let tests = names_of_tests(&program, &directory)?;
                programs.push((program, tests));
            }
        }
        Ok(Self { directory, scratch: copy.scratch(), programs })
    }

    /// The program that has the test `name`.
    pub(crate) fn program_of(&self, name: &str) -> Option<&Path> {
        let has_it = |(_, tests): &&(PathBuf, BTreeSet<String>)| tests.contains(name);
        self.programs.iter().find(has_it).map(|(program, _)| program.as_path())
    }

    /// Runs all tests whose names have one of these beginnings with mutant `number` until one
    /// fails, for at most `limit` for each program.
    pub(crate) fn run_matching(
        &self,
        beginnings: &[&str],
        number: usize,
        limit: Duration,
    ) -> Result<Ending> {
        let has_any = |tests: &BTreeSet<String>| {
            tests.iter().any(|test| beginnings.iter().any(|beginning| test.starts_with(beginning)))
        };
        let programs = self.programs.iter().filter(|(_, tests)| has_any(tests));
        for (program, _) in programs {
            let mut tests = self.command(program, number);
            tests.args(beginnings).args(["--test-threads", AT_ONCE]);
            match self.run_until_failure(&mut tests, limit)? {
                Ending::Passed => {}
                ending => return Ok(ending),
            }
        }
        Ok(Ending::Passed)
    }

    /// Runs these tests of one program with mutant `number` until one fails, for at most `limit`.
    pub(crate) fn run_named(
        &self,
        names: &[&str],
        number: usize,
        limit: Duration,
    ) -> Result<Ending> {
        let program = |name: &&str| {
            let program = self.program_of(name);
            program.ok_or_else(|| Error::other(format!("there is no test {name}")))
        };
        let programs: BTreeSet<_> = names.iter().map(program).collect::<Result<_>>()?;
        for program in programs {
            let mut tests = self.command(program, number);
            tests.args(names).args(["--exact", "--test-threads", AT_ONCE]);
            match self.run_until_failure(&mut tests, limit)? {
                Ending::Passed => {}
                ending => return Ok(ending),
            }
        }
        Ok(Ending::Passed)
    }

    fn run_until_failure(&self, tests: &mut Command, limit: Duration) -> Result<Ending> {
        Ok(match self.run_for(tests, limit, |line| line.ends_with("... FAILED"))? {
            None => Ending::TimedOut,
            Some((true, _)) => Ending::Passed,
            Some((false, text)) => Ending::Failed(failed_test(&text)),
        })
    }

    fn command(&self, program: &Path, number: usize) -> Command {
        let mut test = Command::new(program);
        test.current_dir(&self.directory).env("ORLOJ_MUTANT", number.to_string());
        test.env("TMPDIR", &self.scratch).env("RUST_BACKTRACE", "0").env_remove("ORLOJ_SEED");
        test.stdin(Stdio::null());
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
        Ok(match self.run_for(&mut test, limit, |_| false)? {
            None => Ending::TimedOut,
            Some((true, _)) => Ending::Passed,
            Some((false, text)) if name == SIMULATION => finding_in(&text),
            Some((false, text)) => Ending::Failed(first_failure(&text)),
        })
    }

    fn run_for(
        &self,
        command: &mut Command,
        limit: Duration,
        is_last: impl Fn(&str) -> bool,
    ) -> Result<Option<(bool, String)>> {
        fs::create_dir_all(&self.scratch)?;
        let ended = run_for(command, limit, is_last)?;
        remove(&self.scratch)?;
        Ok(ended)
    }
}

/// Removes a folder. Processes that were killed may still write to it.
#[expect(clippy::disallowed_methods, reason = "a limit of real time")]
fn remove(folder: &Path) -> Result<()> {
    let until = Instant::now() + REMOVAL_LIMIT;
    loop {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < until => std::thread::park_timeout(REMOVAL_PAUSE),
            removed => return removed,
        }
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
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = ProcessGroup::start(command)?;
    let child = &mut group.child;
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
                    return Ok(Some((false, text)));
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(Some((child.wait()?.success(), text)))
}

fn boxed(output: impl Read + Send + 'static) -> Box<dyn Read + Send> {
    Box::new(output)
}

/// A process and what it starts; all of it is killed when the value is dropped.
struct ProcessGroup {
    child: Child,
    watchdog: Child,
}

impl ProcessGroup {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.process_group(0).spawn()?;
        let mut watchdog = Command::new("sh");
        watchdog.args(["-c", WATCHDOG, "watchdog", &child.id().to_string()]);
        match watchdog.stdin(Stdio::piped()).spawn() {
            Ok(watchdog) => Ok(Self { child, watchdog }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ended = self.watchdog.wait();
        let _killed = self.child.wait();
    }
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
    #[expect(clippy::disallowed_methods, reason = "a limit of real time")]
    fn what_a_test_has_started_ends_with_it() {
        let limit = Duration::from_secs(60);
        let mut failing = Command::new("sh");
        // The one that is left behind ignores what a terminal would send.
        let script =
            "(trap '' INT TERM HUP; cat) <\"$0\" & echo $!; echo 'a ... FAILED'; cat <\"$0\"";
        let folder = std::env::temp_dir().join(format!("orloj-mutants-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // Open for reading and writing, so that neither waits for the other.
        let _open = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        failing.args(["-c", script]).arg(&pipe);
        let ended = run_for(&mut failing, limit, |line| line.ends_with("... FAILED")).unwrap();
        let (_, text) = ended.unwrap();
        let left = Path::new("/proc").join(text.lines().next().unwrap()).join("cmdline");
        let until = Instant::now() + limit;
        // A process that has ended has no command line, nor one that is not there.
        while fs::read(&left).is_ok_and(|line| !line.is_empty()) {
            assert!(Instant::now() < until, "it still runs: {text}");
        }
        remove(&folder).unwrap();
        assert!(!folder.exists());
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
