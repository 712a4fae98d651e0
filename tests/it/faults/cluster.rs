//! Three brokers, each of which is killed in turn: the coordinators of the group and of the
//! transactions are among them.

use super::processes::stay;
use super::report::{Figures, Verdict};
use super::witness::{self, Witness};
use super::{SETTLE, Scale, Scene};
use crate::kafka_server::KafkaServer;
use crate::stage::{READY, Stage};
use crate::wait::until;

pub(super) fn coordinator_lost(scale: Scale) -> Verdict {
    let mut nodes = KafkaServer::cluster();
    let bootstrap: Vec<_> = nodes.iter().map(|node| node.bootstrap().to_owned()).collect();
    let mut client = nodes[0].client();
    client.set("bootstrap.servers", bootstrap.join(","));
    let kafka = [("bootstrap.servers", bootstrap.join(","))];
    let scene = Scene::of(Stage::replicated("cluster", client, &kafka, 3));
    let mut scheduler = scene.stage.scheduler("first");
    scheduler.ready(READY);
    let witness = Witness::of(&scheduler);
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    scene.flow().during(|| {
        for place in (0..nodes.len()).cycle().take(rounds * nodes.len()) {
            stay(2_000);
            nodes[place].kill();
            let fires = scene.stage.fires().len();
            until("fires to go on with two brokers", SETTLE, || {
                let ended = scheduler.ended();
                assert!(ended.is_none(), "it ended by itself: {ended:?}");
                (scene.stage.fires().len() > fires + 300).then_some(())
            });
            nodes[place].start_again();
            nodes[place].wait_for_brokers(3);
            stay(5_000);
        }
    });
    scheduler.ready(READY);
    let report = scene.settled();
    witness::assert_true(&[&witness], &scene.client.acknowledged(), &scene.stage.fires());
    assert!(!scheduler.panicked());
    let figures = Figures::of(&report).takeovers(scheduler.takeovers());
    scheduler.terminate();
    Verdict::Passed(figures.with("brokers killed", rounds * nodes.len()))
}
