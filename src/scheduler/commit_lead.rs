//! How far ahead of their time fires are sent, in a transaction that is committed at their time.
//!
//! Invariant: no further than the transactions of late took to get ready, so that none has to wait
//! for its time, with late fires in it.
//!
//! Records, flush and offsets come before the end of a transaction, and readers of committed
//! records see nothing of it until that end. A transaction that starts only when something is due
//! adds all of that to how late it is.

use std::time::Duration;

use super::ms;
use crate::model::Millis;

/// Transactions that are remembered. One that was quick by chance is forgotten after as many.
const REMEMBERED: usize = 8;

/// How long the last transactions took from their launch until only their end was missing.
#[derive(Debug)]
pub(super) struct CommitLead {
    took: [Duration; REMEMBERED],
    next: usize,
    max: Duration,
}

impl CommitLead {
    /// Never more than `most`. Nothing is known yet, so fires begin at their time.
    pub(super) fn new(max: Duration) -> Self {
        Self { took: [Duration::ZERO; REMEMBERED], next: 0, max }
    }

    /// A transaction took so long to get ready.
    pub(super) fn record(&mut self, took: Duration) {
        self.took[self.next] = took;
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// The shortest of them, in ms.
    pub(super) fn get(&self) -> Millis {
        let shortest = self.took.iter().min().copied().unwrap_or_default();
        ms(shortest.min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(20);

    fn after(took_us: impl IntoIterator<Item = u64>) -> Millis {
        let mut lead = CommitLead::new(MAX);
        took_us.into_iter().for_each(|us| lead.record(Duration::from_micros(us)));
        lead.get()
    }

    #[test]
    fn the_lead_is_the_shortest_recent_preparation_so_that_no_transaction_waits() {
        assert_eq!(after([4_900; 7]), 0, "too little is known");
        assert_eq!(after([4_900; 8]), 4);
        assert_eq!(after([9_000, 9_000, 2_100, 9_000, 9_000, 9_000, 9_000, 9_000]), 2);
    }

    #[test]
    fn a_quick_transaction_is_forgotten_after_eight_others() {
        let quick = std::iter::once(1_000);
        assert_eq!(after(quick.clone().chain([6_000; 7])), 1);
        assert_eq!(after(quick.chain([6_000; 8])), 6);
    }

    #[test]
    fn large_transactions_do_not_send_everything_early() {
        assert_eq!(after([2_000_000; 8]), 20);
    }
}
