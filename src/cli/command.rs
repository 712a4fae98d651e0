//! `orloj cancel`, `pause`, `resume` and `fire-now`: a record about a registered trigger, and the
//! owner's answer if requested.
//!
//! Invariant: the record always requests an outcome, so that the caller can read the result later.

use clap::Args;

use super::CliError;
use super::submit::{submit, usage_error};
use crate::client::Submission;
use crate::config::Settings;
use crate::model::lifecycle::Command;

const CANCEL_EXAMPLES: &str = "\
Examples:
  orloj cancel tea
  orloj cancel rent --wait      # exits with 1 if it is too late";

const PAUSE_EXAMPLES: &str = "\
A paused trigger stays registered and does not fire. When it is resumed, its misfire policy decides
about the occurrences that were missed; a one-time trigger whose time has passed then fires at
once, unless its expireAfter says otherwise. A cancel ends it, a new registration replaces it.

Examples:
  orloj pause report
  orloj pause report --wait     # exits with 1 if nothing is pending under that id";

const RESUME_EXAMPLES: &str = "\
Examples:
  orloj resume report --wait    # prints when it is due
  orloj resume report           # also what pauseAfter has paused";

const FIRE_NOW_EXAMPLES: &str = "\
A one-time trigger fires now instead of at its time, whatever it waits for. A recurring one fires
once more, and its next occurrence is not changed. A paused one also fires, and stays paused.

Examples:
  orloj fire-now report
  orloj fire-now report --wait  # exits with 1 if nothing is pending under that id";

/// The arguments of `orloj cancel`.
#[derive(Debug, Args)]
#[command(after_help = CANCEL_EXAMPLES)]
pub(super) struct CancelArguments {
    /// The trigger.
    id: String,
    /// Wait for the owner's answer: cancelled, or too late.
    #[arg(long)]
    wait: bool,
}

/// The arguments of `orloj pause`.
#[derive(Debug, Args)]
#[command(after_help = PAUSE_EXAMPLES)]
pub(super) struct PauseArguments {
    #[command(flatten)]
    arguments: CommandArguments,
}

/// The arguments of `orloj resume`.
#[derive(Debug, Args)]
#[command(after_help = RESUME_EXAMPLES)]
pub(super) struct ResumeArguments {
    #[command(flatten)]
    arguments: CommandArguments,
}

/// The arguments of `orloj fire-now`.
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
    // A client that waits requests the outcome itself.
    let submission = if wait { submission } else { submission.with_ack() };
    submit(submission, settings, wait).await
}
