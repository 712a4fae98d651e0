//! Requests of a transaction that reach the broker long after their sender has given up: late, they
//! must hit nothing.

use super::processes::{wait_for_ms, wait_until_owned};
use super::proxy::{END_TXN, Proxy, TXN_OFFSET_COMMIT};
use super::readiness::{self, ReadinessProbe};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::wait::until;

/// Timeouts with which a case takes less time than with the defaults.
const TIMEOUTS: [(&str, &str); 3] = [
    ("scheduler.transaction_timeout", "10s"),
    ("timeouts.delivery", "5s"),
    ("timeouts.request", "5s"),
];
/// Beyond the transaction's timeout, and before the process gives itself up, in ms.
const HOLD_MS: u64 = 13_000;

pub(super) fn end(scale: Scale) -> FaultResult {
    run("held-end", END_TXN, scale)
}

pub(super) fn offsets(scale: Scale) -> FaultResult {
    run("held-offsets", TXN_OFFSET_COMMIT, scale)
}

fn run(name: &str, kind: i16, scale: Scale) -> FaultResult {
    let [port] = free_ports();
    let advertised = ("advertised.listeners", format!("PLAINTEXT://127.0.0.1:{port}"));
    let server =
        KafkaServer::start(&Options { properties: vec![advertised], ..Options::default() });
    let proxy = Proxy::start(port, server.bootstrap().to_owned());
    let cluster = TestCluster::on_server(name, &server);
    let cluster = TIMEOUTS.iter().fold(cluster, |cluster, (name, value)| cluster.set(name, *value));
    let fixture = FaultFixture::from_cluster(cluster);
    let rounds = if scale == Scale::Long { 5 } else { 1 };
    let mut takeovers = Vec::new();
    fixture.under_load(|| {
        for _ in 0..rounds {
            // Its sender waits, and goes on by itself.
            let mut scheduler = fixture.cluster.scheduler("first");
            wait_until_owned(&scheduler, PARTITIONS as usize);
            let probe = ReadinessProbe::of(&scheduler);
            proxy.hold(kind);
            wait_for_ms(HOLD_MS);
            proxy.release();
            let fires = fixture.cluster.fires().len();
            until("fires to go on", COMPLETION_DEADLINE, || {
                assert!(scheduler.exit_status().is_none(), "it ended:\n{}", scheduler.log_text());
                (fixture.cluster.fires().len() > fires + 100).then_some(())
            });
            wait_until_owned(&scheduler, PARTITIONS as usize);
            let (commands, fires) = (fixture.client.acknowledged(), fixture.cluster.fires());
            readiness::assert_readiness_was_correct(&[&probe], &commands, &fires);
            // Its sender is killed, and is back when it arrives.
            proxy.hold(kind);
            takeovers.extend(scheduler.takeovers());
            scheduler.kill();
            let scheduler = fixture.cluster.scheduler("first");
            wait_until_owned(&scheduler, PARTITIONS as usize);
            wait_for_ms(1_000);
            proxy.release();
            wait_for_ms(2_000);
            takeovers.extend(scheduler.takeovers());
            scheduler.kill();
        }
    });
    let mut last = fixture.cluster.scheduler("first");
    wait_until_owned(&last, PARTITIONS as usize);
    let report = fixture.settled(&mut [&mut last]);
    FaultResult::Passed(
        FaultFigures::of(&report).takeovers(takeovers).with("requests held", 2 * rounds),
    )
}
