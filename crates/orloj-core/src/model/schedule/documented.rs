//! The examples of `docs/guides/schedules.md`, run as they are written there.
//!
//! Invariant: a block of JSON followed by a block of text is an example: a schedule and its
//! occurrences (for the trigger that the block names, with its jitter), or why it is refused. Its
//! scenarios are run by the engine's tests.

use super::tests::ms;
use super::*;

const PAGE: &str = include_str!("../../../../../docs/guides/schedules.md");

#[test]
fn the_documented_examples_are_correct() {
    let blocks = blocks();
    let mut examples = 0;
    for pair in blocks.windows(2) {
        let [("json", json), (kind, expected)] = pair else { continue };
        match kind.split_once(' ').unwrap_or((kind, "")) {
            ("text", id) => check_occurrences(json, id, expected),
            ("refused", _) => {
                assert_eq!(Schedule::from_json(json), Err(expected.trim_end().to_owned()));
            }
            ("story", _) => {}
            _ => continue,
        }
        examples += 1;
    }
    assert!(examples > 25, "only {examples} examples are seen");
    let envelope = blocks.iter().filter(|(kind, _)| *kind == "json").count() - examples;
    assert_eq!(envelope, 1, "a schedule without times beside it is no example");
}

/// What is fenced, and as what.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let fenced = PAGE.split("```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').expect("a fence ends its line")).collect()
}

fn check_occurrences(json: &str, id: &str, expected: &str) {
    let registered = ms("2026-01-01T00:00:00Z");
    let schedule = Schedule::from_json(json).unwrap().anchored(registered);
    let most = schedule.max_executions().map_or(usize::MAX, |most| most as usize);
    let mut occurrences = schedule.occurrences(registered).take(most);
    for line in expected.lines() {
        let shown = match occurrences.next() {
            Some(Occurrence { at, note }) => {
                let at = if id.is_empty() { at } else { schedule.jittered(id, at) };
                show(&schedule, Occurrence { at, note })
            }
            None => "end".to_owned(),
        };
        assert_eq!(shown, line, "{json}");
    }
}

fn show(schedule: &Schedule, Occurrence { at, note }: Occurrence) -> String {
    let local = moment(at).unwrap().to_zoned(schedule.zone().clone());
    let note = match note {
        None => "",
        Some(DstEffect::Shifted) => " shifted",
        Some(DstEffect::First) => " first",
        Some(DstEffect::Second) => " second",
    };
    format!("{}{note}", local.strftime("%a %Y-%m-%d %H:%M:%S %:z"))
}
