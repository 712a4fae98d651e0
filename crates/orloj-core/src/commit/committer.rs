//! The queue that runs transactions: send records, flush, add offsets, commit. While it waits for
//! the broker, the loop goes on.
//!
//! Invariant: at most one transaction is open. The next one is submitted after the result of the
//! previous one was returned. A call that does not return is abandoned, with its thread and its
//! producers: the outcome of the transaction is unknown, and the producers that are opened next end
//! it, whatever the abandoned thread still does: the broker refuses what comes of an earlier
//! producer or of an earlier generation of the group.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::commit_lead::CommitLead;
use crate::environment::group::GroupMembership;
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::transaction::{OffsetCommit, TransactionError, TransactionalSending};
use crate::environment::{Clock as _, ProcessEnvironment, ProcessReporter as _};
use crate::model::time::whole_ms;
use crate::model::{Millis, Timestamp};

/// The proof of membership that a transaction of `E` carries.
pub(crate) type GroupMetadata<E> = <<E as ProcessEnvironment>::Member as GroupMembership>::Metadata;

/// The records of a transaction. They do not change after it was submitted: an abandoned thread may
/// still read them.
pub(crate) trait TransactionRecords: Send + Sync + 'static {
    /// What encodes them; each thread has one.
    type Encoder: 'static;

    /// Begins a transaction that is committed at `commit_not_before` (ms since the epoch) or later,
    /// and queues all records. Of those to topics that take little at once some are awaited, as
    /// long as there is `time_left`.
    fn send(
        &self,
        producer: &impl TransactionalSending,
        encoder: &Self::Encoder,
        commit_not_before: Timestamp,
        time_left: impl Fn() -> Duration,
    ) -> Result<(), TransactionError>;
}

/// Records that are reported to an `R`.
pub(crate) trait ReportedRecords<R>: TransactionRecords {
    /// Reports that they are committed, once. `now` is the time of the commit.
    fn report(&self, reporter: &R, now: Timestamp);
}

/// How many calls may hang at the same time. Each keeps a thread and two producers. More of them
/// are no accident, and a new process is better.
const HANGING_MAX: usize = 3;

/// How long one call waits for acknowledgements, so that the loop can give them up.
const FLUSH_WAIT: Duration = Duration::from_millis(100);

/// A call that takes longer is logged: which one a slow transaction waits for.
const LONG_CALL: Duration = Duration::from_millis(500);

type CommitQueue<E, B> = <E as ProcessEnvironment>::Queue<CommitJob<E, B>>;
type QueueStarter<E, B> = Box<dyn Fn(&E) -> CommitQueue<E, B>>;

/// Runs transactions one after the other.
pub(crate) struct Committer<E: ProcessEnvironment, B: ReportedRecords<E::Reporter>> {
    start_queue: QueueStarter<E, B>,
    queue: CommitQueue<E, B>,
    /// Queues whose last call has not returned.
    hanging: Vec<CommitQueue<E, B>>,
    /// When the open transaction was submitted, on the monotonic clock.
    started_at: Option<Duration>,
    given_up: GivenUp,
    hang_detector: HangDetector,
    commit_lead: CommitLead,
}

/// Detects a call that does not return. Time in which the whole process did not run (it was
/// stopped, or its machine was) does not count: the call could not return then.
#[derive(Debug)]
struct HangDetector {
    limit: Duration,
    /// A longer time between two looks is a pause of the process.
    turn_max: Duration,
    /// When it looked last, on the monotonic clock.
    looked_at: Duration,
    /// For how long the call has been running, without pauses.
    running: Duration,
}

impl HangDetector {
    fn start(&mut self, now: Duration) {
        (self.looked_at, self.running) = (now, Duration::ZERO);
    }

    /// Whether the call has been running for longer than the limit.
    fn is_hanging(&mut self, now: Duration) -> bool {
        self.running += (now - self.looked_at).min(self.turn_max);
        self.looked_at = now;
        self.running > self.limit
    }
}

/// A transaction to run.
pub(crate) struct CommitJob<E: ProcessEnvironment, B> {
    pub(crate) clock: E::Clock,
    pub(crate) reporter: E::Reporter,
    /// Until the transaction has failed: the loop closes such a producer elsewhere, and this thread
    /// must not do it, however late it runs.
    pub(crate) producer: Option<Arc<E::Producer>>,
    pub(crate) batch: Arc<B>,
    pub(crate) offset_commits: Vec<OffsetCommit>,
    pub(crate) group_metadata: GroupMetadata<E>,
    /// The earliest time of the commit, in ms since the epoch.
    pub(crate) commit_not_before: Timestamp,
    /// How long the commit waits for that time at most: the clock may be set back.
    pub(crate) wait_max: Duration,
    /// How long all its calls may take together: after that the broker has aborted the transaction.
    pub(crate) timeout: Duration,
    pub(crate) stage: CommitStage,
    /// When the call of this stage began, on the monotonic clock.
    pub(crate) call_began_at: Option<Duration>,
    /// Set by the loop.
    pub(crate) given_up: GivenUp,
}

