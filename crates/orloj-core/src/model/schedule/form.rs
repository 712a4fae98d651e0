//! The forms in which people say when something recurs: `every`, `cron`, `daily`, `weekly`,
//! `monthly`.
//!
//! Invariant: each is computed as one of two rules, a step or a calendar, and is written back in
//! its own words.

use jiff::civil::date;
use serde::Serialize;
use serde_json::Value;

use super::calendar::{Calendar, EVERY_MONTH, TimesOfDay};
use super::cron::{self, MONTH, WEEKDAY};
use super::days::{Days, DaysOfMonth, DaysOfWeek, set_bits};
use super::interval::Interval;
use super::local_time::{Dst, DstGap, DstOverlap};
use crate::model::field::{Reason, refused};
use crate::model::object_fields::{ObjectFields, string};

/// The fields of which a schedule has one.
pub(super) const FORMS: [&str; 5] =
    ["schedule.every", "schedule.cron", "schedule.daily", "schedule.weekly", "schedule.monthly"];

/// The recurrence rule, in the form in which it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Form {
    /// A step, as ISO 8601.
    Every(String),
    /// A cron expression.
    Cron(String),
    /// Every day.
    Daily {
        /// Times of day.
        at: Vec<String>,
    },
    /// On days of the week.
    Weekly {
        /// Their names, ranges of them, `weekdays` or `weekends`.
        on: Vec<String>,
        /// Times of day.
        at: Vec<String>,
    },
    /// On days of the month.
    Monthly {
        /// Numbers, `last`, `first monday`, `last weekday`.
        on: Vec<String>,
        /// Names of months; none at all mean every month.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        months: Vec<String>,
        /// Times of day.
        at: Vec<String>,
    },
}

/// What recurs, as it is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecurrenceRule {
    /// Counted from the anchor.
    Interval(Interval),
    /// By what the calendar shows.
    Calendar(Calendar),
}

impl RecurrenceRule {
    /// What is done about changes of the clocks if the schedule does not say.
    pub(super) fn default_dst(&self) -> Dst {
        match self {
            // By the hour real time counts: no time is missing, none is doubled.
            Self::Calendar(calendar) if calendar.is_hourly() => {
                Dst { gap: DstGap::Skip, overlap: DstOverlap::Both }
            }
            // By the day it is once a day, whatever the clocks do.
            _ => Dst { gap: DstGap::Shift, overlap: DstOverlap::First },
        }
    }
}

/// Takes the one field that says what recurs.
pub(super) fn take(fields: &mut ObjectFields<'_>) -> Result<(Form, RecurrenceRule), Reason> {
    let mut taken = FORMS.iter().filter_map(|name| Some((*name, fields.take(name)?)));
    let (first, second) = (taken.next(), taken.next());
    match (first, second) {
        (Some((name, json)), None) => read(name, json),
        (Some((one, _)), Some((other, _))) => {
            Err(format!("{one} and {other} both say when: give one"))
        }
        (None, _) => {
            Err(format!("the schedule does not say when: give one of {}", FORMS.join(", ")))
        }
    }
}

fn read(name: &str, json: &str) -> Result<(Form, RecurrenceRule), Reason> {
    let (form, calendar) = match name {
        "schedule.every" => {
            let step = every(name, json)?;
            return Ok((Form::Every(step.to_string()), RecurrenceRule::Interval(step)));
        }
        "schedule.cron" => {
            let text = string(name, json)?;
            let calendar = cron::parse(&text).map_err(|reason| refused(name, &text, reason))?;
            let fields: Vec<_> = text.split_ascii_whitespace().collect();
            (Form::Cron(fields.join(" ")), calendar)
        }
        "schedule.daily" => daily(name, json)?,
        "schedule.weekly" => weekly(name, json)?,
        _ => monthly(name, json)?,
    };
    // Whatever does not come within the calendar's cycle never comes.
    if calendar.at_or_after(date(2000, 1, 1).at(0, 0, 0, 0)).is_none() {
        return Err(refused(
            name,
            unquoted(json),
            "it never comes: no month it names has such a day",
        ));
    }
    Ok((form, RecurrenceRule::Calendar(calendar)))
}

fn every(name: &str, json: &str) -> Result<Interval, Reason> {
    let step = match json.parse() {
        Ok(ms) => Interval::from_millis(ms),
        Err(_) => Interval::parse(&string(name, json)?),
    };
    step.map_err(|reason| refused(name, unquoted(json), reason))
}

/// A value as people see it: a string without its quotes.
fn unquoted(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_else(|_| json.to_owned())
}

fn daily(name: &str, json: &str) -> Result<(Form, Calendar), Reason> {
    // Times alone will do.
    let (at, times) = if json.starts_with('{') {
        let mut fields = ObjectFields::object("schedule.daily.", name, json)?;
        let read = times(&mut fields, "schedule.daily.at")?;
        fields.finish(&["schedule.daily.at"])?;
        read
    } else {
        times_of(name, json)?
    };
    Ok((Form::Daily { at }, Calendar { months: EVERY_MONTH, days: Days::default(), times }))
}

fn weekly(name: &str, json: &str) -> Result<(Form, Calendar), Reason> {
    let mut fields = ObjectFields::object("schedule.weekly.", name, json)?;
    let field = "schedule.weekly.on";
    let on = words(field, fields.take(field).unwrap_or("[]"))?;
    let mut each = 0;
    for word in &on {
        each |= match word.as_str() {
            "weekdays" => WEEKDAY.parse_list("mon-fri"),
            "weekends" => WEEKDAY.parse_list("sat,sun"),
            // Numbers mean different days to different people.
            word if word.contains(|c: char| c.is_ascii_digit() || c == '*') => {
                Err("give names such as mon, wed-fri or weekdays".to_owned())
            }
            word => WEEKDAY.parse_list(word),
        }
        .map_err(|reason| refused(field, word, reason))?;
    }
    if each == 0 {
        return Err(format!("{field} is missing: give days such as [\"mon\", \"thu\"]"));
    }
    let (at, times) = times(&mut fields, "schedule.weekly.at")?;
    fields.finish(&[field, "schedule.weekly.at"])?;
    let of_week = DaysOfWeek { each, ..DaysOfWeek::NONE };
    let days = Days { of_week, ..Days::default() };
    Ok((Form::Weekly { on, at }, Calendar { months: EVERY_MONTH, days, times }))
}

