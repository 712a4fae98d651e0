//! Which of two producers begins the next transaction, and whether it first asks who leads what.
//!
//! Invariant: they take turns, unless the last transaction was in progress while a broker was
//! replaced. The transaction before that one may then not be ended yet: its markers may have been
//! sent to a broker that does not answer, and the transaction coordinator waits for it, for as long
//! as `request.timeout.ms` of the brokers. So the producer of the last one begins the next ones,
//! too, until that time is over. After a transaction that took long both ask first: what the last
//! one did not use in that transaction it may know no better than the other one.

use std::time::{Duration, Instant};

/// After a transaction that took longer, brokers may have been replaced, and the producers may not
/// know it: what they would send to one that does not answer waits for `timeouts.request`.
const SLOW_TRANSACTION: Duration = Duration::from_secs(1);
/// A transaction that took longer may have waited until a broker was replaced.
const REPLACED_AFTER: Duration = Duration::from_secs(4);
/// For how long brokers wait for one that does not answer: the default of their
/// `request.timeout.ms`, and a second.
const MARKERS_WAIT: Duration = Duration::from_secs(31);

/// The turns of two producers.
#[derive(Debug)]
pub(super) struct ProducerTurns {
    /// The producer of the last transaction.
    current: usize,
    /// Which may not know who leads what.
    is_stale: [bool; 2],
    /// When the last transaction began.
    began: Instant,
    /// When the last transaction of each ended.
    ended: [Instant; 2],
    /// The other producer has no turn until its markers are written.
    stays: bool,
}

impl ProducerTurns {
    /// `is_stale`: what the producers know may be old.
    pub(super) fn new(is_stale: bool, now: Instant) -> Self {
        Self { current: 0, is_stale: [is_stale; 2], began: now, ended: [now; 2], stays: false }
    }

    /// The producer of the next transaction, and whether it may not know who leads what.
    pub(super) fn next(&mut self, now: Instant) -> (usize, bool) {
        let other = self.current ^ 1;
        self.stays &= now - self.ended[other] < MARKERS_WAIT;
        if !self.stays {
            self.current = other;
        }
        (self.current, std::mem::take(&mut self.is_stale[self.current]))
    }

    /// Its transaction begins.
    pub(super) fn on_begin(&mut self, now: Instant) {
        self.began = now;
    }

    /// The transaction is committed, or aborted.
    pub(super) fn on_ended(&mut self, now: Instant) {
        self.ended[self.current] = now;
        let took = now - self.began;
        if took >= SLOW_TRANSACTION {
            self.is_stale = [true; 2];
        }
        self.stays |= took >= REPLACED_AFTER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const MS: Duration = Duration::from_millis(1);

    /// The producers of the next three transactions, and whether they are stale.
    fn next_three(turns: &mut ProducerTurns, now: Instant) -> [(usize, bool); 3] {
        std::array::from_fn(|_| turns.next(now))
    }

    #[test]
    fn the_producers_take_turns() {
        let now = clock::monotonic();
        let fresh = next_three(&mut ProducerTurns::new(false, now), now);
        assert_eq!(fresh, [(1, false), (0, false), (1, false)]);
        let stale = next_three(&mut ProducerTurns::new(true, now), now);
        assert_eq!(stale, [(1, true), (0, true), (1, false)]);
    }

    #[test]
    fn after_a_slow_transaction_both_producers_ask_who_leads_what() {
        let now = clock::monotonic();
        let mut turns = ProducerTurns::new(false, now);
        let _first = turns.next(now);
        turns.on_begin(now);
        turns.on_ended(now + SLOW_TRANSACTION - MS);
        assert_eq!(turns.next(now), (0, false));
        turns.on_begin(now);
        turns.on_ended(now + SLOW_TRANSACTION);
        assert_eq!(next_three(&mut turns, now), [(1, true), (0, true), (1, false)]);
    }

    #[test]
    fn after_a_broker_was_replaced_the_producer_whose_markers_may_be_stuck_has_no_turn() {
        let began = clock::monotonic();
        let mut turns = ProducerTurns::new(false, began);
        let _first = turns.next(began);
        turns.on_begin(began);
        turns.on_ended(began + REPLACED_AFTER);
        for is_stale in [true, false] {
            let now = began + MARKERS_WAIT - MS;
            assert_eq!(turns.next(now), (1, is_stale));
            turns.on_begin(now);
            turns.on_ended(now);
        }
        let after = next_three(&mut turns, began + MARKERS_WAIT);
        assert_eq!(after, [(0, true), (1, false), (0, false)]);
    }
}