/// Why no acknowledgement of the records of a transaction is waited for any more.
#[derive(Clone, Default)]
pub(crate) struct GivenUp(Arc<Mutex<Option<TransactionError>>>);

impl GivenUp {
    fn set(&self, error: TransactionError) {
        let mut given_up = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that names a partition stays.
        if given_up.is_none() || !matches!(error, TransactionError::Unknown(_)) {
            *given_up = Some(error);
        }
    }

    fn take(&self) -> Option<TransactionError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What a transaction does next. Times are of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommitStage {
    Send,
    Flush { commit_at: Duration, deadline: Duration },
    AddOffsets { commit_at: Duration, deadline: Duration },
    Commit { commit_at: Duration, deadline: Duration, ready: Duration },
    Committed,
}

/// When everything but the commit was done, on the monotonic clock; or why it is not committed.
pub(crate) type CommitResult = Result<Duration, CommitFailure>;

/// Why a transaction has failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommitFailure {
    pub(crate) error: TransactionError,
    /// Its commit was not requested, and will not be.
    pub(crate) is_uncommitted: bool,
}

impl<E: ProcessEnvironment, B: ReportedRecords<E::Reporter>> CommitJob<E, B> {
    /// Does what the stage says, and goes to the next. `Done`: it is committed.
    fn advance(&mut self, encoder: &B::Encoder) -> Result<JobStep<Duration>, TransactionError> {
        match self.stage {
            CommitStage::Send => {
                // In this order: a delay between the two readings makes the commit late, not early.
                let ahead = self.clock.until(self.commit_not_before).min(self.wait_max);
                let began_at = self.clock.monotonic();
                let (commit_at, deadline) = (began_at + ahead, began_at + self.timeout);
                // The other half is for the calls that follow.
                let sent_by = began_at + self.timeout / 2;
                let time_left = || self.time_until(sent_by);
                self.batch.send(self.producer(), encoder, self.commit_not_before, time_left)?;
                E::reached("step.sent");
                self.stage = CommitStage::Flush { commit_at, deadline };
            }
            CommitStage::Flush { commit_at, deadline } => {
                let wait = self.time_until(deadline).min(FLUSH_WAIT);
                if self.producer().is_flushed(wait)? {
                    E::reached("commit.before_offsets");
                    self.stage = CommitStage::AddOffsets { commit_at, deadline };
                } else if let Some(given_up) = self.given_up.take() {
                    return Err(given_up);
                } else if self.time_until(deadline).is_zero() {
                    let reason = "records were neither acknowledged nor refused in time";
                    return Err(TransactionError::Unknown(reason.to_owned()));
                } else {
                    return Ok(JobStep::Pause(Duration::ZERO));
                }
            }
            CommitStage::AddOffsets { commit_at, deadline } => {
                let timeout = self.time_until(deadline);
                self.producer().send_offsets(
                    &self.offset_commits,
                    &self.group_metadata,
                    timeout,
                )?;
                let ready = self.clock.monotonic();
                self.stage = CommitStage::Commit { commit_at, deadline, ready };
            }
            CommitStage::Commit { commit_at, deadline, ready } => {
                let wait = self.time_until(commit_at);
                if !wait.is_zero() {
                    return Ok(JobStep::Pause(wait));
                }
                E::reached("commit.before_end");
                self.producer().commit(self.time_until(deadline))?;
                E::reached("commit.after_end");
                self.stage = CommitStage::Committed;
                return Ok(JobStep::Done(ready));
            }
            CommitStage::Committed => unreachable!("a job is done once"),
        }
        Ok(JobStep::Continue)
    }

    fn producer(&self) -> &E::Producer {
        self.producer.as_ref().expect("the transaction has not failed yet")
    }

    fn time_until(&self, time: Duration) -> Duration {
        time.saturating_sub(self.clock.monotonic())
    }
}

impl CommitStage {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Flush { .. } => "flush",
            Self::AddOffsets { .. } => "add offsets",
            Self::Commit { .. } => "commit",
            Self::Committed => "committed",
        }
    }
}

impl<E: ProcessEnvironment, B: ReportedRecords<E::Reporter>> Job for CommitJob<E, B> {
    type Output = CommitResult;
    type Worker = B::Encoder;

