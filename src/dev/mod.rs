//! Every role in one process, to try Orloj: on a broker of its own, or on a real cluster.
//!
//! Invariant: the roles are the ones that run in production, and meet in topics only. What the
//! built-in broker cannot do is said when it starts. On a real cluster the guard is that of the
//! settings, and no group is joined that the user has not named.
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
use rustix::process::getuid;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{AllowAddresses, ConfigError, Layers, Settings};
use crate::gateway::{self, GatewayError};
use crate::health::{self, Health};
use crate::kafka::Names;
use crate::kafka::topics::{TopicDefinitions, TopicError};
use crate::notifier::{self, NotifierError};
use crate::scheduler::{self, SchedulerError};
use crate::worker::{self, WorkerError};

use broker::{BuiltInBroker, DEMO_TOPIC};

/// What the built-in broker cannot do; said when it starts.
const BUILT_IN_NOTICE: &str = "\
This is a trial: the broker lives in this process's memory. It forgets everything when it
ends, keeps at most 100,000 records or 5 MiB a partition, and guarantees nothing.
On a real cluster: orloj dev --bootstrap-servers HOST:PORT";

/// What the names on a real cluster start with that belong to the `orloj dev` of a user.
const OWN_PREFIX: &str = "orloj-dev-";

/// Which broker the roles run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevCluster {
    /// One in this process.
    BuiltIn,
    /// The one that the settings name, with the user's own topics, groups and transactional ids.
    Separate,
    /// The one that the settings name, with their prefix or the default one.
    Joined,
}

