//! The thread that makes transactions: records, flush, offsets, commit. While it waits for the
//! broker, the loop prepares the next step.
//!
//! Law: at most one transaction is open. Whoever hands one over takes no further one before it has
//! landed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::ahead::Ahead;
use super::emission::Emission;
use super::flight::Flight;
use crate::clock;
use crate::fault;
use crate::kafka::fence::Fence;
use crate::kafka::relay::Relay;
use crate::kafka::transaction::{Progress, TransactionError};
use crate::model::{Millis, Timestamp};
use crate::telemetry;

/// Makes transactions one after the other.
#[derive(Debug)]
pub(super) struct Committer {
    jobs: Sender<Job>,
    results: Receiver<Result<Instant, TransactionError>>,
    since: Option<Instant>,
    limit: Duration,
    ahead: Ahead,
}

/// A transaction to make.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) relay: Arc<Relay>,
    pub(super) flight: Arc<Flight>,
    pub(super) progress: Vec<Progress>,
    pub(super) fence: Fence,
    /// When it may be committed, in ms since the epoch.
    pub(super) time: Timestamp,
}

impl Job {
    fn run(&self, emission: &Emission) -> Result<Instant, TransactionError> {
        self.flight.send(&self.relay, emission, self.time)?;
        fault::reached("step.sent");
        self.relay.commit(&self.progress, &self.fence)
    }
}

impl Committer {
    /// `limit`: a transaction that takes longer means that librdkafka hangs; the process then ends
    /// itself, and Kafka decides what became of it. `ahead_max`: see [`Ahead`].
    pub(super) fn start(emission: Emission, limit: Duration, ahead_max: Duration) -> Self {
        let (jobs, inbox) = channel::<Job>();
        let (outbox, results) = channel();
        super::spawn("committer", move || {
            for job in inbox {
                let result = job.run(&emission);
                let committed = result.is_ok();
                if outbox.send(result).is_err() {
                    break;
                }
                // The loop goes on meanwhile, and does not have to free what was sent.
                if committed {
                    job.flight.count(clock::now_ms());
                }
            }
        });
        Self { jobs, results, since: None, limit, ahead: Ahead::new(ahead_max) }
    }

    /// How far ahead of their time fires should be decided, in ms.
    pub(super) fn ahead(&self) -> Millis {
        self.ahead.get()
    }

    /// Hands over a transaction.
    pub(super) fn submit(&mut self, job: Job) {
        assert!(self.since.is_none(), "one transaction at a time");
        self.since = Some(clock::monotonic());
        self.jobs.send(job).expect("the committer lives as long as the loop");
    }

    /// How the transaction ended, waiting at most `timeout`; `None` while it is under way.
    pub(super) fn landed(&mut self, timeout: Duration) -> Option<Result<(), TransactionError>> {
        let since = self.since?;
        match self.results.recv_timeout(timeout) {
            Ok(result) => {
                let took = clock::monotonic().duration_since(since);
                metrics::histogram!(telemetry::COMMIT).record(took.as_secs_f64());
                self.since = None;
                Some(result.map(|ready| self.ahead.note(ready.duration_since(since))))
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
