//! Programs that a test runs to completion.
//!
//! Invariant: one that fails fails the test with what it printed.

use std::process::{Command, Stdio};

/// Runs a command that must succeed and returns what it printed.
pub(crate) fn run_to_end(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command:?}: {errors}{printed}");
    printed
}
