//! What a scheduler that starts again on its disk reads of the log: what the disk lacks.
//!
//! Invariant: counted is what the process says that it read; how long that took depends on the
//! machine.

use std::time::Duration;

use orloj::clock;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster, exclusive_machine};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
/// Triggers that go into the ledger, and are not due while the test lasts.
const LONG: u64 = 4_000;
const FAR_MS: u64 = 3_600_000;
/// What asks for no spill in a partition, and what is read again then.
const SLACK: u64 = 100;
const READ_MAX: u64 = LONG / 8;
/// How long a scheduler takes to end. One that releases nothing waits for 15 s.
const LEAVE_MAX: Duration = Duration::from_secs(10);

#[test]
fn a_restarted_scheduler_does_not_read_its_own_ledger_records_again() {
    let _machine = exclusive_machine();
    let cluster = TestCluster::new("warm")
        .set("scheduler.ledger_after", "1s")
        .set("store.flush_interval", "1s")
        .set("log.filter", "info,orloj_core::scheduler::transactions=debug");
    let client = cluster.client();
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let due = clock::now_ms() + FAR_MS;
    for n in 0..LONG {
        client.register(&format!("long-{n}"), due, cluster.target(), "x", true);
    }
    let commands = client.acknowledged().len();
    until("all to be accepted", DEADLINE, || (cluster.outcomes().len() >= commands).then_some(()));
    let ends: Vec<_> = (0..PARTITIONS).map(|p| (p, ledger_end(&cluster, p))).collect();
    assert!(ends.iter().map(|(_, end)| end).sum::<u64>() > LONG, "{ends:?}");
    until("the store to hold the ledger", DEADLINE, || {
        let holds = |(p, end): &(_, u64)| {
            let spilled = format!("a spill is submitted to the store writer partition={p} ");
            scheduler
                .numbers(&spilled, "ledger_position")
                .last()
                .is_some_and(|held| held + SLACK >= *end)
        };
        ends.iter().all(holds).then_some(())
    });
    // A kill may come before RocksDB has brought it to disk.
    let asked = clock::monotonic();
    scheduler.terminate();
    let took = clock::monotonic() - asked;
    assert!(took < LEAVE_MAX, "it has not released its partitions: {took:.1?}");

    let again = cluster.scheduler("first");
    let read = until("the takeovers", DEADLINE, || {
        let read = again.numbers("taken over", "records");
        (read.len() == PARTITIONS as usize).then_some(read)
    });
    assert!(read.iter().sum::<u64>() <= READ_MAX, "records read again: {read:?}");
    again.terminate();
}

fn ledger_end(cluster: &TestCluster, partition: i32) -> u64 {
    let reader: BaseConsumer = cluster.kafka().create().unwrap();
    let (_, end) = reader.fetch_watermarks(&cluster.names.ledger(), partition, DEADLINE).unwrap();
    end.unsigned_abs()
}
