//! Committed offsets that an operator moves, or that are lost.
//!
//! Invariant: what is repeated then is what the page says: everything from the new offset on, and
//! nothing of what is below it.

use std::collections::{BTreeMap, HashMap};

use orloj::clock;
use orloj::model::ledger::{LedgerKey, LedgerValue};
use orloj::model::partitioner::Partitioner;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};

use super::processes::{wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::topic_admin::FaultTopicAdmin;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, second_look};
use crate::audit::{AcknowledgedCommand, ObservedFire};
use crate::records;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::test_producer::TestProducer;
use crate::wait::until;

/// Triggers that are due so late that they are in the ledger.
const LONG_ONES: u64 = 100;

/// Records of each partition that count as new again.
const BACK: u64 = 20;

/// What the schedulers' group has committed: (partition, offset, metadata).
pub(super) fn committed(cluster: &TestCluster) -> Vec<(i32, i64, String)> {
    let mut list = TopicPartitionList::new();
    list.add_partition_range(&cluster.names.triggers(), 0, PARTITIONS - 1);
    let committed = consumer(cluster).committed_offsets(list, READY_DEADLINE).unwrap();
    let elements = committed.elements();
    let offset = |offset: Offset| offset.to_raw().expect("a number");
    let all = elements.iter().map(|e| (e.partition(), offset(e.offset()), e.metadata().to_owned()));
    all.collect()
}

/// Commits for the schedulers' group as the tools of Kafka do: once it is empty.
pub(super) fn commit(cluster: &TestCluster, offsets: &[(i32, i64, String)]) {
    let triggers = cluster.names.triggers();
    let consumer = consumer(cluster);
    until("the group to be empty", COMPLETION_DEADLINE, || {
        let mut list = TopicPartitionList::new();
        for (partition, offset, metadata) in offsets {
            let mut element = list.add_partition(&triggers, *partition);
            element.set_offset(Offset::Offset(*offset)).unwrap();
            element.set_metadata(metadata);
        }
        consumer.commit(&list, CommitMode::Sync).ok()
    });
}

fn consumer(cluster: &TestCluster) -> BaseConsumer {
    let mut config = cluster.kafka().clone();
    config.set("group.id", cluster.names.scheduler_group()).create().unwrap()
}

/// What `kafka-consumer-groups --reset-offsets` does: other offsets, without our metadata.
pub(super) fn reset(cluster: &TestCluster, to: impl Fn(i64) -> i64) {
    let moved = committed(cluster).into_iter();
    let moved: Vec<_> = moved.map(|(p, offset, _)| (p, to(offset), String::new())).collect();
    commit(cluster, &moved);
}

/// `--shift-by -20`: those records count as new, W stays.
pub(super) fn moved(_: Scale) -> FaultResult {
    let fixture = FaultFixture::new("moved");
    let client = &fixture.client;
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    register(&fixture.cluster, client, 0..400, 2_000);
    // These are pending when the offset moves, and shall not be repeated for that.
    register(&fixture.cluster, client, 400..420, 45_000);
    let commands = client.acknowledged();
    until("the first 400 to fire", COMPLETION_DEADLINE, || {
        (fixture.cluster.fires().len() >= 400).then_some(())
    });
    scheduler.terminate();
    reset(&fixture.cluster, |offset| (offset - BACK as i64).max(0));

    let scheduler = fixture.cluster.scheduler("first");
    wait_until_owned(&scheduler, PARTITIONS as usize);
    let expected = expected(&commands);
    let total: usize = expected.values().sum();
    let fires = until("every fire and repetition", COMPLETION_DEADLINE, || {
        let fires = fixture.cluster.fires();
        (fires.len() >= total).then_some(fires)
    });
    let pending = fires.iter().filter(|fire| fire.trigger.starts_with("pending"));
    let late = pending.map(|fire| fire.visible.saturating_sub(fire.due)).collect();
    assert_eq!(times(fires), expected);
    scheduler.terminate();
    second_look::take_over_again(&fixture.cluster, client);
    let mut times = times(fixture.cluster.fires());
    times.retain(|id, _| !id.starts_with(second_look::NAME));
    assert_eq!(times, expected, "the second look");
    let mut figures = FaultFigures::default();
    figures.count(commands.len(), total);
    let figures = figures.late(late);
    FaultResult::Passed(figures.with("repeated as documented", total - commands.len()))
}

