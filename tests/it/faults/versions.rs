//! Processes of two versions side by side: an older one takes over nothing that a newer one wrote,
//! says so, and goes on with the rest.

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::offsets::{commit, committed};
use super::processes::{owns, stay};
use super::report::{Figures, Verdict};
use super::{SETTLE, Scale, Scene};
use crate::stage::{PARTITIONS, READY};

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
    let mut committed = committed(&scene.stage);
    committed.retain(|(partition, ..)| *partition == PARTITION);
    let metadata = &mut committed[0].2;
    *metadata = metadata.replacen(from, to, 1);
    assert!(metadata.starts_with(to), "{metadata}");
    commit(&scene.stage, &committed);
}

/// A value whose schema nobody here knows.
fn write_newer_ledger_record(scene: &Scene) {
    let producer: BaseProducer = scene.stage.kafka().create().unwrap();
    let ledger = scene.stage.names.ledger();
    let value = [0xC3, 0x01, 1, 2, 3, 4, 5, 6, 7, 8, 0];
    let record = BaseRecord::to(&ledger).partition(PARTITION).key("m|from-the-future");
    let step = OwnedHeaders::new().insert(Header { key: "orloj-step", value: Some("1") });
    let record = record.payload(&value[..]).headers(step);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(SETTLE).unwrap();
}