/// How each role is.
#[derive(Clone, Debug)]
pub struct RoleHealth {
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
    /// Ask for it, or use other names.
    #[error(
        "the settings have topics.prefix = {0:?}: to join the processes with these names, give \
         --join; for an installation of your own, remove the prefix, or give one with --set"
    )]
    WouldJoin(String),
    /// The built-in broker did not start: free memory or sockets.
    #[error("the built-in broker did not start: {0}")]
    Broker(#[from] KafkaError),
    /// Correct the topics of the cluster.
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

impl RoleHealth {
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

impl Default for RoleHealth {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs every role until `shutdown`, or until one of them cannot go on.
pub async fn run(
    cluster: DevCluster,
    layers: Layers,
    roles: RoleHealth,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> Result<(), DevError> {
    let folder =
        TemporaryDirectory::create().map_err(system_error("cannot make a temporary folder"))?;
    let mut layers = with_dev_settings(cluster, layers, folder.path(), &own_prefix())?;
    let broker = match cluster {
        DevCluster::BuiltIn => Some(BuiltInBroker::start(&Settings::load(&layers)?.topics)?),
        DevCluster::Separate | DevCluster::Joined => None,
    };
    let address = broker.as_ref().map(BuiltInBroker::address);
    layers.overrides.extend(address.map(|at| format!("kafka.bootstrap.servers={at}")));
    let mut settings = Settings::load(&layers)?;
    if cluster != DevCluster::BuiltIn {
        apply_topics(&settings).await?;
    }
    let listener = listen(settings.gateway.listen).await?;
    let http = listener.local_addr().map_err(system_error("the listener has no address"))?;
    settings.gateway.listen = http;
    let welcome = welcome(cluster, &settings, http);
    let welcome_task = tokio::spawn(print_when_ready(welcome, roles.all()));
    let ended = run_roles(cluster, &settings, listener, roles, metrics, shutdown).await;
    welcome_task.abort();
    ended
}

/// Adds what suits development. It comes first, so that --set keeps the last word.
fn with_dev_settings(
    cluster: DevCluster,
    mut layers: Layers,
    folder: &Path,
    own_prefix: &str,
) -> Result<Layers, DevError> {
    let mut added = vec![
        format!("scheduler.data_dir={}", folder.display()),
        format!("gateway.view_dir={}", folder.join("view").display()),
    ];
    match cluster {
        DevCluster::BuiltIn => added.push("worker.allow_addresses=any".to_owned()),
        DevCluster::Separate if !layers.contain("topics.prefix")? => {
            added.push(format!("topics.prefix={own_prefix}"));
        }
        DevCluster::Separate => check_prefix(&layers)?,
        DevCluster::Joined => {}
    }
    layers.overrides.splice(0..0, added);
    Ok(layers)
}

/// A prefix of a file or of the environment may be that of other processes, unless it says that it
/// is not; one of the command line is meant.
fn check_prefix(layers: &Layers) -> Result<(), DevError> {
    let given = Layers { overrides: layers.overrides.clone(), ..Layers::default() };
    let prefix = Settings::load(layers)?.topics.prefix;
    if given.contain("topics.prefix")? || prefix.starts_with(OWN_PREFIX) {
        Ok(())
    } else {
        Err(DevError::WouldJoin(prefix))
    }
}

/// The prefix of this user on this machine.
fn own_prefix() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let user = if user.is_empty() { getuid().as_raw().to_string() } else { user };
    prefix_of(&user, &worker::host_name())
}

/// Half of a hash: a name may have characters that a topic's name may not.
fn prefix_of(user: &str, host: &str) -> String {
    let hash = xxh3_64(format!("{user}\n{host}").as_bytes());
    format!("{OWN_PREFIX}{:08x}", hash >> 32)
}

/// Runs the roles until all have ended; the first that ends takes the others along. The gateway
/// ends before the others: its requests need them.
async fn run_roles(
    cluster: DevCluster,
    settings: &Settings,
    listener: TcpListener,
    roles: RoleHealth,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> Result<(), DevError> {
    let probes = health::routes(roles.all(), metrics);
    let after_gateway = CancellationToken::new();
    let scheduler = tokio::task::spawn_blocking({
        let (settings, shutdown) = (settings.clone(), after_gateway.clone());
        let run = match cluster {
            DevCluster::BuiltIn => scheduler::run_trial,
            DevCluster::Separate | DevCluster::Joined => scheduler::run,
        };
        move || run(&settings, shutdown.clone(), roles.scheduler)
    });
    let worker = tokio::task::spawn_blocking({
        let (settings, shutdown) = (settings.clone(), after_gateway.clone());
        move || worker::run(&settings, shutdown.clone(), roles.worker)
    });
    let notifier = tokio::task::spawn_blocking({
        let (settings, shutdown) = (settings.clone(), after_gateway.clone());
        move || notifier::run(&settings, shutdown.clone(), roles.notifier)
    });
    let gateway = gateway::run(settings, listener, probes, roles.gateway, shutdown.clone());
    let scheduler = async { Ok(joined(scheduler.await)?) };
    let worker = async { Ok(joined(worker.await)?) };
    let gateway = async {
        let _ends_the_others = after_gateway.drop_guard();
        Ok(gateway.await?)
    };
    let notifier = async { Ok(joined(notifier.await)?) };
    let (scheduler, worker, gateway, notifier) = tokio::join!(
        cancel_when_ended(scheduler, &shutdown),
        cancel_when_ended(worker, &shutdown),
        cancel_when_ended(gateway, &shutdown),
        cancel_when_ended(notifier, &shutdown),
    );
    scheduler.and(worker).and(gateway).and(notifier)
}

async fn cancel_when_ended(
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
    let topics = TopicDefinitions::from_settings(&settings.topics);
    let report = topics.apply(settings).await?;
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
            TcpListener::bind(free).await.map_err(system_error("cannot listen on any port"))
        }
        bound => bound.map_err(system_error("cannot listen on gateway.listen")),
    }
}

/// Prints the welcome as soon as everything works.
async fn print_when_ready(welcome: String, roles: Vec<Arc<Health>>) {
    for role in roles {
        role.wait_until_ready().await;
    }
    println!("{welcome}");
}

fn welcome(cluster: DevCluster, settings: &Settings, http: SocketAddr) -> String {
    let kafka = settings.kafka.get("bootstrap.servers").unwrap_or_default();
    let triggers = Names::new(&settings.topics.prefix).triggers();
    let (broker, topic) = match cluster {
        DevCluster::BuiltIn => (BUILT_IN_NOTICE.to_owned(), DEMO_TOPIC),
        DevCluster::Separate | DevCluster::Joined => (joined_notice(settings), "YOUR_TOPIC"),
    };
    format!(
        "
Orloj runs.
  Kafka  {kafka}
  HTTP   http://{http}

{broker}

Register a trigger, as a record or over HTTP:
  echo 'tea:ready' | kcat -P -b {kafka} -t {triggers} -K: -X partitioner=murmur2_random \\
      -H orloj-delay=3000 -H orloj-target-topic={topic}
  curl http://{http}/v1/triggers -H 'Content-Type: application/json' \\
      -d '{{\"triggerId\": \"egg\", \"topic\": \"{topic}\", \"delaySeconds\": 3, \
\"payload\": \"ready\"}}'

List them, and see what fires:
  curl http://{http}/v1/triggers
  kcat -C -b {kafka} -t {topic}
"
    )
}

/// What this process uses of a real cluster.
fn joined_notice(settings: &Settings) -> String {
    let prefix = &settings.topics.prefix;
    let names = Names::new(prefix);
    let (schedulers, workers) =
        (names.scheduler_group(), names.worker_group(&settings.worker.pool));
    let notifiers = names.notifier_group();
    let allowed = match &settings.worker.allow_addresses {
        AllowAddresses::Any => "all addresses".to_owned(),
        AllowAddresses::Public => "public addresses".to_owned(),
        AllowAddresses::Networks(nets) => {
            let nets: Vec<_> = nets.iter().map(ToString::to_string).collect();
            format!("public addresses and {}", nets.join(", "))
        }
    };
    format!(
        "\
A real cluster: what Orloj promises holds. This process has joined
  topics     {prefix}.*
  groups     {schedulers}, {workers}, {notifiers}
  callbacks  to {allowed} (worker.allow_addresses)
Other commands find it with ORLOJ_TOPICS__PREFIX={prefix}."
    )
}

/// For `map_err`: what was tried, beside what the system said.
fn system_error(what: &'static str) -> impl FnOnce(std::io::Error) -> DevError {
    move |source| DevError::System { what, source }
}

/// A folder that is deleted when dropped.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
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

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(overrides: &[&str]) -> Layers {
        let overrides = overrides.iter().map(|&text| text.to_owned()).collect();
        Layers { overrides, ..Layers::default() }
    }

    fn load(cluster: DevCluster, layers: Layers) -> Result<Settings, DevError> {
        let layers = with_dev_settings(cluster, layers, Path::new("folder"), "orloj-dev-1")?;
        Ok(Settings::load(&layers)?)
    }

    fn settings(cluster: DevCluster, overrides: &[&str]) -> Settings {
        load(cluster, layers(overrides)).unwrap()
    }

    #[test]
    fn only_the_built_in_broker_allows_all_addresses_unless_the_settings_do() {
        let allowed =
            |cluster, overrides: &[&str]| settings(cluster, overrides).worker.allow_addresses;
        assert_eq!(allowed(DevCluster::BuiltIn, &[]), AllowAddresses::Any);
        let public = ["worker.allow_addresses=public"];
        assert_eq!(allowed(DevCluster::BuiltIn, &public), AllowAddresses::Public);
        for cluster in [DevCluster::Separate, DevCluster::Joined] {
            assert_eq!(allowed(cluster, &[]), AllowAddresses::Public);
            assert_eq!(allowed(cluster, &["worker.allow_addresses=any"]), AllowAddresses::Any);
        }
    }

    #[test]
    fn a_real_cluster_has_names_of_the_user_unless_the_command_line_has_others() {
        let prefix = |cluster, overrides: &[&str]| settings(cluster, overrides).topics.prefix;
        assert_eq!(prefix(DevCluster::Separate, &[]), "orloj-dev-1");
        assert_eq!(prefix(DevCluster::Separate, &["topics.prefix=mine"]), "mine");
        for cluster in [DevCluster::BuiltIn, DevCluster::Joined] {
            assert_eq!(prefix(cluster, &[]), "orloj");
        }
    }

    #[test]
    fn a_prefix_of_a_file_or_of_the_environment_is_joined_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("orloj.toml");
        std::fs::write(&file, "topics.prefix = \"orloj\"\n").unwrap();
        let in_file = Layers { file: Some(file), ..Layers::default() };
        let variable = |value: &str| Layers {
            environment: vec![("ORLOJ_TOPICS__PREFIX".to_owned(), value.to_owned())],
            ..Layers::default()
        };
        for layers in [in_file, variable("orloj")] {
            let refused = load(DevCluster::Separate, layers.clone());
            assert!(matches!(refused, Err(DevError::WouldJoin(prefix)) if prefix == "orloj"));
            let joined = load(DevCluster::Joined, layers.clone()).unwrap();
            assert_eq!(joined.topics.prefix, "orloj");
            let overrides = vec!["topics.prefix=mine".to_owned()];
            let named = load(DevCluster::Separate, Layers { overrides, ..layers }).unwrap();
            assert_eq!(named.topics.prefix, "mine");
        }
        let own = load(DevCluster::Separate, variable("orloj-dev-2")).unwrap();
        assert_eq!(own.topics.prefix, "orloj-dev-2");
    }

    #[test]
    fn a_user_has_other_names_on_each_machine() {
        let prefix = prefix_of("a.b@example", "host");
        assert_eq!(prefix.len(), OWN_PREFIX.len() + 8);
        for other in [prefix_of("a-b@example", "host"), prefix_of("a.b@example", "host2")] {
            assert_ne!(prefix, other);
        }
        let is_legal = |c: char| c.is_ascii_alphanumeric() || c == '-';
        assert!(prefix.chars().all(is_legal), "{prefix}");
    }

    #[test]
    fn what_was_joined_is_printed() {
        let overrides = ["worker.pool=slow", "topics.pools=[\"slow\"]"];
        let notice = joined_notice(&settings(DevCluster::Separate, &overrides));
        for joined in [
            "topics     orloj-dev-1.*",
            "orloj-dev-1.schedulers, orloj-dev-1.workers.slow, orloj-dev-1.notifiers",
            "to public addresses",
        ] {
            assert!(notice.contains(joined), "{notice}");
        }
        let networks = ["worker.allow_addresses=[\"10.1.0.0/16\"]"];
        let notice = joined_notice(&settings(DevCluster::Joined, &networks));
        assert!(notice.contains("to public addresses and 10.1.0.0/16 "), "{notice}");
    }
}
