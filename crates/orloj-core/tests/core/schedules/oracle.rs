//! The times of schedules, compared with another implementation: Python's croniter and dateutil for
//! the local time, its zoneinfo for the zones.
//!
//! Invariant: `tests/schedules/expected.txt` is what `tests/schedules/oracle.py` printed, never
//! what we computed. `make test-schedules` runs it again, also for future years.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use orloj_core::model::Timestamp;
use orloj_core::model::schedule::Schedule;
use serde_json::{Value, json};

use crate::command::run_to_end;

const CASES: &str = include_str!("../../../../../tests/schedules/cases.json");
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/packages.sh");
const ORACLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/schedules/oracle.py");
const EXPECTED: &str = include_str!("../../../../../tests/schedules/expected.txt");

/// A query to the other implementation: zones, cases, years.
pub(super) struct OracleQuery {
    cases: Value,
    years: (i16, i16),
}

impl OracleQuery {
    fn table(years: (i16, i16)) -> Self {
        Self { cases: serde_json::from_str(CASES).unwrap(), years }
    }

    /// The cases of the table that fire a few times a day at most, in these zones.
    pub(super) fn daily_or_rarer(zones: &[&str], years: (i16, i16)) -> Self {
        let mut query = Self::table(years);
        query.cases["zones"] = json!(zones);
        let often = ["hourly", "seconds", "thrice-daily", "twice-in-an-hour", "second-sunday"];
        let cases = query.cases["cases"].as_array_mut().unwrap();
        cases.retain(|case| !often.contains(&text(&case["name"])));
        query
    }

    /// By the minute, for thirty days around each change of clocks.
    pub(super) fn by_the_minute() -> Self {
        let case = |name, from| {
            json!({"name": name, "schedule": {"cron": "* * * * *"}, "oracle": {"cron": "* * * * *"},
                "window": {"from": from, "days": 30}})
        };
        let zones = [
            "America/Havana",
            "America/New_York",
            "Antarctica/Troll",
            "Asia/Kolkata",
            "Atlantic/Azores",
            "Australia/Lord_Howe",
            "Europe/Dublin",
            "Europe/Prague",
            "Pacific/Chatham",
        ];
        let cases = [case("spring", "2025-03-08"), case("autumn", "2025-10-05")];
        Self { cases: json!({ "zones": zones, "cases": cases }), years: (2025, 2026) }
    }

    /// All kinds, for the two days in which clocks change in Europe.
    pub(super) fn mixed() -> Self {
        let mut query = Self::table((2025, 2026));
        let quarterly = json!({"name": "quarterly", "schedule": {"cron": "*/15 * * * *"},
            "oracle": {"cron": "*/15 * * * *"}});
        let cases = query.cases["cases"].as_array_mut().unwrap();
        // A schedule that counts from a start is tested from 2016 in the other queries.
        cases.retain(|case| case["schedule"].get("every").is_none() && case["name"] != "seconds");
        cases.push(quarterly);
        for case in cases {
            case["window"] = json!({ "from": "2025-10-25", "days": 2 });
        }
        query
    }

    /// The schedule of a case, if the query contains it.
    pub(super) fn schedule(&self, case: &str) -> Option<&Value> {
        self.case(case).map(|case| &case["schedule"])
    }

    pub(super) fn has_zone(&self, zone: &str) -> bool {
        self.zones().any(|known| known == zone)
    }

    /// The window of a case, in ms since the epoch.
    pub(super) fn window(&self, case: &str) -> (Timestamp, Timestamp) {
        let case = self.case(case).expect("the query contains it");
        if let Some(window) = case.get("window") {
            let from = day(text(&window["from"]));
            return (from, from + window["days"].as_u64().unwrap() * 86_400_000);
        }
        let (from, until) = self.years;
        let years = case["years"].as_i64().unwrap_or(1_000) as i16;
        (new_year(from), new_year(until.min(from + years)))
    }

    /// When the first case begins.
    pub(super) fn start(&self) -> Timestamp {
        self.cases().map(|case| self.window(text(&case["name"])).0).min().unwrap()
    }

