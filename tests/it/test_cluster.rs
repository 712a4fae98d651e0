//! An installation of its own for one test: topics under a prefix, a target topic, schedulers.

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use orloj::clock;
use orloj::codec::schemas::Schemas;
use orloj::kafka::Names;
use orloj::kafka::topics::TopicDefinitions;
use orloj::model::dead_letter::DeadLetter;
use orloj::model::ledger::LedgerKey;
use orloj::model::outcome::Outcome;
use orloj::model::text::Text;
use rdkafka::ClientConfig;
use rdkafka::admin::{NewTopic, TopicReplication};
use rdkafka::message::{Message as _, OwnedMessage};
use tempfile::TempDir;

use crate::audit::{self, AuditReport};
use crate::fire_progress::FireProgress;
use crate::kafka_server::{self, KafkaServer, unique_prefix};
use crate::process::{OrlojProcess, ProcessSettings};
use crate::records;
use crate::test_producer::{TARGET_TOPIC_HEADER, TargetHeader, TestProducer};
use crate::transaction_ends::TransactionEnds;
use crate::wait::{until, within};

/// Partitions of every topic.
pub(crate) const PARTITIONS: i32 = 4;

/// A debug build on a busy machine, a broker that just lost its client: still long enough.
pub(crate) const READY_DEADLINE: Duration = Duration::from_secs(60);

/// A trigger that no test lives to see fire, in ms.
const DISTANT_MS: u64 = 400 * 24 * 3_600_000;
const DISTANT_ID: &str = "in-400-days";

/// One test's own corner of a cluster.
pub(crate) struct TestCluster {
    pub(crate) names: Names,
    pub(crate) schemas: Schemas,
    pub(crate) settings: ProcessSettings,
    prefix: String,
    /// Where triggers fire.
    target: String,
    /// Of every partition.
    copies: u16,
    client: ClientConfig,
    data: TempDir,
}

