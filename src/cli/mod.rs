//! The command line: the commands of the program, and how it ends.
//!
//! Invariant: an error is printed once, with what to do about it. The exit code is 0 when the
//! command succeeded, 1 when it failed, 2 when the command line or the settings are wrong.

mod callers;
mod circuits;
mod command;
mod dead_letters;
mod file;
mod next;
mod reconcile;
mod role;
mod schedule;
mod signals;
mod submit;
mod tail;
mod trigger;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use thiserror::Error;

use crate::allocator;
use crate::config::{ConfigError, Layers, LogSettings, Settings};
use crate::dead_letters::LetterError;
use crate::dev::DevError;
use crate::gateway::{self, GatewayError};
use crate::kafka::error::ClientError;
use crate::kafka::topics::{TopicDefinitions, TopicError};
use crate::notifier::NotifierError;
use crate::scheduler::SchedulerError;
use crate::telemetry::{self, TelemetryError};
use crate::worker::WorkerError;

use role::ProcessRole;

const EXAMPLES: &str = "\
Try it, with nothing installed:
  orloj dev

On a Kafka cluster:
  orloj topics apply --bootstrap-servers kafka:9092
  orloj scheduler    --bootstrap-servers kafka:9092
  orloj worker       --bootstrap-servers kafka:9092
  orloj gateway      --bootstrap-servers kafka:9092
  orloj notifier     --bootstrap-servers kafka:9092

Settings come from orloj.default.toml, then --config FILE, then the environment
(ORLOJ_SCHEDULER__DATA_DIR=/data), then --set scheduler.data_dir=/data.
`orloj --print-config` prints the result.

Exit codes: 0 done, 1 failed, 2 wrong command line or settings.";

/// A Kafka-native scheduler: fires triggers at their time.
#[derive(Debug, Parser)]
#[command(name = "orloj", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct CommandLine {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Option<CliCommand>,
}

/// The options of every command.
#[derive(Debug, Args)]
struct GlobalOptions {
    /// A file of settings that override the defaults.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One setting that overrides everything else. Can be repeated.
    #[arg(long = "set", global = true, value_name = "SECTION.KEY=VALUE")]
    overrides: Vec<String>,
    /// The address of the cluster; short for --set kafka.bootstrap.servers=…
    #[arg(long, global = true, value_name = "HOST:PORT,…")]
    bootstrap_servers: Option<String>,
    /// Print the effective settings, passwords masked, and exit.
    #[arg(long, global = true)]
    print_config: bool,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run everything in one process, on a built-in broker that keeps nothing.
    ///
    /// With --bootstrap-servers the same runs on a real cluster, after creating the topics. Their
    /// names, and those of the groups and transactional ids, start with `orloj-dev-` and a hash of
    /// user and host: it is an installation of its own. A topics.prefix of --set is taken instead;
    /// one of a file or of the environment that starts otherwise needs --join. Callbacks go where
    /// worker.allow_addresses says; on the built-in broker, to all addresses.
    #[command(
        after_help = "Examples:\n  orloj dev\n  orloj dev --bootstrap-servers localhost:9092"
    )]
    Dev(role::DevArguments),
    /// Own partitions: keep triggers and fire them.
    #[command(after_help = "Example:\n  orloj scheduler --set scheduler.data_dir=/var/lib/orloj")]
    Scheduler,
    /// Make the HTTP callbacks of what fired.
    #[command(after_help = "Example:\n  orloj worker --set worker.in_flight_max=1000")]
    Worker,
    /// Serve the HTTP API.
    #[command(after_help = "Example:\n  orloj gateway --set gateway.listen=0.0.0.0:8470")]
    Gateway,
    /// Notify callers of failures, by mail and webhook.
    #[command(
        after_help = "Example:\n  orloj notifier --set notifier.smtp_url=smtps://mail.example.com"
    )]
    Notifier,
    /// Create Orloj's topics, or compare them with what they must be.
    #[command(subcommand)]
    Topics(TopicsCommand),
    /// Make API keys and signing secrets for callers.
    #[command(
        subcommand,
        after_help = "Examples:\n  orloj callers new-key\n  orloj callers new-secret --ed25519"
    )]
    Callers(callers::CallersCommand),
    /// List dead letters, and replay or archive them.
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLettersCommand),
    /// Register a trigger, or replace it: once, again and again, or after others; or many at once.
    Register(Box<trigger::RegisterArguments>),
    /// Cancel a trigger.
    Cancel(command::CancelArguments),
    /// Stop a trigger until it is resumed.
    Pause(command::PauseArguments),
    /// Resume a trigger that was paused.
    Resume(command::ResumeArguments),
    /// Fire a trigger once, immediately, whatever its time.
    FireNow(command::FireNowArguments),
    /// Show the next occurrences of a schedule, without registering anything.
    Next(next::NextArguments),
    /// List the hosts whose circuit is open in a worker, and those whose circuit has closed.
    Circuits(circuits::CircuitsArguments),
    /// Print the description of the HTTP API: OpenAPI 3.1, as JSON.
    #[command(after_help = "Example:\n  orloj openapi > openapi.json")]
    Openapi,
    /// Find callbacks that have not ended long after their due time, and request another attempt of
    /// each.
    Reconcile(reconcile::ReconcileArguments),
    /// Print the records of a topic as they arrive: key, tab, value.
    Tail(tail::TailArguments),
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum TopicsCommand {
    /// Create the topics that are missing. What exists is never altered.
    Apply,
    /// Compare the topics with their definitions; exits with 1 if they differ.
    Verify,
}

