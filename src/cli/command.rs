//! `orloj cancel`, `pause`, `resume` and `fire-now`: a record about a trigger that is there, and
//! the owner's answer if asked.
//!
//! Invariant: whoever cancels or commands is owed the truth, even if it is only read later: the
//! owner is always asked for it.

use clap::Args;

use super::CliError;
use super::submit::{submit, usage_error};
use crate::client::Submission;
use crate::config::Settings;
use crate::model::lifecycle::Command;

const CANCEL_EXAMPLES: &str = "\
Examples:
  orloj cancel tea
  orloj cancel rent --wait      (exits with 1 if it came too late)";

const PAUSE_EXAMPLES: &str = "\
What is paused stays registered and does not fire. What a schedule misses meanwhile is decided
by its misfire when it is resumed; a one-time trigger whose time has passed then fires at once,
unless its expireAfter says otherwise. A cancel ends it, a new registration replaces it.

Examples:
  orloj pause report
  orloj pause report --wait     (exits with 1 if nothing is pending under that id)";

const RESUME_EXAMPLES: &str = "\
Examples:
  orloj resume report --wait    (prints when it is due)
  orloj resume report           (also what pauseAfter has paused)";

const FIRE_NOW_EXAMPLES: &str = "\
A one-time trigger fires now instead of at its time, whatever it waits for. A recurring one fires
once more, and its next occurrence comes when it would have come anyway. One that is paused fires,
too, and stays paused.

Examples:
  orloj fire-now report
  orloj fire-now report --wait  (exits with 1 if nothing is pending under that id)";

/// What `orloj cancel` takes.
#[derive(Debug, Args)]
#[command(after_help = CANCEL_EXAMPLES)]
pub(super) struct CancelArguments {
    /// The trigger.
    id: String,
    /// Wait for the owner's answer: cancelled, or too late.
    #[arg(long)]
    wait: bool,
}

/// What `orloj pause` takes.
#[derive(Debug, Args)]
#[command(after_help = PAUSE_EXAMPLES)]
pub(super) struct PauseArguments {
    #[command(flatten)]
    arguments: CommandArguments,
}

/// What `orloj resume` takes.
#[derive(Debug, Args)]
#[command(after_help = RESUME_EXAMPLES)]
pub(super) struct ResumeArguments {
    #[command(flatten)]
    arguments: CommandArguments,
}

/// What `orloj fire-now` takes.
#[derive(Debug, Args)]
#[command(after_help = FIRE_NOW_EXAMPLES)]
pub(super) struct FireNowArguments {
    #[command(flatten)]
    arguments: CommandArguments,
}

#[derive(Debug, Args)]
struct CommandArguments {
    /// The trigger.
    id: String,
    /// Wait for the owner's answer and print it.
    #[arg(long)]
    wait: bool,
}

impl CancelArguments {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        submit_command(Submission::cancel(&self.id).map_err(usage_error)?, settings, self.wait)
            .await
    }
}

impl PauseArguments {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        self.arguments.send(Command::Pause, settings).await
    }
}

impl ResumeArguments {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        self.arguments.send(Command::Resume, settings).await
    }
}

impl FireNowArguments {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        self.arguments.send(Command::FireNow, settings).await
    }
}

impl CommandArguments {
    async fn send(self, command: Command, settings: &Settings) -> Result<(), CliError> {
        let submission = Submission::command(&self.id, command).map_err(usage_error)?;
        submit_command(submission, settings, self.wait).await
    }
}

async fn submit_command(
    submission: Submission,
    settings: &Settings,
    wait: bool,
) -> Result<(), CliError> {
    // A desk asks by itself.
    let submission = if wait { submission } else { submission.with_ack() };
    submit(submission, settings, wait).await
}
