//! The settings as types: one struct per section, checked, without defaults.
//!
//! Invariant: what each setting is for, and the reason for its default, is in `orloj.default.toml`
//! beside that default; here are names, types and units.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use lettre::Address;
use lettre::message::Mailbox;
use serde::Deserialize;

use super::address_policy::{self, AllowAddresses, PortRange};
use super::mail::{self, Password};
use super::timeouts::TimeoutSettings;
use super::units::{self, ByteSize};
use crate::model::partitioner::Partitioner;
use crate::model::pattern;

/// Everything that can be configured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// librdkafka's own settings.
    pub kafka: KafkaSettings,
    /// How long the clients wait for brokers.
    pub timeouts: TimeoutSettings,
    /// Names and shape of our topics.
    pub topics: TopicSettings,
    /// What a registration may be.
    pub triggers: TriggerSettings,
    /// Which topics a trigger may fire into.
    pub targets: TargetSettings,
    /// The role that owns partitions.
    pub scheduler: SchedulerSettings,
    /// The near horizon in memory.
    pub wheel: WheelSettings,
    /// Following the partitions of others.
    pub standby: StandbySettings,
    /// The timeline on disk.
    pub store: StoreSettings,
    /// The role that calls back.
    pub worker: WorkerSettings,
    /// The role that serves the HTTP API.
    pub gateway: GatewaySettings,
    /// The role that notifies of failures.
    pub notifier: NotifierSettings,
    /// Who may register, and how much.
    pub callers: CallerSettings,
    /// Where spans go.
    pub trace: TraceSettings,
    /// What the process logs.
    pub log: LogSettings,
}

/// librdkafka's names and values. They may hold passwords, so `Debug` shows the names only.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct KafkaSettings(BTreeMap<String, String>);

impl KafkaSettings {
    /// Name and value pairs, to be set on every client before the settings that its role owns.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of one librdkafka setting.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Names and shape of our topics.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSettings {
    /// First part of every topic name, group and transactional id.
    pub prefix: String,
    /// Partitions of each topic.
    pub partitions: NonZeroU16,
    /// Copies of each partition.
    pub replication_factor: NonZeroU16,
    /// Pools besides the default one; each has its own topic of fires.
    pub pools: Vec<String>,
}

/// What a registration may be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerSettings {
    /// The hash that decides a key's right partition.
    #[serde(with = "PartitionerName")]
    pub partitioner: Partitioner,
    /// Folder of writer schemas; empty for none.
    pub schemas_dir: PathBuf,
    /// Base URL of the schema registry; empty for none.
    pub registry_url: String,
    /// How long the registry may take to answer.
    #[serde(deserialize_with = "units::duration")]
    pub registry_timeout: Duration,
    /// For how long records wait for a registry that denies access.
    #[serde(deserialize_with = "units::duration")]
    pub registry_denied_patience: Duration,
    /// Records that may wait for their schemas in a partition.
    pub parked_records_max: NonZeroUsize,
    /// Their memory, in bytes.
    pub parked_bytes_max: ByteSize,
}

/// How the file names the model's [`Partitioner`].
#[derive(Deserialize)]
#[serde(remote = "Partitioner", rename_all = "snake_case")]
enum PartitionerName {
    Murmur2,
    Crc32,
    Any,
}

/// Which topics a trigger may fire into.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSettings {
    /// Patterns of allowed names, `*` for any run of characters.
    pub allow: Vec<String>,
    /// Patterns of names refused even when allowed.
    pub deny: Vec<String>,
    /// How long a topic's metadata is cached.
    #[serde(deserialize_with = "units::duration")]
    pub lookup_ttl: Duration,
}

impl TargetSettings {
    /// Why nothing may fire into `topic`; `None` if it may. The owner asks at the fire, and the
    /// gateway before it writes.
    #[must_use]
    pub fn refusal(&self, topic: &str) -> Option<String> {
        let matches =
            |patterns: &[String]| patterns.iter().any(|pattern| pattern::matches(pattern, topic));
        let allowed = matches(&self.allow) && !matches(&self.deny);
        (!allowed)
            .then(|| format!("topic {topic} is not allowed: see targets.allow and targets.deny"))
    }
}

