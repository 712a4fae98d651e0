//! Every role in one process, to try Orloj: on a broker of its own, or on a real cluster.
//!
//! Law: the roles are the ones that run in production, and meet in topics only. What the built-in
//! broker cannot do is said when it starts.
//!
//! ```text
//!  broker (built in, or yours) ◄──► scheduler, worker, notifier, gateway ◄── HTTP
//! ```

mod broker;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;
use rdkafka::error::KafkaError;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::{ConfigError, Layers, Settings};
use crate::gateway::{self, GatewayError};
use crate::health::{self, Health};
use crate::kafka::topics::{TopicDefinitions, TopicError};
use crate::kafka::{Names, client_config};
use crate::notifier::{self, NotifierError};
use crate::scheduler::{self, SchedulerError};
use crate::worker::{self, WorkerError};

use broker::{Broker, PLAYGROUND};

/// What the built-in broker cannot do; said when it starts.
const BUILT_IN: &str = "\
This is a trial: the broker lives in this process's memory. It forgets everything when it
ends, keeps at most 100,000 records or 5 MiB a partition, and guarantees nothing.
On a real cluster: orloj dev --bootstrap-servers HOST:PORT";

/// Which broker the roles run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// One in this process.
    BuiltIn,
    /// The one that the settings name.
    Real,
}

/// How each role is.
#[derive(Clone, Debug)]
pub struct Roles {
    scheduler: Arc<Health>,
    worker: Arc<Health>,
    gateway: Arc<Health>,
    notifier: Arc<Health>,
}

