//! The owner's answer to what a command has written, in words.
//!
//! Law: an answer that is no, and one that is missing, is an error.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::CliError;
use crate::config::Settings;
use crate::gateway::submission::{Batch, Refusal, Submission};
use crate::gateway::writer::Writer;
use crate::gateway::{Desk, SubmitError};
use crate::health::Health;
use crate::kafka::Names;
use crate::model::Offset;
use crate::model::outcome::Verdict;
use crate::model::time::show_time;

/// How long the cluster may take to be there and to acknowledge the record.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes a record; with `wait` prints what its owner says.
pub(super) async fn submit(
    submission: Submission,
    settings: &Settings,
    wait: bool,
) -> Result<(), CliError> {
    if !wait {
        let place = Writer::open(settings, WRITE_TIMEOUT)?.write(&submission).await?;
        println!("written: {place}");
        return Ok(());
    }
    let (desk, _reading) = open_desk(settings).await?;
    let receipt = desk.submit(submission).await.map_err(unsubmitted)?;
    let Some(verdict) = receipt.verdict() else {
        return Err(CliError::Refused(format!(
            "{} is written, but its owner has not answered within {:?}; is a scheduler running?",
            receipt.place, settings.gateway.answer_timeout,
        )));
    };
    println!("{}", describe(verdict, settings)?);
    Ok(())
}

/// Writes a batch, and prints what the owners say of its triggers as they do.
pub(super) async fn submit_batch(batch: Batch, settings: &Settings) -> Result<(), CliError> {
    let (desk, _reading) = open_desk(settings).await?;
    let all = batch.ids.len();
    let mut answers = desk.submit_batch(batch).await.map_err(unsubmitted)?;
    let (mut refused, mut missing) = (0, Vec::new());
    while let Some((id, told)) = answers.next().await {
        match told.map(|told| describe(&told.outcome.verdict, settings)) {
            Some(Ok(answer)) => println!("{id}: {answer}"),
            Some(Err(no)) => {
                println!("{id}: {no}");
                refused += 1;
            }
            None => missing.push(id),
        }
    }
    for id in &missing {
        println!("{id}: no answer within {:?}", settings.gateway.answer_timeout);
    }
    if refused > 0 || !missing.is_empty() {
        return Err(CliError::Refused(format!(
            "of {all} triggers {refused} are refused and {} not answered for; {} is written: send \
             it again as it is, or only those",
            missing.len(),
            answers.place,
        )));
    }
    println!("all {all} are registered");
    Ok(())
}

/// A desk that hears of outcomes, for as long as the guard is held.
async fn open_desk(settings: &Settings) -> Result<(Desk, DropGuard), CliError> {
    let timeout = settings.gateway.answer_timeout;
    let stop_reading = CancellationToken::new();
    let guard = stop_reading.clone().drop_guard();
    let health = Health::new("command");
    let desk = Desk::open(settings, timeout, Arc::clone(&health), stop_reading)?;
    if tokio::time::timeout(WRITE_TIMEOUT, health.until_ready()).await.is_err() {
        let reasons = health.reasons().join("; ");
        return Err(CliError::Refused(format!("outcomes cannot be read: {reasons}")));
    }
    Ok((desk, guard))
}

fn unsubmitted(error: SubmitError) -> CliError {
    match error {
        SubmitError::Unwritten(error) => CliError::Kafka(error),
        SubmitError::Busy(_) => CliError::Refused(error.to_string()),
    }
}

/// The owner's answer in words; an error if the answer is no.
fn describe(verdict: &Verdict, settings: &Settings) -> Result<String, CliError> {
    match verdict {
        Verdict::Accepted { generation, fire_at, replaced } => {
            let replaced = replaced.map_or_else(String::new, |old| format!(", replaces {old}"));
            let at = show_time(*fire_at);
            Ok(format!("accepted: fires at {at}, generation {generation}{replaced}"))
        }
        Verdict::Kept { generation, fire_at } => {
            let at = show_time(*fire_at);
            Ok(format!("kept: generation {generation} is pending and fires at {at}"))
        }
        Verdict::Cancelled { generation } => Ok(format!("cancelled: generation {generation}")),
        Verdict::NotPending { fired, withdrawal } => {
            let outcomes = withdrawal.then(|| Names::new(&settings.topics.prefix).outcomes());
            Err(CliError::Refused(not_pending(*fired, outcomes)))
        }
        Verdict::Taken { .. } => {
            Err(CliError::Refused("taken: the id is another caller's trigger".to_owned()))
        }
        Verdict::Rejected { reason } => Err(CliError::Refused(format!("rejected: {reason}"))),
        Verdict::Paused { generation, .. } => Ok(format!("paused: generation {generation}")),
        Verdict::Resumed { generation, fire_at } => {
            let at = show_time(*fire_at);
            Ok(format!("resumed: generation {generation}, due at {at}"))
        }
        Verdict::Called { generation, occurrence } => {
            Ok(format!("fires now: generation {generation}, occurrence {occurrence}"))
        }
        Verdict::Skipped { .. }
        | Verdict::Ended { .. }
        | Verdict::Expired { .. }
        | Verdict::Unmet { .. }
        | Verdict::Delivered { .. }
        | Verdict::Failed { .. }
        | Verdict::Withdrawn { .. }
        | Verdict::Circuit(_) => {
            Err(CliError::Refused(format!("not an answer to a record: {verdict:?}")))
        }
    }
}

/// Why a cancel stopped nothing; `outcomes` is where to read on, if a withdrawal is requested.
fn not_pending(fired: Option<Offset>, outcomes: Option<String>) -> String {
    let why = match fired {
        Some(generation) => format!("too late: generation {generation} has fired"),
        None => "not pending: fired, cancelled before, or never registered".to_owned(),
    };
    match outcomes {
        Some(outcomes) => format!(
            "{why}; withdrawal requested: a callback that has not begun is not made, and \
             {outcomes} will say whether it was withdrawn or delivered"
        ),
        None => why,
    }
}

/// Names the part of a trigger as the command line does.
pub(super) fn by_option(refusal: Refusal) -> CliError {
    let Refusal { field, reason } = refusal;
    let option = match field {
        "triggerId" => "ID",
        "topic" => "--topic",
        "callbackUrl" => "--url",
        "delaySeconds" => "--in",
        "fireAt" => "--at",
        "headers" => "--header",
        "pool" => "--pool",
        "batch" => "--batch",
        "expireAfter" => "--expire-after",
        "count" => "--count",
        "after" => "--after",
        "onFailure" => "--on-failure",
        "retain" => "--retain",
        "priority" => "--priority",
        // It says itself which part of which schedule.
        "schedule" | "body" => return CliError::Usage(reason),
        other => other,
    };
    CliError::Usage(format!("{option}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_option() {
        let said = |field, reason: &str| {
            by_option(Refusal { field, reason: reason.to_owned() }).to_string()
        };
        assert_eq!(said("retain", "retain is \"2y\""), "--retain: retain is \"2y\"");
        assert_eq!(said("schedule", "schedule.cron is \"x\""), "schedule.cron is \"x\"");
    }
}
