//! One partition of a topic, as Kafka keeps it: offsets that count markers too, transactions that
//! are open, committed or aborted, isolation, retention and compaction.
//!
//! Invariant: a `read_committed` reader never passes the first record of an open transaction.

use std::collections::HashMap;
use std::hash::Hash;

use orloj_core::model::{Millis, Offset, Timestamp};

/// A transaction of the cluster; its number is never used again.
pub(super) type TxnId = usize;

/// The state of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedTransactionState {
    Open,
    Committed,
    Aborted,
}

/// What a test of the checker does to a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tampering {
    /// It has changed it itself.
    Changed,
    Removed,
    /// It is appended once more, at the same time.
    Repeated,
}

/// What is at an offset.
#[derive(Debug)]
struct SimulatedLogSlot<T> {
    /// The broker's timestamp, in ms since the epoch.
    at: Timestamp,
    txn: Option<TxnId>,
    /// `None`: a marker, or compacted unavailable.
    record: Option<T>,
    /// When compaction may remove a tombstone: set by the first compaction that includes it.
    expires: Option<Timestamp>,
}

/// A partition of a topic. The index of a place is its offset.
#[derive(Debug)]
pub(super) struct SimulatedLog<T> {
    places: Vec<SimulatedLogSlot<T>>,
    /// The first offset that retention has left.
    pub(super) low: Offset,
    /// Open transactions, and where each begins here.
    open: Vec<(TxnId, Offset)>,
}

/// The result of a read.
#[derive(Debug)]
pub(super) struct SimulatedFetch<T> {
    /// Offset, broker timestamp and record.
    pub(super) records: Vec<(Offset, Timestamp, T)>,
    /// Where to continue.
    pub(super) next: Offset,
    /// There is nothing more to read now.
    pub(super) ended: bool,
}

impl<T> Default for SimulatedLog<T> {
    fn default() -> Self {
        Self { places: Vec::new(), low: 0, open: Vec::new() }
    }
}

impl<T: Clone> SimulatedLog<T> {
    pub(super) fn append(&mut self, at: Timestamp, txn: Option<TxnId>, record: T) -> Offset {
        let offset = self.high();
        if let Some(txn) = txn.filter(|txn| !self.open.iter().any(|(open, _)| open == txn)) {
            self.open.push((txn, offset));
        }
        self.places.push(SimulatedLogSlot { at, txn, record: Some(record), expires: None });
        offset
    }

    /// A transaction that wrote here ends: its marker takes an offset.
    pub(super) fn mark_end(&mut self, at: Timestamp, txn: TxnId) {
        self.open.retain(|(open, _)| *open != txn);
        self.places.push(SimulatedLogSlot { at, txn: None, record: None, expires: None });
    }

    /// An operator, or a leader that lacks the rest, cuts the log: it ends at `end` then. Returns
    /// the records that are lost.
    pub(super) fn cut(&mut self, end: Offset) -> Vec<T> {
        let lost = self.places.split_off(usize::try_from(end).unwrap());
        self.open.retain(|(_, first)| *first < end);
        lost.into_iter().filter_map(|place| place.record).collect()
    }

    /// The high watermark: the first offset that is not there.
    pub(super) fn high(&self) -> Offset {
        self.places.len() as Offset
    }

    /// The first offset from `low` on at which there is a record; the end offset if there is none.
    pub(super) fn first_record(&self) -> Offset {
        let low = usize::try_from(self.low).unwrap();
        let places = &self.places[low..];
        let empty = places.iter().position(|place| place.record.is_some()).unwrap_or(places.len());
        self.low + empty as Offset
    }

    /// What lies below was written at `at` or before.
    pub(super) fn written_until(&self, at: Timestamp) -> Offset {
        self.places.partition_point(|place| place.at <= at) as Offset
    }

    /// The offset of the first record of that time or later; the end offset if there is none.
    pub(super) fn offset_for_time(&self, time: Timestamp) -> Offset {
        let low = usize::try_from(self.low).unwrap();
        let places = &self.places[low..];
        let before = places.iter().position(|place| place.at >= time).unwrap_or(places.len());
        self.low + before as Offset
    }

    /// The last stable offset: a `read_committed` reader sees what lies below.
    pub(super) fn stable(&self) -> Offset {
        self.open.iter().map(|(_, first)| *first).min().unwrap_or_else(|| self.high())
    }

    /// At most `max` committed records from `from` on.
    pub(super) fn read(
        &self,
        transaction_states: &[SimulatedTransactionState],
        from: Offset,
        max: usize,
    ) -> SimulatedFetch<T> {
        let (mut next, stable) = (from.max(self.low), self.stable());
        let mut records = Vec::new();
        while next < stable && records.len() < max {
            let place = &self.places[usize::try_from(next).unwrap()];
            if let Some(record) = place.committed(transaction_states) {
                records.push((next, place.at, record.clone()));
            }
            next += 1;
        }
        SimulatedFetch { records, next, ended: next >= stable }
    }

