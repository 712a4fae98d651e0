//! The thread that writes spills to the stores, in parallel to the loop and the committer.
//!
//! Invariant: it writes only committed spills, in the order of submission. Until a spill is
//! reported as written, the engine still holds its rows. Wait for this thread before reading the
//! state of a store.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::engine::write_buffer::Delta;
use crate::model::PartitionId;
use crate::store::{LocalState, PartitionStore, StoreError};

/// Writes spills one after the other.
#[derive(Debug)]
pub(super) struct StoreWriter {
    spills: Sender<Spill>,
    results: Receiver<StoreWriteResult>,
    in_flight: usize,
}

/// The rows that a step spilled, and their store.
#[derive(Debug)]
pub(super) struct Spill {
    pub(super) partition: PartitionId,
    pub(super) store: Arc<PartitionStore>,
    pub(super) delta: Arc<Delta>,
    pub(super) state: LocalState,
}

/// The result of writing a spill.
#[derive(Debug)]
pub(super) struct StoreWriteResult {
    pub(super) partition: PartitionId,
    pub(super) step: u64,
    pub(super) result: Result<(), StoreError>,
}

impl Spill {
    /// Writes the rows and flushes them. Then rows that fired may be deleted.
    fn write(&self) -> Result<(), StoreError> {
        let Self { store, delta, state, .. } = self;
        store.apply(&delta.rows(), state)?;
        store.flush_in_background()?;
        store.drop_through(state.fired_through)
    }
}

impl StoreWriter {
    pub(super) fn start() -> Self {
        let (spills, inbox) = channel::<Spill>();
        let (outbox, results) = channel();
        super::spawn("writer", move || {
            for spill in inbox {
                let result = spill.write();
                let written =
                    StoreWriteResult { partition: spill.partition, step: spill.state.step, result };
                // Release the store before the result is reported.
                drop(spill);
                if outbox.send(written).is_err() {
                    break;
                }
            }
        });
        Self { spills, results, in_flight: 0 }
    }

    /// Submits a spill whose transaction is committed.
    pub(super) fn submit(&mut self, spill: Spill) {
        self.in_flight += 1;
        self.spills.send(spill).expect("the store writer runs as long as the loop");
    }

    /// The results since the last call.
    pub(super) fn poll_results(&mut self) -> Vec<StoreWriteResult> {
        let written: Vec<_> = self.results.try_iter().collect();
        self.in_flight -= written.len();
        written
    }

    /// Waits for all submitted spills and returns their results.
    pub(super) fn drain(&mut self) -> Vec<StoreWriteResult> {
        let written: Vec<_> = self.results.iter().take(self.in_flight).collect();
        self.in_flight = 0;
        written
    }
}
