//! The worker: makes the HTTP callbacks that are due and records their results.
//!
//! Invariant: this module opens the clients and starts the loop, which `orloj_core::worker` is. One
//! OS thread runs the loop; requests are tokio tasks, and jobs run on threads of their own.

pub mod callback;
mod environment;
mod fd_limit;
mod limits;
pub mod otlp;
mod retry_after;
pub mod trace;

use std::sync::Arc;
use std::time::Duration;

use orloj_core::worker::circuit::CircuitBreakerSettings;
use orloj_core::worker::config::{WorkerConfig, WorkerTiming};
use orloj_core::worker::deferral::DeferralDelays;
use orloj_core::worker::queue::QueueBounds;
use orloj_core::worker::{Worker, WorkerLoopError, WorkerParts};
pub use orloj_core::worker::{disposition, progress};
use tokio_util::sync::CancellationToken;

use crate::callers::Callers;
use crate::clock::SystemClock;
use crate::codec::schemas::Schemas;
use crate::config::{ByteSize, ConfigError, Settings, WorkerSettings};
use crate::environment::transaction::ProducerFactory as _;
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::environment::KafkaQueries;
use crate::kafka::error::ClientError;
use crate::kafka::member::Member;
use crate::kafka::reader::LogReader;
use crate::kafka::standby_client::StandbyClient;
use crate::kafka::transaction::TransactionError;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;
use crate::model::time::whole_ms;
use crate::role_reporter::RoleReporter;
use callback::CallbackClient;
use environment::{HttpCallbacks, KafkaWorker, TRANSACTION_TIMEOUT, WorkerMember, WorkerProducers};
use otlp::SpanExporter;

/// How long a call to the broker may take before the broker counts as unavailable.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the worker ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A client could not be created.
    #[error("Kafka: {0}; check [kafka]")]
    Kafka(#[from] ClientError),
    /// A topic is missing.
    #[error(
        "topic {0} does not exist; create the topics with `orloj topics apply` (a pool's too, once \
         `topics.pools` names it)"
    )]
    NoTopic(String),
    /// No transaction can be started.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// The loop has ended.
    #[error(transparent)]
    Loop(#[from] WorkerLoopError),
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
    let (config, parts) = open_parts(settings, &shutdown, health)?;
    Ok(Worker::new(config, parts).serve(|| shutdown.is_cancelled())?)
}

fn open_parts(
    settings: &Settings,
    shutdown: &CancellationToken,
    health: Arc<Health>,
) -> Result<(WorkerConfig, WorkerParts<KafkaWorker>), WorkerError> {
    let (names, pool) = (Names::new(&settings.topics.prefix), &settings.worker.pool);
    let topic = names.fires_of(pool);
    let admin = KafkaAdminClient::open(settings, CALL_TIMEOUT)?;
    for needed in [&topic, &names.signals(), &names.outcomes(), &names.dead_letters()] {
        if admin.partitions(needed)?.is_none() {
            return Err(WorkerError::NoTopic(needed.clone()));
        }
    }
    let guard = Guard::new(settings).with_brokers(admin.brokers(&topic)?);
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
    warn_of_caller_limit(&settings.worker);
    let settings = &settings;
    let producers = WorkerProducers { settings: Arc::new(settings.clone()), id: id.clone() };
    let producer = (0, producers.open(0)?);
    let member = Member::join_dynamic(settings, &group, &topic)?;
    let second_client = StandbyClient::open(settings, &group, &topic, CALL_TIMEOUT)?;
    let reader = LogReader::open(settings, &group)?;
    reader.prefetch_metadata(&topic)?;
    let client = CallbackClient::new(&settings.worker, guard, callers.clone(), spans)?;
    let parts = WorkerParts {
        environment: KafkaWorker,
        clock: SystemClock::start(),
        reporter: RoleReporter(health),
        member: WorkerMember::new(member, second_client),
        cluster: KafkaQueries { admin, reader: reader.clone(), timeout: CALL_TIMEOUT },
        reader,
        producers,
        producer,
        callbacks: HttpCallbacks::new(client, callers, &settings.worker, runtime),
        schemas: Arc::new(Schemas::new()),
    };
    Ok((worker_config(settings, names, topic, (&id, &instance)), parts))
}

/// One caller may have as many callbacks in flight as the worker: then it delays the others.
fn warn_of_caller_limit(settings: &WorkerSettings) {
    let (caller, all) = (settings.caller_in_flight_max, settings.in_flight_max);
    if caller >= all {
        tracing::warn!(
            "worker.caller_in_flight_max is {caller}, and at most {all} callbacks are in flight in \
             all: one caller whose receivers hang delays all others; lower the first"
        );
    }
}

fn worker_config(
    settings: &Settings,
    names: Names,
    topic: String,
    (id, instance): (&str, &str),
) -> WorkerConfig {
    let (fetch_timeout, settings) = (settings.timeouts.fetch, &settings.worker);
    WorkerConfig {
        names,
        topic,
        id: id.into(),
        name: worker_name(settings, instance),
        default_retry_policy: default_retry_policy(settings),
        in_flight_max: settings.in_flight_max.get(),
        queue: QueueBounds {
            fires: settings.queue_max.get(),
            bytes: bytes(settings.queue_bytes_max),
            in_progress_bytes: bytes(settings.in_flight_bytes_max),
        },
        results_bytes_max: bytes(settings.results_bytes_max),
        commit_bytes_max: bytes(settings.commit_bytes_max),
        commit_interval: settings.commit_interval,
        circuits: CircuitBreakerSettings {
            window: settings.circuit_window,
            attempts_min: settings.circuit_attempts_min.get(),
            failures_percent: settings.circuit_failures_percent.into(),
            open_duration: settings.circuit_open_duration,
            probes_required: settings.circuit_probes.get(),
            circuits_max: settings.circuits_max.get(),
        },
        deferral: DeferralDelays {
            first: settings.defer_first,
            longest: settings.defer_max,
            after_probe: settings.circuit_open_duration / 2,
            bytes_per_second_max: bytes(settings.defer_bytes_per_second_max),
        },
        transaction_timeout: TRANSACTION_TIMEOUT,
        drain_max: settings.timeout_max,
        fetch_timeout,
        offsets_retention: settings.offsets_retention,
        timing: WorkerTiming { call_timeout: CALL_TIMEOUT, ..WorkerTiming::default() },
    }
}

/// As much memory as can be addressed at most.
fn bytes(size: ByteSize) -> usize {
    usize::try_from(size.bytes()).unwrap_or(usize::MAX)
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
    RetryPolicy {
        delays: delays.copied().map(whole_ms).collect(),
        attempts: None,
        jitter: Some(settings.retry_jitter),
        final_statuses: settings.final_statuses.clone(),
    }
}
