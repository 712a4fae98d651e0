//! Constants with their comments as tables: limits and metrics.
//!
//! Invariant: a number is shown in the unit that its name says: bytes, milliseconds, or a count.

use std::fmt::Write as _;

/// A constant of a source file.
struct Constant<'a> {
    comment: String,
    name: &'a str,
    value: &'a str,
}

/// A table of the constants that are the largest of something.
pub(super) fn limits(source: &str) -> String {
    let mut table = "| limit | at most |\n| --- | --- |\n".to_owned();
    for Constant { comment, name, value } in constants(source) {
        if name.contains("_MAX") {
            let most = shown(name, product(value));
            writeln!(table, "| {comment} | {most} |").unwrap();
        }
    }
    table
}

/// A table of the metrics, whose comments begin with the kind and the roles that record them.
pub(super) fn metrics(source: &str) -> String {
    let mut table =
        "| metric | kind | recorded by | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for Constant { comment, name, value } in constants(source) {
        let Some(metric) = value.strip_prefix("\"orloj_") else { continue };
        let metric = metric.trim_end_matches('"');
        let (head, meaning) = comment.split_once(": ").expect("a metric says what kind it is");
        let (kind, roles) = head.split_once(", ").unwrap_or_else(|| panic!("{name}: of whom?"));
        let kind = kind.to_lowercase();
        writeln!(table, "| `orloj_{metric}` | {kind} | {roles} | {meaning} |").unwrap();
    }
    let bounds = source.split_once("const BUCKETS").and_then(|(_, rest)| rest.split_once("=\n"));
    if let Some((bounds, _)) = bounds.and_then(|(_, rest)| rest.split_once(';')) {
        let bounds = bounds.trim().trim_matches(['[', ']']);
        writeln!(table, "\nThe buckets of every histogram, in seconds: {bounds}.").unwrap();
    }
    table
}

/// The constants with a comment, in their order.
fn constants(source: &str) -> Vec<Constant<'_>> {
    let (mut found, mut comment) = (Vec::new(), String::new());
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("///") {
            comment += text;
            continue;
        }
        let item = line.strip_prefix("pub ").unwrap_or(line).strip_prefix("const ");
        let parts = item.and_then(|item| item.split_once(": ")?.1.split_once(" = "));
        if let (Some(item), Some((_, value))) = (item, parts) {
            let name = item.split(':').next().unwrap_or_default();
            let comment = comment.trim().to_owned();
            found.push(Constant { comment, name, value: value.trim_end_matches(';') });
        }
        comment.clear();
    }
    found
}

/// A product of whole numbers, as the compiler has it.
fn product(text: &str) -> u64 {
    let factor = |text: &str| text.trim().replace('_', "").parse::<u64>();
    let factors = text.split('*').map(|text| factor(text).unwrap_or_else(|_| panic!("{text:?}")));
    factors.product()
}

fn shown(name: &str, value: u64) -> String {
    if name.contains("BYTES") {
        return format!("{} bytes", grouped(value));
    }
    if !name.ends_with("_MS") {
        return grouped(value);
    }
    let units = [("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000)];
    let found = units.into_iter().find(|(_, millis)| value.is_multiple_of(*millis));
    let (unit, millis) = found.unwrap_or(("millisecond", 1));
    let count = value / millis;
    format!("{} {unit}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// With a comma before each three digits.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let with_comma = |(at, digit): (usize, char)| {
        let comma = (at > 0 && (digits.len() - at).is_multiple_of(3)).then_some(',');
        comma.into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(with_comma).collect()
}

#[test]
fn a_limit_is_shown_in_its_unit() {
    let source = "/// Bytes of an id.\npub const ID_BYTES_MAX: usize = 1_256;\n\
                  /// How far ahead: long.\nconst HORIZON_MAX_MS: Millis = 10 * 24 * 3_600_000;\n\
                  /// Of them.\npub const LIST_MAX: u32 = 64;\n/// No limit.\nconst X: u8 = 1;\n";
    let rows: Vec<_> = limits(source).lines().skip(2).map(str::to_owned).collect();
    let expected = [
        "| Bytes of an id. | 1,256 bytes |",
        "| How far ahead: long. | 10 days |",
        "| Of them. | 64 |",
    ];
    assert_eq!(rows, expected);
    let hour = shown("A_MS", 3_600_000);
    assert_eq!((hour.as_str(), shown("A_MS", 1).as_str()), ("1 hour", "1 millisecond"));
}

#[test]
fn a_metric_has_a_kind_a_role_and_a_meaning() {
    let source =
        "/// Counter, scheduler: fires,\n/// by `target`.\npub const F: &str = \"orloj_f\";\n";
    let row = "| `orloj_f` | counter | scheduler | fires, by `target`. |";
    assert_eq!(metrics(source).lines().last(), Some(row));
}