/// The role that owns partitions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerSettings {
    /// Folder of the timeline and of the identity.
    pub data_dir: PathBuf,
    /// Static member id; empty to keep one in `data_dir`.
    pub instance_id: String,
    /// Records taken in by one step.
    pub records_per_step_max: NonZeroUsize,
    /// Fires sent by one step.
    pub fires_per_step_max: NonZeroUsize,
    /// Bytes written by one step, and read in one turn of the loop.
    pub bytes_per_step_max: ByteSize,
    /// Partitions touched by one transaction.
    pub partitions_per_commit_max: NonZeroUsize,
    /// Bytes of the steps in one transaction.
    pub bytes_per_commit_max: ByteSize,
    /// Age at which a pending trigger moves into the ledger.
    #[serde(deserialize_with = "units::duration")]
    pub ledger_after: Duration,
    /// How long a veto against late retries is kept.
    #[serde(deserialize_with = "units::duration")]
    pub veto_ttl: Duration,
    /// How long the owner waits for a worker's outcome of a callback.
    #[serde(deserialize_with = "units::duration")]
    pub callback_result_timeout: Duration,
    /// How late an occurrence of a recurring trigger may be before its misfire rule decides.
    #[serde(deserialize_with = "units::duration")]
    pub misfire_grace: Duration,
    /// Missed occurrences fired per second, for each partition.
    pub catch_up_rate: NonZeroU32,
    /// Time without heartbeats after which the group reassigns our partitions.
    #[serde(deserialize_with = "units::duration")]
    pub session_timeout: Duration,
    /// Pause between heartbeats to the group.
    #[serde(deserialize_with = "units::duration")]
    pub heartbeat_interval: Duration,
    /// Age at which the broker aborts an open transaction.
    #[serde(deserialize_with = "units::duration")]
    pub transaction_timeout: Duration,
    /// How the group assigns partitions.
    pub assignor: Assignor,
    /// Pause between low-water samples.
    #[serde(deserialize_with = "units::duration")]
    pub sample_interval: Duration,
    /// Pause between mirrors of the cursor.
    #[serde(deserialize_with = "units::duration")]
    pub cursor_copy_interval: Duration,
    /// Pause between commits of a quiet partition.
    #[serde(deserialize_with = "units::duration")]
    pub idle_commit_interval: Duration,
    /// Minimum time between the starts of two transactions.
    #[serde(deserialize_with = "units::duration")]
    pub commit_interval_min: Duration,
    /// How far ahead of their time fires are sent, in a transaction that ends at their time; zero
    /// if they are not.
    #[serde(deserialize_with = "units::duration_or_none")]
    pub commit_lead_max: Duration,
    /// How long a fire waits when its target topic cannot be reached.
    #[serde(deserialize_with = "units::duration")]
    pub target_retry_interval: Duration,
    /// Whether a graceful shutdown leaves the group.
    pub leave_on_shutdown: bool,
    /// Where health and metrics are served.
    pub listen: SocketAddr,
}

/// How a consumer group assigns partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assignor {
    /// Fewest moved partitions; the others continue.
    CooperativeSticky,
    /// All members stop, then start again.
    Range,
}

impl Assignor {
    /// librdkafka's name, the value of `partition.assignment.strategy`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CooperativeSticky => "cooperative-sticky",
            Self::Range => "range",
        }
    }
}

/// The near horizon in memory.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelSettings {
    /// Width of a bucket.
    #[serde(deserialize_with = "units::duration")]
    pub tick: Duration,
    /// How far ahead triggers are held.
    #[serde(deserialize_with = "units::duration")]
    pub horizon: Duration,
    /// Memory of all wheels of the process, in bytes.
    pub memory_max: ByteSize,
}

