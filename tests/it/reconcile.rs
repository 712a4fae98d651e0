//! Callbacks that got lost, and `orloj reconcile`, which finds them. Nothing of ours loses one: the
//! test empties the topic that carried it.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::json;

use crate::endpoint::Endpoint;
use crate::records;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn a_lost_callback_is_found_and_repeated_with_the_same_id() {
    let cluster = TestCluster::new("reconcile").set("worker.allow_addresses", "any");
    let endpoint = Endpoint::start();
    let mut scheduler = cluster.scheduler("scheduler");
    scheduler.wait_until_ready(READY_DEADLINE);
    endpoint.register(&cluster, "lost", "fine", json!({}), json!({}));
    until("its fire", DEADLINE, || {
        let fires = records::read_all(cluster.kafka(), &cluster.names.fires());
        (!fires.is_empty()).then_some(())
    });
    empty(&cluster);
    let mut worker = cluster.start("worker", "worker");
    worker.wait_until_ready(READY_DEADLINE);
    endpoint.register(&cluster, "made", "fine", json!({}), json!({}));
    until("the other callback", DEADLINE, || endpoint.requests_for("made").pop());
    until("its end to be known", DEADLINE, || {
        (cluster.outcomes().iter().any(|outcome| outcome.trigger == *"made")).then_some(())
    });

    let reconcile = ["reconcile", "--older-than", "0s"];
    let (said, done) = cluster.settings.run(&[&reconcile[..], &["--dry-run"]].concat());
    assert!(done, "{said}");
    assert!(said.contains("lost:") && said.contains("no attempt is known to have ended"), "{said}");
    assert!(said.contains("1 callbacks have not ended; nothing was requested"), "{said}");
    assert_eq!(endpoint.requests_for("lost").len(), 0);

    let (said, done) = cluster.settings.run(&reconcile);
    assert!(
        done && said.contains("1 callbacks have not ended; another attempt of each requested"),
        "{said}"
    );
    let request = until("the lost callback", DEADLINE, || endpoint.requests_for("lost").pop());
    assert!(request.id.starts_with("lost:"), "{request:?}");
    until("its end to be known", DEADLINE, || {
        (cluster.outcomes().iter().any(|outcome| outcome.trigger == *"lost")).then_some(())
    });
    let (said, done) = cluster.settings.run(&reconcile);
    assert!(done && said.contains("0 callbacks have not ended"), "{said}");
    assert_eq!(endpoint.requests_for("lost").len(), 1, "made once");
    worker.terminate();
    scheduler.terminate();
}

/// Deletes what is in the topic of fires.
fn empty(cluster: &TestCluster) {
    let admin: AdminClient<DefaultClientContext> = cluster.kafka().create().unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(&cluster.names.fires(), partition, Offset::End).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(admin.delete_records(&all, &AdminOptions::new())).unwrap();
}
