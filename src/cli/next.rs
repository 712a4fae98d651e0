//! `orloj next`: the next occurrences of a schedule, without registering anything.
//!
//! Invariant: it shows what an owner would fire, and which occurrences a change of the clocks
//! skips.

use clap::{ArgGroup, Args};

use super::CliError;
use super::schedule::ScheduleOptions;
use super::trigger::read_at;
use crate::clock;
use crate::model::Timestamp;
use crate::model::schedule::{DstEffect, Preview, Schedule};
use crate::model::time::format_time;

const HELP: &str = "\
The forms of a schedule are described in docs/guides/schedules.md.

It takes the options with which `orloj register` registers, too.

Examples:
  orloj next '0 9 * * MON-FRI' --zone Europe/Prague
  orloj next --every PT12H
  orloj next '{\"monthly\": {\"on\": \"first monday\", \"at\": \"09:00\"}}' --count 12
  orloj next schedule.json --from 2026-10-24T00:00:00Z --id invoice-7 --json";

/// The arguments of `orloj next`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
#[command(group(ArgGroup::new("time").required(true)))]
pub(super) struct NextArguments {
    /// A schedule as JSON, a registration with one, or a cron expression; a file of it, or - for
    /// standard input.
    #[arg(group = "time")]
    definition: Option<String>,
    #[command(flatten)]
    options: ScheduleOptions,
    /// As if it were registered then: RFC 3339, or ms since the epoch; now if not given.
    #[arg(long, value_name = "TIME", value_parser = read_at)]
    from: Option<Timestamp>,
    /// How many occurrences.
    #[arg(long, default_value_t = 10)]
    count: usize,
    /// The trigger whose jitter is shown.
    #[arg(long)]
    id: Option<String>,
    /// One JSON array, for programs.
    #[arg(long)]
    json: bool,
}

impl NextArguments {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let from = self.from.unwrap_or_else(clock::now_ms);
        let schedule = self.schedule()?.anchored(from);
        let lines = self.lines(&schedule, from);
        if self.json {
            let json = serde_json::to_string(&lines).expect("text and numbers make JSON");
            println!("{json}");
            return Ok(());
        }
        println!("{}", schedule.to_json());
        print!("{}", table(&lines, self.id.is_some()));
        if lines.iter().filter(|line| line.fire_at.is_some()).count() < self.count {
            println!("there is no further occurrence");
        }
        Ok(())
    }

    fn schedule(&self) -> Result<Schedule, CliError> {
        if let Some(definition) = &self.definition {
            return self.options.read_definition(definition);
        }
        let schedule = self.options.read()?;
        schedule.ok_or_else(|| {
            CliError::Usage("a schedule is missing: see orloj next --help".to_owned())
        })
    }

    fn lines(&self, schedule: &Schedule, from: Timestamp) -> Vec<Preview> {
        schedule.preview(from, self.count, self.id.as_deref())
    }
}

fn table(lines: &[Preview], with_jitter: bool) -> String {
    let width = lines.iter().map(|line| line.local.len()).max().unwrap_or_default();
    let line = |Preview { at, local, fire_at, note, more }: &Preview| {
        let (utc, note) = (format_time(*at), describe_note(*note, fire_at.is_some()));
        let fires = match fire_at {
            Some(fire_at) if with_jitter => format!("  fires {}", format_time(*fire_at)),
            _ => String::new(),
        };
        let more = if *more > 0 { format!(" (and {more} more)") } else { String::new() };
        format!("{}\n", format!("{local:width$}  {utc}{fires}  {note}{more}").trim_end())
    };
    lines.iter().map(line).collect()
}

