//! Which mutation is active. The tool adds this file to the copy of the core.
//!
//! Invariant: at most one is, from the first moment of the process to its last.

use std::sync::LazyLock;

/// Read once.
static SELECTED: LazyLock<usize> = LazyLock::new(|| {
    let number = std::env::var("ORLOJ_MUTANT").ok();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
});

/// Whether mutation `number` is active. They are counted from 1.
#[inline]
pub fn is_on(number: usize) -> bool {
    *SELECTED == number
}
