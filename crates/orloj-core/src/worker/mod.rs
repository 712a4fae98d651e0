//! The worker: makes the HTTP callbacks that are due and records their results.
//!
//! Invariant: at least once, under an id that stays the same. The consumer group decides which
//! worker handles a fire, and results are committed together with the progress that covers them.
//! One OS thread runs the loop, and waits for no broker. The group is polled only while no
//! transaction is in progress.
//!
//! ```text
//!   fires[p] ──read──► Queue ──► Circuits ──► CallbackMaking (guarded) ──► receiver
//!      ▲       withdrawn │ no room  │ open         │ ended
//!      └──── progress ◄──┴ one transaction ◄───────┴──► signals[p] · outcomes[p] · dead-letters[p]
//! ```

pub mod callback;
pub mod caller_queue;
pub mod circuit;
mod commit;
mod completion;
pub mod config;
pub mod deferral;
mod dispatch;
pub mod disposition;
mod fetched_record;
mod in_progress;
mod intake;
mod left_out;
mod log_bounds;
mod membership;
mod partition;
mod position;
pub mod progress;
pub mod queue;
mod readiness;
mod refused_record;
pub mod report;
mod result_batch;
mod results;
mod returns;
mod shutdown;
#[cfg(test)]
mod test_worker;
#[cfg(test)]
mod tests;
mod transaction_state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::schemas::{CodecError, Schemas};
use crate::commit::committer::Committer;
use crate::commit::finding_reader::FindingReader;
use crate::commit::producer_jobs::ProducerJobs;
use crate::commit::topic_lookup::TopicLookup;
use crate::environment::call_error::CallError;
use crate::environment::job::Threads;
use crate::environment::{Clock as _, ProcessReporter as _};
use crate::model::PartitionId;
use callback::{WorkerBytes, WorkerEnvironment, WorkerReporter as _};
use circuit::CircuitBreakers;
use config::WorkerConfig;
use dispatch::WaitingFire;
use in_progress::InProgress;
use left_out::LeftOutPartitions;
use log_bounds::BoundsCheck;
use partition::WorkerPartition;
use position::PositionJobOf;
use progress::ProgressError;
use queue::Queue;
use readiness::WorkerReadiness;
use result_batch::{ResultBatch, ResultEncoder};
use results::{RESULTS_MAX, Results};
use returns::DeferredReturns;
use shutdown::Leaving;
use transaction_state::TransactionState;

/// How long the loop waits at most when there is nothing to do: the group must be polled.
const IDLE_WAIT: Duration = Duration::from_millis(10);
/// The same while fires wait for capacity, because a callback that ends frees it; and while a
/// transaction is in progress.
const BUSY_WAIT: Duration = Duration::from_millis(1);

/// A transaction that takes longer waits for a broker that does not answer: brokers that do need
/// less than a second, and about two while one of three is restarted.
const SLOW_TRANSACTION: Duration = Duration::from_secs(4);
/// Why the worker is not ready then.
const SLOW: &str = "a transaction waits for a broker that does not answer";
/// Pause between two checks of the readiness.
const READINESS_INTERVAL: Duration = Duration::from_millis(500);