fn describe_note(note: Option<DstEffect>, fires: bool) -> &'static str {
    match (note, fires) {
        (None, true) => "",
        (None, false) => "skipped",
        (Some(DstEffect::Shifted), true) => {
            "clocks go forward over its time: the first moment after it"
        }
        (Some(DstEffect::Shifted), false) => "skipped: clocks go forward over its time",
        (Some(DstEffect::First), true) => "clocks go back: the first of two",
        (Some(DstEffect::First), false) => "skipped: clocks go back, and its time occurs again",
        (Some(DstEffect::Second), true) => "clocks go back: the second of two",
        (Some(DstEffect::Second), false) => {
            "skipped: clocks went back, and its time has occurred before"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(definition: &str, from: &str, count: usize) -> NextArguments {
        let (definition, from) = (Some(definition.to_owned()), Some(read_at(from).unwrap()));
        let options = ScheduleOptions::default();
        NextArguments { definition, options, from, count, id: None, json: false }
    }

    fn shown(next: &NextArguments) -> String {
        table(&next.lines(&next.schedule().unwrap(), next.from.unwrap()), next.id.is_some())
    }

    #[test]
    fn skipped_occurrences_are_shown_too() {
        let json =
            r#"{"topic": "t", "schedule": {"cron": "*/30 2 * * *", "zone": "Europe/Prague"}}"#;
        let table = shown(&next(json, "2026-10-24T23:40:00Z", 3));
        let lines = table.lines().map(|line| line.split_once('Z').unwrap());
        let lines: Vec<_> = lines.map(|(times, note)| (times, note.trim())).collect();
        let first = "clocks go back: the first of two";
        let before = "skipped: clocks went back, and its time has occurred before (and 1 more)";
        assert_eq!(
            lines,
            [
                ("Sun 2026-10-25 02:00:00 +02:00  2026-10-25T00:00:00", first),
                ("Sun 2026-10-25 02:30:00 +02:00  2026-10-25T00:30:00", first),
                ("Sun 2026-10-25 02:00:00 +01:00  2026-10-25T01:00:00", before),
                ("Mon 2026-10-26 02:00:00 +01:00  2026-10-26T01:00:00", ""),
            ]
        );
    }

    #[test]
    fn jitter_is_that_of_the_trigger() {
        let json = r#"{"daily": "09:00", "jitter": "1h"}"#;
        let from = "2026-01-01T00:00:00Z";
        let id = Some("invoice-7".to_owned());
        let with_id = NextArguments { id, ..next(json, from, 1) };
        let schedule = Schedule::from_json(json).unwrap();
        let nominal = schedule.first(read_at(from).unwrap()).unwrap();
        let fires = format_time(schedule.jittered("invoice-7", nominal));
        let expected = "Thu 2026-01-01 09:00:00 +00:00  2026-01-01T09:00:00Z";
        assert_eq!(shown(&with_id), format!("{expected}  fires {fires}\n"));
        assert_eq!(shown(&next(json, from, 1)), format!("{expected}\n"));
    }

    #[test]
    fn it_ends_with_the_schedule() {
        let once = r#"{"daily": "09:00", "maxExecutions": 2}"#;
        let lines =
            |next: &NextArguments| next.lines(&next.schedule().unwrap(), next.from.unwrap()).len();
        assert_eq!(lines(&next(once, "2026-01-01T00:00:00Z", 10)), 2);
        let cron = next("0 9 * * *", "2026-01-01T00:00:00Z", 3);
        assert_eq!(lines(&cron), 3);
        let zoned = NextArguments { options: ScheduleOptions::in_zone("Europe/Prague"), ..cron };
        assert!(shown(&zoned).starts_with("Thu 2026-01-01 09:00:00 +01:00"));
        let twice = NextArguments { definition: Some(once.to_owned()), ..zoned };
        assert!(twice.schedule().unwrap_err().to_string().contains("within the JSON"));
    }

    #[test]
    fn json_has_what_the_table_has() {
        let json = r#"{"daily": "02:30", "zone": "Europe/Prague"}"#;
        let next = next(json, "2026-03-29T00:00:00Z", 1);
        let lines = next.lines(&next.schedule().unwrap(), next.from.unwrap());
        let local = r#""local":"Sun 2026-03-29 03:00:00 +02:00""#;
        let expected =
            format!(r#"[{{"at":1774746000000,{local},"fireAt":1774746000000,"note":"shifted"}}]"#);
        assert_eq!(serde_json::to_string(&lines).unwrap(), expected);
    }
}
