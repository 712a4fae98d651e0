//! The ledger: the scheduler's own compacted topic. It holds whatever depends on more than a
//! record's own bytes, the log's order and the cursor.
//!
//! Invariant: an entry is written in the transaction that decides it and stays until it is settled.

use super::Offset;
use super::entry::{Entry, FireId, Row};
use super::text::Text;

/// The key of a ledger record. Keys of triggers begin with a letter and a bar; marks of the
/// partition begin with `~`, so that no trigger id can be taken for one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LedgerKey {
    /// `m|<id>`: the trigger's pending occurrence.
    Main(Text),
    /// `r|<generation>|<occurrence>|<id>`: a retry of an occurrence.
    Retry {
        /// The trigger.
        trigger: Text,
        /// Its generation.
        generation: Offset,
        /// The occurrence.
        occurrence: u32,
    },
    /// `v|<id>`: a cancel that may still have to stop a retry.
    Veto(Text),
    /// `~skip|<offset>`: this record of `triggers` was ignored; a replay ignores it too.
    Skip(Offset),
    /// `~cursor`: the mirror of the committed offset and its metadata.
    Cursor,
    /// `~barrier`: proof that the broker accepts an owner's generation.
    Barrier,
}

impl LedgerKey {
    /// The key of an occurrence, or of a retry of one.
    #[must_use]
    pub fn of_fire(id: &FireId) -> Self {
        let trigger = id.trigger.clone();
        if id.attempt == 1 && id.deferral == 0 {
            Self::Main(trigger)
        } else {
            Self::Retry { trigger, generation: id.generation, occurrence: id.occurrence }
        }
    }

    /// The key of a row, if it is in the ledger.
    #[must_use]
    pub fn of_row(row: &Row) -> Option<Self> {
        match row {
            Row::Veto { trigger, .. } => Some(Self::Veto(trigger.clone())),
            Row::Watch { trigger, .. } => Some(Self::Main(trigger.clone())),
            Row::Fire(row) if !row.in_ledger => None,
            Row::Fire(row) => Some(Self::of_fire(&row.id)),
        }
    }

    /// The id of the trigger that it is about, if it is about one.
    #[must_use]
    pub fn trigger(&self) -> Option<&Text> {
        match self {
            Self::Main(id) | Self::Veto(id) => Some(id),
            Self::Retry { trigger, .. } => Some(trigger),
            Self::Skip(_) | Self::Cursor | Self::Barrier => None,
        }
    }
}

/// The value of a ledger record; a tombstone settles the key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every value is an entry, and a step boxes the value as a whole"
)]
pub enum LedgerValue {
    /// An entry that waits on the timeline.
    Entry(Entry),
    /// The record was ignored for reasons of state.
    Skip,
    /// The cursor and whether the owner wrote it while shutting down.
    Cursor {
        /// The commit metadata, as text.
        metadata: String,
        /// The committed offset of `triggers`.
        offset: Offset,
        /// Written at a shutdown, after the last commit.
        clean: bool,
    },
    /// The nonce of a takeover.
    Barrier {
        /// Fresh for every takeover.
        nonce: u64,
    },
}

/// A record of the ledger, as read back. `step` orders it against a local store: the number of
/// the committed step that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRecord {
    /// Which entry.
    pub key: LedgerKey,
    /// Its new value; `None` settles it.
    pub value: Option<LedgerValue>,
    /// The number of the step that wrote it.
    pub step: u64,
}
