//! The thread that ends transactions: flush, offsets, commit, and then the rows. While it waits
//! for the broker and writes the store, the loop prepares the next step.
//!
//! Law: at most one transaction is open, and its rows are applied only after it is committed.
//! Whoever hands one over takes no further one before it has landed; until then the rows in
//! flight are read from the engine's overlay.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::clock;
use crate::engine::step::RowOp;
use crate::kafka::fence::Fence;
use crate::kafka::transaction::{Progress, TransactionError, Transactor};
use crate::model::PartitionId;
use crate::store::{LocalState, PartitionStore, StoreError};
use crate::telemetry;

/// Applies the rows of a transaction; returns the stores that failed. Many rows go into the stores
/// of several partitions side by side, because inserting them is most of the work of a trigger.
pub(super) fn apply_all(changes: Vec<Change>) -> Vec<(PartitionId, StoreError)> {
    let rows: usize = changes.iter().map(|change| change.rows.len()).sum();
    if rows < PARALLEL_ROWS_MIN {
        return changes.into_iter().filter_map(|change| change.apply().err()).collect();
    }
    std::thread::scope(|scope| {
        let apply = |change: Change| scope.spawn(|| change.apply());
        let threads: Vec<_> = changes.into_iter().map(apply).collect();
        let failed =
            threads.into_iter().map(|thread| thread.join().expect("applying never panics"));
        failed.filter_map(Result::err).collect()
    })
}

/// Ends transactions one after the other.
#[derive(Debug)]
pub(super) struct Committer {
    jobs: Sender<Job>,
    results: Receiver<Landed>,
    since: Option<Instant>,
    limit: Duration,
}

/// Fewer rows than this are not worth a thread.
const PARALLEL_ROWS_MIN: usize = 4_000;

/// How a transaction ended: not committed, or committed with these stores failing to apply it.
pub(super) type Landed = Result<Vec<(PartitionId, StoreError)>, TransactionError>;

/// A transaction whose records are all sent.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) transactor: Arc<Transactor>,
    pub(super) progress: Vec<Progress>,
    pub(super) fence: Fence,
    /// What to apply once it is committed.
    pub(super) changes: Vec<Change>,
}

/// The rows of a step, and where they go.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) partition: PartitionId,
    pub(super) store: Arc<PartitionStore>,
    pub(super) rows: Arc<Vec<RowOp>>,
    pub(super) state: LocalState,
}

impl Change {
    /// Applies the rows; what lies below the new W may then go.
    pub(super) fn apply(self) -> Result<(), (PartitionId, StoreError)> {
        let applied = self.store.apply(&self.rows, &self.state);
        applied
            .and_then(|()| self.store.decided(self.state.w))
            .map_err(|error| (self.partition, error))
    }
}

impl Committer {
    /// `limit`: a commit that takes longer means that librdkafka hangs; the process then ends
    /// itself, and Kafka decides what became of the transaction.
    pub(super) fn start(limit: Duration) -> Self {
        let (jobs, inbox) = channel::<Job>();
        let (outbox, results) = channel();
        let _detached = std::thread::spawn(move || {
            for Job { transactor, progress, fence, changes } in inbox {
                let committed = transactor.commit(&progress, &fence);
                if outbox.send(committed.map(|()| apply_all(changes))).is_err() {
                    break;
                }
            }
        });
        Self { jobs, results, since: None, limit }
    }

    /// Hands over a transaction whose records are all sent.
    pub(super) fn submit(&mut self, job: Job) {
        assert!(self.since.is_none(), "one transaction at a time");
        self.since = Some(clock::monotonic());
        self.jobs.send(job).expect("the committer lives as long as the loop");
    }

    /// How the transaction ended, waiting at most `timeout`; `None` while it is under way.
    pub(super) fn landed(&mut self, timeout: Duration) -> Option<Landed> {
        let since = self.since?;
        match self.results.recv_timeout(timeout) {
            Ok(result) => {
                let took = clock::monotonic().duration_since(since);
                metrics::histogram!(telemetry::COMMIT).record(took.as_secs_f64());
                self.since = None;
                Some(result)
            }
            Err(RecvTimeoutError::Timeout) => {
                if clock::monotonic().duration_since(since) > self.limit {
                    tracing::error!("a transaction call hangs; ending the process");
                    std::process::abort();
                }
                None
            }
            Err(RecvTimeoutError::Disconnected) => {
                let reason = "the committing thread is gone".to_owned();
                Some(Err(TransactionError::Unknown(reason)))
            }
        }
    }
}
