//! A step: all effects of a decision, as data.
//!
//! Invariant: decide, commit, apply. The emits go out in one Kafka transaction together with the
//! cursor; the rows go into the store some time after it is committed, never before.

use std::sync::Arc;

pub use super::config::InputTopics;
use super::cursor::Cursor;
pub use super::row_op::RowOp;
use super::write_buffer::Delta;
use crate::codec::row::RowBytes;
use crate::model::dead_letter::DeadLetter;
use crate::model::fire::{Fire, Withdrawal};
use crate::model::input::Forward;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::outcome::Outcome;
use crate::model::signal::Signal;
use crate::model::text::Text;
use crate::model::{PartitionId, Timestamp};

/// The effects of one decision about one partition.
#[derive(Clone, Debug)]
pub struct PartitionStep {
    /// Counts the steps of a partition over all its owners; orders ledger records.
    pub number: u64,
    /// Records to write, in order, all in one transaction.
    pub emits: Vec<Emit>,
    /// About how many bytes they have.
    pub bytes: usize,
    /// That transaction is committed no earlier, in ms since the epoch: nothing that it fires is
    /// due later, except by a command. It may be a little ahead of the clock.
    pub commit_not_before: Timestamp,
    /// Something in it would not have fired after this time, in ms since the epoch: if it is not
    /// committed long after, it must be decided again.
    pub in_time_until: Option<Timestamp>,
    /// From time to time: everything the store does not have yet, to be written once that
    /// transaction is committed, in the order of the steps, and then reported with
    /// [`Partition::on_applied`](super::partition::Partition::on_applied).
    pub spill: Option<Arc<Delta>>,
    /// The cursor after this step; it is in the commit metadata.
    pub cursor: Cursor,
    /// Whether it is the owner's last.
    pub is_final: bool,
    /// Records ingested in this step.
    pub ingested: usize,
}

/// A record to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Emit {
    /// A payload to a topic of the user's.
    ToTopic(TopicFire),
    /// A callback for the workers.
    ToWorker(Box<Fire>),
    /// For the workers of a pool (the default one if it has no name): callbacks not to make.
    Withdraw {
        /// The pool.
        pool: Option<Text>,
        /// Which callbacks.
        withdrawal: Box<Withdrawal>,
    },
    /// A ledger entry, or with `None` its end.
    Ledger {
        /// Which entry.
        key: LedgerKey,
        /// Its new value.
        value: Option<Box<LedgerValue>>,
    },
    /// A signal to the owner of a trigger.
    Signal {
        /// The partition of that trigger.
        partition: PartitionId,
        /// The message.
        signal: Box<Signal>,
    },
    /// An outcome.
    Outcome(Box<Outcome>),
    /// A record or a fire that will not be retried automatically.
    DeadLetter(Box<DeadLetter>),
    /// A record that belongs to another partition.
    Forward(Box<Forward>),
}

/// A payload to a topic of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicFire {
    /// The row of the timeline; its target is a topic.
    pub row: RowBytes,
    /// The partition of that topic.
    pub partition: PartitionId,
    /// How many bytes that topic takes at once.
    pub batch_bytes_max: u32,
    /// When it was due, in ms since the epoch.
    pub scheduled: Timestamp,
}
