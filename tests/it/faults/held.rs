//! Requests of a transaction that reach the broker long after their sender has given up: late, they
//! must hit nothing.

use super::processes::{owns, stay};
use super::proxy::{END_TXN, Proxy, TXN_OFFSET_COMMIT};
use super::report::{Figures, Verdict};
use super::witness::{self, Witness};
use super::{SETTLE, Scale, Scene};
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::stage::PARTITIONS;
use crate::wait::until;

/// Beyond the transaction's timeout, and before the process gives itself up, in ms.
const LATE: u64 = 13_000;

pub(super) fn end(scale: Scale) -> Verdict {
    held("held-end", END_TXN, scale)
}

pub(super) fn offsets(scale: Scale) -> Verdict {
    held("held-offsets", TXN_OFFSET_COMMIT, scale)
}

fn held(name: &str, kind: i16, scale: Scale) -> Verdict {
    let [port] = free_ports();
    let advertised = ("advertised.listeners", format!("PLAINTEXT://127.0.0.1:{port}"));
    let server =
        KafkaServer::start(&Options { properties: vec![advertised], ..Options::default() });
    let proxy = Proxy::start(port, server.bootstrap().to_owned());
    let scene = Scene::on(name, &server);
    let rounds = if scale == Scale::Long { 5 } else { 1 };
    let mut takeovers = Vec::new();
    scene.flow().during(|| {
        for _ in 0..rounds {
            // Its sender waits, and goes on by itself.
            let mut scheduler = scene.stage.scheduler("first");
            owns(&scheduler, PARTITIONS as usize);
            let witness = Witness::of(&scheduler);
            proxy.hold(kind);
            stay(LATE);
            proxy.release();
            let fires = scene.stage.fires().len();
            until("fires to go on", SETTLE, || {
                assert!(scheduler.ended().is_none(), "it ended:\n{}", scheduler.said());
                (scene.stage.fires().len() > fires + 100).then_some(())
            });
            owns(&scheduler, PARTITIONS as usize);
            let (commands, fires) = (scene.client.acknowledged(), scene.stage.fires());
            witness::assert_true(&[&witness], &commands, &fires);
            // Its sender is killed, and is back when it arrives.
            proxy.hold(kind);
            takeovers.extend(scheduler.takeovers());
            scheduler.kill();
            let scheduler = scene.stage.scheduler("first");
            owns(&scheduler, PARTITIONS as usize);
            stay(1_000);
            proxy.release();
            stay(2_000);
            takeovers.extend(scheduler.takeovers());
            scheduler.kill();
        }
    });
    let last = scene.stage.scheduler("first");
    owns(&last, PARTITIONS as usize);
    let report = scene.settled();
    last.terminate();
    Verdict::Passed(Figures::of(&report).takeovers(takeovers).with("requests held", 2 * rounds))
}
