//! Orloj's topics: created as defined in `topics/*.toml`, and compared with the topics of the
//! cluster.
//!
//! Invariant: an existing topic is never changed. A difference is reported together with the
//! command that fixes it, and an operator decides, because some of these commands destroy data.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use serde::Deserialize;
use thiserror::Error;

use super::broker_requests::{self, UnsuitableBroker};
use super::client_config;
use super::error::ClientError;
use crate::clock;
use crate::config::{Settings, TopicSettings};

const FILES: [&str; 7] = [
    include_str!("../../topics/triggers.toml"),
    include_str!("../../topics/signals.toml"),
    include_str!("../../topics/ledger.toml"),
    include_str!("../../topics/fires.toml"),
    include_str!("../../topics/outcomes.toml"),
    include_str!("../../topics/dead-letters.toml"),
    include_str!("../../topics/notifications.toml"),
];

/// How long the cluster may take to answer. It is long, because no other work waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between two checks for a topic that has just been created.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The topics of one installation.
#[derive(Debug, Clone)]
pub struct TopicDefinitions {
    topics: Vec<TopicDefinition>,
    partitions: NonZeroU16,
    replication: NonZeroU16,
}

/// One file of `topics/`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopicDefinition {
    name: String,
    /// Of its own, when it is created: more of them are not used. Without it the topic has as many
    /// as `topics.partitions` says.
    #[serde(default)]
    partitions: Option<NonZeroU16>,
    /// Must be equal.
    must: BTreeMap<String, String>,
    /// May be larger; -1 means without limit.
    #[serde(default)]
    at_least: BTreeMap<String, i64>,
    /// Set when the topic is created; the operator may change it later.
    #[serde(default)]
    initially: BTreeMap<String, String>,
}

/// What [`TopicDefinitions::apply`] did and found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicApplyReport {
    /// Topics that were created now.
    pub created: Vec<String>,
    /// Differences from the definitions. They were not changed.
    pub differences: Vec<Difference>,
}

/// A topic that differs from its definition. `Display` says how to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// Create it.
    Missing {
        /// The topic.
        topic: String,
    },
    /// Configure the number that the topic has. Changing the topic would move keys to other
    /// partitions.
    Partitions {
        /// The topic.
        topic: String,
        /// Partitions it has.
        found: usize,
        /// Partitions configured.
        wanted: usize,
    },
    /// Alter the topic's setting.
    Setting {
        /// The topic.
        topic: String,
        /// Kafka's name of the setting.
        name: String,
        /// The value in the cluster.
        found: String,
        /// The required value, or the minimum.
        wanted: String,
        /// Whether a larger value is also correct.
        or_more: bool,
        /// The broker address for the command that fixes it.
        bootstrap: String,
    },
}

/// Why topics could not be applied or verified.
#[derive(Debug, Error)]
pub enum TopicError {
    /// Check `kafka.bootstrap.servers` and the credentials, or try again later.
    #[error("the cluster at {bootstrap} does not answer: {source}")]
    Unreachable {
        /// The address of the cluster.
        bootstrap: String,
        /// The error of the Kafka client.
        source: ClientError,
    },
    /// Upgrade the broker.
    #[error(transparent)]
    Unsuitable(#[from] UnsuitableBroker),
    /// Do what the broker asks for, usually fewer replicas or more rights.
    #[error("topic {topic} cannot be created: {reason}")]
    NotCreated {
        /// The topic.
        topic: String,
        /// The broker's reason, and what to do about it.
        reason: String,
    },
    /// Grant the right to describe the topic's settings.
    #[error("the settings of a topic cannot be read: {reason}; grant DescribeConfigs on it")]
    NotDescribed {
        /// The broker's reason.
        reason: String,
    },
    /// Fix each difference as it says.
    #[error("topics are not as Orloj needs them:{}", format_differences(.0))]
    Different(Vec<Difference>),
}

impl TopicDefinitions {
    /// The definitions for the configured topics, pools included.
    #[must_use]
    pub fn from_settings(settings: &TopicSettings) -> Self {
        let TopicSettings { prefix, partitions, replication_factor, pools } = settings;
        Self::load(prefix, *partitions, *replication_factor).with_pools(pools)
    }

