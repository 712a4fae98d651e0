//! Responses that are lost with their connection: the broker has done what it was asked for, and
//! the sender does not know.

use super::processes::{wait_for_ms, wait_until_owned};
use super::proxy::{
    ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, END_TXN, HEARTBEAT, INIT_PRODUCER_ID, JOIN_GROUP,
    PRODUCE, Proxy, SYNC_GROUP, TXN_OFFSET_COMMIT,
};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::process::OrlojProcess;
use crate::test_cluster::PARTITIONS;
use crate::wait::until;

/// The transaction protocol's, the user's writes among them, and the group's.
const KINDS: [i16; 9] = [
    END_TXN,
    TXN_OFFSET_COMMIT,
    ADD_PARTITIONS_TO_TXN,
    ADD_OFFSETS_TO_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    HEARTBEAT,
    JOIN_GROUP,
    SYNC_GROUP,
];

/// How long responses are lost, in ms: several transactions of every partition.
const LOST_MS: u64 = 10_000;
/// Lost responses of commits, so that there is something to be seen.
const LOST_ENDS_MIN: usize = 5;

/// For a while one of so many commits loses its response, then one of so many requests of all
/// kinds; then another process takes over while that goes on.
pub(super) fn lost(scale: Scale) -> FaultResult {
    let [port] = free_ports();
    let advertised = ("advertised.listeners", format!("PLAINTEXT://127.0.0.1:{port}"));
    let server =
        KafkaServer::start(&Options { properties: vec![advertised], ..Options::default() });
    let proxy = Proxy::start(port, server.bootstrap().to_owned());
    let fixture = FaultFixture::on_server("responses-lost", &server);
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let mut first = fixture.cluster.scheduler("first");
    wait_until_owned(&first, PARTITIONS as usize);
    fixture.under_load(|| {
        for _ in 0..rounds {
            proxy.lose(&[END_TXN], 3);
            wait_for_ms(LOST_MS);
            proxy.lose(&KINDS, 20);
            wait_for_ms(LOST_MS);
            let second = fixture.cluster.scheduler("second");
            wait_until_owned(&second, PARTITIONS as usize / 2);
            wait_for_ms(LOST_MS / 2);
            assert_alive(&mut first);
            second.kill();
            proxy.lose(&[], 0);
            wait_until_owned(&first, PARTITIONS as usize);
        }
        let fires = fixture.cluster.fires().len();
        until("fires to go on", COMPLETION_DEADLINE, || {
            assert_alive(&mut first);
            (fixture.cluster.fires().len() > fires + 100).then_some(())
        });
    });
    let lost = KINDS.map(|kind| proxy.lost(kind));
    assert!(proxy.lost(END_TXN) >= LOST_ENDS_MIN, "lost by kind: {lost:?}");
    let report = fixture.settled(&mut [&mut first]);
    let figures = FaultFigures::of(&report).takeovers(first.takeovers());
    let figures = figures.with("responses lost", lost.iter().sum());
    FaultResult::Passed(figures.with("of commits", proxy.lost(END_TXN)))
}

fn assert_alive(scheduler: &mut OrlojProcess) {
    let ended = scheduler.exit_status();
    assert!(ended.is_none(), "it ended by itself: {ended:?}\n{}", scheduler.log_text());
}
