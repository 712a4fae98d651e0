//! Calls of the producers that may wait for the broker: the abort of a transaction, and the opening
//! of new producers. They run beside the loop.
//!
//! Invariant: at most one of them is in progress, and no transaction meanwhile.

use std::sync::Arc;
use std::time::Duration;

use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::transaction::{
    ProducerFactory as _, TransactionError, TransactionalSending as _,
};
use crate::environment::{Environment, Reporter as _};

/// How long to wait before opening the producers again after a failure.
const OPEN_PAUSE: Duration = Duration::from_millis(200);
/// How long to wait before a transaction is sent again after its group generation was refused.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Runs these calls.
pub(super) struct ProducerJobs<E: Environment> {
    queue: E::Queue<ProducerJob<E>>,
}

/// A call.
pub(super) enum ProducerJob<E: Environment> {
    /// Ends a transaction of which nothing is committed, after a pause.
    Abort { producer: Arc<E::Producer>, timeout: Duration, has_paused: bool },
    /// Opens producers, until that succeeds. The old ones are closed when it has.
    Open { producers: E::Producers, reporter: E::Reporter, _old: Option<Arc<E::Producer>> },
}

/// What a call has returned.
pub(super) enum ProducerResult<E: Environment> {
    Aborted(Result<(), TransactionError>),
    Opened(E::Producer),
}

impl<E: Environment> ProducerJobs<E> {
    pub(super) fn start(environment: &E) -> Self {
        Self { queue: environment.start_queue("producers", Threads::PerJob, || ()) }
    }

    /// Aborts the open transaction; waits at most `timeout` for the broker.
    pub(super) fn abort(&mut self, producer: Arc<E::Producer>, timeout: Duration) {
        self.submit(ProducerJob::Abort { producer, timeout, has_paused: false });
    }

    /// Opens new producers, which makes the broker decide the transaction of the `old` ones.
    pub(super) fn open(
        &mut self,
        producers: E::Producers,
        reporter: E::Reporter,
        old: Option<Arc<E::Producer>>,
    ) {
        self.submit(ProducerJob::Open { producers, reporter, _old: old });
    }

    fn submit(&mut self, job: ProducerJob<E>) {
        assert_eq!(self.queue.in_flight(), 0, "one call at a time");
        self.queue.submit(job);
    }

    /// The result of the call in progress; waits at most `timeout` for it.
    pub(super) fn poll(&mut self, timeout: Duration) -> Option<ProducerResult<E>> {
        if self.queue.in_flight() == 0 {
            return None;
        }
        self.queue.poll(timeout)
    }
}

impl<E: Environment> Job for ProducerJob<E> {
    type Output = ProducerResult<E>;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<ProducerResult<E>> {
        match self {
            Self::Abort { has_paused, .. } if !*has_paused => {
                *has_paused = true;
                JobStep::Pause(RETRY_PAUSE)
            }
            Self::Abort { producer, timeout, .. } => {
                JobStep::Done(ProducerResult::Aborted(producer.abort(*timeout)))
            }
            Self::Open { producers, reporter, .. } => match producers.open() {
                Ok(producer) => JobStep::Done(ProducerResult::Opened(producer)),
                Err(error) => {
                    reporter.not_ready("broker", error.to_string());
                    tracing::warn!(%error, "the producers cannot be opened; trying again");
                    JobStep::Pause(OPEN_PAUSE)
                }
            },
        }
    }
}
