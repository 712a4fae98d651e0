//! The cluster: every topic, the transaction coordinator, and the group.
//!
//! Invariant: it guarantees what Kafka guarantees and no more. A producer of an older epoch is
//! fenced; offsets of a transaction are stable only once it has ended; a transaction that stays
//! open too long is aborted, and its producer fenced.

use orloj_core::engine::takeover::PartitionOffsets;
use orloj_core::model::dead_letter::DeadLetter;
use orloj_core::model::definition::Header;
use orloj_core::model::fire::{Fire, Withdrawal};
use orloj_core::model::fire_id::FireId;
use orloj_core::model::ledger::LedgerRecord;
use orloj_core::model::outcome::Outcome;
use orloj_core::model::signal::Signal;
use orloj_core::model::{Millis, Offset, PartitionId, Timestamp};

use bytes::Bytes;

use super::group::Group;
use super::log::{SimulatedLog, SimulatedTransactionState, TxnId};
use super::transaction::{LogPlace, Topic, TransactionCoordinator};
pub(super) use super::transaction::{SimulatedDecidedOffsets, SimulatedOffsetCommit};

/// A record of `triggers`, in bytes, as users write it.
#[derive(Clone, Debug)]
pub(super) struct SimulatedRawRecord {
    pub(super) key: Bytes,
    pub(super) value: Option<Bytes>,
    pub(super) headers: Vec<Header>,
}

/// What a record does for other processes.
#[derive(Clone, Debug)]
pub(super) enum SimulatedEffect {
    /// Into a topic of users.
    TopicFire(Box<SimulatedTopicFire>),
    /// For the workers.
    Callback(Box<Fire>),
    /// For the workers: callbacks not to make.
    Withdrawal(Withdrawal),
    Outcome(Box<Outcome>),
    DeadLetter(Box<DeadLetter>),
}

/// A record in a topic of users.
#[derive(Clone, Debug)]
pub(super) struct SimulatedTopicFire {
    /// From the header `orloj-fire-id`; it is the first attempt.
    pub(super) id: FireId,
    /// The header `orloj-due`, in ms since the epoch.
    pub(super) scheduled: Timestamp,
    pub(super) payload: Vec<u8>,
    pub(super) topic: String,
    pub(super) partition: PartitionId,
    pub(super) key: Vec<u8>,
    /// All of them, in order.
    pub(super) headers: Vec<Header>,
}

/// A record that an owner wrote for other processes.
#[derive(Clone, Debug)]
pub(super) struct SimulatedSend {
    pub(super) effect: SimulatedEffect,
    /// The number of the takeover of its owner; 0 if no owner wrote it.
    pub(super) takeover_number: u64,
    /// The latest time that the owner's clock had shown, in ms since the epoch.
    pub(super) clock: Timestamp,
    /// Its number among all records that owners and workers have sent: within one partition, the
    /// order in which its owners decided.
    pub(super) order: u64,
    /// The transaction that carries it.
    pub(super) txn: Option<TxnId>,
}

impl SimulatedSend {
    /// A record that no owner wrote: a worker's, for example.
    pub(super) fn plain(effect: SimulatedEffect, clock: Timestamp) -> Self {
        Self { effect, takeover_number: 0, clock, order: 0, txn: None }
    }
}

/// A record for partition `.0` of a topic.
#[derive(Clone, Debug)]
pub(super) enum SimulatedOutput {
    Trigger(usize, SimulatedRawRecord),
    Signal(usize, Signal),
    Ledger(usize, LedgerRecord),
    /// For the workers.
    Fire(usize, SimulatedSend),
    /// Into topics of users, `outcomes` and `dead-letters`.
    Other(usize, SimulatedSend),
}

impl SimulatedOutput {
    /// Where it is written.
    pub(super) fn place(&self) -> LogPlace {
        match self {
            Self::Trigger(p, _) => (Topic::Triggers, *p),
            Self::Signal(p, _) => (Topic::Signals, *p),
            Self::Ledger(p, _) => (Topic::Ledger, *p),
            Self::Fire(p, _) => (Topic::Fires, *p),
            Self::Other(p, _) => (Topic::Others, *p),
        }
    }
}

/// A record, and when its producer has created it.
#[derive(Clone, Debug)]
pub(super) struct ClientRecord {
    pub(super) created: Timestamp,
    pub(super) output: SimulatedOutput,
}

/// The cluster. All topics have the same partitions.
#[derive(Debug)]
pub(super) struct SimulatedBroker {
    /// True time, in ms since the epoch.
    pub(super) now: Timestamp,
    /// The sum of the jumps of time, in ms.
    pub(super) jumped: Millis,
    /// After this a transaction is aborted.
    pub(super) transaction_timeout: Millis,
    pub(super) triggers: Vec<SimulatedLog<SimulatedRawRecord>>,
    pub(super) signals: Vec<SimulatedLog<Signal>>,
    pub(super) ledger: Vec<SimulatedLog<LedgerRecord>>,
    pub(super) fires: Vec<SimulatedLog<SimulatedSend>>,
    pub(super) others: Vec<SimulatedLog<SimulatedSend>>,
    pub(super) transaction_states: Vec<SimulatedTransactionState>,
    pub(super) group: Group,
    /// How many records owners and workers have sent to other processes.
    pub(super) sent: u64,
    /// How far each partition is decided by what is committed.
    pub(super) decided: Vec<SimulatedDecidedOffsets>,
    pub(super) coordinator: TransactionCoordinator,
}

