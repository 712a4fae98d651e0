//! `orloj dead-letters`: list, show, replay and archive dead letters.
//!
//! Invariant: nothing is lost or repeated if the command is stopped. A letter is handled once its
//! mark is written after it, and an attempt requested twice is made once. So the same command
//! continues where it was stopped.
//!
//! ```text
//!  dead-letters ──scan──► filter ──► list, show
//!                            └─count, ask─► replay ──► signals (or triggers) ──┐
//!                                           archive ──────────────► a mark ◄───┘
//! ```

mod actions;
mod filter;
mod show;

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use super::CliError;
use crate::config::Settings;
use crate::dead_letters::{DeadLetterReader, LetterId, state_of};
use actions::{ArchiveArguments, ReplayArguments};
use filter::LetterFilter;
use show::{LetterRow, print_details, print_rows};

const BAR_TEMPLATE: &str = "{msg} {wide_bar} {pos}/{len} {eta}";

const LIST_EXAMPLES: &str = "\
Examples:
  orloj dead-letters list --host api.example.com --since 2h
  orloj dead-letters list --caller billing --reason 'answered 500'";

const SHOW_EXAMPLES: &str = "\
Example:
  orloj dead-letters show 3:41";

/// The commands for dead letters.
#[derive(Debug, Subcommand)]
pub(super) enum DeadLettersCommand {
    /// List those that were not replayed or archived, the oldest first.
    List(ListArguments),
    /// Print everything about one: the request, every attempt, when and by which worker.
    Show(ShowArguments),
    /// Request another attempt of each, after showing how many they are.
    Replay(ReplayArguments),
    /// Archive them, so that they are not listed any more.
    Archive(ArchiveArguments),
}

/// The arguments of `orloj dead-letters list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(super) struct ListArguments {
    #[command(flatten)]
    filter: LetterFilter,
    /// Also those that were replayed or archived.
    #[arg(long)]
    all: bool,
    /// The newest so many.
    #[arg(long, default_value = "100", value_name = "COUNT")]
    limit: usize,
}

/// The arguments of `orloj dead-letters show`.
#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub(super) struct ShowArguments {
    /// Which, as it is listed: PARTITION:OFFSET.
    letter: LetterId,
}

impl DeadLettersCommand {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        match self {
            Self::List(list) => list.run(settings),
            Self::Show(show) => show.run(settings),
            Self::Replay(replay) => replay.run(settings).await,
            Self::Archive(archive) => archive.run(settings).await,
        }
    }
}

impl ListArguments {
    fn run(&self, settings: &Settings) -> Result<(), CliError> {
        let mut lines = Vec::new();
        let letters = DeadLetterReader::open(settings)?;
        let bar = progress_bar("reading", letters.records());
        let marks = letters.scan(
            || bar.inc(1),
            |id, letter| {
                if self.filter.matches(&letter) {
                    lines.push(LetterRow::of(id, &letter));
                }
                ControlFlow::Continue(())
            },
        )?;
        bar.finish_and_clear();
        let matching = lines.len();
        lines.retain(|line| self.all || !marks.contains_key(&line.id));
        let handled = matching - lines.len();
        lines.sort_by_key(|line| (line.at, line.id));
        let hidden = lines.len().saturating_sub(self.limit);
        print_rows(&lines[hidden..], &marks);
        eprintln!(
            "{} dead letters; {hidden} older ones not shown (--limit), {handled} replayed or \
             archived (--all)",
            lines.len() - hidden
        );
        Ok(())
    }
}

impl ShowArguments {
    fn run(&self, settings: &Settings) -> Result<(), CliError> {
        let mut found = None;
        let letters =
            DeadLetterReader::open(settings)?.restricted_to(&BTreeSet::from([self.letter]));
        let bar = progress_bar("reading", letters.records());
        let marks = letters.scan(
            || bar.inc(1),
            |id, letter| {
                if id == self.letter {
                    found = Some(letter);
                }
                ControlFlow::Continue(())
            },
        )?;
        bar.finish_and_clear();
        let Some(letter) = found else {
            return Err(CliError::Refused(format!(
                "there is no dead letter {}: it is a mark, was never written, or is older than \
                 the topic's retention",
                self.letter
            )));
        };
        print_details(self.letter, &letter, state_of(&marks, self.letter));
        Ok(())
    }
}

/// A progress bar on standard error; it is not drawn without a terminal.
fn progress_bar(what: &'static str, length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(BAR_TEMPLATE).expect("a test has drawn it");
    ProgressBar::new(length).with_style(style).with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_can_be_drawn() {
        progress_bar("reading", 7).inc(1);
    }
}
