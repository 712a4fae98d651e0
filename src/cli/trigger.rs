//! `orloj register`: a record of `triggers`, or a batch of them, and the owners' answers if
//! requested.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use jiff::{Span, SpanRelativeTo};

use super::CliError;
use super::file::read_file;
use super::schedule::ScheduleOptions;
use super::submit::{submit, submit_batch, usage_error};
use crate::client::RegistrationValidator;
use crate::client::{
    self, BatchSubmission, FireTime, NewTrigger, Submission, SubmissionRules, default_payload,
};
use crate::clock;
use crate::config::Settings;
use crate::kafka::Names;
use crate::model::definition::{HttpTarget, Target, TopicTarget};
use crate::model::input::OnConflict;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;
use crate::model::time::parse_time;
use crate::model::{Millis, Timestamp};

const REGISTER_EXAMPLES: &str = "\
Examples:
  orloj register tea --topic kitchen --in 4min --payload 'tea is ready'
  orloj register rent --url https://example.com/hooks/rent --at 2030-02-01T08:00:00Z --wait
  orloj register import-7 --topic jobs --in 1h30m --payload-file job.json --key eu \\
      --header content-type=application/json --on-conflict keep
  orloj register report --url https://example.com/report --in 1h --pool slow --timeout 5m \\
      --attempts 3 --retry-delays 1m,10m

Repeatedly (`orloj next` takes the same and shows the occurrences; docs/guides/schedules.md):
  orloj register standup --topic reminders --cron '0 9 * * MON-FRI' --zone Europe/Prague
  orloj register pulse --url https://example.com/pulse --every 15m --wait
  orloj register invoice --topic jobs --schedule '{\"monthly\": {\"on\": 1, \"at\": \"18:00\"}}'

After others, or many at once (docs/guides/dependencies.md):
  orloj register load --topic jobs --after extract --after clean --on-failure skip
  orloj register --batch pipeline.json
  jq -c '[.jobs[]]' jobs.json | orloj register --batch -";

/// The arguments of `orloj register`.
#[derive(Debug, Args)]
#[command(after_help = REGISTER_EXAMPLES)]
#[command(group(ArgGroup::new("target").required(true)))]
#[command(group(ArgGroup::new("time")))]
#[command(group(ArgGroup::new("due").required(true).multiple(true)))]
pub(super) struct RegisterArguments {
    /// The id by which it is replaced and cancelled.
    #[arg(required_unless_present = "batch")]
    id: Option<String>,
    /// The caller: its limits and signing secrets apply.
    #[arg(long, value_name = "CALLER")]
    caller: Option<String>,
    /// Fire into this topic.
    #[arg(long, group = "target", value_name = "TOPIC")]
    topic: Option<String>,
    /// Fire as a callback: POST to this URL.
    #[arg(long, group = "target", value_name = "URL")]
    url: Option<String>,
    /// Fire after this long: 250ms, 20m, 1h30m, 7d.
    #[arg(long = "in", groups = ["time", "due"], value_name = "DELAY", value_parser = read_delay)]
    delay: Option<Millis>,
    /// Fire at this time: RFC 3339, or ms since the epoch.
    #[arg(long, groups = ["time", "due"], value_name = "TIME", value_parser = read_at)]
    at: Option<Timestamp>,
    #[command(flatten)]
    schedule: ScheduleOptions,
    #[command(flatten)]
    lifecycle: LifecycleOptions,
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
    /// The payload, verbatim.
    #[arg(long, value_name = "TEXT", conflicts_with = "payload_file")]
    payload: Option<String>,
    /// A file with the payload.
    #[arg(long, value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// The key of the fired record; the id if not given.
    #[arg(long, requires = "topic")]
    key: Option<String>,
    /// A header carried to the target. Can be repeated.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = read_header)]
    headers: Vec<(String, Vec<u8>)>,
    /// What happens if a trigger with this id is pending.
    #[arg(long, value_enum, default_value = "replace")]
    on_conflict: OnConflictOption,
    /// Wait for the owner's answer and print it.
    #[arg(long)]
    wait: bool,
    /// Register all triggers of this file at once: a JSON array of registrations in the JSON form,
    /// each with its id; - is standard input. At most 1,000. Prints the answer for each, and fails
    /// if one is refused, or has no answer in time.
    #[arg(
        long,
        groups = ["target", "due"],
        value_name = "FILE",
        conflicts_with_all = [
            "id", "time", "after", "payload", "payload_file", "key", "headers", "on_conflict",
            "expire_after", "retain", "count", "priority", "zone",
        ]
    )]
    batch: Option<PathBuf>,
}