/// Why a command failed. `Display` says what to do.
#[derive(Debug, Error)]
pub enum CliError {
    /// Correct the settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Correct the settings of logging.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// Correct the command line.
    #[error("{0}")]
    Usage(String),
    /// Free the address or choose another.
    #[error("cannot listen on {address}: {source}; choose another with --set {setting}=HOST:PORT")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The setting that has it.
        setting: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Correct the topics.
    #[error(transparent)]
    Topics(#[from] TopicError),
    /// Check the address of the cluster and the permissions.
    #[error("Kafka: {0}; see --bootstrap-servers and the [kafka] settings")]
    Kafka(#[from] ClientError),
    /// The command was executed, and the answer is negative.
    #[error("{0}")]
    Refused(String),
    /// A call of the operating system failed.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// See the error of the dead letters.
    #[error(transparent)]
    Letters(#[from] LetterError),
    /// See the scheduler's own error.
    #[error("the scheduler ended: {0}")]
    Scheduler(#[from] SchedulerError),
    /// See the worker's own error.
    #[error("the worker ended: {0}")]
    Worker(#[from] WorkerError),
    /// See the gateway's own error.
    #[error("the gateway ended: {0}")]
    Gateway(#[from] GatewayError),
    /// See the notifier's own error.
    #[error("the notifier ended: {0}")]
    Notifier(#[from] NotifierError),
    /// See the role that ended.
    #[error(transparent)]
    Dev(#[from] DevError),
}

impl CliError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Telemetry(_)
            | Self::Usage(_)
            | Self::Gateway(GatewayError::Callers(_))
            | Self::Notifier(NotifierError::Callers(_))
            | Self::Worker(WorkerError::Callers(_)) => 2,
            _ => 1,
        }
    }
}

/// Runs the command of the process's command line.
#[must_use]
pub fn main() -> ExitCode {
    allocator::disable_huge_pages();
    match run(CommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(line: CommandLine) -> Result<(), CliError> {
    let layers = line.global.layers();
    if line.global.print_config {
        print!("{}", Settings::print(&layers)?);
        return Ok(());
    }
    let Some(command) = line.command else {
        let usage = CommandLine::command().render_usage();
        return Err(CliError::Usage(format!(
            "a command is missing\n\n{usage}\n\nSee orloj --help"
        )));
    };
    let settings = Settings::load(&layers)?;
    telemetry::start_logging(&command.log_settings(&settings))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            CliCommand::Dev(dev) => dev.run(layers, line.global.bootstrap_servers.is_some()).await,
            CliCommand::Scheduler => role::run(ProcessRole::Scheduler, settings).await,
            CliCommand::Worker => role::run(ProcessRole::Worker, settings).await,
            CliCommand::Gateway => role::run(ProcessRole::Gateway, settings).await,
            CliCommand::Notifier => role::run(ProcessRole::Notifier, settings).await,
            CliCommand::Topics(action) => topics(action, &settings).await,
            CliCommand::Callers(callers) => callers.run(),
            CliCommand::DeadLetters(letters) => letters.run(&settings).await,
            CliCommand::Register(register) => register.run(&settings).await,
            CliCommand::Cancel(cancel) => cancel.run(&settings).await,
            CliCommand::Pause(pause) => pause.run(&settings).await,
            CliCommand::Resume(resume) => resume.run(&settings).await,
            CliCommand::FireNow(call) => call.run(&settings).await,
            CliCommand::Next(next) => next.run(),
            CliCommand::Circuits(circuits) => circuits.run(&settings),
            CliCommand::Openapi => {
                println!("{}", gateway::openapi_json());
                Ok(())
            }
            CliCommand::Reconcile(reconcile) => reconcile.run(&settings).await,
            CliCommand::Tail(tail) => tail.run(&settings),
        }
    })
}

/// The log filter of a command that prints an answer. Messages of the Avro library and of the
/// health are not for its user.
const QUIET_FILTER: &str = "warn,apache_avro=error,orloj::health=error";

impl CliCommand {
    /// The log settings: of a role as configured; of a command that prints its answer warnings
    /// only.
    fn log_settings(&self, settings: &Settings) -> LogSettings {
        match self {
            Self::Dev(_) | Self::Scheduler | Self::Worker | Self::Gateway | Self::Notifier => {
                settings.log.clone()
            }
            _ => LogSettings { filter: QUIET_FILTER.to_owned(), ..settings.log.clone() },
        }
    }
}

impl GlobalOptions {
    fn layers(&self) -> Layers {
        let servers = self.bootstrap_servers.iter();
        let servers = servers.map(|servers| format!("kafka.bootstrap.servers={servers}"));
        let overrides = self.overrides.iter().cloned().chain(servers).collect();
        Layers::of_process(self.config.clone(), overrides)
    }
}

async fn topics(action: TopicsCommand, settings: &Settings) -> Result<(), CliError> {
    let topics = topic_definitions(settings);
    match action {
        TopicsCommand::Apply => {
            let report = topics.apply(settings).await?;
            print!("{report}");
            if !report.differences.is_empty() {
                let what =
                    "some topics differ from their definitions; correct them as described above";
                return Err(CliError::Refused(what.to_owned()));
            }
            println!("all {} topics are as they must be", topics.names().count());
        }
        TopicsCommand::Verify => {
            topics.verify(settings).await?;
            println!("all {} topics are as they must be", topics.names().count());
        }
    }
    Ok(())
}

fn topic_definitions(settings: &Settings) -> TopicDefinitions {
    TopicDefinitions::from_settings(&settings.topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn a_trigger_needs_one_target_and_one_time() {
        let parse = |text: &str| CommandLine::try_parse_from(text.split(' ')).is_ok();
        assert!(parse("orloj register tea --topic t --every 1h --count keep --priority 200"));
        assert!(parse("orloj register tea --topic t --cron @daily --zone Europe/Prague"));
        assert!(parse("orloj register tea --topic t --after a --after b --on-failure skip"));
        assert!(parse("orloj register tea --topic t --after a --in 1h --after-timeout 2h"));
        assert!(!parse("orloj register tea --topic t --every 1h --in 1h"));
        assert!(!parse("orloj register tea --topic t --every 1h --cron @daily"));
        assert!(!parse("orloj register tea --topic t --in 1h --on-failure skip"));
        assert!(!parse("orloj register tea --topic t --after a --on-failure never"));
        assert!(parse("orloj register --batch - --caller web --bootstrap-servers h:1"));
        for other in ["tea", "--topic t", "--in 1h", "--every 1h", "--after a", "--priority 1"] {
            assert!(!parse(&format!("orloj register --batch - {other}")), "{other}");
        }
        assert!(parse("orloj register tea --topic t --in 20m --header a=b --wait"));
        assert!(parse("orloj register tea --url http://h --at 2030-01-01T00:00:00Z"));
        assert!(!parse("orloj register tea --topic t"));
        assert!(!parse("orloj register tea --in 20m"));
        assert!(!parse("orloj register tea --topic t --url http://h --in 20m"));
        assert!(!parse("orloj register tea --topic t --in 20m --at 1"));
        assert!(!parse("orloj register tea --topic t --in soon"));
    }

    #[test]
    fn dev_takes_the_option_to_join() {
        let parse = |text: &str| CommandLine::try_parse_from(text.split(' ')).is_ok();
        assert!(parse("orloj dev") && parse("orloj dev --join --bootstrap-servers h:1"));
        assert!(!parse("orloj scheduler --join"));
    }

    #[test]
    fn next_takes_the_options_of_a_schedule() {
        let parse = |text: &str| CommandLine::try_parse_from(text.split(' ')).is_ok();
        assert!(parse("orloj next @daily --zone Europe/Prague"));
        assert!(parse("orloj next --cron @daily --zone Europe/Prague --count 3"));
        assert!(parse("orloj next --every 90m"));
        assert!(parse("orloj next --schedule {} --id invoice-7"));
        assert!(!parse("orloj next") && !parse("orloj next @daily --every 1h"));
    }

    #[test]
    fn exit_codes_distinguish_usage_errors_from_failures() {
        assert_eq!(CliError::Usage(String::new()).exit_code(), 2);
        assert_eq!(CliError::Refused(String::new()).exit_code(), 1);
    }
}
