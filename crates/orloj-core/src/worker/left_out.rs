//! Partitions for which a transaction has failed because they did not take a record: it was not
//! acknowledged in time, or refused whatever it contained.
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
pub(super) struct LeftOutPartitions(BTreeMap<PartitionId, LeftOut>);

#[derive(Debug, Default)]
struct LeftOut {
    /// How often in a row.
    failures: u32,
    /// It is left out until then, on the monotonic clock.
    until: Duration,
}

impl LeftOutPartitions {
    /// It has not taken a record, `now` on the monotonic clock.
    pub(super) fn on_failed(&mut self, partition: PartitionId, now: Duration) {
        let left_out = self.0.entry(partition).or_default();
        left_out.until = now + FIRST_PAUSE * 2_u32.pow(left_out.failures.min(DOUBLINGS_MAX));
        left_out.failures += 1;
    }

    /// A transaction with results of it is committed.
    pub(super) fn on_committed(&mut self, partition: PartitionId) {
        let _before = self.0.remove(&partition);
    }

    /// A transaction with changes of circuits is committed `now`, on the monotonic clock: they are
    /// records of any partition.
    pub(super) fn on_circuits_committed(&mut self, now: Duration) {
        self.0.retain(|_, left_out| now < left_out.until);
    }

    /// The partitions that are left out `now`, on the monotonic clock.
    pub(super) fn left_out(&self, now: Duration) -> impl Iterator<Item = PartitionId> {
        let all = self.0.iter();
        all.filter(move |(_, it)| now < it.until).map(|(partition, _)| *partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_left_out_for_longer_each_time_until_it_is_committed() {
        let (mut partitions, second) = (LeftOutPartitions::default(), Duration::from_secs(1));
        let left_out =
            |partitions: &LeftOutPartitions, now| -> Vec<_> { partitions.left_out(now).collect() };
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            partitions.on_failed(3, 100 * second);
            let until = (100 + seconds) * second;
            assert_eq!(left_out(&partitions, until - Duration::from_millis(1)), [3]);
            assert!(left_out(&partitions, until).is_empty());
        }
        partitions.on_committed(3);
        assert!(left_out(&partitions, 100 * second).is_empty());
    }

    #[test]
    fn a_partition_of_circuits_alone_is_forgotten_when_they_are_committed() {
        let (mut partitions, second) = (LeftOutPartitions::default(), Duration::from_secs(1));
        for _ in 0..3 {
            partitions.on_failed(7, second);
        }
        partitions.on_circuits_committed(4 * second);
        assert_eq!(partitions.left_out(4 * second).collect::<Vec<_>>(), [7], "it is left out");
        partitions.on_circuits_committed(5 * second);
        partitions.on_failed(7, 5 * second);
        assert_eq!(partitions.left_out(6 * second).count(), 0, "it begins again with a second");
    }
}
