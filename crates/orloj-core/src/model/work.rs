//! How much work a decision is, counted in unit tests: a clock would measure the machine as well.
//!
//! Invariant: nothing is counted outside of unit tests, where [`count`] is empty.

/// Counts units of work: what a unit is, the caller says.
#[inline]
pub(crate) fn count(units: usize) {
    #[cfg(test)]
    tests::COUNTED.set(tests::COUNTED.get() + units);
    let _ = units;
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    thread_local! {
        pub(super) static COUNTED: Cell<usize> = const { Cell::new(0) };
    }

    /// The result of `decide`, and how much work it was.
    pub(crate) fn counted<T>(decide: impl FnOnce() -> T) -> (T, usize) {
        let before = COUNTED.get();
        let result = decide();
        (result, COUNTED.get() - before)
    }
}
