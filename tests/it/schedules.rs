//! When schedules come, against another implementation: Python's croniter and dateutil for the wall
//! clock, its zoneinfo for the zones.
//!
//! Law: `tests/schedules/expected.txt` is what `tests/schedules/oracle.py` printed, never what we
//! computed. `make test-schedules` asks it anew, and about the years to come.

use std::fmt::Write as _;
use std::process::Command;

use orloj::model::Timestamp;
use orloj::model::schedule::Schedule;
use serde_json::{Value, json};

use crate::kafka_server::run_to_end;

const CASES: &str = include_str!("../schedules/cases.json");
const EXPECTED: &str = include_str!("../schedules/expected.txt");

#[test]
fn ten_years_in_ten_zones_are_as_another_implementation_has_them() {
    is_same(&table(2016, 2026), EXPECTED);
}

/// Fetches what it compares with: hence a target of its own.
#[test]
#[ignore = "make test-schedules"]
fn the_other_implementation_agrees_for_thirty_years() {
    is_same(EXPECTED, &oracle(2016, 2026));
    is_same(&table(2026, 2046), &oracle(2026, 2046));
}

/// What [`oracle`] would print, as we compute it.
fn table(from: i16, until: i16) -> String {
    let told: Value = serde_json::from_str(CASES).unwrap();
    let zones: Vec<_> = told["zones"].as_array().unwrap().iter().map(text).collect();
    let mut table = String::new();
    for case in told["cases"].as_array().unwrap() {
        let years = case["years"].as_i64().unwrap_or(1_000) as i16;
        let bounds = (new_year(from), new_year(until.min(from + years)));
        for zone in &zones {
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

fn oracle(from: i16, until: i16) -> String {
    let python = run_to_end(Command::new("scripts/python.sh").arg("schedules"));
    let cases = ["tests/schedules/oracle.py", "tests/schedules/cases.json"];
    let years = [from.to_string(), until.to_string()];
    run_to_end(Command::new(python.trim()).args(cases).args(years))
}

/// Names the lines that differ.
fn is_same(ours: &str, theirs: &str) {
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

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
