//! Three brokers, each of which is killed in turn: the coordinators of the group and of the
//! transactions are among them.

use super::processes::wait_for_ms;
use super::readiness::{self, ReadinessProbe};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::kafka_server::KafkaServer;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

pub(super) fn coordinator_lost(scale: Scale) -> FaultResult {
    let mut nodes = KafkaServer::cluster::<3>();
    let bootstrap: Vec<_> = nodes.iter().map(|node| node.bootstrap().to_owned()).collect();
    let mut client = nodes[0].client();
    client.set("bootstrap.servers", bootstrap.join(","));
    let kafka = [("bootstrap.servers", bootstrap.join(","))];
    let fixture =
        FaultFixture::from_cluster(TestCluster::with_replicas("cluster", client, &kafka, 3));
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let probe = ReadinessProbe::of(&scheduler);
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let counted = fixture.cluster.count_fires();
    fixture.under_load(|| {
        for place in (0..nodes.len()).cycle().take(rounds * nodes.len()) {
            wait_for_ms(2_000);
            nodes[place].kill();
            let fires = counted.count();
            until("fires to go on with two brokers", COMPLETION_DEADLINE, || {
                let ended = scheduler.exit_status();
                assert!(ended.is_none(), "it ended by itself: {ended:?}");
                (counted.count() > fires + 300).then_some(())
            });
            nodes[place].start_again();
            nodes[place].wait_for_brokers(3);
            wait_for_ms(5_000);
        }
    });
    scheduler.wait_until_ready(READY_DEADLINE);
    let report = fixture.settled(&mut [&mut scheduler]);
    readiness::assert_readiness_was_correct(
        &[&probe],
        &fixture.client.acknowledged(),
        &fixture.cluster.fires(),
    );
    assert!(!scheduler.panicked());
    let figures = FaultFigures::of(&report).takeovers(scheduler.takeovers());
    FaultResult::Passed(figures.with("brokers killed", rounds * nodes.len()))
}
