//! What excuses a finding: what operators have requested to be read again, what retention has
//! deleted, and what an election has taken away.
//!
//! Invariant: a replay excuses repetitions of what was written before it, and nothing else.

use std::collections::BTreeSet;
use std::ops::Range;

use orloj_core::model::Offset;

use super::cluster::PARTITIONS;

/// What an operator has requested by a replay of a partition: repetitions of it are expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedReplay {
    /// Records of `triggers` from here on count as new,
    pub(super) from: Offset,
    /// up to here: later ones were written after the replay, and are read once.
    pub(super) until: Offset,
    /// Events with a higher number are of after the replay: see
    /// [`SimulatedSend::order`](super::broker::SimulatedSend).
    pub(super) since: u64,
}

impl RequestedReplay {
    /// Whether the record at `offset` counts as new.
    pub(super) fn repeats(&self, offset: Offset) -> bool {
        (self.from..self.until).contains(&offset)
    }
}

/// Of each partition.
pub(super) type Replayed = [Option<RequestedReplay>; PARTITIONS];

/// Offsets of one partition that retention has deleted although they were needed.
#[derive(Clone, Debug, Default)]
pub(super) struct DeletedOffsets {
    /// Of `triggers`.
    pub(super) triggers: Vec<Range<Offset>>,
    /// Of `signals`.
    pub(super) signals: Vec<Range<Offset>>,
}

/// What unclean elections have taken away from `triggers` of one partition.
#[derive(Clone, Debug, Default)]
pub(super) struct CutLog {
    /// Where it was cut, until an operator has it read again from there on.
    pub(super) end: Option<Offset>,
    /// What was at these offsets is lost; what is there now may be taken for it.
    pub(super) ranges: Vec<Range<Offset>>,
    /// The triggers of the records that are lost.
    pub(super) triggers: BTreeSet<String>,
}