    /// Everything that was ever committed, whatever retention has done since.
    pub(super) fn committed<'a>(
        &'a self,
        transaction_states: &'a [SimulatedTransactionState],
    ) -> impl Iterator<Item = (Offset, Timestamp, &'a T)> {
        let all = (0..).zip(&self.places);
        all.filter_map(|(offset, place)| {
            Some((offset, place.at, place.committed(transaction_states)?))
        })
    }

    /// Changes the first committed record for which `change` returns something. For the tests of
    /// the checker.
    pub(super) fn tamper(
        &mut self,
        transaction_states: &[SimulatedTransactionState],
        mut change: impl FnMut(&mut T) -> Option<Tampering>,
    ) -> bool {
        for at in 0..self.places.len() {
            if self.places[at].committed(transaction_states).is_none() {
                continue;
            }
            let Some(record) = &mut self.places[at].record else { continue };
            match change(record) {
                None => continue,
                Some(Tampering::Changed) => {}
                Some(Tampering::Removed) => self.places[at].record = None,
                Some(Tampering::Repeated) => {
                    let (record, at) = (record.clone(), self.places[at].at);
                    let _offset = self.append(at, None, record);
                }
            }
            return true;
        }
        false
    }

    /// Removes below `cut` what a newer record of its key below `cut` has superseded, what was
    /// aborted, and tombstones first seen by compaction more than `retention` ago. Returns how many
    /// records and how many tombstones were removed.
    pub(super) fn compact<K: Hash + Eq>(
        &mut self,
        transaction_states: &[SimulatedTransactionState],
        cut: Offset,
        now: Timestamp,
        retention: Millis,
        key: impl Fn(&T) -> (K, bool),
    ) -> (u64, u64) {
        let cut = usize::try_from(cut.min(self.stable())).unwrap();
        let mut newest = HashMap::new();
        for (at, place) in self.places[..cut].iter().enumerate() {
            if let Some(record) = place.committed(transaction_states) {
                let _older = newest.insert(key(record).0, at);
            }
        }
        let (mut superseded, mut expired) = (0, 0);
        for (at, place) in self.places[..cut].iter_mut().enumerate() {
            let Some(record) = &place.record else { continue };
            let aborted = place
                .txn
                .is_some_and(|txn| transaction_states[txn] == SimulatedTransactionState::Aborted);
            let (key, tombstone) = key(record);
            if aborted || newest.get(&key) != Some(&at) {
                (place.record, superseded) = (None, superseded + 1);
            } else if tombstone {
                let expires = *place.expires.get_or_insert(now + retention);
                if expires <= now {
                    (place.record, expired) = (None, expired + 1);
                }
            }
        }
        (superseded, expired)
    }
}

impl<T> SimulatedLogSlot<T> {
    fn committed(&self, transaction_states: &[SimulatedTransactionState]) -> Option<&T> {
        let settled = self
            .txn
            .is_none_or(|txn| transaction_states[txn] == SimulatedTransactionState::Committed);
        self.record.as_ref().filter(|_| settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(
        log: &SimulatedLog<char>,
        transaction_states: &[SimulatedTransactionState],
    ) -> Vec<Offset> {
        log.read(transaction_states, 0, 99).records.iter().map(|(offset, ..)| *offset).collect()
    }

    #[test]
    fn an_open_transaction_hides_what_follows_and_its_marker_takes_an_offset() {
        let mut log = SimulatedLog::default();
        let mut transaction_states =
            vec![SimulatedTransactionState::Open, SimulatedTransactionState::Open];
        log.append(1, None, 'a');
        log.append(2, Some(0), 'b');
        log.append(3, None, 'c');
        log.append(4, Some(1), 'd');
        assert_eq!((offsets(&log, &transaction_states), log.stable(), log.high()), (vec![0], 1, 4));
        transaction_states[0] = SimulatedTransactionState::Aborted;
        log.mark_end(5, 0);
        assert_eq!((offsets(&log, &transaction_states), log.stable()), (vec![0, 2], 3));
        transaction_states[1] = SimulatedTransactionState::Committed;
        log.mark_end(6, 1);
        assert_eq!((offsets(&log, &transaction_states), log.stable()), (vec![0, 2, 3], 6));
    }

    #[test]
    fn compaction_keeps_the_newest_and_forgets_tombstones_in_time() {
        let mut log = SimulatedLog::default();
        let transaction_states = [SimulatedTransactionState::Aborted];
        for (txn, record) in [(None, 'a'), (None, 'A'), (Some(0), 'b'), (None, 'b'), (None, 'B')] {
            log.append(0, txn, record);
        }
        log.mark_end(0, 0);
        let key = |record: &char| (record.to_ascii_lowercase(), record.is_uppercase());
        assert_eq!(log.compact(&transaction_states, 4, 10, 5, key), (2, 0));
        assert_eq!(
            offsets(&log, &transaction_states),
            [1, 3, 4],
            "the tombstone of b lies beyond the cut"
        );
        assert_eq!(log.compact(&transaction_states, 9, 15, 5, key), (1, 1));
        assert_eq!(offsets(&log, &transaction_states), [4]);
    }
}