/// Why the loop ended without a request to shut down.
#[derive(Debug, thiserror::Error)]
pub enum WorkerLoopError {
    /// A Kafka client failed.
    #[error("Kafka: {0}; check [kafka]")]
    Call(#[from] CallError),
    /// The group has removed this member repeatedly.
    #[error(
        "the group removes this worker repeatedly: {0}; its heartbeats do not arrive within \
         scheduler.session_timeout: check its CPU and its network, or set a longer one"
    )]
    FencedRepeatedly(CallError),
    /// A record has a newer format: upgrade this process.
    #[error(transparent)]
    Newer(#[from] CodecError),
    /// The committed progress has a newer format, or another program committed for our group.
    #[error(transparent)]
    Progress(#[from] ProgressError),
}

/// What a worker works with.
#[expect(missing_debug_implementations, reason = "clients have nothing to show")]
pub struct WorkerParts<E: WorkerEnvironment> {
    /// Threads.
    pub environment: E,
    /// The time.
    pub clock: E::Clock,
    /// Reports readiness and metrics.
    pub reporter: E::Reporter,
    /// The membership in the group of the pool.
    pub member: E::Member,
    /// Reads fires.
    pub reader: E::Reader,
    /// Answers questions about topics.
    pub cluster: E::Cluster,
    /// Opens producers.
    pub producers: E::Producers,
    /// The number of the producer that was opened first, and this producer.
    pub producer: (usize, E::Producer),
    /// Makes callbacks.
    pub callbacks: E::Callbacks,
    /// The schemas of our records.
    pub schemas: Arc<Schemas>,
}

/// The state of the loop.
#[expect(missing_debug_implementations, reason = "clients have nothing to show")]
pub struct Worker<E: WorkerEnvironment> {
    config: WorkerConfig,
    environment: E,
    clock: E::Clock,
    reporter: E::Reporter,
    member: E::Member,
    /// The member that was assigned the partitions.
    member_id: String,
    reader: E::Reader,
    cluster: E::Cluster,
    callbacks: E::Callbacks,
    schemas: Arc<Schemas>,
    encoder: ResultEncoder,
    producers: E::Producers,
    /// `None` while new ones are opened.
    producer: Option<Arc<E::Producer>>,
    producer_jobs: ProducerJobs<E>,
    committer: Committer<E, ResultBatch>,
    findings: FindingReader<E>,
    lookups: E::Queue<TopicLookup<E::Cluster>>,
    positions: E::Queue<PositionJobOf<E>>,
    transaction: TransactionState,
    /// When the last transaction began, on the monotonic clock.
    committed_at: Duration,
    /// Transactions that failed in a row.
    failed_commits: u32,
    /// No transaction begins earlier, on the monotonic clock.
    retry_at: Duration,
    partitions: BTreeMap<PartitionId, WorkerPartition>,
    readiness: WorkerReadiness,
    bounds_check: BoundsCheck,
    /// On the monotonic clock.
    readiness_checked_at: Duration,
    /// Epochs started so far.
    epochs_started: u64,
    /// Fires that wait, and callbacks in progress, those of earlier epochs included.
    queue: Queue<WaitingFire>,
    in_progress: InProgress,
    returns: DeferredReturns,
    circuits: CircuitBreakers,
    results: Results,
    left_out_partitions: LeftOutPartitions,
    /// When brokers have refused the time of this machine, on the monotonic clock.
    time_refused_at: Option<Duration>,
    leaving: Option<Leaving>,
}

impl<E: WorkerEnvironment> Worker<E> {
    /// A worker that has joined its group and owns nothing yet.
    #[must_use]
    pub fn new(config: WorkerConfig, parts: WorkerParts<E>) -> Self {
        let WorkerParts { environment, clock, reporter, .. } = parts;
        let encoder = {
            let (names, schemas) = (config.names.clone(), Arc::clone(&parts.schemas));
            move || ResultEncoder::new(&names, Arc::clone(&schemas), E::reached)
        };
        let ((number, producer), late) = (parts.producer, config.timing.producers_late);
        let clients = (&parts.producers, &reporter);
        let now = clock.monotonic();
        Self {
            encoder: encoder(),
            committer: Committer::start(
                &environment,
                encoder,
                config.hang_limits(),
                Duration::ZERO,
            ),
            producer_jobs: ProducerJobs::start(&environment, clients, number, late),
            findings: FindingReader::start(&environment),
            lookups: environment.start_queue("lookups", Threads::Fixed(1), || ()),
            positions: environment.start_queue("positions", Threads::PerJob, || ()),
            transaction: TransactionState::Idle,
            committed_at: now,
            failed_commits: 0,
            retry_at: now,
            partitions: BTreeMap::new(),
            readiness: WorkerReadiness::new(config.fetch_timeout),
            bounds_check: BoundsCheck::default(),
            readiness_checked_at: now,
            epochs_started: 0,
            queue: Queue::new(config.queue, |waiting: &WaitingFire| waiting.bytes),
            in_progress: InProgress::default(),
            returns: DeferredReturns::new(
                config.deferral.bytes_per_second_max,
                config.deferral.longest,
            ),
            circuits: CircuitBreakers::new(config.circuits, now),
            results: Results::default(),
            left_out_partitions: LeftOutPartitions::default(),
            time_refused_at: None,
            leaving: None,
            member: parts.member,
            member_id: String::new(),
            reader: parts.reader,
            cluster: parts.cluster,
            callbacks: parts.callbacks,
            schemas: parts.schemas,
            producers: parts.producers,
            producer: Some(Arc::new(producer)),
            config,
            environment,
            clock,
            reporter,
        }
    }

    /// Runs until `is_shut_down`. Callbacks in progress are then finished, and the progress is
    /// committed.
    pub fn serve(mut self, is_shut_down: impl Fn() -> bool) -> Result<(), WorkerLoopError> {
        self.reporter.ready("broker");
        while !is_shut_down() {
            self.poll_once()?;
        }
        while !self.leave()? {}
        Ok(())
    }

    /// One turn of the loop: does all work that is possible now, then waits for a short time.
    pub fn poll_once(&mut self) -> Result<(), WorkerLoopError> {
        self.poll_transaction()?;
        if self.transaction.accepts_changes() {
            self.poll_group()?;
        }
        self.check_bounds();
        self.poll_positions()?;
        self.process_ended();
        self.refresh_limits();
        self.start_callbacks();
        self.update_circuits();
        self.check_readiness();
        self.report_load();
        if self.time_to_commit().is_some_and(|due| due.is_zero()) {
            self.commit();
        }
        let idle = self.idle_wait();
        let wait = self.time_to_commit().map_or(idle, |due| due.min(idle));
        self.read(wait)
    }

    /// How long to wait for the log when there is nothing else to do.
    fn idle_wait(&self) -> Duration {
        if self.queue.waits_for_completion() || !self.transaction.is_idle() {
            return BUSY_WAIT;
        }
        let now = self.clock.monotonic();
        let due = self.queue.next_due().map(|at| at.saturating_sub(now));
        due.map_or(IDLE_WAIT, |due| due.clamp(BUSY_WAIT, IDLE_WAIT))
    }

    /// Whether no further callback may start, and nothing more may be read: enough are in progress,
    /// there are many results because they cannot be committed, or the worker is about to end.
    fn is_full(&self) -> bool {
        let in_flight_max = self.config.in_flight_max;
        self.leaving.as_ref().is_some_and(Leaving::is_closed)
            || self.queue.in_progress() >= in_flight_max
            || self.queue.in_progress_bytes() >= self.config.queue.in_progress_bytes
            || self.results.count() >= in_flight_max.max(RESULTS_MAX)
            || self.results.bytes() >= self.config.results_bytes_max
    }

    fn report_load(&self) {
        let (held, held_bytes) = self.leaving.as_ref().map_or((0, 0), Leaving::held);
        self.reporter.callbacks(self.queue.in_progress(), self.queue.waiting() + held);
        self.reporter.memory(WorkerBytes {
            waiting: self.queue.waiting_bytes() + held_bytes,
            in_flight: self.queue.in_progress_bytes(),
            results: self.results.bytes(),
        });
    }

    fn check_readiness(&mut self) {
        let now = self.clock.monotonic();
        if now >= self.readiness_checked_at + READINESS_INTERVAL {
            self.readiness_checked_at = now;
            self.report_readiness();
            if self.committer.running_for(now) >= SLOW_TRANSACTION {
                self.reporter.not_ready("broker", SLOW.to_owned());
            }
        }
    }

    fn report_readiness(&self) {
        let (is_member, now) = (self.group_metadata().is_ok(), self.clock.monotonic());
        let running = self.partitions.values().filter(|owned| owned.running.is_some()).count();
        let all = self.partitions.len();
        if self.leaving.is_some() {
            self.reporter.not_ready("partitions", "shutting down".to_owned());
        } else if let Some(reason) = self.readiness.reason(is_member, now) {
            self.reporter.not_ready("partitions", reason);
        } else if running == all {
            self.reporter.ready("partitions");
        } else {
            self.reporter.not_ready("partitions", format!("{running} of {all} partitions read"));
        }
    }
}
