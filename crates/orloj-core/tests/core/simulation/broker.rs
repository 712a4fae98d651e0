//! The cluster: every topic, the transaction coordinator, and the group.
//!
//! Invariant: it guarantees what Kafka guarantees and no more. A producer of an older epoch is
//! fenced; offsets of a transaction are stable only once it has ended; a transaction that stays
//! open too long is aborted, and its producer fenced.

use orloj_core::engine::cursor::Cursor;
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

use super::group::{Group, Membership};
use super::log::{SimulatedLog, SimulatedTransactionState, TxnId};

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

/// How far the inputs of a partition are decided: N of each topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SimulatedDecidedOffsets {
    pub(super) triggers: Offset,
    pub(super) signals: Offset,
    /// The owner's clock then.
    pub(super) clock: Timestamp,
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

/// A transactional producer: its id and its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Producer {
    pub(super) id: usize,
    epoch: u64,
}

/// Why a call of a transaction was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedProducerError {
    /// The producer has a successor, or its transaction took too long.
    Fenced,
    /// The group has a newer generation.
    Generation,
}

/// A commit for one partition: partition, offset, metadata.
pub(super) type SimulatedOffsetCommit = (usize, Offset, String);

#[derive(Debug, Default)]
struct Account {
    epoch: u64,
    open: Option<TxnId>,
}