/// Takes the machine for a test whose lateness or length would suffer from others.
pub(crate) fn exclusive_machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestCluster {
    /// On the broker that tests share.
    pub(crate) fn new(test: &str) -> Self {
        Self::on_server(test, kafka_server::shared())
    }

    /// On a broker of the test's own.
    pub(crate) fn on_server(test: &str, server: &KafkaServer) -> Self {
        Self::with_client(
            test,
            server.client(),
            &[("bootstrap.servers", server.bootstrap().to_owned())],
        )
    }

    /// Where `client` leads, which needs no password; `kafka` is how the program gets there.
    pub(crate) fn with_client(test: &str, client: ClientConfig, kafka: &[(&str, String)]) -> Self {
        Self::with_replicas(test, client, kafka, 1)
    }

    /// The same, with so many copies of every partition.
    pub(crate) fn with_replicas(
        test: &str,
        client: ClientConfig,
        kafka: &[(&str, String)],
        copies: u16,
    ) -> Self {
        let prefix = unique_prefix(test);
        let target = format!("{prefix}-target");
        let mut settings = ProcessSettings::default()
            .set("topics.prefix", prefix.as_str())
            .set("topics.partitions", i64::from(PARTITIONS))
            .set("scheduler.session_timeout", "6s")
            .set("scheduler.sample_interval", "1s")
            .set("scheduler.idle_commit_interval", "1s");
        for (name, value) in kafka {
            settings = settings.set(&format!("kafka.\"{name}\""), value.as_str());
        }
        create_topics(&client, &prefix, &target, copies);
        let (names, data) = (Names::new(&prefix), tempfile::tempdir().unwrap());
        Self { names, schemas: Schemas::new(), settings, prefix, target, copies, client, data }
    }

    /// With one more setting of the program.
    pub(crate) fn set(mut self, name: &str, value: impl Into<toml::Value>) -> Self {
        self.settings = self.settings.set(name, value);
        self
    }

    /// Starts the scheduler called `name`, on the data that it left behind, if any.
    pub(crate) fn scheduler(&self, name: &str) -> OrlojProcess {
        self.scheduler_with_faults(name, "")
    }

    /// The same, with its name as that of its instance, from which its transactional id follows.
    pub(crate) fn named_scheduler(&self, name: &str) -> OrlojProcess {
        self.named_scheduler_with_faults(name, "")
    }

    /// The same, with faults armed in it.
    pub(crate) fn named_scheduler_with_faults(&self, name: &str, fault: &str) -> OrlojProcess {
        let settings = self.with_disk_of(name).set("scheduler.instance_id", name);
        OrlojProcess::start("scheduler", name, &settings, fault)
    }

    /// The same, with faults armed in it.
    pub(crate) fn scheduler_with_faults(&self, name: &str, fault: &str) -> OrlojProcess {
        OrlojProcess::start("scheduler", name, &self.with_disk_of(name), fault)
    }

    /// The same under a command that watches it.
    pub(crate) fn traced_scheduler(&self, tracer: &[&str], name: &str) -> OrlojProcess {
        OrlojProcess::start_under(tracer, "scheduler", name, &self.with_disk_of(name), "")
    }

    fn with_disk_of(&self, name: &str) -> ProcessSettings {
        let data = self.data_of(name);
        self.settings.clone().set("scheduler.data_dir", data.to_str().unwrap())
    }

    /// Starts another role, called `name`.
    pub(crate) fn start(&self, role: &str, name: &str) -> OrlojProcess {
        self.start_with_faults(role, name, "")
    }

    /// The same, with faults armed in it.
    pub(crate) fn start_with_faults(&self, role: &str, name: &str, fault: &str) -> OrlojProcess {
        let settings = self.settings.clone();
        let settings = match role {
            "gateway" => settings.set("gateway.view_dir", self.data_of(name).to_str().unwrap()),
            _ => settings,
        };
        OrlojProcess::start(role, name, &settings, fault)
    }

    /// The same, and waits until it is ready.
    pub(crate) fn start_ready(&self, role: &str, name: &str) -> OrlojProcess {
        let mut process = self.start(role, name);
        process.wait_until_ready(READY_DEADLINE);
        process
    }

    /// Loses a scheduler's disk.
    pub(crate) fn wipe(&self, name: &str) {
        remove_folder(&self.data_of(name));
    }

    pub(crate) fn client(&self) -> TestProducer {
        TestProducer::connect(&self.client, &self.names.triggers())
    }

    pub(crate) fn kafka(&self) -> &ClientConfig {
        &self.client
    }

    pub(crate) fn schemas(&self) -> &Schemas {
        &self.schemas
    }

    pub(crate) fn target(&self) -> TargetHeader<'_> {
        (TARGET_TOPIC_HEADER, &self.target)
    }

    /// Creates another topic into which triggers fire.
    pub(crate) fn new_target(&self, name: &str) -> String {
        let topic = format!("{}-{name}", self.prefix);
        create_target(&self.client, &topic, self.copies);
        topic
    }

    pub(crate) fn fires(&self) -> Vec<audit::ObservedFire> {
        self.fires_into(&self.target)
    }

    /// The fires in another target topic.
    pub(crate) fn fires_into(&self, topic: &str) -> Vec<audit::ObservedFire> {
        self.fires_of(topic, &records::read_all(&self.client, topic))
    }

    fn fires_of(&self, topic: &str, records: &[OwnedMessage]) -> Vec<audit::ObservedFire> {
        // A leader that has just been elected may know less than the one that the records are of.
        until(&format!("the ends of the transactions of {topic}"), READY_DEADLINE, || {
            let ends = TransactionEnds::read(&self.client, topic);
            records.iter().map(|record| records::fired(record, &ends)).collect()
        })
    }

    /// Reads how far the partitions are, as fires come.
    pub(crate) fn fire_progress(&self) -> FireProgress {
        FireProgress::start(&self.client, &self.target)
    }

    /// Counts fires as they come.
    pub(crate) fn count_fires(&self) -> records::RecordCounter {
        records::RecordCounter::start(&self.client, &self.target)
    }

    /// Counts outcomes as they come.
    pub(crate) fn count_outcomes(&self) -> records::RecordCounter {
        records::RecordCounter::start(&self.client, &self.names.outcomes())
    }

    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let records = records::read_all(&self.client, &self.names.outcomes());
        records::outcomes(&self.schemas, &records)
    }

    pub(crate) fn dead_letters(&self) -> Vec<DeadLetter> {
        let records = records::read_all(&self.client, &self.names.dead_letters());
        records::dead_letters(&self.schemas, &records)
    }

    /// Judges what is there now of what `client` has registered.
    pub(crate) fn audit(&self, client: &TestProducer, margin: u64) -> AuditReport {
        self.audit_of((&self.target, PARTITIONS), client, margin)
    }

    /// The same of what fires into another topic, which has so many partitions.
    pub(crate) fn audit_of(
        &self,
        of: (&str, i32),
        client: &TestProducer,
        margin: u64,
    ) -> AuditReport {
        self.audit_as_of(None, of, client, margin)
    }

    /// The same; what is due after `as_of`, in ms since the epoch, may be pending still: by default
    /// what is due after all has been read.
    fn audit_as_of(
        &self,
        as_of: Option<u64>,
        (topic, partitions): (&str, i32),
        client: &TestProducer,
        margin: u64,
    ) -> AuditReport {
        let outcomes = records::read_all(&self.client, &self.names.outcomes());
        let answers = records::answers(&self.schemas, &outcomes);
        let fired = records::read_all(&self.client, topic);
        let (commands, fires) = (client.acknowledged(), self.fires_of(topic, &fired));
        let as_of = as_of.unwrap_or_else(clock::now_ms);
        let mut report = audit::check_commands_only(&commands, &answers, &fires, margin, as_of);
        let observed: Vec<_> = fired.iter().map(records::observed).collect();
        report.check_records(&observed, &client.registered(), partitions);
        report
    }

    /// Judges again and again until nothing is missing of what is due within `deadline`, or that
    /// has passed.
    pub(crate) fn audit_when_complete(
        &self,
        client: &TestProducer,
        margin: u64,
        deadline: Duration,
    ) -> AuditReport {
        let as_of = clock::now_ms() + u64::try_from(deadline.as_millis()).unwrap();
        let mut last = AuditReport::default();
        let _complete = within(deadline, || {
            last = self.audit_as_of(Some(as_of), (&self.target, PARTITIONS), client, margin);
            last.is_complete().then_some(())
        });
        last
    }

    /// Registers the trigger that [`Self::distant_trigger_is_pending`] looks for.
    pub(crate) fn register_distant_trigger(&self, client: &TestProducer) {
        client.register(DISTANT_ID, clock::now_ms() + DISTANT_MS, self.target(), "patience", true);
    }

    /// Whether the ledger's newest word on the trigger due in 400 days is that it waits.
    pub(crate) fn distant_trigger_is_pending(&self) -> bool {
        let key = LedgerKey::Main(Text::from(DISTANT_ID)).to_bytes();
        let ledger = records::read_all(&self.client, &self.names.ledger());
        let newest = ledger.iter().rfind(|record| record.key() == Some(key.as_slice()));
        newest.is_some_and(|record| record.payload().is_some())
    }

    /// Creates those of our topics that are missing; `None` while that fails.
    pub(crate) fn apply_topics(&self) -> Option<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ours = definitions(&self.prefix, 1);
        runtime.block_on(ours.apply_with(&self.client)).ok()?;
        runtime.block_on(ours.verify_with(&self.client)).ok()
    }

    /// Where the scheduler called `name` keeps what it can rebuild.
    pub(crate) fn data_of(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }
}

