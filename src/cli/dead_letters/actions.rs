//! Replaying and archiving dead letters.
//!
//! Invariant: only the letters that were counted and confirmed are handled. A batch is handled in
//! one transaction, so that a command that was stopped continues with the letters that have no mark
//! yet.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::filter::LetterFilter;
use super::progress_bar;
use crate::cli::{CliError, signals};
use crate::clock;
use crate::config::Settings;
use crate::dead_letters::{
    DeadLetterActions, DeadLetterReader, HandledLetters, LetterAction, LetterError, LetterId,
};
use crate::model::dead_letter::{DeadLetter, Mark};

/// Letters in one batch, at most.
const BATCH_MAX: u32 = 500;
/// Batches a second, so that the progress bar moves and a stop is noticed.
const BATCHES_PER_SECOND: u32 = 5;
/// Letters read before they are handled: each may be a megabyte.
const READ_AHEAD_MAX: usize = 16;
/// Hosts that a summary names.
const HOSTS_SHOWN_MAX: usize = 10;

const REPLAY_EXAMPLES: &str = "\
Examples:
  orloj dead-letters replay 3:41
  orloj dead-letters replay --host api.example.com --since 6h --rate 50
  orloj dead-letters replay --every --yes

A callback is tried again under the same webhook-id, its attempts numbered on and its retry policy
started again. A record that could not be read is written to the triggers again as it was. Stopped
with Ctrl-C, the same command continues where it stopped.";

const ARCHIVE_EXAMPLES: &str = "\
Examples:
  orloj dead-letters archive 3:41 --note 'the order was cancelled by phone'
  orloj dead-letters archive --reason 'does not exist' --until 2030-01-01T00:00:00Z";

/// The selected letters, and whether to ask for confirmation.
#[derive(Debug, Args)]
struct Selection {
    /// Letters as they are listed: PARTITION:OFFSET.
    letters: Vec<LetterId>,
    #[command(flatten)]
    filter: LetterFilter,
    /// All that were not replayed or archived.
    #[arg(long)]
    every: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

/// The arguments of `orloj dead-letters replay`.
#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES)]
pub(in crate::cli) struct ReplayArguments {
    #[command(flatten)]
    selection: Selection,
    /// Letters a second.
    #[arg(long, default_value = "10", value_name = "COUNT")]
    rate: NonZeroU32,
    /// Those too that were replayed or archived before.
    #[arg(long)]
    again: bool,
}

/// The arguments of `orloj dead-letters archive`.
#[derive(Debug, Args)]
#[command(after_help = ARCHIVE_EXAMPLES)]
pub(in crate::cli) struct ArchiveArguments {
    #[command(flatten)]
    selection: Selection,
    /// Why; it is kept with the mark.
    #[arg(long, default_value = "archived by hand", value_name = "TEXT")]
    note: String,
}

impl ReplayArguments {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        let selected = self.selection.select(settings, "be tried again", self.again)?;
        let action = LetterAction { mark: Mark::Replayed, note: "replayed by hand".to_owned() };
        ActionTask { action, rate: Some(self.rate) }.run(settings, selected).await
    }
}

impl ArchiveArguments {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        let selected = self.selection.select(settings, "be archived", false)?;
        let action = LetterAction { mark: Mark::Archived, note: self.note };
        ActionTask { action, rate: None }.run(settings, selected).await
    }
}

impl Selection {
    /// The selected letters, and how often each was replayed before, after the user has confirmed
    /// their number.
    fn select(
        &self,
        settings: &Settings,
        what: &str,
        again: bool,
    ) -> Result<BTreeMap<LetterId, u32>, CliError> {
        if self.letters.is_empty() && !self.filter.is_set() && !self.every {
            let usage = "name the letters: PARTITION:OFFSET, a filter such as --host, or --every";
            return Err(CliError::Usage(usage.to_owned()));
        }
        let mut hosts = BTreeMap::new();
        let letters = DeadLetterReader::open(settings)?;
        let bar = progress_bar("counting", letters.records());
        let marks = letters.scan(
            || bar.inc(1),
            |id, letter| {
                let named = self.letters.is_empty() || self.letters.contains(&id);
                if named && self.filter.matches(&letter) {
                    let _earlier = hosts.insert(id, letter.host());
                }
                ControlFlow::Continue(())
            },
        )?;
        bar.finish_and_clear();
        if !again {
            hosts.retain(|id, _| !marks.contains_key(id));
        }
        summarize(&hosts, what, &marks);
        if !hosts.is_empty() && !self.yes {
            confirm()?;
        }
        let replays = |id: &LetterId| marks.get(id).map_or(0, |handled| handled.replays);
        Ok(hosts.into_keys().map(|id| (id, replays(&id))).collect())
    }
}

