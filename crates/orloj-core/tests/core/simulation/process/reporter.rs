//! What a process reports, which no one reads.

use std::time::Duration;

use orloj_core::environment::store::StoreMemoryUsage;
use orloj_core::environment::{CommittedRecords, PartitionBytes, ProcessReporter, Reporter};

/// Reports nothing.
#[derive(Clone)]
pub(in crate::simulation) struct SimulatedReporter;

impl ProcessReporter for SimulatedReporter {
    fn ready(&self, _part: &'static str) {}
    fn ready_with_remark(&self, _part: &'static str, _remark: String) {}
    fn not_ready(&self, _part: &'static str, _reason: String) {}
    fn transaction_ended(&self, _took: Duration) {}
    fn transaction_failed(&self) {}
}

impl Reporter for SimulatedReporter {
    fn parked(&self, _records: usize, _oldest: Duration) {}
    fn partitions_owned(&self, _active: usize, _other: usize) {}
    fn taken_over(&self, _took: Duration) {}
    fn partitions_followed(&self, _count: usize) {}
    fn turn_ended(&self, _took: Duration) {}
    fn offsets_lost(&self, _count: u64) {}
    fn committed(&self, _counts: CommittedRecords) {}
    fn lateness(&self) -> impl FnMut(Duration) {
        |_late| {}
    }
    fn store_memory(&self, _stores: StoreMemoryUsage, _cache: usize) {}
    fn partition_memory(&self, _bytes: PartitionBytes) {}
}
