//! Bugs that can be planted in the production code, to show that the tests would find them.
//!
//! Law: at most one is planted, in the calling thread, for as long as a closure runs.

/// A rule of the protocol, broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// What could not be read yet does not hold back what is due.
    NoWatermark,
}

/// Whether `bug` is planted in this thread.
#[cfg(not(feature = "faults"))]
#[must_use]
pub fn planted(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "faults")]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether `bug` is planted in this thread.
#[cfg(feature = "faults")]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Runs `scenario` with `bug` planted in this thread.
#[cfg(feature = "faults")]
pub fn with<T>(bug: Bug, scenario: impl FnOnce() -> T) -> T {
    PLANTED.set(Some(bug));
    let result = scenario();
    PLANTED.set(None);
    result
}
