//! Whether the group has assigned partitions to this worker, and whether they can be read.
//!
//! Invariant: pure, time is an argument. What can be read after an error of the brokers is decided
//! in [`crate::read_recovery`].

use std::time::Duration;

use crate::model::PartitionId;
use crate::read_recovery::ReadRecovery;

/// What makes a worker not ready, beside partitions whose committed progress is not known yet.
#[derive(Debug)]
pub(crate) struct WorkerReadiness {
    /// The group has assigned partitions; none, if it has more members than partitions.
    is_assigned: bool,
    /// Of fires. The question is about the committed progress of a partition, and the bounds of its
    /// log.
    pub(crate) reading: ReadRecovery<PartitionId>,
}

impl WorkerReadiness {
    /// A worker without an assignment. An answer to a fetch takes at most `fetch_timeout`.
    pub(crate) fn new(fetch_timeout: Duration) -> Self {
        let reading = ReadRecovery::new(Duration::ZERO, fetch_timeout * 2).with_questions();
        Self { is_assigned: false, reading }
    }

    /// The group has assigned partitions, or none.
    pub(crate) fn assigned(&mut self) {
        self.is_assigned = true;
    }

    /// Nothing is assigned until the group assigns again.
    pub(crate) fn unassigned(&mut self) {
        self.is_assigned = false;
    }

    /// Why the worker is not ready. `is_member`: its client is the member that was assigned.
    pub(crate) fn reason(&self, is_member: bool, now: Duration) -> Option<String> {
        if !self.is_assigned || !is_member {
            return Some("no group assignment".to_owned());
        }
        self.reading.reason(now).map(|error| format!("fires cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_recovery::FAILURE_MAX;

    const NOW: Duration = Duration::from_secs(1_000);
    const FETCH_TIMEOUT: Duration = Duration::from_secs(3);

    #[test]
    fn a_worker_is_ready_without_partitions_only_if_the_group_has_assigned_none() {
        let (mut readiness, now) = (WorkerReadiness::new(FETCH_TIMEOUT), NOW);
        let reason = Some("no group assignment".to_owned());
        assert_eq!(readiness.reason(true, now), reason);
        readiness.assigned();
        assert_eq!(readiness.reason(true, now), None);
        assert_eq!(readiness.reason(false, now), reason, "it was expelled");
        readiness.unassigned();
        assert_eq!(readiness.reason(true, now), reason);
    }

    #[test]
    fn a_worker_is_not_ready_until_every_partition_of_its_fires_was_read_after_an_error() {
        let (mut readiness, later) = (WorkerReadiness::new(FETCH_TIMEOUT), NOW + FAILURE_MAX);
        readiness.assigned();
        readiness.reading.on_error(&"denied", [1, 2], NOW);
        assert_eq!(readiness.reading.next_reads(NOW), [1, 2], "at once");
        assert!(readiness.reading.next_question(NOW), "and the brokers are asked");
        readiness.reading.on_answer(Ok::<_, &str>(()), NOW);
        readiness.reading.on_read(1);
        assert_eq!(readiness.reason(true, NOW), None);
        let reason = Some("fires cannot be read: denied".to_owned());
        assert_eq!(readiness.reason(true, later), reason, "2 has returned nothing");
        readiness.reading.on_read(2);
        assert_eq!(readiness.reason(true, later), None);
    }
}
