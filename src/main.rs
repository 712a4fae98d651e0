//! The `orloj` program: read the command line, run it, report an error once.

use std::process::ExitCode;

fn main() -> ExitCode {
    orloj::cli::main()
}