    /// The definitions under a prefix, with the partition count and the replication factor of each
    /// topic.
    #[must_use]
    pub fn load(prefix: &str, partitions: NonZeroU16, replication: NonZeroU16) -> Self {
        let topics = FILES.map(|text| {
            let mut topic: TopicDefinition =
                toml::from_str(text).expect("the embedded files are read by a test");
            topic.name = format!("{prefix}.{}", topic.name);
            topic
        });
        Self { topics: topics.to_vec(), partitions, replication }
    }

    /// Adds the topics of these pools. Each is defined like the topic of the default pool.
    #[must_use]
    pub fn with_pools(mut self, pools: &[String]) -> Self {
        let fires = self.topics.iter().find(|topic| topic.name.ends_with(".fires")).cloned();
        let pools = pools.iter().filter_map(|pool| {
            let fires = fires.clone()?;
            Some(TopicDefinition { name: format!("{}.{pool}", fires.name), ..fires })
        });
        let pools: Vec<_> = pools.collect();
        self.topics.extend(pools);
        self
    }

    /// The full names of the topics.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.topics.iter().map(|topic| topic.name.as_str())
    }

    /// Creates missing topics and reports differences.
    pub async fn apply(&self, settings: &Settings) -> Result<TopicApplyReport, TopicError> {
        self.apply_with(&client_config(settings)).await
    }

    /// Compares every topic with its definition; any difference is an error.
    pub async fn verify(&self, settings: &Settings) -> Result<(), TopicError> {
        self.verify_with(&client_config(settings)).await
    }

    /// [`apply`](Self::apply) with the client settings of a test.
    pub async fn apply_with(&self, client: &ClientConfig) -> Result<TopicApplyReport, TopicError> {
        let cluster = TopicAdmin::connect(client)?;
        let found = self.compare(&cluster).await?;
        let (missing, differences) =
            found.into_iter().partition(|found| matches!(found, Difference::Missing { .. }));
        let created = self.create(&cluster, missing).await?;
        Ok(TopicApplyReport { created, differences })
    }

    /// [`verify`](Self::verify) with the client settings of a test.
    pub async fn verify_with(&self, client: &ClientConfig) -> Result<(), TopicError> {
        let differences = self.compare(&TopicAdmin::connect(client)?).await?;
        if differences.is_empty() { Ok(()) } else { Err(TopicError::Different(differences)) }
    }

    async fn create(
        &self,
        cluster: &TopicAdmin,
        missing: Vec<Difference>,
    ) -> Result<Vec<String>, TopicError> {
        let is_missing = |topic: &&TopicDefinition| {
            missing.contains(&Difference::Missing { topic: topic.name.clone() })
        };
        let settings: Vec<_> =
            self.topics.iter().filter(is_missing).map(|topic| (topic, topic.settings())).collect();
        if settings.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: Vec<_> = settings
            .iter()
            .map(|(topic, settings)| {
                let copies = TopicReplication::Fixed(self.replication.get().into());
                let partitions = topic.partitions.unwrap_or(self.partitions).get().into();
                let new = NewTopic::new(&topic.name, partitions, copies);
                settings.iter().fold(new, |new, (key, value)| new.set(key, value))
            })
            .collect();
        let answers = cluster.admin.create_topics(&wanted, &options()).await;
        let mut created = Vec::new();
        for answer in answers.map_err(|error| cluster.unreachable(error))? {
            match answer {
                Ok(topic) => created.push(topic),
                // Another process created it first, from the same definition.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    let reason = format!("{code}{}", creation_hint(code));
                    return Err(TopicError::NotCreated { topic, reason });
                }
            }
        }
        Self::await_created(cluster, &wanted)?;
        Ok(created)
    }

    /// The controller has created the topics. The brokers learn of them a moment later, and the
    /// next client may ask a broker that does not know them yet.
    fn await_created(cluster: &TopicAdmin, wanted: &[NewTopic<'_>]) -> Result<(), TopicError> {
        let deadline = clock::monotonic() + ANSWER_TIMEOUT;
        loop {
            let existing = cluster.partitions()?;
            let missing = wanted.iter().find(|topic| !existing.contains_key(topic.name));
            match missing {
                Some(_) if clock::monotonic() < deadline => {
                    std::thread::sleep(RECHECK_INTERVAL);
                }
                _ => return Ok(()),
            }
        }
    }

    async fn compare(&self, cluster: &TopicAdmin) -> Result<Vec<Difference>, TopicError> {
        let partitions = cluster.partitions()?;
        cluster.check_requests()?;
        let existing: Vec<_> =
            self.topics.iter().filter(|topic| partitions.contains_key(&topic.name)).collect();
        let settings = cluster.settings(&existing).await?;
        let mut differences = Vec::new();
        for topic in &self.topics {
            let name = topic.name.clone();
            let Some(&found) = partitions.get(&name) else {
                differences.push(Difference::Missing { topic: name });
                continue;
            };
            let wanted = usize::from(self.partitions.get());
            if topic.partitions.is_none() && found != wanted {
                differences.push(Difference::Partitions { topic: name, found, wanted });
            }
        }
        for (topic, settings) in existing.into_iter().zip(&settings) {
            differences.extend(topic.compare(settings, &cluster.bootstrap));
        }
        Ok(differences)
    }
}

