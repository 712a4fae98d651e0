//! The thread that brings spills into the stores, while the loop decides and the committer commits.
//!
//! Invariant: it writes only what is committed, in the order it is given. Until it has reported a
//! spill the engine answers for it; a thread that reads the state of a store waits for it first.

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

/// What a step spilled, and where it goes.
#[derive(Debug)]
pub(super) struct Spill {
    pub(super) partition: PartitionId,
    pub(super) store: Arc<PartitionStore>,
    pub(super) delta: Arc<Delta>,
    pub(super) state: LocalState,
}

/// A spill that is in the store, or the error that kept it out.
#[derive(Debug)]
pub(super) struct StoreWriteResult {
    pub(super) partition: PartitionId,
    pub(super) step: u64,
    pub(super) result: Result<(), StoreError>,
}

impl Spill {
    /// Writes the rows and brings them to disk; what lies below the new W may then go.
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
                // No caller waits for it any more: release the store first.
                drop(spill);
                if outbox.send(written).is_err() {
                    break;
                }
            }
        });
        Self { spills, results, in_flight: 0 }
    }

    /// Hands over a spill whose transaction is committed.
    pub(super) fn submit(&mut self, spill: Spill) {
        self.in_flight += 1;
        self.spills.send(spill).expect("the writer lives as long as the loop");
    }

    /// What has been written since the last call.
    pub(super) fn poll_results(&mut self) -> Vec<StoreWriteResult> {
        let written: Vec<_> = self.results.try_iter().collect();
        self.in_flight -= written.len();
        written
    }

    /// Waits until everything handed over is written, and returns that.
    pub(super) fn drain(&mut self) -> Vec<StoreWriteResult> {
        let written: Vec<_> = self.results.iter().take(self.in_flight).collect();
        self.in_flight = 0;
        written
    }
}