fn times(fires: Vec<ObservedFire>) -> HashMap<String, usize> {
    let mut times = HashMap::new();
    for fire in fires {
        *times.entry(fire.trigger).or_default() += 1;
    }
    times
}

/// How often each trigger fires: those that were due and stand in the last [`BACK`] twice.
fn expected(commands: &HashMap<String, Vec<AcknowledgedCommand>>) -> HashMap<String, usize> {
    let partition = |id: &str| Partitioner::Murmur2.partition(id.as_bytes(), PARTITIONS);
    let mut ends = HashMap::<_, u64>::new();
    for (id, commands) in commands {
        let end = ends.entry(partition(id)).or_default();
        *end = (*end).max(commands[0].offset + 1);
    }
    let times = |(id, commands): (&String, &Vec<AcknowledgedCommand>)| {
        let again = commands[0].offset + BACK >= ends[&partition(id)];
        let was_due = !id.starts_with("pending");
        (id.clone(), 1 + usize::from(again && was_due))
    };
    commands.iter().map(times).collect()
}

fn register(
    cluster: &TestCluster,
    client: &TestProducer,
    numbers: std::ops::Range<u64>,
    delay: u64,
) {
    let name = if delay > 10_000 { "pending" } else { "due" };
    let due = clock::now_ms() + delay;
    for n in numbers {
        client.register(&format!("{name}-{n}"), due, cluster.target(), "again", true);
    }
    client.acknowledged();
}

/// The group is deleted with its offsets: after a shutdown the mirror stands; after a crash a
/// person must decide, the log says how, and it continues.
pub(super) fn deleted(_: Scale) -> FaultResult {
    let fixture = FaultFixture::from_cluster(
        TestCluster::new("deleted").set("scheduler.cursor_copy_interval", "1s"),
    );
    let admin = FaultTopicAdmin::of(&fixture.cluster);
    let group = fixture.cluster.names.scheduler_group();
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    fixture.steady_load().during(|| wait_for_ms(3_000));
    scheduler.terminate();
    admin.delete_group(&group);
    let again = fixture.cluster.scheduler("first");
    wait_until_owned(&again, PARTITIONS as usize);
    let report = fixture.judged();
    // Until the mirror says that everything is decided.
    wait_for_ms(4_000);
    again.kill();
    admin.delete_group(&group);

    let refused = fixture.cluster.scheduler("first");
    for partition in 0..PARTITIONS {
        refused.wait_for_log(
            &format!("partition {partition}: the group's committed offset is"),
            READY_DEADLINE,
        );
    }
    wait_for_ms(1_000);
    assert!(!refused.is_ready(), "it cannot fire and calls itself ready");
    let advice = advice(&refused.log_text(), &fixture.cluster.names.triggers());
    refused.kill();
    commit(&fixture.cluster, &advice);
    let mut decided = fixture.cluster.scheduler("first");
    wait_until_owned(&decided, PARTITIONS as usize);
    wait_for_ms(2_000);
    assert_eq!(fixture.judged().fired, report.fired, "nothing is repeated");
    second_look::assert_nothing_fires_again(&fixture, &mut [&mut decided]);
    fixture.check_topics();
    FaultResult::Passed(FaultFigures::of(&report))
}