    fn step(&mut self, encoder: &mut B::Encoder) -> JobStep<CommitResult> {
        let call = self.stage.name();
        let began_at = *self.call_began_at.get_or_insert_with(|| self.clock.monotonic());
        let advanced = self.advance(encoder);
        // Acknowledgements are waited for in several steps.
        if !matches!(advanced, Ok(JobStep::Pause(_))) {
            self.call_began_at = None;
            let took = self.clock.monotonic() - began_at;
            if took >= LONG_CALL {
                tracing::debug!(
                    call,
                    took_ms = whole_ms(took),
                    "a call of a transaction took long"
                );
            }
        }
        match advanced {
            Ok(JobStep::Continue) => JobStep::Continue,
            Ok(JobStep::Pause(pause)) => JobStep::Pause(pause),
            Ok(JobStep::Done(ready)) => JobStep::Done(Ok(ready)),
            Err(error) => {
                self.producer = None;
                let is_uncommitted = !matches!(self.stage, CommitStage::Commit { .. });
                JobStep::Done(Err(CommitFailure { error, is_uncommitted }))
            }
        }
    }

    /// The loop continues in parallel, and this thread frees the batch.
    fn on_delivered(self) {
        if matches!(self.stage, CommitStage::Committed) {
            self.batch.report(&self.reporter, self.clock.now_ms());
        }
    }
}

impl<E: ProcessEnvironment, B: ReportedRecords<E::Reporter>> Committer<E, B> {
    /// If a transaction takes longer than `limit`, a call of the client library hangs. Of the time
    /// between two turns of the loop at most `turn_max` counts. `commit_lead_max`: see
    /// [`CommitLead`].
    pub(crate) fn start(
        environment: &E,
        encoder: impl Fn() -> B::Encoder + Clone + Send + Sync + 'static,
        (limit, turn_max): (Duration, Duration),
        commit_lead_max: Duration,
    ) -> Self {
        let zero = Duration::ZERO;
        let start_queue = move |environment: &E| {
            environment.start_queue("committer", Threads::Fixed(1), encoder.clone())
        };
        Self {
            queue: start_queue(environment),
            start_queue: Box::new(start_queue),
            hanging: Vec::new(),
            started_at: None,
            given_up: GivenUp::default(),
            hang_detector: HangDetector { limit, turn_max, looked_at: zero, running: zero },
            commit_lead: CommitLead::new(commit_lead_max),
        }
    }

    /// How long before their due time fires should be decided, in ms.
    pub(crate) fn commit_lead_ms(&self) -> Millis {
        self.commit_lead.get()
    }

    /// Submits a transaction.
    pub(crate) fn submit(&mut self, job: CommitJob<E, B>) {
        assert!(self.started_at.is_none(), "the previous transaction has not ended yet");
        let now = job.clock.monotonic();
        self.started_at = Some(now);
        self.given_up = job.given_up.clone();
        self.hang_detector.start(now);
        self.reap();
        self.queue.submit(job);
    }

    /// Frees the queues whose call has returned.
    fn reap(&mut self) {
        self.hanging.retain_mut(|queue| {
            let result = queue.poll(Duration::ZERO);
            if let Some(result) = &result {
                tracing::info!(?result, "an abandoned call of the Kafka client has returned");
            }
            result.is_none()
        });
    }

    /// The result of the transaction; waits at most `timeout`. `None` while it is in progress.
    pub(crate) fn poll_result(
        &mut self,
        timeout: Duration,
        environment: &E,
        (clock, reporter): (&E::Clock, &E::Reporter),
    ) -> Option<Result<(), CommitFailure>> {
        let started_at = self.started_at?;
        let result = self.queue.poll(timeout);
        let now = clock.monotonic();
        let result = match result {
            Some(result) => result,
            None if self.hang_detector.is_hanging(now) => Err(self.abandon(environment)),
            None => return None,
        };
        reporter.transaction_ended(now - started_at);
        self.started_at = None;
        Some(result.map(|ready| self.commit_lead.record(ready - started_at)))
    }

    /// For how long the open transaction has been in progress.
    pub(crate) fn running_for(&self, now: Duration) -> Duration {
        self.started_at.map_or(Duration::ZERO, |started_at| now.saturating_sub(started_at))
    }

    /// The open transaction does not wait for acknowledgements any more, and fails like this.
    pub(crate) fn give_up(&self, error: TransactionError) {
        self.given_up.set(error);
    }

    /// Goes on without the call that hangs.
    fn abandon(&mut self, environment: &E) -> CommitFailure {
        self.reap();
        if self.hanging.len() == HANGING_MAX {
            tracing::error!(
                hanging = HANGING_MAX + 1,
                "too many calls of the Kafka client do not return; aborting the process"
            );
            environment.abort();
        }
        let queue = std::mem::replace(&mut self.queue, (self.start_queue)(environment));
        self.hanging.push(queue);
        let reason = "a call of the Kafka client does not return".to_owned();
        // It may go on to its commit.
        CommitFailure { error: TransactionError::Unknown(reason), is_uncommitted: false }
    }
}

#[cfg(test)]
#[path = "committer/tests.rs"]
mod tests;
