//! `orloj register` and `orloj cancel`: a record of `triggers`, and the owner's answer if asked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use jiff::{Span, SpanRelativeTo};
use tokio_util::sync::CancellationToken;

use super::CliError;
use crate::clock;
use crate::config::Settings;
use crate::gateway::submission::{
    NewTrigger, Refusal, Submission, When, absent_payload, check_pool,
};
use crate::gateway::writer::Writer;
use crate::gateway::{Desk, Receipt, SubmitError};
use crate::health::Health;
use crate::kafka::Names;
use crate::model::definition::{HttpTarget, Target, TopicTarget};
use crate::model::input::OnConflict;
use crate::model::outcome::Verdict;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;
use crate::model::time::{read_time, show_time};
use crate::model::{Millis, Offset, Timestamp};

/// How long the cluster may take to be there and to acknowledge the record.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

const REGISTER_EXAMPLES: &str = "\
Examples:
  orloj register tea --topic kitchen --in 4min --payload 'tea is ready'
  orloj register rent --url https://example.com/hooks/rent --at 2030-02-01T08:00:00Z --wait
  orloj register import-7 --topic jobs --in 1h30m --payload-file job.json --key eu \\
      --header content-type=application/json --on-conflict keep
  orloj register report --url https://example.com/report --in 1h --pool slow --timeout 5m \\
      --attempts 3 --retry-delays 1m,10m";

const CANCEL_EXAMPLES: &str = "\
Examples:
  orloj cancel tea
  orloj cancel rent --wait      (exits with 1 if it came too late)";

/// What `orloj register` takes.
#[derive(Debug, Args)]
#[command(after_help = REGISTER_EXAMPLES)]
#[command(group(ArgGroup::new("target").required(true)))]
#[command(group(ArgGroup::new("time").required(true)))]
pub(super) struct Register {
    /// The name by which it is replaced and cancelled.
    id: String,
    /// In whose name: the limits and the signing secrets of this caller hold.
    #[arg(long, value_name = "CALLER")]
    caller: Option<String>,
    /// Fire into this topic.
    #[arg(long, group = "target", value_name = "TOPIC")]
    topic: Option<String>,
    /// Fire as a callback: POST to this URL.
    #[arg(long, group = "target", value_name = "URL")]
    url: Option<String>,
    /// Fire after this long: 250ms, 20m, 1h30m, 7d.
    #[arg(long = "in", group = "time", value_name = "DELAY", value_parser = read_delay)]
    delay: Option<Millis>,
    /// Fire at this time: RFC 3339, or ms since the epoch.
    #[arg(long, group = "time", value_name = "TIME", value_parser = read_at)]
    at: Option<Timestamp>,
    /// The pool whose workers make the callback; the default one if not given.
    #[arg(long, requires = "url")]
    pool: Option<String>,
    /// How long an attempt of the callback may take: 500ms, 25s.
    #[arg(long, requires = "url", value_name = "TIME", value_parser = read_delay)]
    timeout: Option<Millis>,
    /// Attempts of the callback in all.
    #[arg(long, requires = "url", value_name = "COUNT")]
    attempts: Option<u32>,
    /// Pauses between attempts, the last one repeated: 10s,1m,10m.
    #[arg(
        long = "retry-delays",
        requires = "url",
        value_name = "DELAY,…",
        value_delimiter = ',',
        value_parser = read_delay
    )]
    retry_delays: Vec<Millis>,
    /// What to deliver, as it stands.
    #[arg(long, value_name = "TEXT", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// A file of what to deliver.
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// The key of the fired record; the id if not given.
    #[arg(long, requires = "topic")]
    key: Option<String>,
    /// A header carried to the target. Can be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = read_header)]
    headers: Vec<(String, Vec<u8>)>,
    /// What happens if the id is pending already.
    #[arg(long, value_enum, default_value = "replace")]
    on_conflict: Conflict,
    /// Wait for the owner's answer and print it.
    #[arg(long)]
    wait: bool,
}

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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Conflict {
    /// The new one takes its place.
    Replace,
    /// The pending one stays.
    Keep,
}

