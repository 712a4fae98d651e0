//! The queue that writes spills to the stores, in parallel to the loop and the committer.
//!
//! Invariant: it writes only committed spills, in the order of submission. Until a spill is
//! reported as written, the engine still holds its rows. Wait for this queue before reading the
//! state of a store.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::write_buffer::Delta;
use crate::environment::Environment;
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::store::{LocalState, RowStore, StoreError};
use crate::model::PartitionId;

/// Writes spills one after the other.
pub(super) struct StoreWriter<E: Environment> {
    queue: E::Queue<SpillJob<E::Store>>,
}

/// The rows that a step spilled, and their store.
#[derive(Debug)]
pub(super) struct Spill<S> {
    pub(super) partition: PartitionId,
    pub(super) store: Arc<S>,
    pub(super) delta: Arc<Delta>,
    pub(super) state: LocalState,
}

/// The result of writing a spill.
#[derive(Debug)]
pub(super) struct StoreWriteResult {
    pub(super) partition: PartitionId,
    pub(super) step: u64,
    /// Whether a flush of the rows was started.
    pub(super) result: Result<bool, StoreError>,
}

impl<S: RowStore> Spill<S> {
    /// Writes the rows and starts to flush them. Before the flush, because deleting files waits for
    /// one that runs, and the loop must know soon that it has started.
    fn write(&self) -> Result<bool, StoreError> {
        let Self { store, delta, state, .. } = self;
        store.apply(&delta.rows(), state)?;
        store.drop_through(state.fired_through)?;
        store.flush_in_background()
    }
}

/// Writes one spill.
#[derive(Debug)]
pub(super) struct SpillJob<S>(Option<Spill<S>>);

impl<S: RowStore> Job for SpillJob<S> {
    type Output = StoreWriteResult;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<StoreWriteResult> {
        // Taken, so that the store is released before the result is reported.
        let spill = self.0.take().expect("a job is done once");
        let result = spill.write();
        let (partition, step) = (spill.partition, spill.state.step);
        JobStep::Done(StoreWriteResult { partition, step, result })
    }
}

impl<E: Environment> StoreWriter<E> {
    pub(super) fn start(environment: &E) -> Self {
        Self { queue: environment.start_queue("writer", Threads::Fixed(1), || ()) }
    }

    /// Submits a spill whose transaction is committed.
    pub(super) fn submit(&mut self, spill: Spill<E::Store>) {
        self.queue.submit(SpillJob(Some(spill)));
    }

    /// The results since the last call.
    pub(super) fn poll_results(&mut self) -> Vec<StoreWriteResult> {
        std::iter::from_fn(|| self.queue.poll(Duration::ZERO)).collect()
    }

    /// Waits for all submitted spills and returns their results.
    pub(super) fn drain(&mut self) -> Vec<StoreWriteResult> {
        self.queue.drain()
    }
}

#[cfg(test)]
#[path = "store_writer/tests.rs"]
mod tests;
