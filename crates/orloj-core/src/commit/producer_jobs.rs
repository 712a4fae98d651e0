//! Calls of the producers that may wait for the broker: the abort of a transaction, and the opening
//! of new producers. They run beside the loop.
//!
//! Invariant: the loop waits for at most one of them, and no transaction is open meanwhile. The
//! broker may be unable to end a transaction for long: if it has added a partition that has no
//! leader, until that has one. Its transactional ids cannot be used meanwhile. Then producers with
//! other ids are opened, but never while a call of the failed one has not returned: so nothing
//! commits its transaction any more unless its commit was sent already, and then its offsets are
//! not stable before it has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::environment::job::{Job, JobQueue as _, JobStep, Threads};
use crate::environment::transaction::{
    PRODUCERS_MAX, ProducerFactory as _, TransactionError, TransactionalSending as _,
};
use crate::environment::{ProcessEnvironment, ProcessReporter as _};
use crate::model::PartitionId;

/// How long to wait before opening the producers again after a failure.
const OPEN_PAUSE: Duration = Duration::from_millis(200);
/// The same for those that the loop does not wait for: they may never be opened.
const OTHERS_PAUSE: Duration = Duration::from_secs(2);
/// How long to wait before a transaction is sent again after its group generation was refused.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// A partition of a topic that has not acknowledged a record in time.
type Undelivered = Option<(String, PartitionId)>;

/// Runs these calls.
pub(crate) struct ProducerJobs<E: ProcessEnvironment> {
    queue: E::Queue<ProducerJob<E>>,
    /// How long an opening may take before others are opened, too.
    late: Duration,
    /// Of which producers the opening has not returned, by their numbers, and which partition has
    /// not acknowledged a record of the transaction that this ends.
    is_opening: [Option<Undelivered>; PRODUCERS_MAX],
    /// The same of the transaction that has just failed.
    undelivered: Undelivered,
    /// The number of the producers that were opened last.
    current: usize,
    opening: Option<Opening<E>>,
    /// The loop waits for an abort.
    is_aborting: bool,
}

/// The loop waits until any producers are open.
struct Opening<E: ProcessEnvironment> {
    producers: E::Producers,
    reporter: E::Reporter,
    failed: Weak<E::Producer>,
    is_over: OpeningEnd,
    /// When others are opened, too, on the monotonic clock.
    others_at: Duration,
}

/// Whether producers are open, so that those that are opened later are closed.
#[derive(Clone, Default)]
pub(crate) struct OpeningEnd(Arc<Mutex<bool>>);

impl OpeningEnd {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call.
pub(crate) enum ProducerJob<E: ProcessEnvironment> {
    /// Ends a transaction of which nothing is committed, after a pause.
    Abort { producer: Arc<E::Producer>, timeout: Duration, has_paused: bool },
    /// Opens producers, until that succeeds. The failed ones are closed when it has.
    Open {
        producers: E::Producers,
        number: usize,
        reporter: E::Reporter,
        is_over: OpeningEnd,
        _failed: Option<Arc<E::Producer>>,
    },
}

/// What a call has returned.
pub(crate) enum ProducerResult<E: ProcessEnvironment> {
    Aborted(Result<(), TransactionError>),
    Opened(E::Producer),
}

/// What the thread of a call has returned.
pub(crate) enum ProducerJobEnd<E: ProcessEnvironment> {
    Aborted(Result<(), TransactionError>),
    /// `None`: others were open earlier, and these are closed.
    Opened {
        number: usize,
        producer: Option<E::Producer>,
    },
}

impl<E: ProcessEnvironment> ProducerJobs<E> {
    /// The producers with the number `current` are open. An earlier process with the same
    /// transactional id may have used others: their transactions are ended.
    pub(crate) fn start(
        environment: &E,
        clients: (&E::Producers, &E::Reporter),
        current: usize,
        late: Duration,
    ) -> Self {
        let queue = environment.start_queue("producers", Threads::PerJob, || ());
        let is_over = OpeningEnd::default();
        *is_over.lock() = true;
        let mut jobs = Self {
            queue,
            late,
            is_opening: [const { None }; PRODUCERS_MAX],
            undelivered: None,
            current,
            opening: None,
            is_aborting: false,
        };
        for number in (0..PRODUCERS_MAX).filter(|number| *number != current) {
            jobs.submit_opening(clients, number, &is_over, None);
        }
        jobs
    }

    /// Whether, if the transaction of the current producers cannot be ended, there are others, and
    /// others after them.
    pub(crate) fn has_other_ids(&self) -> bool {
        let free = self.is_opening.iter().filter(|opening| opening.is_none()).count();
        free > 2
    }

    /// Aborts the open transaction; waits at most `timeout` for the broker.
    pub(crate) fn abort(&mut self, producer: Arc<E::Producer>, timeout: Duration) {
        self.assert_idle();
        self.is_aborting = true;
        self.queue.submit(ProducerJob::Abort { producer, timeout, has_paused: false });
    }