/// Why it could not start or had to end. `Display` says what to do.
#[derive(Debug, Error)]
pub enum DevError {
    /// Correct the settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The built-in broker did not start: free memory or sockets.
    #[error("the built-in broker did not start: {0}")]
    Broker(#[from] KafkaError),
    /// Mend the topics of the cluster.
    #[error(transparent)]
    Topics(#[from] TopicError),
    /// Free the address or the disk.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// See the scheduler's own error.
    #[error("the scheduler ended: {0}")]
    Scheduler(#[from] SchedulerError),
    /// See the worker's own error.
    #[error("the worker ended: {0}")]
    Worker(#[from] WorkerError),
    /// See the gateway's own error.
    #[error("the gateway ended: {0}")]
    Gateway(#[from] GatewayError),
    /// See the notifier's own error.
    #[error("the notifier ended: {0}")]
    Notifier(#[from] NotifierError),
}

impl Roles {
    /// Roles that have not started.
    #[must_use]
    pub fn new() -> Self {
        Self {
            scheduler: Health::new("scheduler"),
            worker: Health::new("worker"),
            gateway: Health::new("gateway"),
            notifier: Health::new("notifier"),
        }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Health>> {
        [&self.scheduler, &self.worker, &self.gateway, &self.notifier].map(Arc::clone).to_vec()
    }
}

impl Default for Roles {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs every role until `shutdown`, or until one of them cannot go on.
pub async fn run(
    cluster: Cluster,
    mut layers: Layers,
    roles: Roles,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> Result<(), DevError> {
    let folder = Folder::create().map_err(system("cannot make a temporary folder"))?;
    // What suits a trial comes first, so that --set keeps the last word.
    let data_dir = format!("scheduler.data_dir={}", folder.path().display());
    let view_dir = format!("gateway.view_dir={}", folder.path().join("view").display());
    layers.overrides.splice(0..0, [data_dir, view_dir, "worker.allow_addresses=any".to_owned()]);
    let broker = match cluster {
        Cluster::BuiltIn => Some(Broker::start(&Settings::load(&layers)?.topics)?),
        Cluster::Real => None,
    };
    let address = broker.as_ref().map(Broker::address);
    layers.overrides.extend(address.map(|at| format!("kafka.bootstrap.servers={at}")));
    let mut settings = Settings::load(&layers)?;
    if cluster == Cluster::Real {
        apply_topics(&settings).await?;
    }
    let listener = listen(settings.gateway.listen).await?;
    let http = listener.local_addr().map_err(system("the listener has no address"))?;
    settings.gateway.listen = http;
    let welcome = welcome(cluster, &settings, http);
    let greeting = tokio::spawn(greet(welcome, roles.all()));
    let ended = run_roles(cluster, &settings, listener, roles, metrics, shutdown).await;
    greeting.abort();
    ended
}

/// Runs the roles until all have ended; the first that ends takes the others along.
async fn run_roles(
    cluster: Cluster,
    settings: &Settings,
    listener: TcpListener,
    roles: Roles,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> Result<(), DevError> {
    let probes = health::routes(roles.all(), metrics);
    let scheduler = tokio::task::spawn_blocking({
        let (settings, shutdown) = (settings.clone(), shutdown.clone());
        let run = match cluster {
            Cluster::BuiltIn => scheduler::run_trial,
            Cluster::Real => scheduler::run,
        };
        move || run(&settings, shutdown.clone(), roles.scheduler)
    });
    let worker = tokio::task::spawn_blocking({
        let (settings, shutdown) = (settings.clone(), shutdown.clone());
        move || worker::run(&settings, shutdown.clone(), roles.worker)
    });
    let notifier = tokio::task::spawn_blocking({
        let (settings, shutdown) = (settings.clone(), shutdown.clone());
        move || notifier::run(&settings, shutdown.clone(), roles.notifier)
    });
    let gateway = gateway::run(settings, listener, probes, roles.gateway, shutdown.clone());
    let scheduler = async { Ok(joined(scheduler.await)?) };
    let worker = async { Ok(joined(worker.await)?) };
    let gateway = async { Ok(gateway.await?) };
    let notifier = async { Ok(joined(notifier.await)?) };
    let (scheduler, worker, gateway, notifier) = tokio::join!(
        then_stop(scheduler, &shutdown),
        then_stop(worker, &shutdown),
        then_stop(gateway, &shutdown),
        then_stop(notifier, &shutdown),
    );
    scheduler.and(worker).and(gateway).and(notifier)
}

async fn then_stop(
    role: impl Future<Output = Result<(), DevError>>,
    shutdown: &CancellationToken,
) -> Result<(), DevError> {
    let ended = role.await;
    shutdown.cancel();
    ended
}

fn joined<T>(ended: Result<T, JoinError>) -> T {
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

async fn apply_topics(settings: &Settings) -> Result<(), DevError> {
    let topics = TopicDefinitions::of(&settings.topics);
    let report = topics.apply(&client_config(settings)).await?;
    if report.differences.is_empty() {
        return Ok(());
    }
    Err(TopicError::Different(report.differences).into())
}

/// Listens where the settings say, or on a free port if that one is taken.
async fn listen(wanted: SocketAddr) -> Result<TcpListener, DevError> {
    match TcpListener::bind(wanted).await {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let free = SocketAddr::new(wanted.ip(), 0);
            TcpListener::bind(free).await.map_err(system("cannot listen on any port"))
        }
        bound => bound.map_err(system("cannot listen on gateway.listen")),
    }
}

/// Prints the welcome as soon as everything works.
async fn greet(welcome: String, roles: Vec<Arc<Health>>) {
    for role in roles {
        role.until_ready().await;
    }
    println!("{welcome}");
}

fn welcome(cluster: Cluster, settings: &Settings, http: SocketAddr) -> String {
    let kafka = settings.kafka.get("bootstrap.servers").unwrap_or_default();
    let triggers = Names::new(&settings.topics.prefix).triggers();
    let (broker, topic) = match cluster {
        Cluster::BuiltIn => (BUILT_IN, PLAYGROUND),
        Cluster::Real => ("A real cluster: what Orloj promises holds.", "YOUR_TOPIC"),
    };
    format!(
        "
Orloj runs.
  Kafka  {kafka}
  HTTP   http://{http}

{broker}

Try it:
  echo 'tea:ready' | kcat -P -b {kafka} -t {triggers} -K: -X partitioner=murmur2_random \\
      -H orloj-delay=3000 -H orloj-target-topic={topic}
  curl http://{http}/v1/triggers -d '{{\"topic\": \"{topic}\", \"delaySeconds\": 3, \
\"payload\": \"ready\"}}'

See what fires:
  kcat -C -b {kafka} -t {topic}
"
    )
}

/// For `map_err`: what was tried, beside what the system said.
fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> DevError {
    move |source| DevError::System { what, source }
}

/// A folder that is gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn create() -> std::io::Result<Self> {
        // The process id alone could meet what a killed process of the same id left.
        let name = format!("orloj-dev-{}", Uuid::now_v7());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "left behind");
        }
    }
}
