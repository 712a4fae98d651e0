//! The cluster of a measurement: topics of its own, a configuration file, a data directory.
//!
//! Invariant: no measurement reads the records of another, and all have the same topics. The topics
//! are deleted with the value.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orloj::config::{Layers, Settings};
use orloj::kafka::client_config;
use orloj::kafka::topics::TopicDefinitions;
use orloj::model::PartitionId;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::kafka_server::unique_prefix;
use crate::wait::until;

/// The partitions of every topic.
pub(crate) const PARTITIONS: [PartitionId; 4] = [0, 1, 2, 3];
/// Who writes fires, each to a topic of its own.
const WRITERS: [&str; 3] = ["pipe", "ticker", "scheduler"];
const DEADLINE: Duration = Duration::from_secs(60);

/// The topics and files of one measurement.
pub(crate) struct BenchCluster {
    /// The settings of the configuration file.
    pub(crate) settings: Settings,
    /// The configuration file of all processes.
    pub(crate) config: PathBuf,
    folder: TempDir,
    /// Whether it has created the topics, and deletes them.
    owns_topics: bool,
}

impl BenchCluster {
    /// Creates everything.
    pub(crate) fn prepare(bootstrap: &str) -> Self {
        Self::prepare_with(bootstrap, "")
    }

    /// The same, with further lines of configuration.
    pub(crate) fn prepare_with(bootstrap: &str, more: &str) -> Self {
        let cluster = Self::open(bootstrap, &unique_prefix("bench"), more, true);
        cluster.create_topics();
        cluster
    }

    /// The same topics for a process that has never seen them: with an empty data directory.
    pub(crate) fn with_empty_disk(&self) -> Self {
        let kafka = &self.settings.kafka;
        let bootstrap = kafka.iter().find(|(name, _)| *name == "bootstrap.servers");
        let ledger_after = self.settings.scheduler.ledger_after.as_millis();
        let more = format!("scheduler.ledger_after = '{ledger_after}ms'");
        Self::open(bootstrap.unwrap().1, &self.settings.topics.prefix, &more, false)
    }

    fn open(bootstrap: &str, prefix: &str, more: &str, owns_topics: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("orloj.toml");
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = format!(
            "kafka.'bootstrap.servers' = '{bootstrap}'
topics.prefix = '{prefix}'
topics.partitions = {}
scheduler.data_dir = '{}'
scheduler.listen = '{free}'
log.filter = 'warn,orloj_core::scheduler::takeover=info'
{more}
",
            PARTITIONS.len(),
            folder.path().join("data").display(),
        );
        fs::write(&config, text).unwrap();
        Self { settings: settings(&config), config, folder, owns_topics }
    }

    /// The log file of a role.
    pub(crate) fn log(&self, role: &str) -> PathBuf {
        self.folder.path().join(format!("{role}.log"))
    }

    /// Bytes that the scheduler has on disk now.
    pub(crate) fn disk_bytes(&self) -> u64 {
        bytes_below(&self.settings.scheduler.data_dir)
    }

    /// The topic that a process writes to.
    pub(crate) fn output(&self, process: &str) -> String {
        output(&self.settings, process)
    }

    /// Where each partition of `topic` ends, markers of transactions included.
    pub(crate) fn ends(&self, topic: &str) -> Vec<i64> {
        let consumer: BaseConsumer = consumer_config(&self.settings).create().unwrap();
        // A new topic is not known to every part of the broker at once.
        until(&format!("{topic} to be known"), DEADLINE, || {
            let metadata = consumer.fetch_metadata(Some(topic), DEADLINE).ok()?;
            let mut partitions: Vec<_> =
                metadata.topics()[0].partitions().iter().map(|partition| partition.id()).collect();
            partitions.sort_unstable();
            let end = |id| Some(consumer.fetch_watermarks(topic, id, DEADLINE).ok()?.1);
            let ends: Option<Vec<_>> = partitions.into_iter().map(end).collect();
            ends.filter(|ends| !ends.is_empty())
        })
    }

    /// Orloj's topics, and those that the processes write to.
    fn topics(&self) -> (TopicDefinitions, [String; WRITERS.len()]) {
        let topics = &self.settings.topics;
        let ours =
            TopicDefinitions::load(&topics.prefix, topics.partitions, topics.replication_factor);
        (ours, WRITERS.map(|process| self.output(process)))
    }

    fn create_topics(&self) {
        let client = client_config(&self.settings);
        let (ours, outputs) = self.topics();
        let partitions = i32::from(self.settings.topics.partitions.get());
        let wanted: Vec<_> = outputs
            .iter()
            .map(|name| NewTopic::new(name, partitions, TopicReplication::Fixed(1)))
            .collect();
        let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
        runtime().block_on(async {
            ours.apply_with(&client).await.unwrap();
            for created in admin.create_topics(&wanted, &AdminOptions::new()).await.unwrap() {
                created.unwrap();
            }
        });
    }
}

impl Drop for BenchCluster {
    fn drop(&mut self) {
        if !self.owns_topics || std::thread::panicking() {
            return;
        }
        let client = client_config(&self.settings);
        let (ours, outputs) = self.topics();
        let all: Vec<&str> = ours.names().chain(outputs.iter().map(String::as_str)).collect();
        let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
        let _room_is_made = runtime().block_on(admin.delete_topics(&all, &AdminOptions::new()));
    }
}

/// The settings of a configuration file, as the scheduler reads them.
pub(crate) fn settings(config: impl AsRef<Path>) -> Settings {
    let file = Some(config.as_ref().to_owned());
    Settings::load(&Layers { file, ..Layers::default() }).unwrap()
}

/// The topic that a process writes to.
pub(crate) fn output(settings: &Settings, process: &str) -> String {
    format!("{}-{process}", settings.topics.prefix)
}

/// A reader's settings that commit nothing.
pub(crate) fn consumer_config(settings: &Settings) -> rdkafka::ClientConfig {
    let mut config = client_config(settings);
    config.remove("compression.type");
    config
        .set("group.id", "reader")
        .set("isolation.level", "read_committed")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "10");
    config
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_below(&entry.path()),
        Ok(about) => about.len(),
        // Compaction has just removed it.
        Err(_) => 0,
    };
    entries.map(|entry| bytes(entry.unwrap())).sum()
}
