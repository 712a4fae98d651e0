//! Progress on standard output.
//!
//! Invariant: a closed output does not end a measurement.

use std::io::Write as _;

/// A line of progress.
pub(crate) fn print_progress(line: &str) {
    let _closed = writeln!(std::io::stdout().lock(), "{line}");
}