/// Prints how many letters are selected, and their hosts.
fn summarize(hosts: &BTreeMap<LetterId, Option<String>>, what: &str, marks: &HandledLetters) {
    let mut counts = BTreeMap::<&str, usize>::new();
    for host in hosts.values() {
        *counts.entry(host.as_deref().unwrap_or("no host")).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    println!("{} dead letters will {what}", hosts.len());
    for (host, count) in counts.iter().take(HOSTS_SHOWN_MAX) {
        println!("  {count:>8}  {host}");
    }
    if counts.len() > HOSTS_SHOWN_MAX {
        println!("  and {} hosts more", counts.len() - HOSTS_SHOWN_MAX);
    }
    if hosts.is_empty() && !marks.is_empty() {
        println!("  ({} were handled before; see list --all)", marks.len());
    }
}

fn confirm() -> Result<(), CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::Usage(
            "standard input is not a terminal: confirm with --yes".to_owned(),
        ));
    }
    print!("Continue? [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    let _bytes = std::io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(CliError::Refused("nothing was done".to_owned()))
}

/// What is done with the letters, and how fast.
struct ActionTask {
    action: LetterAction,
    /// Letters a second; `None` for no limit.
    rate: Option<NonZeroU32>,
}

impl ActionTask {
    async fn run(
        &self,
        settings: &Settings,
        selected: BTreeMap<LetterId, u32>,
    ) -> Result<(), CliError> {
        if selected.is_empty() {
            return Ok(());
        }
        let stop = CancellationToken::new();
        signals::watch(Vec::new(), stop.clone())?;
        let actions = DeadLetterActions::new(settings);
        let (all, bar) = (selected.len(), progress_bar("done", selected.len() as u64));
        let ids = selected.keys().copied().collect();
        let selected = Arc::new(selected);
        let (mut letters, reading) = read_selected(settings.clone(), ids);
        let (batch_max, pause) = self.batch_pacing();
        let (mut done, mut kept) = (0, Vec::new());
        while !stop.is_cancelled() {
            let started = clock::monotonic();
            let mut batch = Vec::new();
            if letters.recv_many(&mut batch, batch_max).await == 0 {
                break;
            }
            let size = batch.len();
            let result = actions.apply(batch, Arc::clone(&selected), self.action.clone()).await?;
            done += result.handled;
            kept.extend(result.skipped);
            bar.inc(size as u64);
            // A batch that was not full takes its share of the time.
            let share = pause.mul_f64(size as f64 / batch_max as f64);
            let left = share.saturating_sub(clock::monotonic() - started);
            let _woken = stop.run_until_cancelled(tokio::time::sleep(left)).await;
        }
        bar.finish_and_clear();
        drop(letters);
        reading.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        kept.iter().for_each(|(id, why)| println!("{id} skipped: {why}"));
        println!("{done} of {all} done");
        let left = all - done - kept.len();
        if left > 0 && stop.is_cancelled() {
            return Err(CliError::Refused("stopped: run the command again to continue".to_owned()));
        }
        if left > 0 {
            println!("{left} do not exist any more: the topic's retention has deleted them");
        }
        Ok(())
    }

    /// The letters in a batch, and the time that one takes.
    fn batch_pacing(&self) -> (usize, Duration) {
        let Some(rate) = self.rate.map(NonZeroU32::get) else {
            return (BATCH_MAX as usize, Duration::ZERO);
        };
        let batch = (rate / BATCHES_PER_SECOND).clamp(1, BATCH_MAX);
        (batch as usize, Duration::from_secs(1) * batch / rate)
    }
}

/// The thread that reads.
type ReaderTask = JoinHandle<Result<(), LetterError>>;

/// Reads the selected letters again, on a thread that waits while the channel is full.
fn read_selected(
    settings: Settings,
    selected: BTreeSet<LetterId>,
) -> (Receiver<(LetterId, DeadLetter)>, ReaderTask) {
    let (sender, receiver) = channel(READ_AHEAD_MAX);
    let reading = tokio::task::spawn_blocking(move || {
        let letters = DeadLetterReader::open(&settings)?.restricted_to(&selected);
        let mut left = selected.len();
        let each = |id, letter| {
            if !selected.contains(&id) {
                return ControlFlow::Continue(());
            }
            left -= 1;
            let taken = sender.blocking_send((id, letter)).is_ok();
            if taken && left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let _marks = letters.scan(|| (), each)?;
        Ok(())
    });
    (receiver, reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_the_rate() {
        let pace = |rate| {
            let rate = NonZeroU32::new(rate);
            let action = LetterAction { mark: Mark::Replayed, note: String::new() };
            ActionTask { action, rate }.batch_pacing()
        };
        assert_eq!(pace(1), (1, Duration::from_secs(1)));
        assert_eq!(pace(10), (2, Duration::from_millis(200)));
        assert_eq!(pace(5_000), (500, Duration::from_millis(100)));
        assert_eq!(pace(0), (500, Duration::ZERO), "without a limit");
    }
}
