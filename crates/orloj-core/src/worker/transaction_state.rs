//! What becomes of the last transaction of a worker.
//!
//! Invariant: one transaction is open or not decided at a time. The next one begins when it is
//! known what has become of this one.

use std::sync::Arc;

use super::result_batch::ResultBatch;
use crate::model::PartitionId;

/// What becomes of the last transaction.
#[derive(Debug)]
pub(super) enum TransactionState {
    /// None is open.
    Idle,
    /// It is being committed.
    InProgress(OpenTransaction),
    /// The broker has refused its generation: it is aborted.
    Aborting(OpenTransaction),
    /// It has failed: new producers are opened, which makes the broker end it.
    Opening(FailedTransaction),
    /// It is read whether this partition of it is committed.
    Reading(FailedTransaction, PartitionId),
    /// It is not committed, because this topic has refused a record: its state is asked for.
    Asking(FailedTransaction, RefusedRecord),
}

/// A transaction that was submitted.
#[derive(Clone, Debug)]
pub(super) struct OpenTransaction {
    pub(super) batch: Arc<ResultBatch>,
    /// The partitions that are released with its end.
    pub(super) releasing: Vec<PartitionId>,
    /// How often it was sent.
    pub(super) attempts: u32,
}

/// A transaction that has failed.
#[derive(Clone, Debug)]
pub(super) struct FailedTransaction {
    pub(super) batch: Arc<ResultBatch>,
    /// It may be committed.
    pub(super) is_unknown: bool,
    pub(super) refusal: Option<Refusal>,
}

impl TransactionState {
    /// Whether none is in progress or undecided.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// Whether a change of the group may be handled.
    pub(super) fn accepts_changes(&self) -> bool {
        !matches!(self, Self::InProgress(_) | Self::Aborting(_))
    }
}

/// What brokers have refused.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// A record: it would be refused again.
    Record(RefusedRecord),
    /// The time of this machine, and why. The same records are accepted when its clock is right.
    Time(String),
}

/// Which topic has refused a record.
#[derive(Clone, Debug)]
pub(super) struct RefusedRecord {
    pub(super) topic: String,
    pub(super) partition: PartitionId,
    pub(super) reason: String,
}
