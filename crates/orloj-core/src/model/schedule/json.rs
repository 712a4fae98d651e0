//! A schedule as JSON, read and written.
//!
//! Invariant: an error names the field and its value and says how to fix it, and nothing is
//! silently ignored. What is written is canonical: read again, it is the same schedule.

use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::Serialize;
use serde_json::{Value, json};

use super::form::{self, FORMS, Form, RecurrenceRule};
use super::interval::{Interval, iso};
use super::local_time::{Dst, DstGap, DstOverlap, moment};
use super::{Misfire, Overlap, Schedule};
use crate::model::field::{self, Reason, refused};
use crate::model::limits::{JITTER_MAX_MS, MISFIRES_MAX, SCHEDULE_BYTES_MAX};
use crate::model::object_fields::{ObjectFields, delay, nearest, string};
use crate::model::{Millis, Timestamp};

/// The fields that every form may have.
const FIELDS: [&str; 10] = [
    "schedule.zone",
    "schedule.start",
    "schedule.end",
    "schedule.maxExecutions",
    "schedule.dst",
    "schedule.jitter",
    "schedule.exact",
    "schedule.misfire",
    "schedule.overlap",
    "schedule.pauseAfter",
];

/// Reads a schedule.
pub(super) fn read(json: &str) -> Result<Schedule, Reason> {
    if json.len() > SCHEDULE_BYTES_MAX {
        let bytes = json.len();
        return Err(format!("the schedule has {bytes} bytes: at most {SCHEDULE_BYTES_MAX} may be"));
    }
    let mut fields = ObjectFields::object("schedule.", "schedule", json)?;
    let (form, rule) = form::take(&mut fields)?;
    let zone = zone(&mut fields)?;
    let start = time(&mut fields, "schedule.start", &zone)?;
    let end = time(&mut fields, "schedule.end", &zone)?;
    if let (Some(start), Some(end)) = (start, end)
        && end <= start
    {
        return Err(refused("schedule.end", format_utc(end), "it is not after schedule.start"));
    }
    let dst = dst(&mut fields, &rule)?;
    let jitter = jitter(&mut fields, &rule)?;
    let schedule = Schedule {
        form,
        rule,
        zone,
        start,
        end,
        dst,
        jitter,
        max_executions: count(&mut fields, "schedule.maxExecutions")?,
        misfire: misfire(&mut fields)?,
        overlap: overlap(&mut fields)?,
        pause_after: count(&mut fields, "schedule.pauseAfter")?,
    };
    fields.finish(&[&FORMS[..], &FIELDS[..]].concat())?;
    Ok(schedule)
}

/// Writes a schedule, without default values.
pub(super) fn write(schedule: &Schedule) -> String {
    let Schedule { form, rule, zone, start, end, dst, jitter, .. } = schedule;
    let written = ScheduleJson {
        form,
        zone: zone.iana_name().filter(|name| *name != "UTC"),
        start: start.map(format_utc),
        end: end.map(format_utc),
        max_executions: schedule.max_executions,
        dst: Some(*dst).filter(|dst| *dst != rule.default_dst()),
        jitter: Some(*jitter).filter(|jitter| *jitter > 0).map(iso),
        misfire: match schedule.misfire {
            Misfire::Latest => None,
            Misfire::Skip => Some(json!("skip")),
            Misfire::All { max } => Some(json!({ "all": max })),
        },
        overlap: Some(schedule.overlap).filter(|overlap| *overlap != Overlap::default()),
        pause_after: schedule.pause_after,
    };
    serde_json::to_string(&written).expect("text and numbers make JSON")
}

/// A schedule as it is written. The order of its fields is that of `docs/guides/schedules.md`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScheduleJson<'a> {
    #[serde(flatten)]
    form: &'a Form,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_executions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<Dst>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    misfire: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<Overlap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_after: Option<u32>,
}

/// From the zone data that is built in: all owners must agree on what a local time is.
fn zone(fields: &mut ObjectFields<'_>) -> Result<TimeZone, Reason> {
    let field = "schedule.zone";
    let Some(name) = fields.text(field)? else { return Ok(TimeZone::UTC) };
    let zones = TimeZoneDatabase::bundled();
    match zones.get(&name).ok().filter(|zone| zone.iana_name().is_some()) {
        Some(zone) => Ok(zone),
        None => {
            let known: Vec<_> = zones.available().map(|known| known.to_string()).collect();
            let nearest = nearest(&name, known.iter().map(String::as_str)).unwrap_or("UTC");
            let way_out = format!("the IANA database has no such zone; did you mean {nearest}?");
            Err(refused(field, name, way_out))
        }
    }
}