impl SimulatedBroker {
    pub(super) fn new(partitions: usize, now: Timestamp, transaction_timeout: Millis) -> Self {
        Self {
            now,
            jumped: 0,
            transaction_timeout,
            triggers: (0..partitions).map(|_| SimulatedLog::default()).collect(),
            signals: (0..partitions).map(|_| SimulatedLog::default()).collect(),
            ledger: (0..partitions).map(|_| SimulatedLog::default()).collect(),
            fires: (0..partitions).map(|_| SimulatedLog::default()).collect(),
            others: (0..partitions).map(|_| SimulatedLog::default()).collect(),
            transaction_states: Vec::new(),
            group: Group::new(partitions),
            sent: 0,
            decided: vec![SimulatedDecidedOffsets::default(); partitions],
            coordinator: TransactionCoordinator::new(partitions),
        }
    }

    /// A record outside of any transaction.
    pub(super) fn write(&mut self, record: SimulatedOutput) -> Offset {
        self.append(record, None, self.now)
    }

    /// What the clock of the owner showed that committed this.
    pub(super) fn committed_at(&self, sent: &SimulatedSend) -> Option<Timestamp> {
        self.coordinator.txns[sent.txn?].ended
    }

    /// How far partition `p` had decided its inputs before the step that wrote this.
    pub(super) fn decided_before(&self, p: usize, sent: &SimulatedSend) -> SimulatedDecidedOffsets {
        let [before, _after] = self.decided(p, sent);
        before
    }

    /// The same, and after it.
    pub(super) fn decided(&self, p: usize, sent: &SimulatedSend) -> [SimulatedDecidedOffsets; 2] {
        let decided = sent.txn.map_or(&[][..], |txn| &self.coordinator.txns[txn].decided);
        decided.iter().find(|(of, _)| *of == p).map_or_else(Default::default, |(_, both)| *both)
    }

    /// The time jumps.
    pub(super) fn jump(&mut self, to: Timestamp) {
        let length = to.saturating_sub(self.now);
        self.jumped += length;
        self.now += length;
    }

    /// The same without waiting for what is undecided.
    pub(super) fn offset(&self, partition: usize) -> PartitionOffsets {
        PartitionOffsets {
            committed: self.group.committed[partition].clone(),
            triggers_low: self.triggers[partition].low,
            triggers_end: self.triggers[partition].high(),
            signals_low: self.signals[partition].low,
            signals_end: self.signals[partition].high(),
            ledger_low: self.ledger[partition].low,
            ledger_end: self.ledger[partition].high(),
            new_records: Vec::new(),
        }
    }

    /// The first offset of a partition, and its high watermark; `topic` is the name after the
    /// prefix.
    pub(super) fn bounds(&self, topic: &str, p: usize) -> (Offset, Offset) {
        match topic {
            "triggers" => (self.triggers[p].low, self.triggers[p].high()),
            "signals" => (self.signals[p].low, self.signals[p].high()),
            "ledger" => (self.ledger[p].low, self.ledger[p].high()),
            "fires" => (self.fires[p].low, self.fires[p].high()),
            _ => panic!("there is no topic {topic}"),
        }
    }

    /// The offset of the first record of that time or later; the end offset if there is none.
    pub(super) fn offset_for_time(&self, topic: &str, p: usize, time: Timestamp) -> Offset {
        match topic {
            "triggers" => self.triggers[p].offset_for_time(time),
            "signals" => self.signals[p].offset_for_time(time),
            "ledger" => self.ledger[p].offset_for_time(time),
            _ => panic!("there is no topic {topic}"),
        }
    }

    /// The last stable offset of a partition.
    pub(super) fn stable(&self, topic: &str, p: usize) -> Offset {
        match topic {
            "triggers" => self.triggers[p].stable(),
            "signals" => self.signals[p].stable(),
            "ledger" => self.ledger[p].stable(),
            "fires" => self.fires[p].stable(),
            _ => panic!("there is no topic {topic}"),
        }
    }

    /// `triggers`, `signals` and the ledger have the broker's timestamps, other topics their
    /// producers'.
    pub(super) fn append(
        &mut self,
        record: SimulatedOutput,
        txn: Option<TxnId>,
        created: Timestamp,
    ) -> Offset {
        let now = self.now;
        match record {
            SimulatedOutput::Trigger(p, raw) => self.triggers[p].append(now, txn, raw),
            SimulatedOutput::Signal(p, signal) => self.signals[p].append(now, txn, signal),
            SimulatedOutput::Ledger(p, record) => self.ledger[p].append(now, txn, record),
            SimulatedOutput::Fire(p, sent) => {
                let sent = self.numbered(sent, txn);
                self.fires[p].append(created, txn, sent)
            }
            SimulatedOutput::Other(p, sent) => {
                let sent = self.numbered(sent, txn);
                self.others[p].append(created, txn, sent)
            }
        }
    }

    fn numbered(&mut self, sent: SimulatedSend, txn: Option<TxnId>) -> SimulatedSend {
        self.sent += 1;
        SimulatedSend { order: self.sent, txn, ..sent }
    }
}
