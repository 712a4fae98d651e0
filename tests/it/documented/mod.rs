//! Every command that a page or the program prints, run as it is printed.
//!
//! Invariant: only addresses differ. The names of topics are those of the page, because each page
//! has a cluster of its own; its blocks run in their order, in one folder.

mod help;
mod inline;
mod page;
pub(crate) mod shell;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::kafka_server::{self, KafkaServer, Options};
use crate::skip::skip;
use crate::wait::within;
use page::{Block, BlockMode, blocks};
use shell::{Shell, ShellResult};

const DEADLINE: Duration = Duration::from_secs(60);
/// What stands for anything in a documented answer.
const ANYTHING: &str = "…";
/// Commands of `orloj` that need no cluster.
const ALONE: [&str; 4] = ["next ", "openapi", "callers ", "--"];
/// A receiver of callbacks that a page has, and that fails.
const BROKEN: &str = "https://shop.example.com/hooks/tea";

/// Blocks of commands that the pages have at least: fewer mean that they are not found.
const BLOCKS_MIN: usize = 60;

/// `PAGES` names the ones to run, by a part of their paths.
#[test]
fn every_command_of_the_pages_works_as_printed() {
    if Command::new("kcat").arg("-V").output().is_err() {
        skip("kcat is not installed; scripts/prerequisites.sh test installs it");
        return;
    }
    let wanted = std::env::var("PAGES").unwrap_or_default();
    let mut findings = Vec::new();
    let mut run = 0;
    for path in pages() {
        let is_wanted = wanted.split(',').any(|part| path.to_string_lossy().contains(part));
        if is_wanted {
            let page = fs::read_to_string(&path).unwrap();
            let path = path.display();
            let (blocks_run, found) = run_page(&page);
            run += blocks_run;
            eprintln!("{path}: {blocks_run} blocks run, {} findings", found.len());
            findings.extend(found.into_iter().map(|finding| format!("{path}: {finding}")));
        }
    }
    assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    assert!(run >= BLOCKS_MIN || !wanted.is_empty(), "only {run} blocks of commands were run");
}

/// The README, and all pages of the documentation.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![PathBuf::from("README.md")];
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(extension) if extension == "md" => pages.push(path),
                _ => {}
            }
        }
    }
    pages.sort();
    pages
}

/// Runs the commands of a page; says how many blocks were run, and what was not as it should be.
fn run_page(page: &str) -> (usize, Vec<String>) {
    let blocks = blocks(page);
    let modes: Result<Vec<_>, _> = blocks.iter().map(Block::mode).collect();
    let modes = match modes {
        Ok(modes) => modes,
        Err(finding) => return (0, vec![finding]),
    };
    let is_run =
        |mode: &Option<BlockMode<'_>>| matches!(mode, Some(BlockMode::Run | BlockMode::RunStopped));
    let run = modes.iter().filter(|mode| is_run(mode)).count();
    if run == 0 {
        return (0, Vec::new());
    }
    let commands = blocks.iter().zip(&modes).filter(|(_, mode)| is_run(mode));
    let commands: String = commands.map(|(block, _)| block.text.as_str()).collect();
    let mut setup = Setup::for_commands(&commands, &[]);
    for block in &blocks {
        if let Some(name) = block.file() {
            setup.shell.write(name, &setup.at_home(&block.text));
        }
    }
    let mut findings = Vec::new();
    for (at, (block, mode)) in blocks.iter().zip(&modes).enumerate() {
        let documented = blocks.get(at + 1).and_then(Block::answer);
        let found = match mode {
            Some(BlockMode::Run) => setup.run(block, documented),
            Some(BlockMode::RunStopped) => setup.run_stopped(block),
            Some(BlockMode::NotRun { .. }) | None => Ok(()),
        };
        findings.extend(found.err());
        // An answer that is compared with nothing could say anything.
        let follows_request = at > 0 && is_run(&modes[at - 1]);
        if block.looks_like_answer() && !(follows_request && block.answer().is_some()) {
            findings.push(format!("line {}: this answer follows no request", block.line));
        }
    }
    (run, findings)
}

/// What the commands of a page lead to.
struct Setup {
    shell: Shell,
    _endpoint: Endpoint,
    /// What a page calls it, and where it is.
    addresses: Vec<(String, String)>,
    _server: Option<KafkaServer>,
}

impl Setup {
    /// With a cluster if the commands ask for one, and with all roles unless they start them.
    fn for_commands(commands: &str, environment: &[(&str, &str)]) -> Self {
        let (mut shell, endpoint) = (Shell::new(), Endpoint::start());
        let mut addresses: Vec<_> =
            shell.addresses().map(|(printed, there)| (printed.to_owned(), there)).into();
        addresses.push((BROKEN.to_owned(), endpoint.url("broken")));
        addresses.push(("\"shop.example.com\"".to_owned(), "\"127.0.0.1\"".to_owned()));
        let server = needs_cluster(commands).then(|| {
            let server = KafkaServer::start(&Options::default());
            addresses.push(("localhost:9092".to_owned(), server.bootstrap().to_owned()));
            shell.set("ORLOJ_KAFKA__BOOTSTRAP_SERVERS", server.bootstrap());
            create_topics(&server.client(), &targets(commands));
            server
        });
        for (name, value) in [
            ("SCHEDULER__SESSION_TIMEOUT", "6s"),
            ("GATEWAY__ANSWER_TIMEOUT", "30s"),
            ("WORKER__ALLOW_ADDRESSES", "any"),
            ("WORKER__CIRCUIT_FAILURES_PERCENT", "100"),
        ] {
            shell.set(&format!("ORLOJ_{name}"), value);
        }
        for (name, value) in environment {
            shell.set(name, value);
        }
        let starts_roles = commands.lines().any(|line| line.starts_with("orloj scheduler"));
        if let Some(server) = &server
            && !starts_roles
        {
            let dev = format!("orloj dev --join --bootstrap-servers {}", server.bootstrap());
            let started = shell.run(&dev);
            assert!(started.is_success, "{started:?}");
        }
        Self { shell, _endpoint: endpoint, addresses, _server: server }
    }

