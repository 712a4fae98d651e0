//! What a transaction consists of: its producer, what it has written, its offsets and its markers.
//!
//! Invariant: an offset of a transaction has a number, in the order in which offsets were sent.

use std::collections::BTreeMap;

use orloj_core::model::{Offset, Timestamp};

use super::log::TxnId;

/// How far the inputs of a partition are decided: N of each topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SimulatedDecidedOffsets {
    pub(super) triggers: Offset,
    pub(super) signals: Offset,
    /// The owner's clock then.
    pub(super) clock: Timestamp,
}

/// A commit for one partition: partition, offset, metadata.
pub(super) type SimulatedOffsetCommit = (usize, Offset, String);

/// A transactional producer: its id and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Producer {
    pub(super) id: usize,
    pub(super) epoch: u64,
}

/// Why a call of a transaction was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedProducerError {
    /// The producer has a successor, or its transaction took too long.
    Fenced,
    /// The group has a newer generation.
    Generation,
    /// A partition has no leader now: the client tries again until its timeout.
    Unavailable,
    /// A record of an earlier transaction, which has ended.
    NotOpen,
}

/// What a producer's records belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Triggers,
    Signals,
    Ledger,
    Fires,
    Others,
    /// A partition of a target that had no leader when a transaction added it, by a number of its
    /// own.
    Leaderless,
    /// The committed offsets of the group.
    Offsets,
    /// The coordinator's own.
    Transactions,
}

/// A partition of a topic.
pub(super) type LogPlace = (Topic, usize);

/// Where the group's offsets and the coordinator's state are.
pub(super) const OFFSETS: LogPlace = (Topic::Offsets, 0);
pub(super) const TRANSACTIONS: LogPlace = (Topic::Transactions, 0);

/// What is known of a transactional id.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) epoch: u64,
    pub(super) open: Option<TxnId>,
}

/// A transaction.
#[derive(Debug)]
pub(super) struct Txn {
    pub(super) until: Timestamp,
    pub(super) touched: Vec<LogPlace>,
    /// Offsets that it commits, each with a number that grows.
    pub(super) offsets: Vec<(SimulatedOffsetCommit, u64)>,
    /// What the clock of an owner showed when it committed.
    pub(super) ended: Option<Timestamp>,
    /// How far each partition was decided before this transaction was committed, and after.
    pub(super) decided: Vec<(usize, [SimulatedDecidedOffsets; 2])>,
}

/// A marker that is not written yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingMarker {
    pub(super) account: usize,
    pub(super) txn: TxnId,
    pub(super) place: LogPlace,
}

/// The state of all transactions.
#[derive(Debug)]
pub(super) struct TransactionCoordinator {
    pub(super) txns: Vec<Txn>,
    pub(super) accounts: Vec<Account>,
    pub(super) markers: Vec<PendingMarker>,
    /// Markers are written some time after the decision.
    pub(super) delays_markers: bool,
    /// Partitions without a leader, and until when.
    pub(super) leaderless: BTreeMap<LogPlace, Timestamp>,
    /// How many partitions of targets were added while they had no leader.
    pub(super) added_leaderless: usize,
    pub(super) offset_numbers: u64,
    /// The number of the newest committed offset of each partition.
    pub(super) stored: Vec<u64>,
}

impl TransactionCoordinator {
    pub(super) fn new(partitions: usize) -> Self {
        Self {
            txns: Vec::new(),
            accounts: Vec::new(),
            markers: Vec::new(),
            delays_markers: false,
            leaderless: BTreeMap::new(),
            added_leaderless: 0,
            offset_numbers: 0,
            stored: vec![0; partitions],
        }
    }

    pub(super) fn next_offset_number(&mut self) -> u64 {
        self.offset_numbers += 1;
        self.offset_numbers
    }
}
