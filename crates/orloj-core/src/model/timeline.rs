//! The timeline key: the place of an entry in due order.
//!
//! Invariant: the order of keys is the order of `(due, priority, source, offset)`, in memory and as
//! stored bytes alike (`store::keys` proves the second).

use super::{Offset, Timestamp};

/// Which topic an entry's offset belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Source {
    /// The offset is one of `triggers`.
    Triggers = 0,
    /// The offset is one of `signals`.
    Signals = 1,
}

/// A place on the timeline; unique, because a record makes at most one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimelineKey {
    /// When the entry is due, in ms since the epoch.
    pub due: Timestamp,
    /// Lower fires first among entries of the same millisecond: see [`rank`].
    pub priority: u8,
    /// The topic of `offset`.
    pub source: Source,
    /// The offset of the record that made the entry: ties fire in the order they were written.
    pub offset: Offset,
}

/// A trigger's priority (0 to 255, higher first) as it is stored in a key; also the inverse.
#[must_use]
pub const fn rank(priority: u8) -> u8 {
    u8::MAX - priority
}

/// The default priority: the middle, so that there is room on both sides.
pub const PRIORITY_DEFAULT: u8 = 127;
/// The rank of a trigger without a priority.
pub const RANK_DEFAULT: u8 = rank(PRIORITY_DEFAULT);

/// The due time of a paused entry, whose time is unknown: W never passes it. (Avro is signed.)
pub const PAUSED: Timestamp = Timestamp::MAX / 2;

impl TimelineKey {
    /// Before every entry.
    pub const MIN: Self = Self { due: 0, priority: 0, source: Source::Triggers, offset: 0 };

    /// The greatest key that is due at `due` or before.
    #[must_use]
    pub fn last_at(due: Timestamp) -> Self {
        Self { due, priority: u8::MAX, source: Source::Signals, offset: Offset::MAX }
    }

    /// The least key that is due at `due` or later.
    #[must_use]
    pub fn first_at(due: Timestamp) -> Self {
        Self { due, ..Self::MIN }
    }

    /// The least key greater than this one.
    #[must_use]
    pub fn successor(self) -> Self {
        match (self.offset, self.source, self.priority) {
            (offset, ..) if offset < Offset::MAX => Self { offset: offset + 1, ..self },
            (_, Source::Triggers, _) => Self { source: Source::Signals, offset: 0, ..self },
            (_, _, priority) if priority < u8::MAX => {
                Self { priority: priority + 1, source: Source::Triggers, offset: 0, ..self }
            }
            _ => Self::first_at(self.due.saturating_add(1)),
        }
    }
}