    /// A text of the page, with the addresses of this cluster.
    fn at_home(&self, text: &str) -> String {
        let replace =
            |text: String, (printed, there): &(String, String)| text.replace(printed, there);
        self.addresses.iter().fold(text.to_owned(), replace)
    }

    fn run(&mut self, block: &Block, documented: Option<(u16, &str)>) -> Result<(), String> {
        let command = self.at_home(&block.text);
        let Some((status, body)) = documented else {
            return self.check_block(block, &command);
        };
        let expected = serde_json::from_str(&self.at_home(body));
        let expected: Value = expected
            .map_err(|error| format!("line {}: its answer is no JSON: {error}", block.line))?;
        // What follows of a write by itself shows a moment later.
        let is_read = !["-X", "--json", "-d ", "--data"].iter().any(|word| command.contains(word));
        let mut last = String::new();
        let deadline = if is_read { DEADLINE } else { Duration::ZERO };
        let found = within(deadline, || {
            let outcome = self.shell.run(&command);
            let answer: Value = serde_json::from_str(&outcome.printed).unwrap_or_default();
            last = format!("{:?} {answer:#}\n{}", outcome.statuses, outcome.complaint);
            (outcome.statuses == [status] && is_as(&answer, &expected)).then_some(())
        });
        let finding = || format!("line {}: answered {last}\nand not {expected:#}", block.line);
        found.ok_or_else(finding)
    }

    fn check_block(&mut self, block: &Block, command: &str) -> Result<(), String> {
        let outcome = self.shell.run(command);
        check_result(&block.text, &outcome)
            .map_err(|finding| format!("line {}: {finding}", block.line))
    }

    /// Runs a block for which the group must be empty, which it is a while after its members ended.
    fn run_stopped(&mut self, block: &Block) -> Result<(), String> {
        let command = self.at_home(&block.text);
        let stopped = self.shell.stop_roles();
        let mut last = Ok(());
        let _succeeded = within(DEADLINE, || {
            last = self.check_block(block, &command);
            last.is_ok().then_some(())
        });
        for role in stopped {
            self.shell.start_role(role);
        }
        last
    }
}

/// Whether the commands had the documented result.
fn check_result(commands: &str, outcome: &ShellResult) -> Result<(), String> {
    let is_refused = outcome.statuses.iter().any(|status| *status >= 400);
    let ShellResult { printed, complaint, .. } = outcome;
    // kcat prints the headers of a fire, which pages promise.
    let shows_headers = commands.contains("kcat -C") && commands.contains("%h");
    let has_headers = ["orloj-fire-id=", "orloj-due="].iter().all(|name| printed.contains(name));
    if outcome.is_success && !is_refused && (!shows_headers || has_headers) {
        return Ok(());
    }
    Err(format!("failed:\n{commands}\n{printed}{complaint}"))
}

/// Whether any of the commands asks for a cluster.
fn needs_cluster(commands: &str) -> bool {
    let asks = |line: &str| match line.trim_start().strip_prefix("orloj ") {
        Some(rest) => !ALONE.iter().any(|command| rest.starts_with(command)),
        None => ["orloj ", "kcat ", "localhost:"].iter().any(|word| line.contains(word)),
    };
    commands.lines().any(asks)
}

/// Topics that the commands fire into and do not create.
fn targets(commands: &str) -> BTreeSet<&str> {
    let mut all = BTreeSet::new();
    for before in ["--topic ", "orloj-target-topic=", "\"topic\": \"", "-t ", "tail "] {
        for (at, _) in commands.match_indices(before) {
            let rest = &commands[at + before.len()..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c));
            let topic = &rest[..end.unwrap_or(rest.len())];
            let is_created = commands.contains(&format!("--create --topic {topic}"));
            if !topic.is_empty() && !topic.starts_with("orloj.") && !is_created {
                all.insert(topic);
            }
        }
    }
    all
}

fn create_topics(client: &ClientConfig, names: &BTreeSet<&str>) {
    if names.is_empty() {
        return;
    }
    let topics: Vec<_> =
        names.iter().map(|name| NewTopic::new(name, 1, TopicReplication::Fixed(1))).collect();
    kafka_server::create_topics(client, &topics);
}

/// Whether everything that is expected is there.
fn is_as(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (_, Value::String(text)) if text == ANYTHING => !found.is_null(),
        (Value::Object(found), Value::Object(expected)) => expected
            .iter()
            .all(|(name, expected)| found.get(name).is_some_and(|found| is_as(found, expected))),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, expected)| is_as(found, expected))
        }
        (found, expected) => found == expected,
    }
}