/// A moment: ms since the epoch, RFC 3339, or a date and time of the schedule's own zone.
fn time(
    fields: &mut ObjectFields<'_>,
    name: &str,
    zone: &TimeZone,
) -> Result<Option<Timestamp>, Reason> {
    let Some(json) = fields.take(name) else { return Ok(None) };
    let time = match json.parse() {
        Ok(ms) => field::time_ms(name, ms)?,
        Err(_) => {
            let text = string(name, json)?;
            let local = || {
                let at = zone.to_timestamp(text.parse::<DateTime>().ok()?).ok()?;
                Timestamp::try_from(at.as_millisecond()).ok()
            };
            let time = field::time(name, &text).ok().or_else(local);
            time.ok_or_else(|| {
                let way_out = "give milliseconds since the epoch, RFC 3339 like \
                               2030-01-31T08:00:00Z, or a date and time in the schedule's zone \
                               like 2030-01-31T09:00";
                refused(name, &text, way_out)
            })?
        }
    };
    match moment(time) {
        Some(_) => Ok(Some(time)),
        None => Err(refused(name, json, "give a time before the year 10000")),
    }
}

/// What to do when clocks change: as the schedule says, or the default of its form.
fn dst(fields: &mut ObjectFields<'_>, rule: &RecurrenceRule) -> Result<Dst, Reason> {
    let mut dst = rule.default_dst();
    let field = "schedule.dst";
    let Some(json) = fields.take(field) else { return Ok(dst) };
    if matches!(rule, RecurrenceRule::Interval(Interval::Millis(_))) {
        return Err(refused(field, json, "real time knows no change of clocks: leave it out"));
    }
    let mut fields = ObjectFields::object("schedule.dst.", field, json)?;
    let (gap, overlap) = ("schedule.dst.gap", "schedule.dst.overlap");
    if let Some(text) = fields.text(gap)? {
        dst.gap = match text.as_str() {
            "skip" => DstGap::Skip,
            "shift" => DstGap::Shift,
            _ => return Err(refused(gap, text, "give skip or shift")),
        };
    }
    if let Some(text) = fields.text(overlap)? {
        dst.overlap = match text.as_str() {
            "first" => DstOverlap::First,
            "last" => DstOverlap::Last,
            "both" => DstOverlap::Both,
            _ => return Err(refused(overlap, text, "give first, last or both")),
        };
    }
    fields.finish(&[gap, overlap])?;
    Ok(dst)
}

/// In ms; none for an exact schedule.
fn jitter(fields: &mut ObjectFields<'_>, rule: &RecurrenceRule) -> Result<Millis, Reason> {
    let field = "schedule.jitter";
    let jitter = fields.take(field).map(|json| delay(field, json)).transpose()?.unwrap_or(0);
    // Beyond half a step, one occurrence could pass the next.
    let limit = match rule {
        RecurrenceRule::Interval(Interval::Millis(step)) => JITTER_MAX_MS.min(step / 2),
        _ => JITTER_MAX_MS,
    };
    if jitter > limit {
        let way_out = format!("give at most {} (half a step, and no more than 12 h)", iso(limit));
        return Err(refused(field, iso(jitter), way_out));
    }
    match fields.take("schedule.exact") {
        None | Some("false") => Ok(jitter),
        Some("true") => Ok(0),
        Some(json) => Err(refused("schedule.exact", json, "give true or false")),
    }
}

fn count(fields: &mut ObjectFields<'_>, name: &str) -> Result<Option<u32>, Reason> {
    let Some(json) = fields.take(name) else { return Ok(None) };
    let count = json.parse().ok().filter(|count| *count > 0);
    count.map(Some).ok_or_else(|| refused(name, json, "give a whole number from 1 on"))
}

fn misfire(fields: &mut ObjectFields<'_>) -> Result<Misfire, Reason> {
    let field = "schedule.misfire";
    let Some(json) = fields.take(field) else { return Ok(Misfire::default()) };
    let way_out =
        || refused(field, json, "give \"skip\", \"latest\" or {\"all\": how many at most}");
    match json {
        "\"skip\"" => return Ok(Misfire::Skip),
        "\"latest\"" => return Ok(Misfire::Latest),
        _ => {}
    }
    let all = "schedule.misfire.all";
    let mut fields = ObjectFields::parse("schedule.misfire.", json).map_err(|_| way_out())?;
    let max = count(&mut fields, all)?;
    fields.finish(&[all])?;
    match max {
        Some(max) if max > MISFIRES_MAX => {
            Err(refused(all, max, format!("give at most {MISFIRES_MAX}")))
        }
        Some(max) => Ok(Misfire::All { max }),
        None => Err(way_out()),
    }
}

fn overlap(fields: &mut ObjectFields<'_>) -> Result<Overlap, Reason> {
    let field = "schedule.overlap";
    match fields.text(field)?.as_deref() {
        None => Ok(Overlap::default()),
        Some("allow") => Ok(Overlap::Allow),
        Some("skip") => Ok(Overlap::Skip),
        Some("queue") => Ok(Overlap::Queue),
        Some(other) => Err(refused(field, other, "give allow, skip or queue")),
    }
}

/// As RFC 3339 in UTC.
fn format_utc(at: Timestamp) -> String {
    moment(at).map_or_else(|| at.to_string(), |moment| moment.to_string())
}
