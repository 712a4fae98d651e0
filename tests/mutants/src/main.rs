//! Breaks rules of the sources in a copy of them, and sees whether the tests notice.
//!
//! Invariant: the sources of the project are read and never written.
//!
//! ```text
//!   planted.toml ─► table ───────────────┬─► sources ─► trial ─► planted
//!        subject ─► operators ─► rendering ┘                   └─► sample ─► results
//! ```

mod compiling;
mod operators;
mod planted;
mod rendering;
mod results;
mod sample;
mod sources;
mod subject;
mod table;
mod trial;
mod values;

use std::io::{Error, Result};
use std::process::ExitCode;
use std::time::Duration;

use planted::Selection;
use sample::Sampling;
use subject::Subject;

const USAGE: &str = "orloj-mutants planted [NAME...] | planted --part COMMIT | \
                     sample core|program MINUTES SEED | survivors core|program MINUTES | \
                     units core|program FILE... | list core|program | page";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match *arguments {
        ["planted"] => planted::run(&Selection::All),
        ["planted", "--part", commit] => planted::run(&Selection::Part(commit.to_owned())),
        ["planted", ref names @ ..] => {
            planted::run(&Selection::Named(names.iter().map(|name| (*name).to_owned()).collect()))
        }
        ["sample", subject, minutes, seed] => match seed.parse() {
            Ok(seed) => sample(subject, minutes, Sampling::New(seed)),
            Err(_) => Err(Error::other(USAGE)),
        },
        ["survivors", subject, minutes] => sample(subject, minutes, Sampling::Survivors),
        ["units", subject, ref files @ ..] if !files.is_empty() => {
            subject_named(subject).and_then(|subject| sample::run_unit_tests(subject, files))
        }
        ["list", subject] => subject_named(subject).and_then(sample::list),
        ["page"] => sample::write_page(),
        _ => Err(Error::other(USAGE)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn sample(subject: &str, minutes: &str, sampling: Sampling) -> Result<bool> {
    let minutes: u64 = minutes.parse().map_err(|_| Error::other(USAGE))?;
    sample::run(subject_named(subject)?, Duration::from_secs(60 * minutes), sampling)
}

fn subject_named(name: &str) -> Result<Subject> {
    Subject::named(name).ok_or_else(|| Error::other(USAGE))
}