    /// When the last case ends.
    pub(super) fn end(&self) -> Timestamp {
        self.cases().map(|case| self.window(text(&case["name"])).1).max().unwrap()
    }

    fn case(&self, name: &str) -> Option<&Value> {
        self.cases().find(|case| case["name"] == name)
    }

    fn cases(&self) -> impl Iterator<Item = &Value> {
        self.cases["cases"].as_array().unwrap().iter()
    }

    fn zones(&self) -> impl Iterator<Item = &str> {
        self.cases["zones"].as_array().unwrap().iter().map(text)
    }
}

/// The answer when the table was made.
pub(super) fn recorded(query: &OracleQuery) -> String {
    assert_eq!(query.years, (2016, 2026), "the table is of these years");
    EXPECTED.to_owned()
}

/// Runs the query. The other implementation is downloaded, so this is not in every test run.
pub(super) fn run_oracle(query: &OracleQuery) -> String {
    let python = run_to_end(Command::new(PACKAGES).args(["python", "schedules"]));
    let cases = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schedule-cases.json");
    std::fs::write(&cases, query.cases.to_string()).unwrap();
    let (from, until) = query.years;
    let years = [from.to_string(), until.to_string()];
    let mut program = Command::new(python.trim());
    run_to_end(program.arg(ORACLE).arg(&cases).args(years))
}

#[test]
fn ten_years_in_ten_zones_match_another_implementation() {
    assert_same(&table(&OracleQuery::table((2016, 2026))), EXPECTED);
}

#[test]
#[ignore = "make test-schedules"]
fn the_other_implementation_agrees_for_thirty_years() {
    assert_same(EXPECTED, &run_oracle(&OracleQuery::table((2016, 2026))));
    let coming = OracleQuery::table((2026, 2046));
    assert_same(&table(&coming), &run_oracle(&coming));
}

/// What [`run_oracle`] would answer, as we compute it.
fn table(query: &OracleQuery) -> String {
    let mut table = String::new();
    for case in query.cases() {
        let bounds = query.window(text(&case["name"]));
        for zone in query.zones() {
            write!(table, "{zone} {}", text(&case["name"])).unwrap();
            for gap in ["shift", "skip"] {
                for overlap in ["first", "last", "both"] {
                    let mut schedule = case["schedule"].clone();
                    schedule["zone"] = json!(zone);
                    schedule["dst"] = json!({ "gap": gap, "overlap": overlap });
                    write!(table, " {}", sum(&schedule, bounds)).unwrap();
                }
            }
            table.push('\n');
        }
    }
    table
}

/// How many occurrences there are, and the checksum of them all.
fn sum(schedule: &Value, (from, until): (Timestamp, Timestamp)) -> String {
    let schedule = Schedule::from_json(&schedule.to_string()).unwrap();
    let (mut count, mut checksum) = (0, crc32fast::Hasher::new());
    for occurrence in schedule.occurrences(from).take_while(|occurrence| occurrence.at < until) {
        count += 1;
        checksum.update(format!("{}\n", occurrence.at).as_bytes());
    }
    format!("{count}:{:08x}", checksum.finalize())
}

/// Names the lines that differ.
fn assert_same(ours: &str, theirs: &str) {
    let pairs = ours.lines().zip(theirs.lines());
    let different: Vec<_> = pairs.filter(|(ours, theirs)| ours != theirs).collect();
    assert!(different.is_empty(), "{} lines differ: {different:#?}", different.len());
    assert_eq!(ours.lines().count(), theirs.lines().count());
    assert!(ours.lines().count() > 200, "the table is too short to show anything");
}

fn new_year(year: i16) -> Timestamp {
    let utc = jiff::tz::TimeZone::UTC;
    let moment = jiff::civil::date(year, 1, 1).to_zoned(utc).unwrap().timestamp();
    moment.as_millisecond() as Timestamp
}

fn day(date: &str) -> Timestamp {
    let date: jiff::civil::Date = date.parse().unwrap();
    let moment = date.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp();
    moment.as_millisecond() as Timestamp
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
