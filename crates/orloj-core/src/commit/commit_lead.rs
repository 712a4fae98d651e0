//! How long before their due time fires are sent. The transaction is committed at the due time.
//!
//! Invariant: the lead is no longer than the preparation of recent transactions took, so that no
//! transaction waits for its commit time while it contains late fires.
//!
//! Sending records, flushing and adding offsets precede the end of a transaction, and
//! read_committed readers get its records only after that end. Without a lead, the time for all of
//! that would be added to the lateness of every fire.

use std::time::Duration;

use crate::model::Millis;
use crate::model::time::whole_ms;

/// How many preparation times are kept. An exceptionally short one is forgotten after as many
/// transactions.
const SAMPLES: usize = 8;

/// Preparation times of the last transactions: from submission until only the commit was missing.
#[derive(Debug)]
pub(crate) struct CommitLead {
    samples: [Duration; SAMPLES],
    next: usize,
    max: Duration,
}

impl CommitLead {
    /// The lead is never longer than `max`. It is 0 until enough times are recorded.
    pub(crate) fn new(max: Duration) -> Self {
        Self { samples: [Duration::ZERO; SAMPLES], next: 0, max }
    }

    /// Records the preparation time of a transaction.
    pub(crate) fn record(&mut self, preparation: Duration) {
        self.samples[self.next] = preparation;
        self.next = (self.next + 1) % SAMPLES;
    }

    /// The shortest recorded time, in ms.
    pub(crate) fn get(&self) -> Millis {
        let shortest = self.samples.iter().min().copied().unwrap_or_default();
        whole_ms(shortest.min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(20);

    fn lead_after(preparations_us: impl IntoIterator<Item = u64>) -> Millis {
        let mut lead = CommitLead::new(MAX);
        preparations_us.into_iter().for_each(|us| lead.record(Duration::from_micros(us)));
        lead.get()
    }

    #[test]
    fn the_lead_is_the_shortest_recent_preparation_so_that_no_transaction_waits() {
        assert_eq!(lead_after([4_900; 7]), 0, "there are not enough samples");
        assert_eq!(lead_after([4_900; 8]), 4);
        assert_eq!(lead_after([9_000, 9_000, 2_100, 9_000, 9_000, 9_000, 9_000, 9_000]), 2);
    }

    #[test]
    fn a_short_preparation_is_forgotten_after_eight_others() {
        let short = std::iter::once(1_000);
        assert_eq!(lead_after(short.clone().chain([6_000; 7])), 1);
        assert_eq!(lead_after(short.chain([6_000; 8])), 6);
    }

    #[test]
    fn the_lead_of_large_transactions_is_limited() {
        assert_eq!(lead_after([2_000_000; 8]), 20);
    }
}
