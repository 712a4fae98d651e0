//! The worker: makes the HTTP callbacks that are due and records their results.
//!
//! Invariant: at least once, under an id that stays the same. The consumer group decides which
//! worker handles a fire, and results are committed together with the progress that covers them.
//! The group is polled only while no transaction is open.
//!
//! ```text
//!   fires[p] ──read──► Queue ──► Circuits ──► Caller (tokio, guarded) ──► receiver
//!      ▲       withdrawn │ no room  │ open         │ ended
//!      └──── progress ◄──┴ one transaction ◄───────┴──► signals[p] · outcomes[p] · dead-letters[p]
//! ```

pub mod callback;
pub mod caller_queue;
pub mod circuit;
pub mod deferral;
pub mod disposition;
pub mod otlp;
pub mod progress;
pub mod queue;
pub mod report;
pub mod trace;

mod commit;
mod completion;
mod dispatch;
mod fd_limit;
mod intake;
mod partition;
mod readiness;
mod retry_after;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::callers::{CallerTable, Callers};
use crate::clock;
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::{ConfigError, Settings, WorkerSettings};
use crate::engine::assignment::AssignmentChange;
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::error::ClientError;
use crate::kafka::member::Member;
use crate::kafka::reader::LogReader;
use crate::kafka::transaction::{TransactionError, TransactionalProducer};
use crate::model::PartitionId;
use crate::model::outcome::Outcome;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;
use crate::telemetry;
use callback::CallbackClient;
use circuit::{CircuitBreakerSettings, CircuitBreakers};
use commit::{RESULTS_MAX, open_transactor};
use completion::CompletedFire;
use deferral::DeferralDelays;
use dispatch::WaitingFire;
use intake::WorkerEvent;
use otlp::SpanExporter;
use partition::{RunningPartition, WorkerPartition};
use progress::ProgressError;
use queue::Queue;
use readiness::WorkerReadiness;

/// How long the loop waits at most when there is nothing to do: the group must be polled.
const IDLE_WAIT: Duration = Duration::from_millis(10);
/// The same while fires wait for capacity: a callback that ends frees it.
const QUEUE_WAIT: Duration = Duration::from_millis(1);
/// How long a call to the broker may take before the broker counts as unavailable.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two checks of the readiness.
const READINESS_INTERVAL: Duration = Duration::from_millis(500);