impl Register {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        let (wait, caller) = (self.wait, self.caller.clone());
        let trigger = self.into_trigger()?;
        let names = Names::new(&settings.topics.prefix);
        check_pool(&trigger.target, &settings.topics.pools).map_err(by_option)?;
        let submission =
            Submission::register(trigger, &names, clock::now_ms()).map_err(by_option)?;
        let submission = match caller {
            Some(caller) => submission.by(&caller),
            None => submission,
        };
        submit(submission, settings, wait).await
    }

    fn into_trigger(self) -> Result<NewTrigger, CliError> {
        let target = match (self.url, self.topic) {
            (Some(url), _) => {
                let (pool, timeout) = (self.pool.map(Text::from), self.timeout);
                Target::Http(Box::new(HttpTarget { pool, timeout, ..HttpTarget::post(&url) }))
            }
            (None, topic) => {
                let topic = Text::from(topic.unwrap_or_default());
                Target::Topic(TopicTarget { topic, key: self.key.map(Into::into) })
            }
        };
        let payload = match (self.payload, self.payload_file) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(path)) => std::fs::read(&path).map_err(|error| {
                CliError::Usage(format!("cannot read --payload-file {}: {error}", path.display()))
            })?,
            (None, None) => absent_payload(&target),
        };
        Ok(NewTrigger {
            id: self.id,
            when: match self.at {
                Some(at) => When::At(at),
                None => When::After(self.delay.unwrap_or_default()),
            },
            target,
            payload,
            headers: self.headers,
            on_conflict: match self.on_conflict {
                Conflict::Replace => OnConflict::Replace,
                Conflict::Keep => OnConflict::Keep,
            },
            retry: RetryPolicy {
                delays: self.retry_delays,
                attempts: self.attempts,
                ..RetryPolicy::default()
            },
        })
    }
}

impl Cancel {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        let submission = Submission::cancel(&self.id).map_err(by_option)?;
        // Whoever cancels is owed the truth, even if it is only read later: always ask for it.
        let submission = if self.wait { submission } else { submission.acknowledged() };
        submit(submission, settings, self.wait).await
    }
}

async fn submit(submission: Submission, settings: &Settings, wait: bool) -> Result<(), CliError> {
    if !wait {
        let place = Writer::open(settings, WRITE_TIMEOUT)?.write(&submission).await?;
        println!("written: {place}");
        return Ok(());
    }
    let timeout = settings.gateway.answer_timeout;
    let stop_reading = CancellationToken::new();
    let _guard = stop_reading.clone().drop_guard();
    let health = Health::new("command");
    let desk = Desk::open(settings, timeout, Arc::clone(&health), stop_reading)?;
    if tokio::time::timeout(WRITE_TIMEOUT, health.until_ready()).await.is_err() {
        let reasons = health.reasons().join("; ");
        return Err(CliError::Refused(format!("outcomes cannot be read: {reasons}")));
    }
    let receipt = desk.submit(submission).await.map_err(|error| match error {
        SubmitError::Unwritten(error) => CliError::Kafka(error),
        SubmitError::Busy(_) => CliError::Refused(error.to_string()),
    })?;
    println!("{}", describe(&receipt, settings)?);
    Ok(())
}

/// The owner's answer in words; an error if the answer is no, or missing.
fn describe(receipt: &Receipt, settings: &Settings) -> Result<String, CliError> {
    let Some(verdict) = receipt.verdict() else {
        return Err(CliError::Refused(format!(
            "{} is written, but its owner has not answered within {:?}; is a scheduler running?",
            receipt.place, settings.gateway.answer_timeout,
        )));
    };
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
fn by_option(refusal: Refusal) -> CliError {
    let option = match refusal.field {
        "triggerId" => "ID",
        "topic" => "--topic",
        "callbackUrl" => "--url",
        "delaySeconds" => "--in",
        "fireAt" => "--at",
        "headers" => "--header",
        "pool" => "--pool",
        other => other,
    };
    CliError::Usage(format!("{option}: {}", refusal.reason))
}

pub(super) fn read_delay(text: &str) -> Result<Millis, String> {
    let span: Span = text.parse().map_err(|_| "write a delay such as 250ms, 20m or 1h30m")?;
    let relative = SpanRelativeTo::days_are_24_hours();
    let delay = span.to_duration(relative).map_err(|_| "months and years have no fixed length")?;
    Millis::try_from(delay.as_millis()).map_err(|_| "a delay is not negative".to_owned())
}

pub(super) fn read_at(text: &str) -> Result<Timestamp, String> {
    let at = text.parse().ok().or_else(|| read_time(text));
    at.ok_or_else(|| {
        "write RFC 3339 such as 2030-01-31T08:00:00Z, or ms since the epoch".to_owned()
    })
}

fn read_header(text: &str) -> Result<(String, Vec<u8>), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_read_as_people_write_them() {
        for (text, millis) in
            [("250ms", 250), ("20m", 1_200_000), ("1h30m", 5_400_000), ("7d", 604_800_000)]
        {
            assert_eq!(read_delay(text), Ok(millis), "{text}");
        }
        for text in ["", "20", "soon", "-5s", "1mo"] {
            assert!(read_delay(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_absolute() {
        assert_eq!(read_at("1800000000000"), Ok(1_800_000_000_000));
        assert_eq!(read_at("2027-01-15T08:00:00Z"), Ok(1_800_000_000_000));
        assert!(read_at("2027-01-15T08:00:00").is_err(), "without a zone it could be any");
    }
}
