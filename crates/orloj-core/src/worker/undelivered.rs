//! Partitions for which a transaction has failed because they did not acknowledge a record in time.
//!
//! Invariant: the results of such a partition, and changes of circuits, are left out of
//! transactions for a while that doubles, so that the other partitions are committed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::PartitionId;

/// How long a partition is left out for the first time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// So often the pause doubles: up to 64 s.
const DOUBLINGS_MAX: u32 = 6;

/// The partitions that are left out.
#[derive(Debug, Default)]
pub(super) struct UndeliveredPartitions(BTreeMap<PartitionId, Undelivered>);

#[derive(Debug, Default)]
struct Undelivered {
    /// How often in a row.
    failures: u32,
    /// It is left out until then, on the monotonic clock.
    until: Duration,
}

impl UndeliveredPartitions {
    /// It has not acknowledged a record, `now` on the monotonic clock.
    pub(super) fn on_failed(&mut self, partition: PartitionId, now: Duration) {
        let undelivered = self.0.entry(partition).or_default();
        undelivered.until = now + FIRST_PAUSE * 2_u32.pow(undelivered.failures.min(DOUBLINGS_MAX));
        undelivered.failures += 1;
    }

    /// A transaction with results of it is committed.
    pub(super) fn on_committed(&mut self, partition: PartitionId) {
        let _before = self.0.remove(&partition);
    }

    /// Whether it is left out `now`, on the monotonic clock.
    pub(super) fn is_left_out(&self, partition: PartitionId, now: Duration) -> bool {
        self.0.get(&partition).is_some_and(|undelivered| now < undelivered.until)
    }

    /// Whether none has failed since it was committed last.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_left_out_for_longer_each_time_until_it_is_committed() {
        let (mut partitions, second) = (UndeliveredPartitions::default(), Duration::from_secs(1));
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            partitions.on_failed(3, 100 * second);
            assert!(partitions.is_left_out(3, (100 + seconds) * second - Duration::from_millis(1)));
            assert!(!partitions.is_left_out(3, (100 + seconds) * second));
        }
        assert!(!partitions.is_left_out(4, 100 * second) && !partitions.is_empty());
        partitions.on_committed(3);
        assert!(!partitions.is_left_out(3, 100 * second) && partitions.is_empty());
    }
}
