//! The options for a schedule, of both `orloj register` and `orloj next`.
//!
//! Invariant: whatever the option, the schedule is parsed by the same code as those of records.

use clap::Args;
use serde_json::json;
use serde_json::value::RawValue;

use super::CliError;
use super::file::read_text;
use crate::model::schedule::Schedule;

/// A schedule, if there is one.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ScheduleOptions {
    /// Fire repeatedly by a cron expression: '0 9 * * MON-FRI'; with six fields the first is
    /// seconds.
    #[arg(long, groups = ["time", "due"], value_name = "EXPR")]
    cron: Option<String>,
    /// Fire repeatedly at this interval, the first time at once: 15m, PT12H, P1D, P3M.
    #[arg(long, groups = ["time", "due"], value_name = "DURATION")]
    every: Option<String>,
    /// Fire repeatedly: the JSON object of docs/guides/schedules.md, or a file of it. It has more
    /// than the others: start, end, jitter, misfire, overlap, pauseAfter, maxExecutions.
    #[arg(long, groups = ["time", "due"], value_name = "JSON")]
    schedule: Option<String>,
    /// The time zone of --cron or --every: Europe/Prague; UTC if not given.
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
}

impl ScheduleOptions {
    /// The schedule of these options; `None` if none is given.
    pub(super) fn read(&self) -> Result<Option<Schedule>, CliError> {
        let Self { cron, every, schedule, zone } = self;
        let schedule = match (cron, every, schedule) {
            (Some(cron), _, _) => Schedule::from_cron(cron, zone.as_deref()),
            (_, Some(every), _) => {
                Schedule::from_json(&json!({ "every": every, "zone": zone }).to_string())
            }
            (_, _, Some(_)) if zone.is_some() => return Err(misplaced_zone()),
            (_, _, Some(schedule)) => {
                Schedule::from_json(schedule_json(read_text(schedule)?.trim()))
            }
            (None, None, None) if zone.is_some() => {
                let why = "--zone: it is the zone of --cron or --every; for one time, give the \
                           offset with it: --at 2030-01-31T09:00:00+01:00";
                return Err(CliError::Usage(why.to_owned()));
            }
            (None, None, None) => return Ok(None),
        };
        schedule.map(Some).map_err(CliError::Usage)
    }

    /// The schedule that `definition` is: JSON, a registration with one, or a cron expression in
    /// our zone; a file of it, or - for standard input.
    pub(super) fn read_definition(&self, definition: &str) -> Result<Schedule, CliError> {
        let text = read_text(definition)?;
        let text = text.trim();
        let schedule = match &self.zone {
            zone if !text.starts_with('{') => Schedule::from_cron(text, zone.as_deref()),
            Some(_) => return Err(misplaced_zone()),
            None => Schedule::from_json(schedule_json(text)),
        };
        schedule.map_err(CliError::Usage)
    }

    /// The same, in a zone.
    #[cfg(test)]
    pub(super) fn in_zone(zone: &str) -> Self {
        Self { zone: Some(zone.to_owned()), ..Self::default() }
    }
}

fn misplaced_zone() -> CliError {
    CliError::Usage("--zone: give it as schedule.zone, within the JSON".to_owned())
}

/// The schedule of a registration; a schedule alone as it is.
fn schedule_json(json: &str) -> &str {
    #[derive(serde::Deserialize)]
    struct ScheduledRegistration<'a> {
        #[serde(borrow)]
        schedule: &'a RawValue,
    }
    serde_json::from_str(json).map_or(json, |ScheduledRegistration { schedule }| schedule.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: ScheduleOptions) -> Result<String, String> {
        let schedule = options.read().map_err(|error| error.to_string())?;
        Ok(schedule.map_or_else(String::new, |schedule| schedule.to_json()))
    }

    #[test]
    fn each_option_defines_a_schedule() {
        let none = ScheduleOptions::default;
        let text = |text: &str| Some(text.to_owned());
        let zone = text("Europe/Prague");
        let cron = ScheduleOptions { cron: text("0 9 * * *"), zone: zone.clone(), ..none() };
        assert_eq!(read(cron), Ok(r#"{"cron":"0 9 * * *","zone":"Europe/Prague"}"#.to_owned()));
        let every = ScheduleOptions { every: text("90m"), ..none() };
        assert_eq!(read(every), Ok(r#"{"every":"PT1H30M"}"#.to_owned()));
        let json = r#"{"topic": "t", "schedule": {"daily": "09:00", "maxExecutions": 3}}"#;
        let schedule = ScheduleOptions { schedule: text(json), ..none() };
        let expected = r#"{"daily":{"at":["09:00"]},"maxExecutions":3}"#;
        assert_eq!(read(schedule.clone()), Ok(expected.to_owned()));
        assert_eq!(read(none()), Ok(String::new()));

        let refused = |options| read(options).unwrap_err();
        let zone_alone = refused(ScheduleOptions { zone: zone.clone(), ..none() });
        assert!(zone_alone.contains("zone of --cron"), "{zone_alone}");
        let twice = refused(ScheduleOptions { zone, ..schedule });
        assert!(twice.contains("within the JSON"), "{twice}");
        let wrong = refused(ScheduleOptions { cron: text("61 * * * *"), ..none() });
        assert!(wrong.starts_with("schedule.cron is \"61 * * * *\": "), "{wrong}");
    }
}