/// Following the partitions of others.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandbySettings {
    /// How many processes follow each partition besides its owner.
    pub replicas: u16,
}

/// The timeline on disk.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSettings {
    /// Write buffers of the process, in bytes.
    pub write_buffer: ByteSize,
    /// Block cache of the process, in bytes.
    pub block_cache: ByteSize,
    /// Pause between flushes.
    #[serde(deserialize_with = "units::duration")]
    pub flush_interval: Duration,
    /// Files kept open.
    pub max_open_files: NonZeroU16,
    /// Oldest local state that may be resumed.
    #[serde(deserialize_with = "units::duration")]
    pub state_age_max: Duration,
}

/// The role that calls back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    /// The pool served; empty for the default one.
    pub pool: String,
    /// Its name in histories and dead letters; empty to make one.
    pub name: String,
    /// Callbacks in flight at once.
    pub in_flight_max: NonZeroUsize,
    /// Bytes of the fires whose callbacks are in flight.
    pub in_flight_bytes_max: ByteSize,
    /// Callbacks of one caller in flight at once.
    pub caller_in_flight_max: NonZeroUsize,
    /// Fires of one caller that are queued.
    pub caller_queue_max: NonZeroUsize,
    /// Callbacks of one caller started per second; 0 for no limit.
    pub caller_dispatch_rate_max: u32,
    /// Fires of all callers that are queued.
    pub queue_max: NonZeroUsize,
    /// Their bytes.
    pub queue_bytes_max: ByteSize,
    /// How long a fire is deferred the first time.
    #[serde(deserialize_with = "units::duration")]
    pub defer_first: Duration,
    /// How long a fire is deferred at most.
    #[serde(deserialize_with = "units::duration")]
    pub defer_max: Duration,
    /// Bytes of deferred fires of one caller that return in a second.
    pub defer_bytes_per_second_max: ByteSize,
    /// Length of a circuit's window.
    #[serde(deserialize_with = "units::duration")]
    pub circuit_window: Duration,
    /// Attempts in the window before a circuit may open.
    pub circuit_attempts_min: NonZeroU32,
    /// Percent of them that may fail.
    pub circuit_failures_percent: u8,
    /// How long a circuit stays open.
    #[serde(deserialize_with = "units::duration")]
    pub circuit_open_duration: Duration,
    /// Attempts that close a half-open circuit.
    pub circuit_probes: NonZeroU32,
    /// Circuits that a worker keeps.
    pub circuits_max: NonZeroUsize,
    /// Timeout of an attempt whose trigger has none.
    #[serde(deserialize_with = "units::duration")]
    pub timeout: Duration,
    /// Longest timeout that a trigger may have.
    #[serde(deserialize_with = "units::duration")]
    pub timeout_max: Duration,
    /// Timeout of connecting.
    #[serde(deserialize_with = "units::duration")]
    pub connect_timeout: Duration,
    /// Largest response head, in bytes.
    pub response_head_max: ByteSize,
    /// How much of a response body is read, in bytes.
    pub response_body_max: ByteSize,
    /// Concurrent DNS lookups.
    pub dns_lookups_max: NonZeroUsize,
    /// Pauses before the second and later attempts.
    #[serde(deserialize_with = "units::durations")]
    pub retry_delays: Vec<Duration>,
    /// Percent by which a pause may be shorter or longer.
    pub retry_jitter: u8,
    /// Statuses after which there is no further attempt.
    pub final_statuses: Vec<u16>,
    /// Where health and metrics are served.
    pub listen: SocketAddr,
    /// Which addresses a callback may reach.
    pub allow_addresses: AllowAddresses,
    /// Networks refused even when allowed.
    #[serde(deserialize_with = "address_policy::networks")]
    pub deny_addresses: Vec<IpNet>,
    /// Ports that a callback may reach.
    pub allow_ports: Vec<PortRange>,
    /// Ports refused even when allowed.
    pub deny_ports: Vec<PortRange>,
    /// Pause between commits of progress.
    #[serde(deserialize_with = "units::duration")]
    pub commit_interval: Duration,
    /// Bytes of the results in one transaction.
    pub commit_bytes_max: ByteSize,
    /// Bytes of results that are not committed.
    pub results_bytes_max: ByteSize,
    /// How long the brokers keep the offsets of a group without members.
    #[serde(deserialize_with = "units::duration")]
    pub offsets_retention: Duration,
}

