//! Dead letters as people read them.

use std::fmt::Display;

use crate::dead_letters::{HandledLetters, LetterId, state_of};
use crate::model::Timestamp;
use crate::model::attempt::{Attempt, History, excerpt};
use crate::model::dead_letter::{Content, DeadLetter};
use crate::model::definition::{Header, Target};
use crate::model::fire::Fire;
use crate::model::time::format_time;

/// Characters of a payload that are shown.
const SHOWN_CHARS_MAX: usize = 2_000;

/// A letter in a list.
#[derive(Debug)]
pub(super) struct LetterRow {
    pub(super) id: LetterId,
    pub(super) at: Timestamp,
    /// Trigger, caller, host, attempts, reason.
    columns: [String; 5],
}

impl LetterRow {
    pub(super) fn of(id: LetterId, letter: &DeadLetter) -> Self {
        let or_dash = |text: Option<&str>| text.unwrap_or("-").to_owned();
        let attempts = match &letter.content {
            Content::Fire { attempts, .. } => attempts.to_string(),
            _ => "-".to_owned(),
        };
        let columns = [
            or_dash(letter.trigger()),
            or_dash(letter.caller()),
            or_dash(letter.host().as_deref()),
            attempts,
            excerpt(&letter.reason).unwrap_or_default().to_string(),
        ];
        Self { id, at: letter.at, columns }
    }
}

/// Prints lines in columns.
pub(super) fn print_rows(lines: &[LetterRow], marks: &HandledLetters) {
    if lines.is_empty() {
        return;
    }
    let mut rows = vec![
        ["LETTER", "STATE", "GIVEN UP", "TRIGGER", "CALLER", "HOST", "TRIED", "REASON"]
            .map(str::to_owned),
    ];
    rows.extend(lines.iter().map(|line| {
        let [trigger, caller, host, attempts, reason] = line.columns.clone();
        let (id, state) = (line.id.to_string(), state_of(marks, line.id).to_owned());
        [id, state, format_time(line.at), trigger, caller, host, attempts, reason]
    }));
    let mut widths = [0; 8];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in &rows {
        let cells: Vec<_> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("{}", cells.join("  ").trim_end());
    }
}

/// Prints everything about a letter.
pub(super) fn print_details(id: LetterId, letter: &DeadLetter, state: &str) {
    let origin = &letter.origin;
    println!("dead letter {id}, {state}");
    field("reason", &letter.reason);
    field("given up", format_time(letter.at));
    field("origin", format!("{}[{}]@{}", origin.topic, origin.partition, origin.offset));
    match &letter.content {
        Content::Fire { fire, attempts } => print_fire(fire, *attempts),
        Content::Record { key, value, headers } => {
            field("key", key.as_deref().map_or_else(|| "none".to_owned(), printable));
            print_message(value.as_deref(), headers);
        }
        Content::Mark(_) => {}
    }
}

fn print_fire(fire: &Fire, attempts: u32) {
    let (id, definition) = (&fire.id, &fire.definition);
    field("trigger", &id.trigger);
    field("occurrence", format!("{} of generation {}", id.occurrence, id.generation));
    field("caller", definition.caller.as_ref().map_or("none", |caller| caller.as_str()));
    field("due", format_time(fire.scheduled));
    field("fired", format_time(fire.fired));
    match &definition.target {
        Target::Topic(target) => field("topic", &target.topic),
        Target::Http(target) => {
            field("request", format!("{} {}", target.method, target.url));
            field("pool", target.pool.as_ref().map_or("default", |pool| pool.as_str()));
            let timeout = target.timeout.map(|ms| format!("{ms} ms"));
            field("timeout", timeout.as_deref().unwrap_or("the worker's"));
        }
    }
    if let Some(retry) = &definition.retry {
        field("retry", format!("{retry:?}"));
    }
    print_message(definition.payload.as_deref(), &definition.headers);
    field("attempts", attempts);
    if let Some(history) = &fire.history {
        print_history(history);
    }
}

fn print_message(value: Option<&[u8]>, headers: &[Header]) {
    for header in headers {
        let value = header.value.as_deref().map_or_else(|| "null".to_owned(), printable);
        field("header", format!("{}: {value}", header.name));
    }
    match value {
        None => field("payload", "null"),
        Some(value) => field("payload", format!("{} bytes: {}", value.len(), printable(value))),
    }
}

fn print_history(history: &History) {
    if history.older_attempts > 0 {
        println!("  {} older attempts are only counted", history.older_attempts);
    }
    for attempt in &history.attempts {
        let Attempt { number, at, worker, status, duration_ms, .. } = attempt;
        let status = status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
        let text = attempt.error.as_ref().or(attempt.excerpt.as_ref());
        let response = text.map_or_else(String::new, |text| format!(": {text}"));
        let at = format_time(*at);
        println!("  {number:>4}  {at}  {worker}  {duration_ms} ms  {status}{response}");
    }
}

fn field(name: &str, value: impl Display) {
    println!("  {name:10}  {value}");
}

/// Bytes as text, without control characters.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let printable = text.chars().map(|c| if c.is_control() && c != '\n' { '\u{FFFD}' } else { c });
    let mut shown: String = printable.take(SHOWN_CHARS_MAX).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}