impl TopicDefinition {
    /// All settings of the topic at creation.
    fn settings(&self) -> Vec<(&str, String)> {
        let texts = self.must.iter().chain(&self.initially);
        let texts = texts.map(|(name, value)| (name.as_str(), value.clone()));
        let numbers = self.at_least.iter().map(|(name, value)| (name.as_str(), value.to_string()));
        texts.chain(numbers).collect()
    }

    fn compare(&self, found: &ConfigResource, bootstrap: &str) -> Vec<Difference> {
        let value_of = |name: &str| {
            let entry = found.get(name).and_then(|entry| entry.value.clone());
            entry.unwrap_or_else(|| "unset".to_owned())
        };
        let difference = |name: &str, found: String, wanted: String, or_more: bool| {
            let (topic, name) = (self.name.clone(), name.to_owned());
            Difference::Setting {
                topic,
                name,
                found,
                wanted,
                or_more,
                bootstrap: bootstrap.to_owned(),
            }
        };
        let mut differences = Vec::new();
        for (name, wanted) in &self.must {
            let found = value_of(name);
            if found != *wanted {
                differences.push(difference(name, found, wanted.clone(), false));
            }
        }
        for (name, &wanted) in &self.at_least {
            let found = value_of(name);
            if !found.parse().is_ok_and(|found| is_at_least(found, wanted)) {
                differences.push(difference(name, found, wanted.to_string(), true));
            }
        }
        differences
    }
}

impl fmt::Display for TopicApplyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for topic in &self.created {
            writeln!(f, "created {topic}")?;
        }
        for difference in &self.differences {
            writeln!(f, "{difference}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { topic } => {
                write!(f, "{topic} does not exist; create it with: orloj topics apply")
            }
            Self::Partitions { topic, found, wanted } => write!(
                f,
                "{topic} has {found} partitions, topics.partitions says {wanted}; if all topics \
                 have {found}, set topics.partitions = {found}, else drain them and create them \
                 again: adding partitions would separate triggers from their keys"
            ),
            Self::Setting { topic, name, found, wanted, or_more, bootstrap } => write!(
                f,
                "{topic}: {name} is {found}, must be {wanted}{}; fix it with: \
                 kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics \
                 --entity-name {topic} --add-config {name}={wanted}",
                if *or_more { " at least" } else { "" },
            ),
        }
    }
}

/// Clients for requests about topics.
struct TopicAdmin {
    admin: AdminClient<DefaultClientContext>,
    bootstrap: String,
}

impl TopicAdmin {
    fn connect(client: &ClientConfig) -> Result<Self, TopicError> {
        let bootstrap = client.get("bootstrap.servers").unwrap_or_default().to_owned();
        match client.create() {
            Ok(admin) => Ok(Self { admin, bootstrap }),
            Err(error) => Err(TopicError::Unreachable { bootstrap, source: error.into() }),
        }
    }

