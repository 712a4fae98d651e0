//! Topics that are deleted, created again, or changed while triggers wait.

use orloj::clock;

use super::offsets::reset;
use super::processes::wait_for_ms;
use super::report::{FaultFigures, FaultResult};
use super::steady_load::SteadyLoad;
use super::topic_admin::FaultTopicAdmin;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::test_producer::TARGET_TOPIC_HEADER;
use crate::wait::until;

/// A target goes away while triggers for it are due; those for another are not held up.
pub(super) fn target_deleted(_: Scale) -> FaultResult {
    const DOOMED: usize = 200;
    let mut fixture = FaultFixture::new("target-deleted");
    fixture.expected_letters = (0..DOOMED).map(|n| format!("doomed-{n}")).collect();
    let admin = FaultTopicAdmin::of(&fixture.cluster);
    let doomed = format!("{}-doomed", fixture.cluster.target().1);
    admin.create(&doomed);
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let client = fixture.cluster.client();
    fixture.steady_load().during(|| {
        let due = clock::now_ms() + 5_000;
        for n in 0..DOOMED {
            let due = due + n as u64;
            client.register(
                &format!("doomed-{n}"),
                due,
                (TARGET_TOPIC_HEADER, &doomed),
                "in vain",
                false,
            );
        }
        // Its fire makes the topic known, so that its end comes as a surprise.
        client.register("warm", clock::now_ms(), (TARGET_TOPIC_HEADER, &doomed), "in time", false);
        client.acknowledged();
        wait_for_ms(2_000);
        admin.delete(&doomed);
        wait_for_ms(6_000);
    });
    until("a dead letter for each", COMPLETION_DEADLINE, || {
        (fixture.cluster.dead_letters().len() >= DOOMED).then_some(())
    });
    scheduler.wait_until_ready(READY_DEADLINE);
    let report = fixture.settled(&mut [&mut scheduler]);
    FaultResult::Passed(FaultFigures::of(&report).with("dead letters", DOOMED))
}

/// `triggers` is deleted and created again while no process runs: its offsets start at 0 again.
pub(super) fn recreated(_: Scale) -> FaultResult {
    let fixture = FaultFixture::new("recreated");
    let triggers = fixture.cluster.names.triggers();
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    fixture.steady_load().during(|| wait_for_ms(3_000));
    let report = fixture.settled(&mut [&mut scheduler]);
    FaultTopicAdmin::of(&fixture.cluster).delete(&triggers);
    until("the topic to be created again", COMPLETION_DEADLINE, || fixture.cluster.apply_topics());

    let refused = fixture.cluster.scheduler("first");
    refused.wait_for_log("below the committed offset", READY_DEADLINE);
    wait_for_ms(1_000);
    assert!(!refused.is_ready(), "it cannot fire and calls itself ready");
    // The topic becomes longer than before.
    let client = fixture.cluster.client();
    let load = SteadyLoad { client: &client, ..fixture.steady_load() };
    load.during(|| wait_for_ms(6_000));
    refused.wait_for_log("has new records below that offset", READY_DEADLINE);
    assert!(!refused.is_ready(), "it passes records over");
    refused.terminate();
    reset(&fixture.cluster, |_| 0);
    let mut again = fixture.cluster.scheduler("first");
    again.wait_until_ready(READY_DEADLINE);
    client.register("new", clock::now_ms(), fixture.cluster.target(), "new", true);
    client.acknowledged();
    until("a fire of the new topic", COMPLETION_DEADLINE, || {
        fixture.cluster.fires().iter().any(|fire| fire.trigger == "new").then_some(())
    });
    again.terminate();
    FaultResult::Passed(FaultFigures::of(&report))
}

/// `triggers` gets more partitions than the others: ids change their partitions.
pub(super) fn widened(_: Scale) -> FaultResult {
    let cluster = TestCluster::new("widened").set("timeouts.metadata_refresh", "1s");
    let fixture = FaultFixture::from_cluster(cluster);
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    fixture.steady_load().during(|| wait_for_ms(3_000));
    let report = fixture.settled(&mut [&mut scheduler]);
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let triggers = fixture.cluster.names.triggers();
    FaultTopicAdmin::of(&fixture.cluster).widen(&triggers, PARTITIONS as usize + 2);
    until("/readyz to say that something is wrong", COMPLETION_DEADLINE, || {
        (!scheduler.is_ready() || scheduler.exit_status().is_some()).then_some(())
    });
    scheduler.kill();
    let mut refused = fixture.cluster.scheduler("first");
    let status = until("a refusal to start", READY_DEADLINE, || refused.exit_status());
    assert!(!status.success());
    refused.wait_for_log("partitions", READY_DEADLINE);
    FaultResult::Passed(FaultFigures::of(&report))
}
