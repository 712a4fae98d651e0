//! Producers that hash keys otherwise: their records are forwarded, once, while the forwarder dies.

use std::collections::BTreeMap;

use orloj::clock;

use super::processes::stay;
use super::report::{Figures, Verdict};
use super::{SETTLE, Scale, Scene};
use crate::client::Client;
use crate::stage::READY;
use crate::wait::until;

const TRIGGERS: usize = 2_000;
/// From the first registration to the due time, in ms: the cancels and the kills come before.
const DELAY: u64 = 12_000;
const KILLS: usize = 4;

/// Registers, cancels every fourth, and kills whoever forwards.
pub(super) fn partitioner(_: Scale) -> Verdict {
    let scene = Scene::new("crc32");
    let stage = &scene.stage;
    let client =
        Client::with_partitioner(stage.kafka(), &stage.names.triggers(), "consistent_random");
    let ids: Vec<_> = (0..TRIGGERS).map(|n| format!("foreign-{n}")).collect();
    let (cancelled, kept) = ids.split_at(TRIGGERS / 4);
    let due = clock::now_ms() + DELAY;
    for share in ids.chunks(TRIGGERS / KILLS) {
        let scheduler = stage.scheduler("first");
        scheduler.owns_a_partition(READY);
        share.iter().for_each(|id| client.register(id, due, stage.target(), id, false));
        share.iter().filter(|id| cancelled.contains(id)).for_each(|id| client.cancel(id));
        client.acknowledged();
        stay(30);
        scheduler.kill();
    }
    let mut last = stage.scheduler("first");
    last.ready(READY);
    until("every trigger that was kept to fire", SETTLE, || {
        (stage.fires().len() >= kept.len()).then_some(())
    });
    stay(2_000);
    last.terminate();
    let mut times = BTreeMap::<String, u32>::new();
    for fire in stage.fires() {
        assert!(fire.visible >= due && fire.payload == fire.trigger.as_bytes(), "{fire:?}");
        *times.entry(fire.trigger).or_default() += 1;
    }
    assert_eq!(times, kept.iter().map(|id| (id.clone(), 1)).collect());
    let mut figures = Figures::default();
    figures.count(TRIGGERS, kept.len());
    Verdict::Passed(figures.with("cancelled", cancelled.len()).with("kills", KILLS))
}
