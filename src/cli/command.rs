//! `orloj cancel`, `pause`, `resume` and `fire-now`: a record about a trigger that is there, and
//! the owner's answer if asked.
//!
//! Law: whoever cancels or commands is owed the truth, even if it is only read later: the owner is
//! always asked for it.

use clap::Args;

use super::CliError;
use super::answer::{by_option, submit};
use crate::config::Settings;
use crate::gateway::submission::Submission;
use crate::model::course::Command;

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
pub(super) struct Cancel {
    /// The trigger.
    id: String,
    /// Wait for the owner's answer: cancelled, or too late.
    #[arg(long)]
    wait: bool,
}

/// What `orloj pause` takes.
#[derive(Debug, Args)]
#[command(after_help = PAUSE_EXAMPLES)]
pub(super) struct Pause {
    #[command(flatten)]
    to: To,
}

/// What `orloj resume` takes.
#[derive(Debug, Args)]
#[command(after_help = RESUME_EXAMPLES)]
pub(super) struct Resume {
    #[command(flatten)]
    to: To,
}

/// What `orloj fire-now` takes.
#[derive(Debug, Args)]
#[command(after_help = FIRE_NOW_EXAMPLES)]
pub(super) struct FireNow {
    #[command(flatten)]
    to: To,
}

#[derive(Debug, Args)]
struct To {
    /// The trigger.
    id: String,
    /// Wait for the owner's answer and print it.
    #[arg(long)]
    wait: bool,
}

impl Cancel {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        ask(Submission::cancel(&self.id).map_err(by_option)?, settings, self.wait).await
    }
}

impl Pause {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        self.to.order(Command::Pause, settings).await
    }
}

impl Resume {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        self.to.order(Command::Resume, settings).await
    }
}

impl FireNow {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        self.to.order(Command::FireNow, settings).await
    }
}

impl To {
    async fn order(self, command: Command, settings: &Settings) -> Result<(), CliError> {
        let submission = Submission::command(&self.id, command).map_err(by_option)?;
        ask(submission, settings, self.wait).await
    }
}

async fn ask(submission: Submission, settings: &Settings, wait: bool) -> Result<(), CliError> {
    // A desk asks by itself.
    let submission = if wait { submission } else { submission.acknowledged() };
    submit(submission, settings, wait).await
}