fn monthly(name: &str, json: &str) -> Result<(Form, Calendar), Reason> {
    let mut fields = ObjectFields::object("schedule.monthly.", name, json)?;
    let field = "schedule.monthly.months";
    let months = words(field, fields.take(field).unwrap_or("[]"))?;
    let mut set = 0;
    for word in &months {
        set |= MONTH.parse_list(word).map_err(|reason| refused(field, word, reason))?;
    }
    let set = if months.is_empty() { EVERY_MONTH } else { set };
    let field = "schedule.monthly.on";
    let on = words(field, fields.take(field).unwrap_or("[]"))?;
    if on.is_empty() {
        let way_out = "give days such as [1, 15], \"last\" or \"first monday\"";
        return Err(format!("{field} is missing: {way_out}"));
    }
    let (mut of_month, mut of_week) = (DaysOfMonth::NONE, DaysOfWeek::NONE);
    of_month.clipped = true;
    for word in &on {
        day_of_month(word, set, &mut of_month, &mut of_week)
            .map_err(|reason| refused(field, word, reason))?;
    }
    let (at, times) = times(&mut fields, "schedule.monthly.at")?;
    fields.finish(&[field, "schedule.monthly.months", "schedule.monthly.at"])?;
    let days = Days { of_month, of_week, either: true };
    Ok((Form::Monthly { on, months, at }, Calendar { months: set, days, times }))
}

fn day_of_month(
    word: &str,
    months: u64,
    of_month: &mut DaysOfMonth,
    of_week: &mut DaysOfWeek,
) -> Result<(), String> {
    const HELP: &str =
        "give 1 to 31, \"last\", \"first monday\", \"last friday\" or \"last weekday\"";
    if let Ok(day) = word.parse::<u32>() {
        // Clipping is for months that lack a day, not for days that no month has.
        let longest = |month: u32| date(2024, month as i8, 1).days_in_month() as u32;
        let longest = set_bits(months).map(longest).max().unwrap_or_default();
        return match day {
            1..=31 if day <= longest => {
                of_month.numbered |= 1 << day;
                Ok(())
            }
            1..=31 => Err("none of the months has such a day: write \"last\"".to_owned()),
            _ => Err(HELP.to_owned()),
        };
    }
    let (place, what) = word.split_once(' ').unwrap_or((word, "day"));
    let nth = ["first", "second", "third", "fourth", "fifth"].iter().position(|nth| *nth == place);
    match (place, nth, what) {
        ("last", _, "day") => of_month.before_last |= 1,
        ("last", _, "weekday") => of_month.last_working = true,
        ("first", _, "weekday") => of_month.nearest |= 1 << 1,
        ("last", _, day) => of_week.last |= 1 << weekday(day)?,
        (_, Some(nth), day) => of_week.nth[nth] |= 1 << weekday(day)?,
        (_, None, _) => return Err(HELP.to_owned()),
    }
    Ok(())
}

fn weekday(name: &str) -> Result<u32, String> {
    match WEEKDAY.parse_value(name) {
        Ok(day) if !name.starts_with(|c: char| c.is_ascii_digit()) => Ok(day),
        _ => Err(format!("{name:?} is no day of the week: give one such as monday or fri")),
    }
}

fn times(
    fields: &mut ObjectFields<'_>,
    name: &str,
) -> Result<(Vec<String>, Vec<TimesOfDay>), Reason> {
    times_of(name, fields.take(name).unwrap_or("[]"))
}

/// Times of day such as `9:00` or `17:30:15`.
fn times_of(name: &str, json: &str) -> Result<(Vec<String>, Vec<TimesOfDay>), Reason> {
    let at = words(name, json)?;
    let one = |text: &String| {
        let fields: Option<Vec<u32>> = text.split(':').map(two_digits).collect();
        match fields.as_deref() {
            Some(&[hour @ 0..24, minute @ 0..60]) => Ok(TimesOfDay::once(hour, minute, 0)),
            Some(&[hour @ 0..24, minute @ 0..60, second @ 0..60]) => {
                Ok(TimesOfDay::once(hour, minute, second))
            }
            _ => Err(refused(name, text, "give a time of day such as 09:00 or 17:30:15")),
        }
    };
    let mut times = at.iter().map(one).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    times.dedup();
    if times.is_empty() {
        return Err(format!("{name} is missing: give a time of day such as \"09:00\""));
    }
    Ok((at, times))
}

fn two_digits(text: &str) -> Option<u32> {
    let digits = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// One word or a list of words, in lower case with single spaces; a number is a word too.
fn words(name: &str, json: &str) -> Result<Vec<String>, Reason> {
    let refusal = || refused(name, json, "give a string, or a list of strings");
    let items = match serde_json::from_str(json) {
        Ok(Value::Array(items)) => items,
        Ok(item) => vec![item],
        Err(_) => return Err(refusal()),
    };
    let word = |item: Value| match item {
        Value::String(text) => {
            let words: Vec<_> = text.split_whitespace().collect();
            Ok(words.join(" ").to_ascii_lowercase())
        }
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(refusal()),
    };
    items.into_iter().map(word).collect()
}