/// The options of a trigger that become its headers.
#[derive(Debug, Args)]
struct LifecycleOptions {
    /// Wait until this trigger has settled. Can be repeated: all of them.
    #[arg(long, group = "due", value_name = "ID")]
    after: Vec<String>,
    /// What happens if one of those fails, or does not settle in time; fail if not given.
    #[arg(long, value_enum, requires = "after")]
    on_failure: Option<OnFailureOption>,
    /// How long those may take to settle: 2h, 7d; a day if not given.
    #[arg(long, requires = "after", value_name = "DURATION")]
    after_timeout: Option<String>,
    /// Do not fire later than this after its time: 5m. Of one time only; a schedule has misfire.
    #[arg(long, value_name = "DURATION")]
    expire_after: Option<String>,
    /// Remember how it ended for this long, so that others can wait for it afterwards: 7d.
    #[arg(long, value_name = "DURATION")]
    retain: Option<String>,
    /// Whether a schedule continues to count executions from the one it replaces.
    #[arg(long, value_enum)]
    count: Option<CountOption>,
    /// 0 to 255: of what is due in the same millisecond, higher fires first; 127 if not given.
    #[arg(long, value_name = "0..255")]
    priority: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnFailureOption {
    /// It fires, once all have settled.
    Fire,
    /// It does not fire; those that wait for it continue.
    Skip,
    /// It does not fire, and those that wait for it are notified that it failed.
    Fail,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CountOption {
    /// It continues from the replaced one.
    Keep,
    /// It starts from zero.
    Reset,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnConflictOption {
    /// The new one replaces it.
    Replace,
    /// The pending one stays.
    Keep,
}

impl RegisterArguments {
    pub(super) async fn run(self, settings: &Settings) -> Result<(), CliError> {
        let names = Names::new(&settings.topics.prefix);
        let validator = RegistrationValidator::new();
        let (pools, now) = (&settings.topics.pools, clock::now_ms());
        let rules = SubmissionRules { names: &names, pools, validator: &validator, now };
        let (wait, caller) = (self.wait, self.caller.clone());
        let by = |submission: Submission| match &caller {
            Some(caller) => submission.with_caller(caller),
            None => submission,
        };
        if let Some(path) = &self.batch {
            let json = read_file("--batch", path)?;
            let batch = BatchSubmission::read(json, rules).map_err(usage_error)?;
            let batch = BatchSubmission { submission: by(batch.submission), ..batch };
            return submit_batch(batch, settings).await;
        }
        let submission = Submission::register(self.into_trigger()?, rules).map_err(usage_error)?;
        submit(by(submission), settings, wait).await
    }

    fn into_trigger(self) -> Result<NewTrigger, CliError> {
        let schedule = self.schedule.read()?;
        let schedule = schedule.map(|schedule| ("orloj-schedule", schedule.to_json()));
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
            (None, Some(path)) => read_file("--payload-file", &path)?,
            (None, None) => default_payload(&target),
        };
        Ok(NewTrigger {
            id: self.id.unwrap_or_default(),
            when: self.at.map(FireTime::At).or_else(|| self.delay.map(FireTime::After)),
            target,
            payload,
            headers: self.headers,
            metadata_headers: Vec::new(),
            lifecycle_headers: schedule.into_iter().chain(self.lifecycle.headers()).collect(),
            on_conflict: match self.on_conflict {
                OnConflictOption::Replace => OnConflict::Replace,
                OnConflictOption::Keep => OnConflict::Keep,
            },
            retry: RetryPolicy {
                delays: self.retry_delays,
                attempts: self.attempts,
                ..RetryPolicy::default()
            },
        })
    }
}

impl LifecycleOptions {
    fn headers(self) -> impl Iterator<Item = (&'static str, String)> {
        let after = (!self.after.is_empty()).then(|| client::after_header_value(&self.after));
        let on_failure = self.on_failure.map(|word| match word {
            OnFailureOption::Fire => "fire".to_owned(),
            OnFailureOption::Skip => "skip".to_owned(),
            OnFailureOption::Fail => "fail".to_owned(),
        });
        let count = self.count.map(|word| match word {
            CountOption::Keep => "keep".to_owned(),
            CountOption::Reset => "reset".to_owned(),
        });
        let headers = [
            ("orloj-after", after),
            ("orloj-on-failure", on_failure),
            ("orloj-after-timeout", self.after_timeout),
            ("orloj-expire-after", self.expire_after),
            ("orloj-retain", self.retain),
            ("orloj-count", count),
            ("orloj-priority", self.priority),
        ];
        headers.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

pub(super) fn read_delay(text: &str) -> Result<Millis, String> {
    let span: Span = text.parse().map_err(|_| "write a delay such as 250ms, 20m or 1h30m")?;
    let relative = SpanRelativeTo::days_are_24_hours();
    let delay = span.to_duration(relative).map_err(|_| "months and years have no fixed length")?;
    Millis::try_from(delay.as_millis()).map_err(|_| "a delay is not negative".to_owned())
}

pub(super) fn read_at(text: &str) -> Result<Timestamp, String> {
    let at = text.parse().ok().or_else(|| parse_time(text));
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
    fn delays_are_read_with_units() {
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
