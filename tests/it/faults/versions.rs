//! Processes of two versions side by side: an older one takes over nothing that a newer one wrote,
//! says so, and goes on with the rest.

use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::offsets::{commit, committed};
use super::processes::{wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::test_cluster::{PARTITIONS, READY_DEADLINE};

/// Ours, and that of the version after it.
const OURS: &str = "orloj1 ";
const NEWER: &str = "orloj3 ";
/// The partition that a newer process has had.
const PARTITION: i32 = 0;

pub(super) fn side_by_side(_: Scale) -> FaultResult {
    let fixture = FaultFixture::new("versions");
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    fixture.steady_load().during(|| {
        wait_for_ms(2_000);
        scheduler.terminate();
        rewrite(&fixture, OURS, NEWER);
        let older = fixture.cluster.scheduler("first");
        older.wait_for_log("upgrade", READY_DEADLINE);
        wait_until_owned(&older, PARTITIONS as usize - 1);
        assert!(!older.is_ready(), "a partition is not fired for, and it calls itself ready");
        older.kill();
        rewrite(&fixture, NEWER, OURS);
    });
    let mut newer = fixture.cluster.scheduler("first");
    newer.wait_until_ready(READY_DEADLINE);
    let report = fixture.settled(&mut [&mut newer]);

    write_newer_ledger_record(&fixture);
    fixture.cluster.wipe("first");
    let refused = fixture.cluster.scheduler("first");
    refused.wait_for_log("written by a newer Orloj", READY_DEADLINE);
    wait_until_owned(&refused, PARTITIONS as usize - 1);
    assert!(!refused.is_ready(), "a partition is not fired for, and it calls itself ready");
    refused.terminate();
    FaultResult::Passed(FaultFigures::of(&report))
}

/// Commits the same cursor under another version.
fn rewrite(fixture: &FaultFixture, from: &str, to: &str) {
    let mut committed = committed(&fixture.cluster);
    committed.retain(|(partition, ..)| *partition == PARTITION);
    let metadata = &mut committed[0].2;
    *metadata = metadata.replacen(from, to, 1);
    assert!(metadata.starts_with(to), "{metadata}");
    commit(&fixture.cluster, &committed);
}

/// A value whose schema is unknown here.
fn write_newer_ledger_record(fixture: &FaultFixture) {
    let producer: BaseProducer = fixture.cluster.kafka().create().unwrap();
    let ledger = fixture.cluster.names.ledger();
    let value = [0xC3, 0x01, 1, 2, 3, 4, 5, 6, 7, 8, 0];
    let record = BaseRecord::to(&ledger).partition(PARTITION).key("m|from-the-future");
    let step = OwnedHeaders::new().insert(Header { key: "orloj-step", value: Some("1") });
    let record = record.payload(&value[..]).headers(step);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(COMPLETION_DEADLINE).unwrap();
}
