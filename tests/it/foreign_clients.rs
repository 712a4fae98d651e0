//! Clients of other kinds: those that hash keys otherwise, and those that the cluster asks for a
//! password.

use std::collections::BTreeMap;
use std::time::Duration;

use orloj::clock;
use orloj::model::outcome::OutcomeKind;
use orloj::model::partitioner::Partitioner;

use crate::kafka_server::{KafkaServer, Options};
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::test_producer::TestProducer;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

/// kcat and every client on librdkafka hash with crc32 by default.
#[test]
fn records_of_a_foreign_partitioner_are_forwarded_and_fire_once() {
    const TRIGGERS: usize = 400;
    let cluster = TestCluster::new("crc32");
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let client = TestProducer::with_partitioner(
        cluster.kafka(),
        &cluster.names.triggers(),
        "consistent_random",
    );
    let ids: Vec<_> = (0..TRIGGERS).map(|n| format!("foreign-{n}")).collect();
    assert!(ids.iter().filter(|id| is_misplaced(id)).count() > TRIGGERS / 2);
    let due = clock::now_ms() + 5_000;
    for id in &ids {
        client.register(id, due, cluster.target(), id, false);
    }
    let (cancelled, kept) = ids.split_at(TRIGGERS / 4);
    cancelled.iter().for_each(|id| client.cancel(id));
    client.acknowledged();

    until("every trigger that was kept to fire", DEADLINE, || {
        (cluster.fires().len() >= kept.len()).then_some(())
    });
    scheduler.terminate();
    let mut fires = BTreeMap::<String, u32>::new();
    for fire in cluster.fires() {
        assert!(fire.visible >= due && fire.due == due, "{fire:?}");
        assert_eq!(fire.payload, fire.trigger.as_bytes());
        *fires.entry(fire.trigger).or_default() += 1;
    }
    assert_eq!(fires, kept.iter().map(|id| (id.clone(), 1)).collect());
    let outcomes = cluster.outcomes();
    let reported = outcomes.iter().filter(|o| matches!(o.kind, OutcomeKind::Cancelled { .. }));
    assert_eq!(reported.count(), cancelled.len());
}

#[test]
fn a_scheduler_works_through_tls_with_a_password() {
    const TRIGGERS: u64 = 100;
    let server = KafkaServer::start(&Options { secured: true, ..Options::default() });
    let settings = server.secured_settings();
    let cluster = TestCluster::with_client("secured", server.client(), &settings);
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let client = cluster.client();
    // Later than all is registered: the judge must wait for it.
    let due = clock::now_ms() + 3_000;
    for n in 0..TRIGGERS {
        client.register(&format!("secured-{n}"), due + n, cluster.target(), "secret", true);
    }
    let report = cluster.audit_when_complete(&client, 0, DEADLINE);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.fired, 100);
    scheduler.terminate();
}

fn is_misplaced(id: &str) -> bool {
    let of = |partitioner: Partitioner| partitioner.partition(id.as_bytes(), PARTITIONS);
    of(Partitioner::Murmur2) != of(Partitioner::Crc32)
}