    /// Whether the brokers take the requests that Orloj needs.
    fn check_requests(&self) -> Result<(), TopicError> {
        let deadline = clock::monotonic() + ANSWER_TIMEOUT;
        loop {
            if let Some(checked) = broker_requests::check(self.admin.inner()) {
                return Ok(checked?);
            }
            // The connection has been lost since the last answer.
            let left = deadline.saturating_duration_since(clock::monotonic());
            let asked = self.admin.inner().fetch_metadata(None, left);
            let _metadata = asked.map_err(|error| self.unreachable(error))?;
        }
    }

    /// The number of partitions of each topic in the cluster.
    fn partitions(&self) -> Result<BTreeMap<String, usize>, TopicError> {
        let metadata = self.admin.inner().fetch_metadata(None, ANSWER_TIMEOUT);
        let metadata = metadata.map_err(|error| self.unreachable(error))?;
        let topics = metadata.topics().iter();
        Ok(topics.map(|topic| (topic.name().to_owned(), topic.partitions().len())).collect())
    }

    /// The settings of each topic, in the order of `topics`.
    async fn settings(
        &self,
        topics: &[&TopicDefinition],
    ) -> Result<Vec<ConfigResource>, TopicError> {
        if topics.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<_> =
            topics.iter().map(|topic| ResourceSpecifier::Topic(&topic.name)).collect();
        let answers = self.admin.describe_configs(&names, &options()).await;
        let answers = answers.map_err(|error| self.unreachable(error))?;
        answers
            .into_iter()
            .map(|answer| {
                answer.map_err(|code| TopicError::NotDescribed { reason: code.to_string() })
            })
            .collect()
    }

    fn unreachable(&self, source: KafkaError) -> TopicError {
        TopicError::Unreachable { bootstrap: self.bootstrap.clone(), source: source.into() }
    }
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(ANSWER_TIMEOUT))
        .operation_timeout(Some(ANSWER_TIMEOUT))
}

/// Kafka writes "without limit" as -1, which counts as larger than any number.
fn is_at_least(found: i64, wanted: i64) -> bool {
    found == -1 || (wanted != -1 && found >= wanted)
}

fn creation_hint(code: RDKafkaErrorCode) -> &'static str {
    match code {
        RDKafkaErrorCode::InvalidReplicationFactor => {
            "; set topics.replication_factor to at most the number of brokers"
        }
        RDKafkaErrorCode::TopicAuthorizationFailed
        | RDKafkaErrorCode::ClusterAuthorizationFailed => "; grant Create on it",
        _ => "",
    }
}