/// The newest mirror stands behind a transaction that is still open: who seeks it waits for that,
/// and does not take the one before for the newest. Then the ledger is read once more, from its
/// beginning: what only it holds fires as well.
pub(super) fn hidden(_: Scale) -> FaultResult {
    let fixture = FaultFixture::new("hidden");
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    fixture.steady_load().during(|| wait_for_ms(2_000));
    let report = fixture.judged();
    register(&fixture.cluster, &fixture.client, 0..LONG_ONES, 25_000);
    until("all of them to be in the ledger", COMPLETION_DEADLINE, || {
        (pending_in_ledger(&fixture.cluster) == LONG_ONES as usize).then_some(())
    });
    scheduler.terminate();
    FaultTopicAdmin::of(&fixture.cluster).delete_group(&fixture.cluster.names.scheduler_group());

    let open = open_behind_mirrors(&fixture.cluster);
    let refused = fixture.cluster.scheduler("first");
    refused.wait_for_log("a transaction is open below the end of the ledger", READY_DEADLINE);
    open.commit_transaction(READY_DEADLINE).unwrap();
    for partition in 0..PARTITIONS {
        refused.wait_for_log(
            &format!("partition {partition}: the group's committed offset is"),
            READY_DEADLINE,
        );
    }
    let advice = advice(&refused.log_text(), &fixture.cluster.names.triggers());
    refused.kill();
    commit(&fixture.cluster, &advice);
    fixture.cluster.wipe("first");
    let mut decided = fixture.cluster.scheduler("first");
    wait_until_owned(&decided, PARTITIONS as usize);
    let long = LONG_ONES as usize;
    assert_eq!(fixture.judged().fired, report.fired + long, "nothing is repeated");
    second_look::assert_nothing_fires_again(&fixture, &mut [&mut decided]);
    fixture.check_topics();
    FaultResult::Passed(FaultFigures::of(&report))
}

/// How many triggers wait in the ledger.
fn pending_in_ledger(cluster: &TestCluster) -> usize {
    let mut newest = HashMap::new();
    for record in records::read_all(cluster.kafka(), &cluster.names.ledger()) {
        if let Some(LedgerKey::Main(id)) = record.key().and_then(LedgerKey::parse) {
            let _older = newest.insert(id, record.payload().is_some());
        }
    }
    newest.values().filter(|waits| **waits).count()
}

/// Writes each partition's mirror once more, as one that was not written at a shutdown, in a
/// transaction that is left open.
fn open_behind_mirrors(cluster: &TestCluster) -> BaseProducer {
    let (ledger, key) = (cluster.names.ledger(), LedgerKey::Cursor.to_bytes());
    let mut config = cluster.kafka().clone();
    config.set("transactional.id", format!("{}-hidden", cluster.names.scheduler_group()));
    let producer: BaseProducer = config.create().unwrap();
    producer.init_transactions(READY_DEADLINE).unwrap();
    producer.begin_transaction().unwrap();
    let mut newest = BTreeMap::new();
    for record in records::read_all(cluster.kafka(), &ledger) {
        if record.key() == Some(key.as_slice()) {
            let _older = newest.insert(record.partition(), record);
        }
    }
    assert_eq!(newest.len(), PARTITIONS as usize, "a mirror in each partition");
    for (partition, record) in newest {
        let headers = record.headers().expect("a ledger record has a step").clone();
        let step = headers.get(0).value;
        let mirror = cluster.schemas().decode_ledger(&key, record.payload(), step).unwrap();
        let Some(LedgerValue::Cursor { metadata, offset, clean: true }) = mirror.value else {
            panic!("a mirror written at a shutdown: {mirror:?}");
        };
        let unclean = LedgerValue::Cursor { metadata, offset, clean: false };
        let value = cluster.schemas().encode_ledger(&unclean);
        let record = BaseRecord::to(&ledger).partition(partition).key(&key).payload(&value);
        producer.send(record.headers(headers)).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(READY_DEADLINE).unwrap();
    producer
}

/// The offsets that the log asks a person to accept, from `--to-offset 17 --topic
/// <topic>:<partition>`.
fn advice(said: &str, topic: &str) -> Vec<(i32, i64, String)> {
    let mut advice = BTreeMap::new();
    for advised in said.split("--to-offset ").skip(1) {
        let words: Vec<_> = advised.split_whitespace().collect();
        let partition = words[2].strip_prefix(topic).expect("our topic").trim_start_matches(':');
        advice.insert(partition.parse().unwrap(), words[0].parse().unwrap());
    }
    assert_eq!(advice.len(), PARTITIONS as usize, "{said}");
    advice.into_iter().map(|(partition, offset)| (partition, offset, String::new())).collect()
}
