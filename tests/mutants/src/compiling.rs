//! What the compiler complains about.
//!
//! Invariant: an error has every place that the compiler marks, in the file as it was written.

use std::io::{BufRead as _, Error, Result};
use std::ops::Range;
use std::process::Stdio;

use serde::Deserialize;

use crate::sources::SourceCopy;

/// Each error with its places: files, and bytes in them.
pub(crate) type Errors = Vec<(String, Vec<(String, Range<usize>)>)>;

#[derive(Deserialize)]
struct Line {
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    message: String,
    level: String,
    spans: Vec<MarkedSpan>,
}

#[derive(Deserialize)]
struct MarkedSpan {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
}

/// Compiles the copy and its tests. Returns the errors.
pub(crate) fn compile(copy: &SourceCopy) -> Result<Errors> {
    let mut cargo = copy.cargo();
    cargo.args(["--message-format", "json"]).stderr(Stdio::inherit());
    let output = cargo.output()?;
    let mut errors = Vec::new();
    for line in output.stdout.lines() {
        let Ok(Line { message: Some(message) }) = serde_json::from_str(&line?) else { continue };
        // The last one only counts the others.
        if message.level == "error" && !message.spans.is_empty() {
            errors.push((message.message, places(message.spans)));
        }
    }
    if errors.is_empty() && !output.status.success() {
        return Err(Error::other("the copy does not compile, and no place is named"));
    }
    Ok(errors)
}

/// The primary places. The compiler runs in the root of the copy.
fn places(spans: Vec<MarkedSpan>) -> Vec<(String, Range<usize>)> {
    let primary = spans.into_iter().filter(|span| span.is_primary);
    primary.map(|span| (span.file_name, span.byte_start..span.byte_end)).collect()
}
