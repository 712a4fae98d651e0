//! A step: all effects of a decision, as data.
//!
//! Invariant: decide, commit, apply. The emits go out in one Kafka transaction together with the
//! cursor; the rows go into the store some time after it is committed, never before.

use std::sync::Arc;

use super::cursor::Cursor;
use super::index_row::{IdHash, IndexRow};
use super::write_buffer::Delta;
use crate::codec::row::RowBytes;
use crate::model::dead_letter::DeadLetter;
use crate::model::fire::{Fire, Withdrawal};
use crate::model::input::Forward;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::outcome::Outcome;
use crate::model::signal::Signal;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, PartitionId, Timestamp};

/// The effects of one decision about one partition.
#[derive(Clone, Debug)]
pub struct PartitionStep {
    /// Counts the steps of a partition over all its owners; orders ledger records.
    pub number: u64,
    /// Records to write, in order, all in one transaction.
    pub emits: Vec<Emit>,
    /// That transaction is committed no earlier, in ms since the epoch: nothing that it fires is
    /// due later, except by a command. It may be a little ahead of the clock.
    pub commit_not_before: Timestamp,
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
    /// When it was due, in ms since the epoch.
    pub scheduled: Timestamp,
}

/// A change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowOp {
    /// Put an entry on the timeline; `row` is its encoding.
    Put {
        /// Where.
        key: TimelineKey,
        /// The encoded row.
        row: RowBytes,
    },
    /// Take an entry off the timeline.
    Delete {
        /// Where.
        key: TimelineKey,
    },
    /// What the index now knows of an id; `None` forgets it.
    Index {
        /// Whose.
        hash: IdHash,
        /// All slots.
        row: Option<IndexRow>,
    },
    /// Remember (or forget) that a record of `triggers` was ignored for reasons of state.
    Skip {
        /// The record's offset.
        offset: Offset,
        /// Remember, or forget.
        marked: bool,
    },
}

impl RowOp {
    /// Where the store keeps it: the family, then the key. A batch in this order is inserted
    /// fastest, because the memtable finds each place next to the last one. Sort stably: of
    /// several rows for one key the last one counts.
    #[must_use]
    pub fn sort_key(&self) -> (u8, TimelineKey, IdHash) {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => (0, *key, IdHash(0)),
            Self::Index { hash, .. } => (1, TimelineKey::MIN, *hash),
            Self::Skip { .. } => (2, TimelineKey::MIN, IdHash(0)),
        }
    }
}

/// The names of the input topics, for the origins of dead letters.
#[derive(Clone, Debug)]
pub struct InputTopics {
    /// The full name of `triggers`.
    pub triggers: Text,
    /// The full name of `signals`.
    pub signals: Text,
}
