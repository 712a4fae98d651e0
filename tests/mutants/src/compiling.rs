//! What the compiler complains about.
//!
//! Invariant: an error has every place that the compiler marks, in the file as it was written.

use std::io::{BufRead as _, Error, Result};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::sources::{CORE, target_dir};

/// Each error with its places: files below the core, and bytes in them.
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

/// Compiles the library in the copy. Returns the errors.
pub(crate) fn compile(copy: &Path) -> Result<Errors> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--package", "orloj-core", "--lib", "--message-format", "json"]);
    cargo.arg("--quiet").current_dir(copy).env("CARGO_TARGET_DIR", target_dir());
    let output = cargo.stderr(Stdio::inherit()).output()?;
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

/// The primary places.
fn places(spans: Vec<MarkedSpan>) -> Vec<(String, Range<usize>)> {
    let prefix = format!("{CORE}/");
    let primary = spans.into_iter().filter(|span| span.is_primary);
    let place = |span: MarkedSpan| {
        let file = span.file_name.strip_prefix(&prefix).unwrap_or(&span.file_name).to_owned();
        (file, span.byte_start..span.byte_end)
    };
    primary.map(place).collect()
}