fn definitions(prefix: &str, copies: u16) -> TopicDefinitions {
    let partitions = NonZeroU16::new(u16::try_from(PARTITIONS).unwrap()).unwrap();
    TopicDefinitions::load(prefix, partitions, NonZeroU16::new(copies).unwrap())
}

fn create_topics(client: &ClientConfig, prefix: &str, target: &str, copies: u16) {
    let ours = definitions(prefix, copies);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _created = runtime.block_on(ours.apply_with(client)).unwrap();
    create_target(client, target, copies);
    // The controller has made them; the broker knows them a moment later.
    until("the broker to know its topics", READY_DEADLINE, || {
        runtime.block_on(ours.verify_with(client)).ok()
    });
}

fn create_target(client: &ClientConfig, topic: &str, copies: u16) {
    // The broker's time of a fire is what lateness is measured by.
    let topic = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(copies.into()))
        .set("message.timestamp.type", "LogAppendTime");
    kafka_server::create_topics(client, &[topic]);
}

/// Removes a folder, also while a process writes to it.
pub(crate) fn remove_folder(path: &Path) {
    until("the folder to be removed", READY_DEADLINE, || {
        let removed = std::fs::remove_dir_all(path);
        match removed.as_ref().map_err(std::io::Error::kind) {
            // Or the process was killed before it had written anything.
            Ok(()) | Err(std::io::ErrorKind::NotFound) => Some(()),
            Err(std::io::ErrorKind::DirectoryNotEmpty) => None,
            Err(_) => panic!("{removed:?}"),
        }
    });
}