#[derive(Debug)]
struct Txn {
    until: Timestamp,
    touched: Vec<(Topic, usize)>,
    offsets: Vec<SimulatedOffsetCommit>,
    /// What the clock of an owner showed when it committed.
    ended: Option<Timestamp>,
    /// How far each partition was decided before this transaction was committed.
    before: Vec<(usize, SimulatedDecidedOffsets)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topic {
    Triggers,
    Signals,
    Ledger,
    Fires,
    Others,
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
    decided: Vec<SimulatedDecidedOffsets>,
    txns: Vec<Txn>,
    accounts: Vec<Account>,
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
            txns: Vec::new(),
            accounts: Vec::new(),
        }
    }

    /// `init_transactions`: whatever an earlier producer of this id left open is aborted.
    pub(super) fn init(&mut self, id: usize) -> Producer {
        while self.accounts.len() <= id {
            self.accounts.push(Account::default());
        }
        if let Some(txn) = self.accounts[id].open.take() {
            self.end_transaction(txn, SimulatedTransactionState::Aborted);
        }
        self.accounts[id].epoch += 1;
        Producer { id, epoch: self.accounts[id].epoch }
    }

    /// A record outside of any transaction.
    pub(super) fn write(&mut self, record: SimulatedOutput) -> Offset {
        self.append(record, None).1
    }

    /// A record in the open transaction of `by`; the first one begins it.
    pub(super) fn send(
        &mut self,
        by: Producer,
        record: SimulatedOutput,
    ) -> Result<(), SimulatedProducerError> {
        let txn = self.open_of(by)?;
        let (place, _) = self.append(record, Some(txn));
        let touched = &mut self.txns[txn].touched;
        if !touched.contains(&place) {
            touched.push(place);
        }
        Ok(())
    }

    /// Offsets that count once the transaction commits.
    pub(super) fn send_offsets(
        &mut self,
        by: Producer,
        offsets: &[SimulatedOffsetCommit],
        membership: &Membership,
    ) -> Result<(), SimulatedProducerError> {
        let txn = self.open_of(by)?;
        if !self.group.accepts(membership) {
            return Err(SimulatedProducerError::Generation);
        }
        self.txns[txn].offsets.extend_from_slice(offsets);
        Ok(())
    }

    /// Offsets outside of any transaction, as a plain consumer commits them.
    pub(super) fn commit_offsets(
        &mut self,
        offsets: &[SimulatedOffsetCommit],
        membership: &Membership,
    ) {
        if self.group.accepts(membership) {
            self.store_offsets(offsets.to_vec());
        }
    }

    /// Commits or aborts what is open.
    pub(super) fn end(
        &mut self,
        by: Producer,
        state: SimulatedTransactionState,
    ) -> Result<(), SimulatedProducerError> {
        let txn = self.open_of(by)?;
        self.accounts[by.id].open = None;
        self.end_transaction(txn, state);
        Ok(())
    }

    /// Commits what an owner has open, whose clock shows `clock`.
    ///
    /// Returns of how many partitions it contains the offset.
    pub(super) fn commit(
        &mut self,
        by: Producer,
        clock: Timestamp,
    ) -> Result<u64, SimulatedProducerError> {
        let txn = self.open_of(by)?;
        self.txns[txn].ended = Some(clock);
        let offsets = self.txns[txn].offsets.len() as u64;
        self.end(by, SimulatedTransactionState::Committed)?;
        Ok(offsets)
    }

    /// What the clock of the owner showed that committed this.
    pub(super) fn committed_at(&self, sent: &SimulatedSend) -> Option<Timestamp> {
        self.txns[sent.txn?].ended
    }

    /// How far partition `p` had decided its inputs before the step that wrote this.
    pub(super) fn decided_before(&self, p: usize, sent: &SimulatedSend) -> SimulatedDecidedOffsets {
        let before = sent.txn.map_or(&[][..], |txn| &self.txns[txn].before);
        before
            .iter()
            .find(|(of, _)| *of == p)
            .map_or_else(Default::default, |(_, decided)| *decided)
    }

    /// The time jumps.
    pub(super) fn jump(&mut self, to: Timestamp) {
        let length = to.saturating_sub(self.now);
        self.jumped += length;
        self.now += length;
    }

    /// Whether a transaction is open.
    pub(super) fn is_busy(&self) -> bool {
        self.accounts.iter().any(|account| account.open.is_some())
    }

    /// Aborts transactions that took too long; returns how many.
    pub(super) fn expire_transactions(&mut self) -> u64 {
        let mut expired = 0;
        for id in 0..self.accounts.len() {
            let open = self.accounts[id].open;
            if let Some(txn) = open.filter(|txn| self.txns[*txn].until <= self.now) {
                self.accounts[id].open = None;
                self.accounts[id].epoch += 1;
                self.end_transaction(txn, SimulatedTransactionState::Aborted);
                expired += 1;
            }
        }
        expired
    }

    /// What a new owner requests first. `None`: an earlier transaction with an offset of this
    /// partition is undecided, so there is no stable answer yet.
    pub(super) fn stable_offset(&self, partition: usize) -> Option<PartitionOffsets> {
        let pending = |txn: &TxnId| self.txns[*txn].offsets.iter().any(|(p, ..)| *p == partition);
        if self.accounts.iter().filter_map(|account| account.open).any(|txn| pending(&txn)) {
            return None;
        }
        Some(self.offset(partition))
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
        }
    }

    fn open_of(&mut self, by: Producer) -> Result<TxnId, SimulatedProducerError> {
        let account = &mut self.accounts[by.id];
        if account.epoch != by.epoch {
            return Err(SimulatedProducerError::Fenced);
        }
        let next = self.transaction_states.len();
        let txn = *account.open.get_or_insert(next);
        if txn == next {
            let until = self.now + self.transaction_timeout;
            self.transaction_states.push(SimulatedTransactionState::Open);
            let (touched, offsets) = (Vec::new(), Vec::new());
            self.txns.push(Txn { until, touched, offsets, ended: None, before: Vec::new() });
        }
        Ok(txn)
    }

    fn end_transaction(&mut self, txn: TxnId, state: SimulatedTransactionState) {
        self.transaction_states[txn] = state;
        let (touched, offsets) = {
            let txn = &mut self.txns[txn];
            (std::mem::take(&mut txn.touched), std::mem::take(&mut txn.offsets))
        };
        for (topic, p) in touched {
            match topic {
                Topic::Triggers => self.triggers[p].mark_end(self.now, txn),
                Topic::Signals => self.signals[p].mark_end(self.now, txn),
                Topic::Ledger => self.ledger[p].mark_end(self.now, txn),
                Topic::Fires => self.fires[p].mark_end(self.now, txn),
                Topic::Others => self.others[p].mark_end(self.now, txn),
            }
        }
        if state == SimulatedTransactionState::Committed {
            self.note_decided(txn, &offsets);
            self.store_offsets(offsets);
        }
    }

    /// Remembers how far the partitions were decided before, and are now.
    fn note_decided(&mut self, txn: TxnId, offsets: &[SimulatedOffsetCommit]) {
        let clock = self.txns[txn].ended.unwrap_or(self.now);
        for (p, offset, metadata) in offsets {
            let Ok((cursor, _owner)) = Cursor::from_metadata(*offset, metadata) else { continue };
            let now = SimulatedDecidedOffsets {
                triggers: cursor.next_offset,
                signals: cursor.next_signal_offset,
                clock,
            };
            let before = std::mem::replace(&mut self.decided[*p], now);
            self.txns[txn].before.push((*p, before));
        }
    }

    fn store_offsets(&mut self, offsets: Vec<SimulatedOffsetCommit>) {
        for (partition, offset, metadata) in offsets {
            self.group.committed[partition] = Some((offset, metadata));
        }
    }

    fn append(&mut self, record: SimulatedOutput, txn: Option<TxnId>) -> ((Topic, usize), Offset) {
        let now = self.now;
        match record {
            SimulatedOutput::Trigger(p, raw) => {
                ((Topic::Triggers, p), self.triggers[p].append(now, txn, raw))
            }
            SimulatedOutput::Signal(p, signal) => {
                ((Topic::Signals, p), self.signals[p].append(now, txn, signal))
            }
            SimulatedOutput::Ledger(p, record) => {
                ((Topic::Ledger, p), self.ledger[p].append(now, txn, record))
            }
            SimulatedOutput::Fire(p, sent) => {
                let sent = self.numbered(sent, txn);
                ((Topic::Fires, p), self.fires[p].append(now, txn, sent))
            }
            SimulatedOutput::Other(p, sent) => {
                let sent = self.numbered(sent, txn);
                ((Topic::Others, p), self.others[p].append(now, txn, sent))
            }
        }
    }
}

