//! The `orloj` program: parse the command line, run it, report an error once.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::SUCCESS
}