    /// Opens new producers, which makes the broker decide the transaction of the `failed` ones. It
    /// is `now` on the monotonic clock.
    pub(crate) fn open(
        &mut self,
        producers: E::Producers,
        reporter: E::Reporter,
        failed: Option<Arc<E::Producer>>,
        now: Duration,
    ) {
        self.assert_idle();
        let is_over = OpeningEnd::default();
        let held = failed.as_ref().map_or_else(Weak::new, Arc::downgrade);
        self.submit_opening((&producers, &reporter), self.current, &is_over, failed);
        let others_at = now + self.late;
        self.opening = Some(Opening { producers, reporter, failed: held, is_over, others_at });
    }

    /// The transaction that has just failed has a record that this partition has not acknowledged.
    pub(crate) fn on_undelivered(&mut self, topic: &str, partition: PartitionId) {
        self.undelivered = Some((topic.to_owned(), partition));
    }

    /// The partitions that have not acknowledged a record of a transaction which the broker has not
    /// ended yet. Another transaction with them would last as long.
    pub(crate) fn not_ended(&self) -> impl Iterator<Item = (&str, PartitionId)> {
        let undelivered = self.is_opening.iter().flatten().flatten();
        undelivered.map(|(topic, partition)| (topic.as_str(), *partition))
    }

    fn assert_idle(&self) {
        assert!(self.opening.is_none() && !self.is_aborting, "the loop waits for one call");
    }

    fn submit_opening(
        &mut self,
        (producers, reporter): (&E::Producers, &E::Reporter),
        number: usize,
        is_over: &OpeningEnd,
        failed: Option<Arc<E::Producer>>,
    ) {
        self.is_opening[number] = Some(self.undelivered.take());
        self.queue.submit(ProducerJob::Open {
            producers: producers.clone(),
            number,
            reporter: reporter.clone(),
            is_over: is_over.clone(),
            _failed: failed,
        });
    }

    /// The result of the call that the loop waits for; waits at most `timeout` for it. It is `now`
    /// on the monotonic clock.
    pub(crate) fn poll(&mut self, timeout: Duration, now: Duration) -> Option<ProducerResult<E>> {
        if self.queue.in_flight() == 0 {
            return None;
        }
        let wait = match &self.opening {
            Some(opening) => timeout.min(opening.others_at.saturating_sub(now)),
            None if self.is_aborting => timeout,
            None => Duration::ZERO,
        };
        let mut end = self.queue.poll(wait);
        let mut result = None;
        while let Some(returned) = end {
            result = self.on_returned(returned);
            end = if result.is_none() { self.queue.poll(Duration::ZERO) } else { None };
        }
        self.open_others(now);
        result
    }

    /// What the loop waits for, if it is that.
    fn on_returned(&mut self, end: ProducerJobEnd<E>) -> Option<ProducerResult<E>> {
        match end {
            ProducerJobEnd::Aborted(result) => {
                self.is_aborting = false;
                Some(ProducerResult::Aborted(result))
            }
            ProducerJobEnd::Opened { number, producer } => {
                self.is_opening[number] = None;
                let producer = producer?;
                self.current = number;
                if let Some(opening) = self.opening.take() {
                    opening.producers.prepare(number);
                }
                Some(ProducerResult::Opened(producer))
            }
        }
    }

    /// Opens the next producers that are not being opened, if that takes long.
    fn open_others(&mut self, now: Duration) {
        let Some(mut opening) = self.opening.take_if(|opening| now >= opening.others_at) else {
            return;
        };
        opening.others_at = now + self.late;
        // One that has not returned may still commit. The thread that opens the first ones holds
        // the failed one, too.
        let is_in_use = opening.failed.strong_count() > 1;
        let mut others = (1..PRODUCERS_MAX).map(|step| (self.current + step) % PRODUCERS_MAX);
        if !is_in_use && let Some(number) = others.find(|number| self.is_opening[*number].is_none())
        {
            tracing::info!(number, "the producers take long to be opened; opening others, too");
            let clients = (&opening.producers.clone(), &opening.reporter.clone());
            self.submit_opening(clients, number, &opening.is_over, None);
        }
        self.opening = Some(opening);
    }
}

impl<E: ProcessEnvironment> Job for ProducerJob<E> {
    type Output = ProducerJobEnd<E>;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<ProducerJobEnd<E>> {
        match self {
            Self::Abort { has_paused, .. } if !*has_paused => {
                *has_paused = true;
                JobStep::Pause(RETRY_PAUSE)
            }
            Self::Abort { producer, timeout, .. } => {
                JobStep::Done(ProducerJobEnd::Aborted(producer.abort(*timeout)))
            }
            Self::Open { producers, number, reporter, is_over, .. } => {
                let opened = producers.open(*number);
                let mut is_over = is_over.lock();
                match opened {
                    Ok(producer) => {
                        let is_first = !std::mem::replace(&mut *is_over, true);
                        drop(is_over);
                        let producer = is_first.then_some(producer);
                        JobStep::Done(ProducerJobEnd::Opened { number: *number, producer })
                    }
                    Err(error) => {
                        let pause = if *is_over { OTHERS_PAUSE } else { OPEN_PAUSE };
                        if !*is_over {
                            reporter.not_ready("broker", error.to_string());
                        }
                        tracing::warn!(
                            number = *number,
                            %error,
                            "the producers cannot be opened; trying again"
                        );
                        JobStep::Pause(pause)
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "producer_jobs/tests.rs"]
mod tests;
