//! The transaction coordinator: epochs, what is open, and the markers that end a transaction in
//! each partition that it has written.
//!
//! Invariant: a transaction is decided at one moment, and each partition shows that only after its
//! marker was written; so do committed offsets. Of two transactions the offset that was sent later
//! counts, in whatever order their markers are written.

use orloj_core::engine::cursor::Cursor;
use orloj_core::engine::takeover::PartitionOffsets;
use orloj_core::model::Timestamp;

use super::broker::{ClientRecord, SimulatedBroker, SimulatedOutput};
use super::group::Membership;
use super::log::{SimulatedTransactionState, TxnId};
use super::rng::SimulationRng;
use super::transaction::{
    Account, LogPlace, OFFSETS, PendingMarker, Producer, SimulatedDecidedOffsets,
    SimulatedOffsetCommit, SimulatedProducerError, TRANSACTIONS, Topic, TransactionCoordinator,
    Txn,
};

impl SimulatedBroker {
    /// `init_transactions`: what an earlier producer of this id left open is aborted. It returns
    /// when the markers are written.
    pub(super) fn init(&mut self, id: usize) -> Result<Producer, SimulatedProducerError> {
        if !self.has_leader(TRANSACTIONS) {
            return Err(SimulatedProducerError::Unavailable);
        }
        let accounts = &mut self.coordinator.accounts;
        while accounts.len() <= id {
            accounts.push(Account::default());
        }
        accounts[id].epoch += 1;
        let epoch = accounts[id].epoch;
        if let Some(txn) = accounts[id].open.take() {
            self.end_transaction(id, txn, SimulatedTransactionState::Aborted);
        }
        self.finish_markers(id)?;
        Ok(Producer { id, epoch })
    }

    /// A record in the open transaction of `by`; the first one begins it.
    pub(super) fn send(
        &mut self,
        by: Producer,
        output: SimulatedOutput,
    ) -> Result<(), SimulatedProducerError> {
        self.send_created(by, ClientRecord { created: self.now, output })
    }

    /// A record with the time at which the client has created it.
    pub(super) fn send_created(
        &mut self,
        by: Producer,
        ClientRecord { created, output: record }: ClientRecord,
    ) -> Result<(), SimulatedProducerError> {
        let place = record.place();
        if !self.has_leader(place) {
            return Err(SimulatedProducerError::Unavailable);
        }
        let txn = self.open_of(by)?;
        let _offset = self.append(record, Some(txn), created);
        let touched = &mut self.coordinator.txns[txn].touched;
        if !touched.contains(&place) {
            touched.push(place);
        }
        Ok(())
    }

    /// Adds a partition of a target, which has no leader until `until`, to the open transaction of
    /// `by`: the transaction ends there, and so as a whole, only then.
    pub(super) fn add_leaderless(
        &mut self,
        by: Producer,
        until: Timestamp,
    ) -> Result<(), SimulatedProducerError> {
        let txn = self.open_of(by)?;
        self.coordinator.added_leaderless += 1;
        let place = (Topic::Leaderless, self.coordinator.added_leaderless);
        self.lose_leader(place, until);
        self.coordinator.txns[txn].touched.push(place);
        Ok(())
    }

    /// Late records: they join the open transaction of `by`, and do not begin one.
    pub(super) fn send_rest(
        &mut self,
        by: Producer,
        records: Vec<ClientRecord>,
    ) -> Result<(), SimulatedProducerError> {
        if !self.is_open(by) {
            return Err(SimulatedProducerError::NotOpen);
        }
        records.into_iter().try_for_each(|record| self.send_created(by, record))
    }

    /// Offsets that count once the transaction commits.
    pub(super) fn send_offsets(
        &mut self,
        by: Producer,
        offsets: &[SimulatedOffsetCommit],
        membership: &Membership,
    ) -> Result<(), SimulatedProducerError> {
        if !self.has_leader(OFFSETS) {
            return Err(SimulatedProducerError::Unavailable);
        }
        let txn = self.open_of(by)?;
        if !self.group.accepts(membership) {
            return Err(SimulatedProducerError::Generation);
        }
        let number = self.coordinator.next_offset_number();
        let offsets = offsets.iter().map(|offset| (offset.clone(), number));
        self.coordinator.txns[txn].offsets.extend(offsets);
        Ok(())
    }

