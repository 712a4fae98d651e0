//! Bad input: each bad record becomes a dead letter that names where it stands and why, and the
//! records around it fire.

use std::collections::BTreeMap;
use std::time::Duration;

use orloj::clock;
use orloj::model::dead_letter::DeadLetter;
use orloj::model::partitioner::Partitioner;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::records::{self, header};
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

/// All records stand here, so that each has a neighbour on both sides.
const PARTITION: i32 = 0;

/// Marks a record, so that it is found again where the broker put it.
const CASE: &str = "case";

/// A record that cannot be processed.
struct BadRecord {
    case: &'static str,
    key: Vec<u8>,
    headers: Vec<(&'static str, String)>,
    value: Vec<u8>,
    /// What the reason must mention.
    reason: &'static str,
}

#[test]
fn bad_records_become_dead_letters_and_their_neighbours_fire() {
    let cluster = TestCluster::new("bad").set("targets.deny", vec!["forbidden-*"]);
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let bad = bad_records(&cluster);
    let client = cluster.client();
    let producer = producer(&cluster);
    // Later than all is registered: the judge must wait for it.
    let due = clock::now_ms() + 3_000;
    let mut ids = ids();
    let mut neighbour = || client.register(&ids.next().unwrap(), due, cluster.target(), "ok", true);
    neighbour();
    for bad in &bad {
        client.acknowledged();
        send(&cluster, &producer, bad);
        neighbour();
    }
    let report = cluster.audit_when_complete(&client, 0, DEADLINE);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.fired, bad.len() + 1);

    let letters = until("a dead letter for each bad record", DEADLINE, || {
        let letters = cluster.dead_letters();
        (letters.len() >= bad.len()).then_some(letters)
    });
    assert_eq!(letters.len(), bad.len(), "{letters:?}");
    let stand = offsets(&cluster);
    for bad in &bad {
        assert_letter(&cluster, bad, stand[bad.case], &letters);
    }
    assert!(!scheduler.panicked());
    scheduler.terminate();
}

fn assert_letter(cluster: &TestCluster, bad: &BadRecord, offset: u64, letters: &[DeadLetter]) {
    let case = bad.case;
    let letter = letters.iter().find(|letter| letter.origin.offset == offset);
    let letter = letter.unwrap_or_else(|| panic!("{case}: no dead letter of offset {offset}"));
    assert_eq!(letter.origin.topic.as_str(), cluster.names.triggers(), "{case}");
    assert_eq!(letter.origin.partition, PARTITION, "{case}");
    assert!(letter.reason.contains(bad.reason), "{case}: {}", letter.reason);
}

fn bad_records(cluster: &TestCluster) -> Vec<BadRecord> {
    let due = clock::now_ms().to_string();
    let mut ids = ids().map(|id| format!("{id}-bad")).filter(|id| is_ours(id));
    let mut bad = |case, reason, headers: &[(&'static str, &str)], value: &[u8]| BadRecord {
        case,
        key: ids.next().unwrap().into_bytes(),
        headers: headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        value: value.to_vec(),
        reason,
    };
    let at = ("orloj-fire-at", due.as_str());
    let (header, topic) = cluster.target();
    let to = (header, topic);
    let far = format!(r#"{{"fireAt": "9999-12-31T23:59:59Z", "topic": "{topic}", "payload": 1}}"#);
    let (ours, denied) = (cluster.names.ledger(), "forbidden-topic");
    let mut all = vec![
        bad("truncated Avro", "Avro", &[], &[0xC3, 0x01, 7, 7]),
        bad("truncated framing", "Avro", &[], &[0x00, 0, 0]),
        bad("unknown schema id", "99", &[], &[0x00, 0, 0, 0, 99, 2, 2]),
        bad("not JSON", "JSON", &[], b"{fire at noon"),
        bad("2 MB", "payload", &[at, to], &vec![b'x'; 2_000_000]),
        bad("year 9999", "9999", &[], far.as_bytes()),
        bad("negative delay", "orloj-delay", &[("orloj-delay", "-5"), to], b"p"),
        bad("unknown topic", "no-such-topic", &[at, (header, "no-such-topic")], b"p"),
        bad("denied topic", "targets.deny", &[at, (header, denied)], b"p"),
        bad("topic of ours", "belongs to Orloj", &[at, (header, &ours)], b"p"),
        bad("Kafka's topic", "belongs", &[at, (header, "__consumer_offsets")], b"p"),
        bad("empty key", "key", &[at, to], b"p"),
    ];
    all.last_mut().unwrap().key.clear();
    all
}

/// Ids whose right partition is [`PARTITION`].
fn ids() -> impl Iterator<Item = String> {
    (0..).map(|n| format!("id-{n}")).filter(|id| is_ours(id))
}

fn is_ours(id: &str) -> bool {
    Partitioner::Murmur2.partition(id.as_bytes(), PARTITIONS) == Some(PARTITION)
}

/// Where the marked records stand.
fn offsets(cluster: &TestCluster) -> BTreeMap<String, u64> {
    let records = records::read_all(cluster.kafka(), &cluster.names.triggers());
    let marked = records.iter().filter_map(|record| {
        use rdkafka::message::Message as _;
        let case = header(record, CASE)?.to_owned();
        Some((case, u64::try_from(record.offset()).unwrap()))
    });
    marked.collect()
}

/// 2 MB fit through a broker that takes 1 MiB, if they compress well.
fn producer(cluster: &TestCluster) -> BaseProducer {
    let mut config = cluster.kafka().clone();
    config.set("message.max.bytes", "4000000").set("compression.type", "zstd");
    config.create().unwrap()
}

fn send(cluster: &TestCluster, producer: &BaseProducer, bad: &BadRecord) {
    let mut headers = OwnedHeaders::new().insert(Header { key: CASE, value: Some(bad.case) });
    for (key, value) in &bad.headers {
        headers = headers.insert(Header { key, value: Some(value) });
    }
    let triggers = cluster.names.triggers();
    let record = BaseRecord::to(&triggers)
        .partition(PARTITION)
        .key(&bad.key)
        .payload(&bad.value)
        .headers(headers);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(DEADLINE).unwrap();
}
