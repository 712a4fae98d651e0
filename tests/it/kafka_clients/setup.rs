//! Topics, records and clients for the tests of the clients.
//!
//! Invariant: all of them are on the broker that tests share, or on that of one test, under names
//! that no other test has.

use std::time::Duration;

use orloj::config::{Layers, Settings};
use orloj::engine::assignment::AssignmentChange;
use orloj::kafka::member::Member;
use orloj::kafka::orphaned_transactions::OwnerIds;
use orloj::kafka::reader::{LogReader, ReadEvent};
use orloj::kafka::record::ConsumerRecord;
use orloj::kafka::transaction::{OffsetCommit, ProducerRecord, TransactionalProducer};
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::faults::proxy::Proxy;
use crate::kafka_server::{self, KafkaServer, Options, free_ports};
use crate::wait::until;

pub(super) const DEADLINE: Duration = Duration::from_secs(60);
/// How long a request may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// How long one poll waits.
pub(super) const POLL: Duration = Duration::from_millis(50);

pub(super) fn settings() -> Settings {
    settings_of(kafka_server::shared().bootstrap())
}

/// The same for another broker.
pub(super) fn settings_of(bootstrap: &str) -> Settings {
    changed_settings(bootstrap, &[])
}

/// The same with other values of some settings.
pub(super) fn changed_settings(bootstrap: &str, changed: &[&str]) -> Settings {
    let mut overrides = vec![
        format!("kafka.bootstrap.servers={bootstrap}"),
        "scheduler.session_timeout=6s".to_owned(),
    ];
    overrides.extend(changed.iter().map(|setting| (*setting).to_owned()));
    Settings::load(&Layers { overrides, ..Layers::default() }).unwrap()
}

/// The same for a broker that does not answer.
pub(super) fn unreachable_settings() -> Settings {
    let overrides = vec!["kafka.bootstrap.servers=127.0.0.1:1".to_owned()];
    Settings::load(&Layers { overrides, ..Layers::default() }).unwrap()
}

/// How this process would name its transactions.
pub(super) fn me() -> OwnerIds {
    OwnerIds { prefix: String::new(), instance: "me".to_owned() }
}

/// A new topic, with these settings.
pub(super) fn new_topic(partitions: i32, settings: &[(&str, &str)]) -> String {
    kafka_server::shared().new_topic(partitions, settings)
}

/// Deletes the records of partition 0 before this offset.
pub(super) fn delete_before(topic: &str, offset: i64) {
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(topic, 0, rdkafka::Offset::Offset(offset)).unwrap();
    let admin: AdminClient<DefaultClientContext> =
        kafka_server::shared().client().create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _deleted = runtime.block_on(admin.delete_records(&before, &AdminOptions::new())).unwrap();
}

/// Writes a record for each of these timestamps to a partition, in ms since the epoch.
pub(super) fn write(topic: &str, partition: i32, timestamps: &[i64]) {
    let producer: BaseProducer = kafka_server::shared().client().create().unwrap();
    for at in timestamps {
        let record = BaseRecord::<str, str>::to(topic).partition(partition).timestamp(*at);
        producer.send(record.payload("value")).unwrap();
    }
    producer.flush(TIMEOUT).unwrap();
}

/// A record without headers.
pub(super) fn record<'a>(topic: &'a str, partition: i32, key: &'a str) -> ProducerRecord<'a> {
    let (key, value) = (Some(key.as_bytes()), Some(&b"value"[..]));
    ProducerRecord { topic, partition: Some(partition), key, value, headers: &[] }
}

/// The commit of an offset, without metadata.
pub(super) fn offset_commit(topic: &str, partition: i32, offset: u64) -> OffsetCommit {
    OffsetCommit { topic: topic.to_owned(), partition, offset, metadata: String::new() }
}

pub(super) fn transactional(id: &str) -> TransactionalProducer {
    TransactionalProducer::open(&settings(), id, TIMEOUT).unwrap()
}

pub(super) fn reader() -> LogReader {
    LogReader::open(&settings(), "clients").unwrap()
}

/// What `of` makes of the next records that are read, as many as that.
pub(super) fn read<T>(
    reader: &LogReader,
    count: usize,
    of: impl Fn(&ConsumerRecord<'_>) -> T,
) -> Vec<T> {
    let mut found = Vec::new();
    until(&format!("{count} records"), DEADLINE, || {
        if let Some(ReadEvent::Record(record)) = reader.poll(POLL).unwrap() {
            found.push(of(&record));
        }
        (found.len() >= count).then_some(())
    });
    found
}

/// The keys of the next records that are read.
pub(super) fn keys(reader: &LogReader, count: usize) -> Vec<String> {
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    read(reader, count, |record| record.key().map(text).unwrap_or_default())
}

/// A broker, a proxy before it, and the proxy's address.
pub(super) fn proxied_broker() -> (KafkaServer, Proxy, String) {
    let [listener, port] = free_ports();
    let proxied = Some([listener, port]);
    let server = KafkaServer::start(&Options { proxied, ..Options::default() });
    let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
    (server, proxy, format!("127.0.0.1:{port}"))
}

/// Polls until it owns its partition.
pub(super) fn poll_until_assigned(member: &Member) {
    until("the assignment", DEADLINE, || {
        let changes = member.poll(POLL).unwrap();
        changes.contains(&AssignmentChange::Assigned(vec![0])).then_some(())
    });
}