    /// Commits or aborts what is open.
    pub(super) fn end(
        &mut self,
        by: Producer,
        state: SimulatedTransactionState,
    ) -> Result<(), SimulatedProducerError> {
        let txn = self.open_of(by)?;
        self.coordinator.accounts[by.id].open = None;
        self.end_transaction(by.id, txn, state);
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
        self.coordinator.txns[txn].ended = Some(clock);
        let offsets = self.coordinator.txns[txn].offsets.len() as u64;
        self.end(by, SimulatedTransactionState::Committed)?;
        Ok(offsets)
    }

    /// Whether `by` has an open transaction: a late record of one that has ended is refused.
    pub(super) fn is_open(&self, by: Producer) -> bool {
        let account = &self.coordinator.accounts[by.id];
        account.epoch == by.epoch && account.open.is_some()
    }

    /// Whether a transaction is open, or its markers are not all written.
    pub(super) fn is_busy(&self) -> bool {
        let coordinator = &self.coordinator;
        let is_open = coordinator.accounts.iter().any(|account| account.open.is_some());
        is_open || !coordinator.markers.is_empty()
    }

    /// Aborts transactions that took too long; returns how many.
    pub(super) fn expire_transactions(&mut self) -> u64 {
        if !self.has_leader(TRANSACTIONS) {
            return 0;
        }
        let mut expired = 0;
        for id in 0..self.coordinator.accounts.len() {
            let open = self.coordinator.accounts[id].open;
            if let Some(txn) = open.filter(|txn| self.coordinator.txns[*txn].until <= self.now) {
                self.coordinator.accounts[id].open = None;
                self.coordinator.accounts[id].epoch += 1;
                self.end_transaction(id, txn, SimulatedTransactionState::Aborted);
                expired += 1;
            }
        }
        expired
    }

    /// What a new owner requests first. `None`: an earlier transaction with an offset of this
    /// partition is undecided, or its marker is not written, so there is no stable answer yet.
    pub(super) fn stable_offset(&self, partition: usize) -> Option<PartitionOffsets> {
        let TransactionCoordinator { txns, accounts, markers, .. } = &self.coordinator;
        let pending = |txn: TxnId| txns[txn].offsets.iter().any(|((p, ..), _)| *p == partition);
        let is_marked = |marker: &PendingMarker| marker.place == OFFSETS && pending(marker.txn);
        let is_open = accounts.iter().filter_map(|account| account.open).any(pending);
        (!is_open && !markers.iter().any(is_marked)).then(|| self.offset(partition))
    }

    /// A partition has no leader until `until`.
    pub(super) fn lose_leader(&mut self, place: LogPlace, until: Timestamp) {
        let _before = self.coordinator.leaderless.insert(place, until);
    }

    /// All partitions have leaders, and markers are written at once.
    pub(super) fn restore_leaders(&mut self) {
        self.coordinator.leaderless.clear();
        self.coordinator.delays_markers = false;
        self.write_markers(|_| true);
    }

    pub(super) fn has_leader(&self, place: LogPlace) -> bool {
        self.coordinator.leaderless.get(&place).is_none_or(|until| *until <= self.now)
    }

    /// Writes some of the markers. Returns whether that was a part of a transaction's.
    pub(super) fn write_some_markers(&mut self, rng: &mut SimulationRng) -> bool {
        let before = self.coordinator.markers.len();
        self.write_markers(|_| rng.one_in(3));
        let left = self.coordinator.markers.len();
        0 < left && left < before
    }

    /// Writes the markers of an account; one that has no leader is waited for.
    fn finish_markers(&mut self, account: usize) -> Result<(), SimulatedProducerError> {
        self.write_markers(|marker| marker.account == account);
        let is_left = self.coordinator.markers.iter().any(|marker| marker.account == account);
        if is_left { Err(SimulatedProducerError::Unavailable) } else { Ok(()) }
    }

    fn write_markers(&mut self, mut is_next: impl FnMut(&PendingMarker) -> bool) {
        let mut left = Vec::new();
        for marker in std::mem::take(&mut self.coordinator.markers) {
            if self.has_leader(marker.place) && is_next(&marker) {
                self.write_marker(marker);
            } else {
                left.push(marker);
            }
        }
        self.coordinator.markers = left;
    }

