//! The last whole run of the faults as a table, and the last one of the longer cases.
//!
//! Invariant: every figure is one of the report; none is written by hand.

use std::fmt::Write as _;

use serde_json::Value;

/// The page of both reports.
pub(super) fn page(whole: &Value, longer: &Value) -> String {
    let whole = section("make faults", whole);
    let longer = section("make faults-long", longer);
    format!("## Every case\n\n{whole}\n## Some of them for longer\n\n{longer}")
}

fn section(command: &str, report: &Value) -> String {
    let (commit, date) = (text(report, "commit"), text(report, "date"));
    let short = &commit[..7];
    let mut page = format!(
        "Commit {short}, {date}: `{command}`, two cores.\n\n\
         | case | what must hold | takeover, ms | late, ms | at most | seconds | counts |\n\
         | --- | --- | --: | --: | --: | --: | --- |\n"
    );
    for case in report["cases"].as_array().unwrap() {
        let most = case["late_max_ms"].as_u64().unwrap();
        let (name, criterion) = (text(case, "case"), text(case, "criterion"));
        let [takeover, late, mut counts] = found(&case["result"]);
        for why in case["earlier_failures"].as_array().into_iter().flatten() {
            let why = one_line(why.as_str().unwrap());
            write!(counts, "; **failed in an earlier run**: {why}").unwrap();
        }
        let seconds = &case["seconds"];
        writeln!(
            page,
            "| `{name}` | {criterion} | {takeover} | {late} | {most} | {seconds} | {counts} |",
        )
        .unwrap();
    }
    page
}

/// Takeovers, lateness and counts of a case, or why it has failed.
fn found(result: &Value) -> [String; 3] {
    if let Some(why) = result["failed"].as_str() {
        return [String::new(), String::new(), format!("**failed**: {}", one_line(why))];
    }
    let figures = &result["passed"];
    [numbers(&figures["takeover_ms"]), numbers(&figures["late_ms"]), counts(figures)]
}

fn one_line(reason: &str) -> String {
    let lines: Vec<_> = reason.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

/// How many triggers there were, and what only this case counts.
fn counts(result: &Value) -> String {
    let [registered, fired, lost, repeated] =
        ["registered", "fired", "lost", "duplicates"].map(|name| result[name].as_u64().unwrap());
    let mut counts =
        format!("{registered} registered, {fired} fired, {lost} lost, {repeated} repeated");
    for (name, count) in result["more"].as_object().unwrap() {
        write!(counts, ", {count} {name}").unwrap();
    }
    counts
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("the report has no {name}"))
}

fn numbers(value: &Value) -> String {
    let numbers: Vec<_> = value.as_array().unwrap().iter().map(Value::to_string).collect();
    numbers.join(", ")
}