/// Why the worker ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A client could not be created.
    #[error("Kafka: {0}; check [kafka]")]
    Kafka(#[from] ClientError),
    /// The group has removed this member repeatedly.
    #[error(
        "the group removes this worker repeatedly: {0}; its heartbeats do not arrive within \
         scheduler.session_timeout: check its CPU and its network, or set a longer one"
    )]
    Removed(ClientError),
    /// A topic is missing.
    #[error(
        "topic {0} does not exist; create the topics with `orloj topics apply` (a pool's too, once \
         `topics.pools` names it)"
    )]
    NoTopic(String),
    /// No transaction can be started.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// A record has a newer format: upgrade this process.
    #[error(transparent)]
    Newer(#[from] CodecError),
    /// The committed progress has a newer format, or another program committed for our group.
    #[error(transparent)]
    Progress(#[from] ProgressError),
    /// The HTTP client cannot be created: its certificates, most likely.
    #[error("TLS: {0}; check the certificates of this machine")]
    Tls(#[from] tokio_rustls::rustls::Error),
    /// The same, of the client that sends spans.
    #[error("HTTP: {0}; check the certificates of this machine")]
    Http(#[from] reqwest::Error),
    /// Correct the callers file.
    #[error(transparent)]
    Callers(#[from] ConfigError),
    /// The system refuses to start threads.
    #[error("threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// Runs a worker until `shutdown`; blocks. Callbacks in progress are then finished and the
/// partitions released. Reports readiness through `health`.
pub fn run(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), WorkerError> {
    Worker::start(settings, shutdown, health)?.run_loop()
}

/// The loop's state.
struct Worker {
    settings: Settings,
    names: Names,
    /// The fires of our pool.
    topic: String,
    /// The transactional id.
    transactional_id: String,
    /// The name of this worker in attempt histories.
    name: Text,
    /// For triggers that have no policy of their own.
    default_retry_policy: RetryPolicy,
    schemas: Schemas,
    shutdown: CancellationToken,
    health: Arc<Health>,
    member: Member,
    /// The member that was assigned the partitions.
    member_id: String,
    reader: LogReader,
    probe: KafkaAdminClient,
    transactor: TransactionalProducer,
    caller: Arc<CallbackClient>,
    callers: Callers,
    /// The callers whose limits the queue applies now.
    applied_callers: Arc<CallerTable>,
    runtime: Runtime,
    events: (Sender<WorkerEvent>, Receiver<WorkerEvent>),
    partitions: BTreeMap<PartitionId, WorkerPartition>,
    readiness: WorkerReadiness,
    readiness_checked_at: Instant,
    /// Epochs started so far.
    epochs_started: u64,
    /// Fires that wait, and callbacks in progress, those of earlier epochs included.
    queue: Queue<WaitingFire>,
    circuits: CircuitBreakers,
    delays: DeferralDelays,
    /// Changes of circuits that are not committed yet.
    circuit_outcomes: Vec<Outcome>,
    /// Results that are not committed yet, and since when there are any.
    completed: Vec<CompletedFire>,
    oldest_result_at: Option<Instant>,
    /// Transactions that failed in a row.
    failed_commits: u32,
}

impl Worker {
    fn start(
        settings: &Settings,
        shutdown: CancellationToken,
        health: Arc<Health>,
    ) -> Result<Self, WorkerError> {
        let (names, pool) = (Names::new(&settings.topics.prefix), &settings.worker.pool);
        let topic = names.fires_of(pool);
        let probe = KafkaAdminClient::open(settings, CALL_TIMEOUT)?;
        for needed in [&topic, &names.signals(), &names.outcomes(), &names.dead_letters()] {
            if probe.partitions(needed)?.is_none() {
                return Err(WorkerError::NoTopic(needed.clone()));
            }
        }
        let guard = Guard::new(settings).with_brokers(probe.brokers(&topic)?);
        health.not_ready("partitions", "no group assignment yet");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("callbacks")
            .build()?;
        let entered = runtime.enter();
        guard.start_lookups();
        let callers = Callers::watch(settings, Arc::clone(&health), shutdown.clone())?;
        let endpoint = Some(&settings.trace.endpoint).filter(|endpoint| !endpoint.is_empty());
        let spans = endpoint.map(|endpoint| SpanExporter::start(endpoint)).transpose()?;
        drop(entered);
        // A worker keeps nothing on disk, so no name of it survives a restart.
        let instance = uuid::Uuid::now_v7().simple().to_string();
        let id = names.transactional_id("worker", &instance);
        let group = names.worker_group(pool);
        let mut settings = settings.clone();
        settings.worker.in_flight_max = fd_limit::max_in_flight(settings.worker.in_flight_max);
        let settings = &settings;
        Ok(Self {
            transactor: open_transactor(settings, &id)?,
            member: Member::join_dynamic(settings, &group, &topic)?,
            reader: LogReader::open(settings, &group)?,
            caller: Arc::new(CallbackClient::new(&settings.worker, guard, callers.clone(), spans)?),
            applied_callers: callers.current(),
            callers,
            runtime,
            name: worker_name(&settings.worker, &instance),
            default_retry_policy: default_retry_policy(&settings.worker),
            schemas: Schemas::new(),
            settings: settings.clone(),
            events: channel(),
            member_id: String::new(),
            partitions: BTreeMap::new(),
            readiness: WorkerReadiness::new(settings.timeouts.fetch),
            readiness_checked_at: clock::monotonic(),
            epochs_started: 0,
            queue: Queue::new(settings.worker.queue_max.get()),
            circuits: CircuitBreakers::new(
                CircuitBreakerSettings::new(&settings.worker),
                clock::monotonic(),
            ),
            delays: DeferralDelays::new(&settings.worker),
            circuit_outcomes: Vec::new(),
            completed: Vec::new(),
            oldest_result_at: None,
            failed_commits: 0,
            names,
            topic,
            transactional_id: id,
            shutdown,
            health,
            probe,
        })
    }

    fn run_loop(mut self) -> Result<(), WorkerError> {
        self.health.ready("broker");
        while !self.shutdown.is_cancelled() {
            self.poll_once()?;
            let idle = self.idle_wait();
            let wait = self.time_to_commit().map_or(idle, |due| due.min(idle));
            self.read(wait)?;
        }
        self.shut_down()
    }

    /// One iteration of the loop without reading: group, callbacks, timers, commit.
    fn poll_once(&mut self) -> Result<(), WorkerError> {
        self.poll_group()?;
        self.process_events()?;
        self.refresh_limits();
        self.start_callbacks();
        self.update_circuits();
        if clock::monotonic() >= self.readiness_checked_at + READINESS_INTERVAL {
            self.readiness_checked_at = clock::monotonic();
            self.report_readiness();
        }
        metrics::gauge!(telemetry::CALLBACKS_IN_FLIGHT).set(self.queue.in_progress() as f64);
        metrics::gauge!(telemetry::CALLBACKS_WAITING).set(self.queue.waiting() as f64);
        if self.time_to_commit().is_some_and(|due| due.is_zero()) { self.commit() } else { Ok(()) }
    }

    /// How long to wait for the log when there is nothing else to do.
    fn idle_wait(&self) -> Duration {
        if self.queue.waits_for_completion() {
            return QUEUE_WAIT;
        }
        let due = self.queue.next_due().map(|at| at.saturating_duration_since(clock::monotonic()));
        due.map_or(IDLE_WAIT, |due| due.clamp(QUEUE_WAIT, IDLE_WAIT))
    }

    /// Handles changes of the group assignment. No transaction is open here.
    fn poll_group(&mut self) -> Result<(), WorkerError> {
        let changes = match self.member.poll(Duration::ZERO) {
            Ok(changes) => changes,
            Err(fatal) => return self.join_again(fatal),
        };
        for change in changes {
            tracing::info!(?change, "group assignment changed");
            match change {
                AssignmentChange::Joined(member_id) => {
                    let is_expelled = !self.partitions.is_empty() && self.member_id != member_id;
                    self.member_id = member_id;
                    if is_expelled {
                        return self.join_again(ClientError::Expelled);
                    }
                }
                AssignmentChange::Assigned(partitions) => {
                    self.readiness.assigned();
                    partitions.into_iter().for_each(|partition| self.start_epoch(partition));
                }
                AssignmentChange::Revoked(partitions) => {
                    self.process_events()?;
                    self.prepare_final_commit(|partition| partitions.contains(partition));
                    self.commit()?;
                    self.release_partitions(&partitions)?;
                    if self.partitions.is_empty() {
                        self.readiness.unassigned();
                    }
                }
                AssignmentChange::Lost(partitions) => {
                    self.release_partitions(&partitions)?;
                    self.readiness.unassigned();
                }
            }
            self.report_readiness();
        }
        Ok(())
    }

    /// Joins as a new client, without any partition: the client has failed, or the group has
    /// expelled this worker and let it join again, which the client does not report. During a
    /// shutdown it only releases what it has: it would be assigned partitions, and leave at once.
    fn join_again(&mut self, fatal: ClientError) -> Result<(), WorkerError> {
        let all: Vec<_> = self.partitions.keys().copied().collect();
        if !all.is_empty() {
            self.release_partitions(&all)?;
        }
        if self.shutdown.is_cancelled() {
            tracing::debug!(error = %fatal, "fenced by the group during the shutdown");
            return Ok(());
        }
        tracing::warn!(error = %fatal, "fenced by the group; joining again");
        self.readiness.unassigned();
        self.report_readiness();
        self.member.rejoin(fatal).map_err(WorkerError::Removed)
    }

    /// Removes partitions: their next owner repeats what was not committed.
    fn release_partitions(&mut self, partitions: &[PartitionId]) -> Result<(), WorkerError> {
        for partition in partitions {
            self.reader.stop(&self.topic, *partition)?;
            self.discard_waiting(*partition);
            self.partitions.remove(partition);
        }
        Ok(self.member.release(partitions)?)
    }

    /// Waits for the callbacks in progress, commits, and leaves the group, which moves the
    /// partitions to the other members at once. They make the callbacks that still wait.
    fn shut_down(mut self) -> Result<(), WorkerError> {
        self.report_readiness();
        let deadline = clock::monotonic() + self.settings.worker.timeout_max;
        while self.queue.in_progress() > 0 && clock::monotonic() < deadline {
            self.poll_once()?;
            if let Ok(event) = self.events.1.recv_timeout(IDLE_WAIT) {
                self.on_event(event)?;
            }
        }
        self.circuits.forget_all("the worker has ended");
        self.update_circuits();
        self.prepare_final_commit(|_| true);
        self.commit()
    }

    /// No further callback of these partitions starts: their last commit says up to which offset
    /// one did.
    fn prepare_final_commit(&mut self, is_revoked: impl Fn(&PartitionId) -> bool) {
        let revoked = self.partitions.iter_mut().filter(|(partition, _)| is_revoked(partition));
        revoked
            .filter_map(|(_, owned)| owned.running.as_mut())
            .for_each(RunningPartition::prepare_final_commit);
    }

    /// Whether no further callback may start: enough are in progress, or there are many results
    /// because they cannot be committed.
    fn is_full(&self) -> bool {
        let in_flight_max = self.settings.worker.in_flight_max.get();
        self.queue.in_progress() >= in_flight_max
            || self.completed.len() >= in_flight_max.max(RESULTS_MAX)
    }

    fn report_readiness(&self) {
        let is_member = self.group_metadata().is_ok();
        let running = self.partitions.values().filter(|owned| owned.running.is_some()).count();
        if self.shutdown.is_cancelled() {
            self.health.not_ready("partitions", "shutting down");
        } else if let Some(reason) = self.readiness.reason(is_member, clock::monotonic()) {
            self.health.not_ready("partitions", reason);
        } else if running == self.partitions.len() {
            self.health.ready("partitions");
        } else {
            let all = self.partitions.len();
            self.health.not_ready("partitions", format!("{running} of {all} partitions read"));
        }
    }
}

/// The name of this worker: as configured, or the host name and the end of `instance`, which no two
/// processes share.
fn worker_name(settings: &WorkerSettings, instance: &str) -> Text {
    if !settings.name.is_empty() {
        return Text::from(settings.name.as_str());
    }
    let host = host_name();
    let host = if host.is_empty() { "worker" } else { &host };
    Text::from(format!("{host}/{}", &instance[instance.len().saturating_sub(8)..]))
}

/// The name of this machine; empty if the system does not say it.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The policy of triggers that have none.
fn default_retry_policy(settings: &WorkerSettings) -> RetryPolicy {
    let delays = settings.retry_delays.iter();
    let delays = delays.map(|delay| delay.as_millis().try_into().unwrap_or(u64::MAX));
    RetryPolicy {
        delays: delays.collect(),
        attempts: None,
        jitter: Some(settings.retry_jitter),
        final_statuses: settings.final_statuses.clone(),
    }
}
