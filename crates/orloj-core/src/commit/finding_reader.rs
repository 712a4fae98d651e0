//! Reads, beside the loop, whether a transaction is committed whose outcome is unknown: what a
//! partition of it has committed tells, after new producers have made the broker end it.
//!
//! Invariant: one partition is read at a time. A request is repeated until it is answered, or
//! cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::interrupted_transaction::Finding;
use crate::environment::call_error::{CallError, CallResult};
use crate::environment::group::{CommittedOffsets, GroupMembership};
use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::{Clock, ProcessEnvironment};
use crate::model::{Offset, PartitionId};

/// Timeout of the first request. Without an open transaction the answer takes less.
pub(crate) const FIRST_TIMEOUT: Duration = Duration::from_millis(150);
/// Timeout of a request after the first one.
pub(crate) const COMMITTED_OFFSET_TIMEOUT: Duration = Duration::from_secs(2);
/// A request that is not answered says why each time so much more has passed.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(10);
/// Pause between two requests.
pub(crate) const REQUEST_PAUSE: Duration = Duration::from_millis(50);

/// Says whether a transaction is committed, of what is committed for one of its partitions.
pub(crate) type Judge = Box<dyn Fn(Option<(Offset, &str)>) -> Finding + Send>;

/// Reads the stable committed offset of a partition of the transaction. Repeats the request until
/// it is answered or cancelled.
pub(crate) struct FindingJob<O, K> {
    /// Which request it is.
    number: u64,
    offsets: O,
    clock: K,
    partition: PartitionId,
    judge: Judge,
    /// Another partition is read, or none.
    cancelled: Arc<AtomicBool>,
    /// Of the next request.
    timeout: Duration,
    /// When it says why it still waits, on the monotonic clock.
    report_at: Duration,
}

/// The job of a process.
type FindingJobOf<E> = FindingJob<
    <<E as ProcessEnvironment>::Member as GroupMembership>::Offsets,
    <E as ProcessEnvironment>::Clock,
>;

/// What was read, and which request it answers.
#[derive(Debug)]
pub(crate) struct FindingReply {
    number: u64,
    /// `None`: the request was cancelled.
    finding: Option<Finding>,
}

impl<O: CommittedOffsets, K: Clock> Job for FindingJob<O, K> {
    type Output = FindingReply;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<FindingReply> {
        let (number, partition) = (self.number, self.partition);
        if self.cancelled.load(Ordering::SeqCst) {
            return JobStep::Done(FindingReply { number, finding: None });
        }
        match self.find() {
            Ok(finding) => JobStep::Done(FindingReply { number, finding: Some(finding) }),
            Err(error) => {
                tracing::debug!(partition, %error, "what is committed cannot be read");
                let now = self.clock.monotonic();
                if now >= self.report_at {
                    self.report_at = now + LONG_WAIT;
                    tracing::warn!(
                        partition,
                        %error,
                        "it cannot be read whether the last transaction is committed; trying again"
                    );
                }
                self.timeout = COMMITTED_OFFSET_TIMEOUT;
                JobStep::Pause(REQUEST_PAUSE)
            }
        }
    }
}

impl<O: CommittedOffsets, K: Clock> FindingJob<O, K> {
    /// Reads what is committed. That it is not committed must be what a second client reads, too:
    /// a broker that was paused may answer the first one before it knows that another broker
    /// coordinates the group.
    fn find(&self) -> CallResult<Finding> {
        let committed = self.offsets.stable(self.partition, self.timeout)?;
        tracing::debug!(self.partition, ?committed, "the stable committed offset is read");
        let committed = committed.as_ref().map(|(offset, text)| (*offset, text.as_str()));
        let finding = (self.judge)(committed);
        if finding == Finding::NotCommitted {
            let latest = self.offsets.latest_metadata(self.partition)?;
            if committed.map_or("", |(_, metadata)| metadata) != latest {
                return Err(CallError::new("two brokers say that different steps are committed"));
            }
        }
        Ok(finding)
    }
}

/// The request that is in progress.
#[derive(Debug)]
struct FindingRequest {
    number: u64,
    partition: PartitionId,
    cancelled: Arc<AtomicBool>,
}

impl Drop for FindingRequest {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }
}

/// Reads whether interrupted transactions are committed.
pub(crate) struct FindingReader<E: ProcessEnvironment> {
    queue: E::Queue<FindingJobOf<E>>,
    /// How many requests there were.
    requests: u64,
    request: Option<FindingRequest>,
    /// A transaction is interrupted, and not yet applied, sent again or given up.
    pub(crate) is_awaited: bool,
}

impl<E: ProcessEnvironment> FindingReader<E> {
    pub(crate) fn start(environment: &E) -> Self {
        let queue = environment.start_queue("findings", Threads::PerJob, || ());
        Self { queue, requests: 0, request: None, is_awaited: false }
    }

    /// Asks for this partition, and for no other any more.
    pub(crate) fn request(
        &mut self,
        partition: PartitionId,
        judge: Judge,
        member: &E::Member,
        clock: &E::Clock,
    ) {
        self.requests += 1;
        let number = self.requests;
        let cancelled = Arc::<AtomicBool>::default();
        let job = FindingJob {
            number,
            offsets: member.committed_offsets(),
            partition,
            judge,
            cancelled: Arc::clone(&cancelled),
            timeout: FIRST_TIMEOUT,
            report_at: clock.monotonic() + LONG_WAIT,
            clock: clock.clone(),
        };
        self.request = Some(FindingRequest { number, partition, cancelled });
        self.queue.submit(job);
    }

    /// How many requests there were.
    #[cfg(test)]
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Nothing is asked for any more.
    pub(crate) fn cancel(&mut self) {
        self.request = None;
    }

    /// What was read of the partition that is asked for; waits at most `timeout` for it.
    pub(crate) fn poll(&mut self, timeout: Duration) -> Option<(PartitionId, Finding)> {
        let FindingRequest { number, partition, .. } = self.request.as_ref()?;
        let (number, partition) = (*number, *partition);
        let reply = self.queue.poll(timeout)?;
        let finding = reply.finding.filter(|_| reply.number == number)?;
        self.request = None;
        Some((partition, finding))
    }
}
