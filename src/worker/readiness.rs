//! Whether the group has assigned partitions to this worker, and whether they can be read.
//!
//! Invariant: pure, time is an argument. The client reports an error of the brokers once, however
//! long it lasts, and does not report its end. So after an error every partition is read again from
//! where it was, at intervals, until it has returned a record or its end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::model::PartitionId;

/// Pause between two attempts to read.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);
/// With more failed attempts in a row the worker is not ready. A partition has another leader
/// within seconds.
const FAILED_ATTEMPTS_MAX: u32 = 5;

/// What makes a worker not ready, beside partitions whose committed progress is not known yet.
#[derive(Debug, Default)]
pub(super) struct WorkerReadiness {
    /// The group has assigned partitions; none, if it has more members than partitions.
    is_assigned: bool,
    /// The last error of the reader.
    error: String,
    /// The partitions that have returned nothing since.
    unread: BTreeSet<PartitionId>,
    /// How often they were read again.
    attempts: u32,
    next_attempt_at: Option<Instant>,
}

impl WorkerReadiness {
    /// The group has assigned partitions, or none.
    pub(super) fn assigned(&mut self) {
        self.is_assigned = true;
    }

    /// Nothing is assigned until the group assigns again.
    pub(super) fn unassigned(&mut self) {
        self.is_assigned = false;
    }

    /// The reader has failed while it read these partitions.
    pub(super) fn on_error(
        &mut self,
        error: String,
        partitions: impl IntoIterator<Item = PartitionId>,
        now: Instant,
    ) {
        if self.unread.is_empty() {
            (self.attempts, self.next_attempt_at) = (0, Some(now));
        }
        self.error = error;
        self.unread.extend(partitions);
    }

    /// A partition was read, or is not read any more. Returns whether it was the last of those that
    /// had returned nothing.
    pub(super) fn on_read(&mut self, partition: PartitionId) -> bool {
        self.unread.remove(&partition) && self.unread.is_empty()
    }

    /// The partitions to read again now.
    pub(super) fn next_attempt(&mut self, now: Instant) -> Vec<PartitionId> {
        if self.unread.is_empty() || self.next_attempt_at.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.attempts += 1;
        self.next_attempt_at = Some(now + ATTEMPT_INTERVAL);
        self.unread.iter().copied().collect()
    }

    /// Why the worker is not ready.
    pub(super) fn reason(&self) -> Option<String> {
        if !self.is_assigned {
            return Some("no group assignment".to_owned());
        }
        let is_failing = !self.unread.is_empty() && self.attempts > FAILED_ATTEMPTS_MAX;
        is_failing.then(|| format!("fires cannot be read: {}", self.error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn assigned() -> WorkerReadiness {
        let mut readiness = WorkerReadiness::default();
        readiness.assigned();
        readiness
    }

    #[test]
    fn a_worker_is_ready_without_partitions_only_if_the_group_has_assigned_none() {
        let mut readiness = WorkerReadiness::default();
        let reason = Some("no group assignment".to_owned());
        assert_eq!(readiness.reason(), reason);
        readiness.assigned();
        assert_eq!(readiness.reason(), None);
        readiness.unassigned();
        assert_eq!(readiness.reason(), reason);
    }

    #[test]
    fn after_an_error_a_worker_is_ready_until_several_attempts_have_failed() {
        let (mut readiness, now) = (assigned(), clock::monotonic());
        readiness.on_error("away".to_owned(), [1, 2], now);
        for attempt in 0..=FAILED_ATTEMPTS_MAX {
            assert_eq!(readiness.reason(), None, "{attempt}");
            let at = now + ATTEMPT_INTERVAL * attempt;
            assert_eq!(readiness.next_attempt(at), [1, 2]);
            assert!(readiness.next_attempt(at).is_empty(), "it is not time");
        }
        assert_eq!(readiness.reason().unwrap(), "fires cannot be read: away");
        readiness.on_error("still away".to_owned(), [1, 2], now);
        assert_eq!(readiness.reason().unwrap(), "fires cannot be read: still away");
    }

    #[test]
    fn a_worker_is_ready_again_when_every_partition_was_read() {
        let (mut readiness, now) = (assigned(), clock::monotonic());
        readiness.on_error("away".to_owned(), [1, 2], now);
        for attempt in 0..=FAILED_ATTEMPTS_MAX {
            let _partitions = readiness.next_attempt(now + ATTEMPT_INTERVAL * attempt);
        }
        assert!(!readiness.on_read(3) && !readiness.on_read(2));
        assert!(readiness.reason().is_some(), "1 has returned nothing");
        assert!(readiness.on_read(1));
        assert_eq!(readiness.reason(), None);
        assert!(!readiness.on_read(1), "all were read before");
        readiness.on_error("away".to_owned(), [1], now);
        assert_eq!(readiness.reason(), None, "the attempts are counted again");
    }

    #[test]
    fn an_error_of_a_worker_that_reads_nothing_needs_no_attempt() {
        let (mut readiness, now) = (assigned(), clock::monotonic());
        readiness.on_error("away".to_owned(), [], now);
        assert!(readiness.next_attempt(now + ATTEMPT_INTERVAL).is_empty());
        assert_eq!(readiness.reason(), None);
    }
}
