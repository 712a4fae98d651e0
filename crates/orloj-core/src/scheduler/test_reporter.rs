//! A reporter for tests, which keeps what is reported of turns and transactions.
//!
//! Invariant: clones share it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::environment::store::StoreMemoryUsage;
use crate::environment::{CommittedRecords, Reporter};

/// Keeps what is reported.
#[derive(Clone, Debug, Default)]
pub(super) struct TestReporter(Arc<Mutex<Reported>>);

/// What was reported.
#[derive(Debug, Default)]
pub(super) struct Reported {
    pub(super) turns: Vec<Duration>,
    pub(super) committed: Vec<CommittedRecords>,
    pub(super) lateness: Vec<Duration>,
}

impl TestReporter {
    pub(super) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reporter for TestReporter {
    fn ready(&self, _part: &'static str) {}
    fn ready_with_remark(&self, _part: &'static str, _remark: String) {}
    fn not_ready(&self, _part: &'static str, _reason: String) {}
    fn partitions_owned(&self, _active: usize, _other: usize) {}
    fn taken_over(&self, _took: Duration) {}
    fn partitions_followed(&self, _count: usize) {}
    fn parked(&self, _records: usize, _oldest: Duration) {}
    fn turn_ended(&self, took: Duration) {
        self.reported().turns.push(took);
    }
    fn transaction_ended(&self, _took: Duration) {}
    fn transaction_failed(&self) {}
    fn offsets_lost(&self, _count: u64) {}
    fn committed(&self, counts: CommittedRecords) {
        self.reported().committed.push(counts);
    }
    fn lateness(&self) -> impl FnMut(Duration) {
        |late| self.reported().lateness.push(late)
    }
    fn store_memory(&self, _stores: StoreMemoryUsage, _cache: usize) {}
}
