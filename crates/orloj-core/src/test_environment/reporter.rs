//! A reporter for tests, which keeps what is reported.
//!
//! Invariant: clones share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::environment::store::StoreMemoryUsage;
use crate::environment::{CommittedRecords, PartitionBytes, ProcessReporter, Reporter};

/// Keeps what is reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestReporter(Arc<Mutex<Reported>>);

/// What was reported.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    /// The last report of each part: `ready`, `ready: remark` or `not ready: reason`.
    readiness: BTreeMap<&'static str, String>,
    /// Active partitions, and others.
    pub(crate) owned: (usize, usize),
    pub(crate) followed: Option<usize>,
    pub(crate) takeovers: Vec<Duration>,
    /// How many records are parked, and for how long.
    pub(crate) parked: Vec<(usize, Duration)>,
    pub(crate) turns: Vec<Duration>,
    pub(crate) transactions: Vec<Duration>,
    pub(crate) failed_transactions: usize,
    pub(crate) lost: Vec<u64>,
    pub(crate) committed: Vec<CommittedRecords>,
    pub(crate) lateness: Vec<Duration>,
    pub(crate) memory: Vec<(StoreMemoryUsage, usize)>,
    pub(crate) partition_memory: Option<PartitionBytes>,
}

impl TestReporter {
    pub(crate) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was last said of a part since the last call.
    pub(crate) fn readiness(&self, part: &'static str) -> Option<String> {
        self.reported().readiness.remove(part)
    }

    fn set(&self, part: &'static str, readiness: String) {
        let _before = self.reported().readiness.insert(part, readiness);
    }
}

impl ProcessReporter for TestReporter {
    fn ready(&self, part: &'static str) {
        self.set(part, "ready".to_owned());
    }
    fn ready_with_remark(&self, part: &'static str, remark: String) {
        self.set(part, format!("ready: {remark}"));
    }
    fn not_ready(&self, part: &'static str, reason: String) {
        self.set(part, format!("not ready: {reason}"));
    }
    fn transaction_ended(&self, took: Duration) {
        self.reported().transactions.push(took);
    }
    fn transaction_failed(&self) {
        self.reported().failed_transactions += 1;
    }
}

impl Reporter for TestReporter {
    fn partitions_owned(&self, active: usize, other: usize) {
        self.reported().owned = (active, other);
    }
    fn taken_over(&self, took: Duration) {
        self.reported().takeovers.push(took);
    }
    fn partitions_followed(&self, count: usize) {
        self.reported().followed = Some(count);
    }
    fn parked(&self, records: usize, oldest: Duration) {
        self.reported().parked.push((records, oldest));
    }
    fn turn_ended(&self, took: Duration) {
        self.reported().turns.push(took);
    }
    fn offsets_lost(&self, count: u64) {
        self.reported().lost.push(count);
    }
    fn committed(&self, counts: CommittedRecords) {
        self.reported().committed.push(counts);
    }
    fn lateness(&self) -> impl FnMut(Duration) {
        |late| self.reported().lateness.push(late)
    }
    fn store_memory(&self, stores: StoreMemoryUsage, cache: usize) {
        self.reported().memory.push((stores, cache));
    }
    fn partition_memory(&self, bytes: PartitionBytes) {
        self.reported().partition_memory = Some(bytes);
    }
}
