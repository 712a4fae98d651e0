//! A reporter for tests, which keeps what is reported.
//!
//! Invariant: clones share it.

use std::collections::BTreeMap;
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
    /// The last report of each part: `ready`, `ready: remark` or `not ready: reason`.
    readiness: BTreeMap<&'static str, String>,
    /// Active partitions, and others.
    pub(super) owned: (usize, usize),
    pub(super) followed: Option<usize>,
    pub(super) takeovers: Vec<Duration>,
    /// How many records are parked, and for how long.
    pub(super) parked: Vec<(usize, Duration)>,
    pub(super) turns: Vec<Duration>,
    pub(super) transactions: Vec<Duration>,
    pub(super) failed_transactions: usize,
    pub(super) lost: Vec<u64>,
    pub(super) committed: Vec<CommittedRecords>,
    pub(super) lateness: Vec<Duration>,
    pub(super) memory: Vec<(StoreMemoryUsage, usize)>,
}

impl TestReporter {
    pub(super) fn reported(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was last said of a part since the last call.
    pub(super) fn readiness(&self, part: &'static str) -> Option<String> {
        self.reported().readiness.remove(part)
    }

    fn set(&self, part: &'static str, readiness: String) {
        let _before = self.reported().readiness.insert(part, readiness);
    }
}

impl Reporter for TestReporter {
    fn ready(&self, part: &'static str) {
        self.set(part, "ready".to_owned());
    }
    fn ready_with_remark(&self, part: &'static str, remark: String) {
        self.set(part, format!("ready: {remark}"));
    }
    fn not_ready(&self, part: &'static str, reason: String) {
        self.set(part, format!("not ready: {reason}"));
    }
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
    fn transaction_ended(&self, took: Duration) {
        self.reported().transactions.push(took);
    }
    fn transaction_failed(&self) {
        self.reported().failed_transactions += 1;
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
}
