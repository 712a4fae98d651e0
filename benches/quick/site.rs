//! Where one measurement takes place: topics of its own, a configuration file, and triggers.
//!
//! Law: no measurement meets the records of another, and all have the same records: 300 bytes of
//! payload, an id, two headers.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orloj::clock;
use orloj::config::{Layers, Settings};
use orloj::kafka::topics::TopicDefinitions;
use orloj::kafka::{Names, client_config, producer_config};
use orloj::model::{Millis, PartitionId, Timestamp};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tempfile::TempDir;

use crate::RATE;
use crate::kafka_server::unique_prefix;

/// The partitions of every topic.
pub(crate) const PARTITIONS: [PartitionId; 4] = [0, 1, 2, 3];
/// Who writes fires, each to a topic of its own.
const CONTENDERS: [&str; 3] = ["pipe", "ticker", "scheduler"];
/// Bytes of a payload.
const PAYLOAD_BYTES: usize = 300;
/// From a live registration to its time, in ms.
const DELAY_MS: Millis = 3_000;
/// A backlog's triggers are due between these two, in ms after the first was registered: later
/// than the last registration, so that each has to wait in the timeline.
const BACKLOG_DUE_MS: (Millis, Millis) = (5_000, 10_000);
const DEADLINE: Duration = Duration::from_secs(60);

/// One measurement's place.
pub(crate) struct Site {
    /// The settings of the configuration file.
    pub(crate) settings: Settings,
    /// The configuration file of all contenders.
    pub(crate) config: PathBuf,
    _folder: TempDir,
}

impl Site {
    /// Creates everything anew.
    pub(crate) fn prepare(bootstrap: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("orloj.toml");
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = format!(
            "kafka.'bootstrap.servers' = '{bootstrap}'
topics.prefix = '{}'
topics.partitions = {}
scheduler.data_dir = '{}'
scheduler.listen = '{free}'
log.filter = 'error'
",
            unique_prefix("bench"),
            PARTITIONS.len(),
            folder.path().join("data").display(),
        );
        fs::write(&config, text).unwrap();
        let site = Self { settings: settings(&config), config, _folder: folder };
        site.create_topics();
        site
    }

    /// Registers a backlog and returns the time when all of it is due.
    pub(crate) fn fill(&self, count: u32) -> Timestamp {
        let registrar = self.registrar();
        let (first, last) = BACKLOG_DUE_MS;
        let begin = clock::now_ms();
        for trigger in 0..count {
            // A prime step mixes the times, as those of unrelated callers are.
            let due = begin + first + u64::from(trigger) * 7_919 % (last - first);
            registrar.register(trigger, due);
        }
        registrar.producer.flush(DEADLINE).unwrap();
        begin + last
    }

    /// Registers `count` triggers, [`RATE`] a second, each [`DELAY_MS`] before its time.
    pub(crate) fn register_live(&self, count: u32) {
        let registrar = self.registrar();
        let begin = clock::now_ms();
        for trigger in 0..count {
            let now = begin + spread(trigger, RATE);
            while clock::now_ms() < now {
                registrar.producer.poll(Duration::from_millis(1));
            }
            registrar.register(trigger, now + DELAY_MS);
        }
        registrar.producer.flush(DEADLINE).unwrap();
    }

    fn registrar(&self) -> Registrar {
        Registrar {
            producer: producer_config(&self.settings).create().unwrap(),
            triggers: Names::new(&self.settings.topics.prefix).triggers(),
            target: output(&self.settings, "scheduler"),
            payload: payload(),
        }
    }

    fn create_topics(&self) {
        let topics = &self.settings.topics;
        let client = client_config(&self.settings);
        let ours =
            TopicDefinitions::load(&topics.prefix, topics.partitions, topics.replication_factor);
        let outputs = CONTENDERS.map(|contender| output(&self.settings, contender));
        let partitions = i32::from(topics.partitions.get());
        let wanted: Vec<_> = outputs
            .iter()
            .map(|name| NewTopic::new(name, partitions, TopicReplication::Fixed(1)))
            .collect();
        let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            ours.apply(&client).await.unwrap();
            for created in admin.create_topics(&wanted, &AdminOptions::new()).await.unwrap() {
                created.unwrap();
            }
        });
    }
}

/// Writes registrations in headers form.
struct Registrar {
    producer: BaseProducer,
    triggers: String,
    target: String,
    payload: Vec<u8>,
}

impl Registrar {
    fn register(&self, trigger: u32, due: Timestamp) {
        let (id, due) = (trigger_id(trigger), due.to_string());
        let headers = OwnedHeaders::new_with_capacity(2)
            .insert(Header { key: "orloj-fire-at", value: Some(&due) })
            .insert(Header { key: "orloj-target-topic", value: Some(&self.target) });
        let mut record =
            BaseRecord::to(&self.triggers).key(&id).payload(&self.payload).headers(headers);
        while let Err((error, back)) = self.producer.send(record) {
            let full = KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull);
            assert_eq!(error, full, "a registration was refused");
            self.producer.poll(Duration::from_millis(10));
            record = back;
        }
    }
}

/// The settings of a configuration file, as the scheduler reads them.
pub(crate) fn settings(config: impl AsRef<Path>) -> Settings {
    let file = Some(config.as_ref().to_owned());
    Settings::load(&Layers { file, ..Layers::default() }).unwrap()
}

/// The topic that a contender writes to.
pub(crate) fn output(settings: &Settings, contender: &str) -> String {
    format!("{}-{contender}", settings.topics.prefix)
}

/// When the `n`-th of evenly spread events happens, in ms after the first.
pub(crate) fn spread(n: u32, per_second: u32) -> Millis {
    u64::from(n) * 1_000 / u64::from(per_second)
}

pub(crate) fn trigger_id(trigger: u32) -> String {
    format!("trigger-{trigger:08}")
}

/// Text that compresses about as well as the JSON of real payloads.
pub(crate) fn payload() -> Vec<u8> {
    (0..PAYLOAD_BYTES).map(|at| b'a' + u8::try_from(at * at % 26).unwrap()).collect()
}