    fn write_marker(&mut self, PendingMarker { txn, place: (topic, p), .. }: PendingMarker) {
        let now = self.now;
        match topic {
            Topic::Triggers => self.triggers[p].mark_end(now, txn),
            Topic::Signals => self.signals[p].mark_end(now, txn),
            Topic::Ledger => self.ledger[p].mark_end(now, txn),
            Topic::Fires => self.fires[p].mark_end(now, txn),
            Topic::Others => self.others[p].mark_end(now, txn),
            Topic::Offsets => {
                let offsets = std::mem::take(&mut self.coordinator.txns[txn].offsets);
                if self.transaction_states[txn] == SimulatedTransactionState::Committed {
                    for (offset, number) in offsets {
                        self.store_offsets(vec![offset], number);
                    }
                }
            }
            Topic::Leaderless => {}
            Topic::Transactions => unreachable!("it has no markers"),
        }
    }

    /// The open transaction of a producer. The markers of its previous one are written before the
    /// next one starts.
    fn open_of(&mut self, by: Producer) -> Result<TxnId, SimulatedProducerError> {
        if self.coordinator.accounts[by.id].epoch != by.epoch {
            return Err(SimulatedProducerError::Fenced);
        }
        if !self.has_leader(TRANSACTIONS) {
            return Err(SimulatedProducerError::Unavailable);
        }
        if let Some(txn) = self.coordinator.accounts[by.id].open {
            return Ok(txn);
        }
        self.finish_markers(by.id)?;
        let txn = self.transaction_states.len();
        self.coordinator.accounts[by.id].open = Some(txn);
        let until = self.now + self.transaction_timeout;
        self.transaction_states.push(SimulatedTransactionState::Open);
        let (touched, offsets) = (Vec::new(), Vec::new());
        self.coordinator.txns.push(Txn {
            until,
            touched,
            offsets,
            ended: None,
            decided: Vec::new(),
        });
        Ok(txn)
    }

    fn end_transaction(&mut self, account: usize, txn: TxnId, state: SimulatedTransactionState) {
        self.transaction_states[txn] = state;
        let mut places = std::mem::take(&mut self.coordinator.txns[txn].touched);
        if !self.coordinator.txns[txn].offsets.is_empty() {
            places.push(OFFSETS);
        }
        if state == SimulatedTransactionState::Committed {
            self.note_decided(txn);
        }
        let markers = places.into_iter().map(|place| PendingMarker { account, txn, place });
        self.coordinator.markers.extend(markers);
        if !self.coordinator.delays_markers {
            self.write_markers(|_| true);
        }
    }

    /// Remembers how far the partitions were decided before, and are now.
    fn note_decided(&mut self, txn: TxnId) {
        let txn = &mut self.coordinator.txns[txn];
        let clock = txn.ended.unwrap_or(self.now);
        for ((p, offset, metadata), _) in &txn.offsets {
            let Ok((cursor, _owner)) = Cursor::from_metadata(*offset, metadata) else { continue };
            let now = SimulatedDecidedOffsets {
                triggers: cursor.next_offset,
                signals: cursor.next_signal_offset,
                clock,
            };
            let before = std::mem::replace(&mut self.decided[*p], now);
            txn.decided.push((*p, [before, now]));
        }
    }

    /// Stores committed offsets with this number, unless a newer one is stored.
    pub(super) fn store_offsets(&mut self, offsets: Vec<SimulatedOffsetCommit>, number: u64) {
        for (partition, offset, metadata) in offsets {
            let stored = &mut self.coordinator.stored[partition];
            if *stored <= number {
                *stored = number;
                self.group.committed[partition] = Some((offset, metadata));
            }
        }
    }
}
#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::simulation::broker::SimulatedRawRecord;

    fn raw() -> SimulatedRawRecord {
        SimulatedRawRecord { key: Bytes::from_static(b"t"), value: None, headers: Vec::new() }
    }

    #[test]
    fn a_successor_fences_a_producer_and_aborts_what_it_left_open() {
        let mut broker = SimulatedBroker::new(1, 0, 10);
        let old = broker.init(0).unwrap();
        broker.send(old, SimulatedOutput::Trigger(0, raw())).unwrap();
        let new = broker.init(0).unwrap();
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
        let producer = broker.init(0).unwrap();
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