impl SimulatedBroker {
    fn numbered(&mut self, sent: SimulatedSend, txn: Option<TxnId>) -> SimulatedSend {
        self.sent += 1;
        SimulatedSend { order: self.sent, txn, ..sent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::rng::SimulationRng;

    fn raw() -> SimulatedRawRecord {
        SimulatedRawRecord { key: Bytes::from_static(b"t"), value: None, headers: Vec::new() }
    }

    #[test]
    fn a_successor_fences_a_producer_and_aborts_what_it_left_open() {
        let mut broker = SimulatedBroker::new(1, 0, 10);
        let old = broker.init(0);
        broker.send(old, SimulatedOutput::Trigger(0, raw())).unwrap();
        let new = broker.init(0);
        assert_eq!(
            broker.end(old, SimulatedTransactionState::Committed),
            Err(SimulatedProducerError::Fenced)
        );
        broker.send(new, SimulatedOutput::Trigger(0, raw())).unwrap();
        assert_eq!(broker.end(new, SimulatedTransactionState::Committed), Ok(()));
        let offsets: Vec<_> =
            broker.triggers[0].committed(&broker.transaction_states).map(|r| r.0).collect();
        assert_eq!(offsets, [2], "the first is aborted, its marker takes an offset");
    }

    #[test]
    fn offsets_count_with_their_transaction_and_are_unstable_until_then() {
        let mut broker = SimulatedBroker::new(1, 0, 10);
        let member = broker.group.join(0, &mut SimulationRng::new(1));
        let producer = broker.init(0);
        let progress = [(0, 7, "m".to_owned())];
        broker.send_offsets(producer, &progress, &member).unwrap();
        assert!(broker.stable_offset(0).is_none());
        assert_eq!(broker.offset(0).committed, None);
        broker.end(producer, SimulatedTransactionState::Committed).unwrap();
        assert_eq!(broker.stable_offset(0).unwrap().committed, Some((7, "m".to_owned())));
        broker.group.rebalance(&mut SimulationRng::new(1));
        let refused = broker.send_offsets(producer, &progress, &member);
        assert_eq!(refused, Err(SimulatedProducerError::Generation));
        broker.now = 10;
        assert_eq!(broker.expire_transactions(), 1);
        assert_eq!(
            broker.end(producer, SimulatedTransactionState::Committed),
            Err(SimulatedProducerError::Fenced)
        );
    }
}