fn format_differences(differences: &[Difference]) -> String {
    differences.iter().map(|difference| format!("\n  {difference}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::schemas::Schemas;
    use crate::kafka::RECORD_BYTES_MAX;
    use crate::model::attempt::{Attempt, History, TEXT_CHARS_MAX};
    use crate::model::definition::{Definition, Header, HttpTarget, Target};
    use crate::model::entry::FireId;
    use crate::model::limits::{
        CALLER_BYTES_MAX, FINAL_STATUSES_MAX, HEADER_BYTES_MAX, HEADERS_MAX, ID_BYTES_MAX,
        PAYLOAD_BYTES_MAX, POOL_BYTES_MAX, REASON_BYTES_MAX, RETRY_ATTEMPTS_MAX,
        RETRY_DELAY_MAX_MS, RETRY_DELAYS_MAX, TIMEOUT_MAX_MS, URL_BYTES_MAX,
    };
    use crate::model::retry::RetryPolicy;
    use crate::model::signal::{RetryRequest, Signal};
    use crate::model::text::Text;

    /// Kafka's default `max.message.bytes`.
    const RECORD_BYTES_DEFAULT: i64 = 1_048_588;
    /// What a batch adds to the key and the value of its record, and more.
    const BATCH_BYTES: usize = 1_000;

    #[test]
    fn every_file_is_read_and_named_under_the_prefix() {
        let topics = TopicDefinitions::load("x", NonZeroU16::MIN, NonZeroU16::MIN);
        let names = [
            "x.triggers",
            "x.signals",
            "x.ledger",
            "x.fires",
            "x.outcomes",
            "x.dead-letters",
            "x.notifications",
        ];
        assert!(topics.names().eq(names));
        let pools = topics.with_pools(&["slow".to_owned()]);
        assert!(pools.names().eq(names.into_iter().chain(["x.fires.slow"])));
    }

    /// A worker writes it for the owner, who writes the same into the ledger and the fires.
    #[test]
    fn the_largest_retry_fits_into_each_topic_that_carries_it() {
        let value = Schemas::new().encode_signal(&Signal::Retry(largest_retry()));
        let bytes = value.len() + ID_BYTES_MAX + BATCH_BYTES;
        assert!(bytes <= RECORD_BYTES_MAX.parse::<usize>().unwrap(), "{bytes}");
        let bytes = i64::try_from(bytes).unwrap();
        assert!(bytes > RECORD_BYTES_DEFAULT, "{bytes}: no topic needs a limit of its own");
        let topics = TopicDefinitions::load("x", NonZeroU16::MIN, NonZeroU16::MIN).topics;
        for name in ["x.signals", "x.ledger", "x.fires", "x.dead-letters"] {
            let topic = topics.iter().find(|topic| topic.name == name).unwrap();
            let limit = topic.at_least.get("max.message.bytes").unwrap_or(&RECORD_BYTES_DEFAULT);
            assert!(bytes <= *limit, "{name}: {bytes} of {limit}");
        }
    }

    /// With all that a trigger may have, and as many attempts as are kept.
    fn largest_retry() -> RetryRequest {
        let text = |bytes: usize| Text::from("x".repeat(bytes));
        let history = (1..=RETRY_ATTEMPTS_MAX).fold(None, |history, number| {
            let long = Text::from("\u{1F600}".repeat(TEXT_CHARS_MAX));
            let attempt = Attempt {
                number,
                at: 1_800_000_000_000,
                worker: long.clone(),
                status: None,
                error: Some(long),
                duration_ms: TIMEOUT_MAX_MS,
                excerpt: None,
            };
            History::with_attempt(history, attempt)
        });
        let half = HEADER_BYTES_MAX / HEADERS_MAX / 2;
        let header = Header { name: text(half), value: Some(vec![b'x'; half].into()) };
        let retry = RetryPolicy {
            delays: vec![RETRY_DELAY_MAX_MS; RETRY_DELAYS_MAX],
            attempts: Some(RETRY_ATTEMPTS_MAX),
            jitter: Some(100),
            final_statuses: vec![599; FINAL_STATUSES_MAX],
        };
        let target = HttpTarget {
            url: text(URL_BYTES_MAX),
            method: "POST".into(),
            pool: Some(text(POOL_BYTES_MAX)),
            timeout: Some(TIMEOUT_MAX_MS),
        };
        RetryRequest {
            id: FireId {
                trigger: text(ID_BYTES_MAX),
                generation: u32::MAX.into(),
                occurrence: u32::MAX,
                attempt: RETRY_ATTEMPTS_MAX,
                deferral: u32::MAX,
            },
            due: 1_800_000_000_000,
            scheduled: 1_800_000_000_000,
            reason: "x".repeat(REASON_BYTES_MAX),
            definition: Definition {
                target: Target::from(target),
                payload: Some(vec![b'x'; PAYLOAD_BYTES_MAX].into()),
                headers: vec![header; HEADERS_MAX],
                retry: Some(Box::new(retry)),
                caller: Some(text(CALLER_BYTES_MAX)),
            },
            history,
            report_end: true,
            priority: u8::MAX,
        }
    }

    #[test]
    fn minus_one_is_without_limit() {
        assert!(
            is_at_least(7, 7) && is_at_least(8, 7) && is_at_least(-1, 7) && is_at_least(-1, -1)
        );
        assert!(!is_at_least(6, 7) && !is_at_least(7, -1));
    }
}