/// The role that serves the HTTP API.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewaySettings {
    /// Where the API is served.
    pub listen: SocketAddr,
    /// Largest payload over HTTP, in bytes.
    pub payload_max: ByteSize,
    /// How long a request waits for the owner's answer.
    #[serde(deserialize_with = "units::duration")]
    pub answer_timeout: Duration,
    /// How long a callback's host may take to resolve when it is registered.
    #[serde(deserialize_with = "units::duration")]
    pub resolve_timeout: Duration,
    /// Folder of the view.
    pub view_dir: PathBuf,
    /// How long what is settled stays in the view.
    #[serde(deserialize_with = "units::duration")]
    pub view_retention: Duration,
    /// How much of a payload the view keeps.
    pub view_payload_max: ByteSize,
    /// Pause between two reads of the schedulers' progress.
    #[serde(deserialize_with = "units::duration")]
    pub view_poll_interval: Duration,
}

/// The role that notifies of failures.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotifierSettings {
    /// URL of the mail server; empty for no mail.
    #[serde(deserialize_with = "mail::server")]
    pub smtp_url: String,
    /// Our name at the mail server; empty for none.
    pub smtp_username: String,
    /// The password that goes with it.
    pub smtp_password: Password,
    /// The sender of mail.
    #[serde(deserialize_with = "mail::sender")]
    pub from: Mailbox,
    /// Who is notified of triggers that name no caller.
    #[serde(deserialize_with = "mail::addresses")]
    pub operator_email: Vec<Address>,
    /// How long failures are collected before the first message.
    #[serde(deserialize_with = "units::duration")]
    pub batch_delay: Duration,
    /// Longest attempt to send a message.
    #[serde(deserialize_with = "units::duration")]
    pub timeout: Duration,
    /// How long sending a message is retried.
    #[serde(deserialize_with = "units::duration")]
    pub give_up_after: Duration,
    /// Where health and metrics are served.
    pub listen: SocketAddr,
}

/// Who may register, and how much.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallerSettings {
    /// The file of the callers; empty for none.
    pub file: PathBuf,
    /// Pause between two reads of it.
    #[serde(deserialize_with = "units::duration")]
    pub reload_interval: Duration,
    /// A caller's pending triggers.
    pub pending_max: NonZeroU64,
    /// A caller's requests per second to a gateway.
    pub requests_per_second_max: NonZeroU32,
    /// Unknown keys per second from one address to a gateway.
    pub failures_per_second_max: NonZeroU32,
    /// Whether keys of an issuer on this machine may come over http.
    pub jwks_over_http: bool,
    /// Pause between two readings of an issuer's keys.
    #[serde(deserialize_with = "units::duration")]
    pub jwks_refresh_interval: Duration,
    /// Between the beginnings of two, at least.
    #[serde(deserialize_with = "units::duration")]
    pub jwks_refresh_interval_min: Duration,
    /// Longest reading.
    #[serde(deserialize_with = "units::duration")]
    pub jwks_timeout: Duration,
    /// How far an issuer's clock may be from ours.
    #[serde(deserialize_with = "units::duration")]
    pub jwt_leeway: Duration,
    /// Pause between two messages about failures.
    #[serde(deserialize_with = "units::duration")]
    pub notify_interval: Duration,
}

/// Where spans go.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSettings {
    /// Base URL of a collector of OTLP over HTTP; empty for none.
    pub endpoint: String,
}

/// What the process says of itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// Level or directives, as `tracing` reads them.
    pub filter: String,
    /// How a line looks.
    pub format: LogFormat,
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For collectors.
    Json,
}
