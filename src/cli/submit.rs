//! The owner's answer to a record that a command has written, as text.
//!
//! Invariant: a negative answer, and a missing one, is an error.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::CliError;
use crate::client::TriggerProducer;
use crate::client::{BatchSubmission, Submission, ValidationError};
use crate::client::{SubmitError, TriggerClient};
use crate::config::Settings;
use crate::health::Health;
use crate::kafka::Names;
use crate::model::Offset;
use crate::model::outcome::OutcomeKind;
use crate::model::time::format_time;

/// How long the cluster may take to be reachable and to acknowledge the record.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Writes a record; with `wait` prints the answer of its owner.
pub(super) async fn submit(
    submission: Submission,
    settings: &Settings,
    wait: bool,
) -> Result<(), CliError> {
    if !wait {
        let producer = TriggerProducer::open(settings, WRITE_TIMEOUT)?;
        let place = producer.send(&submission).await.map_err(submit_failed)?;
        println!("written: {place}");
        return Ok(());
    }
    let (client, _reading) = open_client(settings).await?;
    let receipt = client.submit(submission).await.map_err(submit_failed)?;
    let Some(outcome) = receipt.outcome_kind() else {
        return Err(CliError::Refused(format!(
            "{} is written, but its owner has not answered within {:?}; is a scheduler running?",
            receipt.record, settings.gateway.answer_timeout,
        )));
    };
    println!("{}", describe(outcome, settings)?);
    Ok(())
}

/// Writes a batch, and prints the owners' answers for its triggers as they arrive.
pub(super) async fn submit_batch(
    batch: BatchSubmission,
    settings: &Settings,
) -> Result<(), CliError> {
    let (client, _reading) = open_client(settings).await?;
    let all = batch.ids.len();
    let mut answers = client.submit_batch(batch).await.map_err(submit_failed)?;
    let (mut refused, mut missing) = (0, Vec::new());
    while let Some((id, outcome)) = answers.next().await {
        match outcome.map(|answer| describe(&answer.outcome.kind, settings)) {
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
            "of {all} triggers {refused} are refused and {} have no answer; {} is written: send \
             it again as it is, or only those",
            missing.len(),
            answers.record,
        )));
    }
    println!("all {all} are registered");
    Ok(())
}

/// A client that receives outcomes as long as the guard is held.
async fn open_client(settings: &Settings) -> Result<(TriggerClient, DropGuard), CliError> {
    let timeout = settings.gateway.answer_timeout;
    let stop_reading = CancellationToken::new();
    let guard = stop_reading.clone().drop_guard();
    let health = Health::new("command");
    let client = TriggerClient::open(settings, timeout, Arc::clone(&health), stop_reading)?;
    if tokio::time::timeout(WRITE_TIMEOUT, health.wait_until_ready()).await.is_err() {
        let reasons = health.reasons().join("; ");
        return Err(CliError::Refused(format!("outcomes cannot be read: {reasons}")));
    }
    Ok((client, guard))
}

fn submit_failed(error: SubmitError) -> CliError {
    match error {
        SubmitError::NotSent(error) | SubmitError::NotAcknowledged(error) => CliError::Kafka(error),
        SubmitError::Busy(_) => CliError::Refused(error.to_string()),
    }
}

/// The owner's answer as text; an error if the answer is negative.
fn describe(outcome: &OutcomeKind, settings: &Settings) -> Result<String, CliError> {
    match outcome {
        OutcomeKind::Accepted { generation, fire_at, replaced } => {
            let replaced = replaced.map_or_else(String::new, |old| format!(", replaces {old}"));
            let at = format_time(*fire_at);
            Ok(format!("accepted: fires at {at}, generation {generation}{replaced}"))
        }
        OutcomeKind::Kept { generation, fire_at } => {
            let at = format_time(*fire_at);
            Ok(format!("kept: generation {generation} is pending and fires at {at}"))
        }
        OutcomeKind::Changed { revision, fire_at, .. } => {
            Ok(format!("changed: fires at {}, revision {revision}", format_time(*fire_at)))
        }
        OutcomeKind::Cancelled { generation } => Ok(format!("cancelled: generation {generation}")),
        OutcomeKind::NotPending { fired, withdrawal } => {
            let outcomes = withdrawal.then(|| Names::new(&settings.topics.prefix).outcomes());
            Err(CliError::Refused(not_pending(*fired, outcomes)))
        }
        OutcomeKind::Taken { .. } => {
            Err(CliError::Refused("taken: the id is another caller's trigger".to_owned()))
        }
        OutcomeKind::Rejected { reason } => Err(CliError::Refused(format!("rejected: {reason}"))),
        OutcomeKind::Paused { generation, .. } => Ok(format!("paused: generation {generation}")),
        OutcomeKind::Resumed { generation, fire_at } => {
            let at = format_time(*fire_at);
            Ok(format!("resumed: generation {generation}, due at {at}"))
        }
        OutcomeKind::Called { generation, occurrence } => {
            Ok(format!("fires now: generation {generation}, occurrence {occurrence}"))
        }
        OutcomeKind::Skipped { .. }
        | OutcomeKind::Ended { .. }
        | OutcomeKind::Expired { .. }
        | OutcomeKind::Unmet { .. }
        | OutcomeKind::Delivered { .. }
        | OutcomeKind::Failed { .. }
        | OutcomeKind::Withdrawn { .. }
        | OutcomeKind::Circuit(_) => {
            Err(CliError::Refused(format!("not an answer to a record: {outcome:?}")))
        }
    }
}

/// Why a cancel stopped nothing; `outcomes` is the topic with the result, if a withdrawal is
/// requested.
fn not_pending(fired: Option<Offset>, outcomes: Option<String>) -> String {
    let why = match fired {
        Some(generation) => format!("too late: generation {generation} has fired"),
        None => "not pending: fired, cancelled before, or never registered".to_owned(),
    };
    match outcomes {
        Some(outcomes) => format!(
            "{why}; withdrawal requested: a callback that has not started is not made, and \
             {outcomes} will say whether it was withdrawn or delivered"
        ),
        None => why,
    }
}

/// Names a field of a trigger by its option.
pub(super) fn usage_error(refusal: ValidationError) -> CliError {
    let ValidationError { field, reason } = refusal;
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
        // The reason itself names the part of the schedule.
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
        let message = |field, reason: &str| {
            usage_error(ValidationError { field, reason: reason.to_owned() }).to_string()
        };
        assert_eq!(message("retain", "retain is \"2y\""), "--retain: retain is \"2y\"");
        assert_eq!(message("schedule", "schedule.cron is \"x\""), "schedule.cron is \"x\"");
    }
}
