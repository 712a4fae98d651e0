//! The thread that runs transactions: send records, flush, add offsets, commit. While it waits for
//! the broker, the loop prepares the next step.
//!
//! Invariant: at most one transaction is open. The next one is submitted after the result of the
//! previous one was returned.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::commit_lead::CommitLead;
use super::record_sender::RecordSender;
use super::transaction_batch::TransactionBatch;
use crate::clock;
use crate::fault;
use crate::kafka::group_metadata::GroupMetadata;
use crate::kafka::producer_pair::ProducerPair;
use crate::kafka::transaction::{OffsetCommit, TransactionError};
use crate::model::{Millis, Timestamp};
use crate::telemetry;

/// Runs transactions one after the other.
#[derive(Debug)]
pub(super) struct Committer {
    jobs: Sender<CommitJob>,
    results: Receiver<Result<Instant, TransactionError>>,
    started_at: Option<Instant>,
    limit: Duration,
    commit_lead: CommitLead,
}

/// A transaction to run.
#[derive(Debug)]
pub(super) struct CommitJob {
    pub(super) producers: Arc<ProducerPair>,
    pub(super) batch: Arc<TransactionBatch>,
    pub(super) offset_commits: Vec<OffsetCommit>,
    pub(super) group_metadata: GroupMetadata,
    /// The earliest time of the commit, in ms since the epoch.
    pub(super) commit_not_before: Timestamp,
}

impl CommitJob {
    fn run(&self, sender: &RecordSender) -> Result<Instant, TransactionError> {
        self.batch.send(&self.producers, sender, self.commit_not_before)?;
        fault::reached("step.sent");
        self.producers.commit(&self.offset_commits, &self.group_metadata)
    }
}

impl Committer {
    /// If a transaction takes longer than `limit`, librdkafka hangs; the process then aborts, and
    /// the broker decides the transaction. `commit_lead_max`: see [`CommitLead`].
    pub(super) fn start(sender: RecordSender, limit: Duration, commit_lead_max: Duration) -> Self {
        let (jobs, inbox) = channel::<CommitJob>();
        let (outbox, results) = channel();
        super::spawn("committer", move || {
            for job in inbox {
                let result = job.run(&sender);
                let committed = result.is_ok();
                if outbox.send(result).is_err() {
                    break;
                }
                // The loop continues in parallel, and this thread frees the batch.
                if committed {
                    job.batch.record_metrics(clock::now_ms());
                }
            }
        });
        Self {
            jobs,
            results,
            started_at: None,
            limit,
            commit_lead: CommitLead::new(commit_lead_max),
        }
    }

    /// How long before their due time fires should be decided, in ms.
    pub(super) fn commit_lead_ms(&self) -> Millis {
        self.commit_lead.get()
    }

    /// Submits a transaction.
    pub(super) fn submit(&mut self, job: CommitJob) {
        assert!(self.started_at.is_none(), "the previous transaction has not ended yet");
        self.started_at = Some(clock::monotonic());
        self.jobs.send(job).expect("the committer thread runs as long as the loop");
    }

    /// The result of the transaction; waits at most `timeout`. `None` while it is in progress.
    pub(super) fn poll_result(
        &mut self,
        timeout: Duration,
    ) -> Option<Result<(), TransactionError>> {
        let started_at = self.started_at?;
        match self.results.recv_timeout(timeout) {
            Ok(result) => {
                let took = clock::monotonic().duration_since(started_at);
                metrics::histogram!(telemetry::COMMIT).record(took.as_secs_f64());
                self.started_at = None;
                Some(result.map(|ready| self.commit_lead.record(ready.duration_since(started_at))))
            }
            Err(RecvTimeoutError::Timeout) => {
                if clock::monotonic().duration_since(started_at) > self.limit {
                    tracing::error!("a transaction call does not return; aborting the process");
                    std::process::abort();
                }
                None
            }
            Err(RecvTimeoutError::Disconnected) => {
                let reason = "the committer thread has ended".to_owned();
                Some(Err(TransactionError::Unknown(reason)))
            }
        }
    }
}
