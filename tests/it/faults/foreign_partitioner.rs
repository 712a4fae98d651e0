//! Producers that hash keys otherwise: their records are forwarded, once, while the forwarder dies.

use std::collections::BTreeMap;

use orloj::clock;

use super::processes::wait_for_ms;
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, second_look};
use crate::test_cluster::READY_DEADLINE;
use crate::test_producer::TestProducer;
use crate::wait::until;

const TRIGGERS: usize = 2_000;
/// From the first registration to the due time, in ms: the cancels and the kills come before.
const DELAY: u64 = 12_000;
const KILLS: usize = 4;

/// Registers, cancels every fourth, and kills the process that forwards.
pub(super) fn partitioner(_: Scale) -> FaultResult {
    let fixture = FaultFixture::new("crc32");
    let cluster = &fixture.cluster;
    let client = TestProducer::with_partitioner(
        cluster.kafka(),
        &cluster.names.triggers(),
        "consistent_random",
    );
    let ids: Vec<_> = (0..TRIGGERS).map(|n| format!("foreign-{n}")).collect();
    let (cancelled, kept) = ids.split_at(TRIGGERS / 4);
    let due = clock::now_ms() + DELAY;
    for share in ids.chunks(TRIGGERS / KILLS) {
        let scheduler = cluster.scheduler("first");
        scheduler.wait_until_owner(READY_DEADLINE);
        share.iter().for_each(|id| client.register(id, due, cluster.target(), id, false));
        share.iter().filter(|id| cancelled.contains(id)).for_each(|id| client.cancel(id));
        client.acknowledged();
        wait_for_ms(30);
        scheduler.kill();
    }
    let mut last = cluster.scheduler("first");
    last.wait_until_ready(READY_DEADLINE);
    until("every trigger that was kept to fire", COMPLETION_DEADLINE, || {
        (cluster.fires().len() >= kept.len()).then_some(())
    });
    last.terminate();
    second_look::take_over_again(cluster, &fixture.client);
    let (mut times, mut late) = (BTreeMap::<String, u32>::new(), Vec::new());
    let fires = cluster.fires().into_iter();
    for fire in fires.filter(|fire| !fire.trigger.starts_with(second_look::NAME)) {
        assert!(fire.visible >= due && fire.payload == fire.trigger.as_bytes(), "{fire:?}");
        late.push(fire.visible - due);
        *times.entry(fire.trigger).or_default() += 1;
    }
    assert_eq!(times, kept.iter().map(|id| (id.clone(), 1)).collect());
    assert_eq!(cluster.dead_letters(), []);
    let mut figures = FaultFigures::default();
    figures.count(TRIGGERS, kept.len());
    let figures = figures.late(late);
    FaultResult::Passed(figures.with("cancelled", cancelled.len()).with("kills", KILLS))
}
