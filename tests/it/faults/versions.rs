//! Processes of two versions side by side: an older one takes over nothing that a newer one wrote,
//! says so, and goes on with the rest.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};

use super::processes::{owns, stay};
use super::report::{Figures, Verdict};
use super::{SETTLE, Scale, Scene};
use crate::stage::{PARTITIONS, READY};
use crate::wait::until;

/// Ours, and that of the version after it.
const OURS: &str = "orloj1 ";
const NEWER: &str = "orloj2 ";
/// The partition that a newer process has had.
const PARTITION: i32 = 0;

pub(super) fn side_by_side(_: Scale) -> Verdict {
    let scene = Scene::new("versions");
    let mut scheduler = scene.stage.scheduler("first");
    scheduler.ready(READY);
    scene.flow().during(|| {
        stay(2_000);
        scheduler.terminate();
        rewrite(&scene, OURS, NEWER);
        let older = scene.stage.scheduler("first");
        older.says("upgrade", READY);
        owns(&older, PARTITIONS as usize - 1);
        assert!(!older.is_ready(), "a partition is not fired for, and it calls itself ready");
        older.kill();
        rewrite(&scene, NEWER, OURS);
    });
    let mut newer = scene.stage.scheduler("first");
    newer.ready(READY);
    let report = scene.settled();
    newer.terminate();

    write_newer_ledger_record(&scene);
    scene.stage.wipe("first");
    let refused = scene.stage.scheduler("first");
    refused.says("written by a newer Orloj", READY);
    owns(&refused, PARTITIONS as usize - 1);
    assert!(!refused.is_ready(), "a partition is not fired for, and it calls itself ready");
    refused.terminate();
    Verdict::Passed(Figures::of(&report))
}

/// Commits the same cursor under another version.
fn rewrite(scene: &Scene, from: &str, to: &str) {
    let mut config = scene.stage.kafka().clone();
    let consumer: BaseConsumer =
        config.set("group.id", scene.stage.names.schedulers()).create().unwrap();
    let triggers = scene.stage.names.triggers();
    let mut list = TopicPartitionList::new();
    list.add_partition(&triggers, PARTITION);
    let committed = consumer.committed_offsets(list, Duration::from_secs(10)).unwrap();
    let elements = committed.elements();
    let metadata = elements[0].metadata().replacen(from, to, 1);
    assert!(metadata.starts_with(to), "{metadata}");
    let Offset::Offset(offset) = elements[0].offset() else { panic!("no offset") };
    until("the group to be empty", SETTLE, || {
        let mut list = TopicPartitionList::new();
        let mut element = list.add_partition(&triggers, PARTITION);
        element.set_offset(Offset::Offset(offset)).unwrap();
        element.set_metadata(&metadata);
        consumer.commit(&list, CommitMode::Sync).ok()
    });
}

/// A value whose schema nobody here knows.
fn write_newer_ledger_record(scene: &Scene) {
    let producer: BaseProducer = scene.stage.kafka().create().unwrap();
    let ledger = scene.stage.names.ledger();
    let value = [0xC3, 0x01, 1, 2, 3, 4, 5, 6, 7, 8, 0];
    let record = BaseRecord::to(&ledger).partition(PARTITION).key("m|from-the-future");
    producer.send(record.payload(&value[..])).map_err(|(error, _)| error).unwrap();
    producer.flush(SETTLE).unwrap();
}
