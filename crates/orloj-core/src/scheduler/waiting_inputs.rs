//! Ingesting what was read: as much as fits in the open step; the rest waits for the next one.
//!
//! Invariant: inputs are ingested in the order in which they were read, each once. What waits is
//! dropped with its partition, and read again by the next takeover.

use super::PartitionTaskError;
use super::local_store::fetch_index_rows;
use super::partition_task::{PartitionState, PartitionTask};
use crate::engine::index_row::IdHash;
use crate::engine::partition::{IndexRows, Input, Partition};
use crate::engine::prefetch::{self, Prefetched};
use crate::environment::store::RowStore;
use crate::model::timeline::TimelineKey;

/// How many inputs that have waited are looked up at once: perhaps few of them fit in the step.
const WAITING_BATCH: usize = 256;
/// How many rows are fetched at once. Of the largest payloads they are 64 MB.
const ROWS_MAX: usize = 64;

impl<S: RowStore> PartitionTask<S> {
    /// Whether inputs wait for the next step.
    pub(super) fn has_waiting_inputs(&self) -> bool {
        !self.waiting_inputs.as_slice().is_empty()
    }

    /// Ingests what has waited, and then these inputs, in log order, until the step is full.
    pub(super) fn ingest(&mut self, inputs: Vec<Input>) -> Result<(), PartitionTaskError> {
        let has_waited = self.has_waiting_inputs();
        if has_waited {
            let waiting: Vec<_> = self.waiting_inputs.by_ref().chain(inputs).collect();
            self.waiting_inputs = waiting.into_iter();
        } else {
            self.waiting_inputs = inputs.into_iter();
        }
        let batch = if has_waited { WAITING_BATCH } else { usize::MAX };
        while self.accepts_waiting() {
            self.ingest_batch(batch)?;
        }
        Ok(())
    }

    /// Whether the next one of them fits in the step.
    fn accepts_waiting(&self) -> bool {
        let PartitionState::Active(partition) = &self.state else { return false };
        self.waiting_inputs.as_slice().first().is_some_and(|input| partition.accepts(input))
    }

    /// Ingests at most `count` of them.
    fn ingest_batch(&mut self, count: usize) -> Result<(), PartitionTaskError> {
        let PartitionState::Active(partition) = &mut self.state else { return Ok(()) };
        let inputs = &mut self.waiting_inputs;
        let mut left = inputs.len().min(count);
        let triggers = inputs.as_slice()[..left].iter().filter_map(prefetch::trigger_of);
        let ids = triggers.map(IdHash::of).filter(|hash| partition.needs_index_row(*hash));
        // What is due is read later, when the next flush may write to the disk.
        self.store.refresh_view();
        let index = fetch_index_rows(&*self.store, ids.collect())?;
        let mut size = left;
        while 0 < left && inputs.as_slice().first().is_some_and(|input| partition.accepts(input)) {
            let next = &inputs.as_slice()[..size.min(left)];
            let (fitting, wanted) = rows_to_prefetch(partition, next, &index);
            let rows = self.store.timeline_rows(&wanted)?;
            let before = inputs.len();
            partition.ingest_some(inputs, fitting, Prefetched { index: &index, rows: &rows })?;
            left -= before - inputs.len();
            size = fitting.saturating_mul(2);
        }
        Ok(())
    }
}

/// As many of the first inputs as need few rows, one at least, and the keys of the rows.
fn rows_to_prefetch(
    partition: &Partition,
    inputs: &[Input],
    index: &IndexRows,
) -> (usize, Vec<TimelineKey>) {
    let mut count = inputs.len();
    loop {
        let wanted = partition.rows_to_prefetch(&inputs[..count], index);
        if wanted.len() <= ROWS_MAX || count == 1 {
            return (count, wanted);
        }
        count /= 2;
    }
}
