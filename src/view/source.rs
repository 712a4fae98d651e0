//! The topics that the view reads.
//!
//! Invariant: the numbers are stored in the table `position` and index arrays: they do not change.

/// A topic that the view reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ViewSource {
    Triggers = 0,
    Ledger = 1,
    Outcomes = 2,
    DeadLetters = 3,
}

/// The number of topics.
pub(super) const SOURCE_COUNT: usize = 4;

impl ViewSource {
    /// Every topic, in the order of their numbers.
    pub(super) const ALL: [Self; SOURCE_COUNT] =
        [Self::Triggers, Self::Ledger, Self::Outcomes, Self::DeadLetters];

    /// The label value of metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Triggers => "triggers",
            Self::Ledger => "ledger",
            Self::Outcomes => "outcomes",
            Self::DeadLetters => "dead_letters",
        }
    }
}
