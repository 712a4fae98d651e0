//! Breaks rules of the core in a copy of its sources, and sees whether the core's tests notice.
//!
//! Invariant: the sources of the project are read and never written.
//!
//! ```text
//!   planted.toml ─► table ───────────────┬─► sources ─► trial ─► planted
//!                   operators ─► rendering ┘                   └─► sample ─► results
//! ```

mod compiling;
mod operators;
mod planted;
mod rendering;
mod results;
mod sample;
mod sources;
mod table;
mod trial;
mod values;

use std::process::ExitCode;
use std::time::Duration;

use planted::Selection;
use sample::Sampling;

const USAGE: &str = "orloj-mutants planted [NAME...] | planted --part COMMIT | \
                     sample MINUTES SEED | survivors MINUTES | page";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match *arguments {
        ["planted"] => planted::run(&Selection::All),
        ["planted", "--part", commit] => planted::run(&Selection::Part(commit.to_owned())),
        ["planted", ref names @ ..] => {
            planted::run(&Selection::Named(names.iter().map(|name| (*name).to_owned()).collect()))
        }
        ["sample", minutes, seed] => match (minutes.parse(), seed.parse()) {
            (Ok(minutes), Ok(seed)) => sample::run(of_minutes(minutes), Sampling::New(seed)),
            _ => Err(std::io::Error::other(USAGE)),
        },
        ["survivors", minutes] => match minutes.parse() {
            Ok(minutes) => sample::run(of_minutes(minutes), Sampling::Survivors),
            Err(_) => Err(std::io::Error::other(USAGE)),
        },
        ["page"] => sample::write_page(),
        _ => Err(std::io::Error::other(USAGE)),
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

fn of_minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}
