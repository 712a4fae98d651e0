//! Random requests of several clients to two gateways on a real Kafka: connections are cut,
//! gateways are killed and restarted, and each answer must follow from the log.
//!
//! Invariant: nothing is judged by other answers, only by what the topics have in the end.

mod clients;
mod gateways;
mod topics;

use std::time::Duration;

use orloj::clock;
use rustix::process::Signal;

use crate::audit::explain::requests::resolve_keys;
use crate::audit::explain::{RunTimes, explain};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster, exclusive_machine};
use crate::wait::{until, within};
use clients::{Clients, Sent};
use gateways::Gateways;

/// From the last request until everything is decided and what is due has fired.
const COMPLETION_DEADLINE: Duration = Duration::from_secs(120);
/// Without `ORLOJ_REQUESTS`: so many requests.
const REQUESTS: usize = 400;
/// A gateway is killed or restarted after so many requests, at least.
const REQUESTS_PER_END: usize = 100;
/// Gateways that end in a long run.
const ENDS_MAX: usize = 60;
/// What is due so long ago, in ms, has fired.
const DUE_MS: u64 = 5_000;
/// By how much the times of the broker and of clients may differ, in ms: a transaction ends in one
/// partition a little later than in another.
const SLACK_MS: u64 = 20;
/// How long no owner answers before and after a gateway is asked to end, in ms.
const UNANSWERED_MS: u64 = 600;
/// A request that was sent so long before, in ms, is under way.
const UNDER_WAY_MS: u64 = 300;
/// So many in a hundred requests have an answer that says what was done: others explain little.
const DEFINITE_PERCENT: usize = 70;

#[test]
fn every_answer_is_explained_by_the_log() {
    let _machine = exclusive_machine();
    let requests = std::env::var("ORLOJ_REQUESTS").map_or(REQUESTS, |count| count.parse().unwrap());
    let cluster = TestCluster::new("requests").set("gateway.answer_timeout", "2s");
    let mut scheduler = cluster.scheduler("a");
    scheduler.wait_until_ready(READY_DEADLINE);
    scheduler.wait_until_owner(READY_DEADLINE);
    let gateways = Gateways::start(&cluster);
    let clients = Clients::start(cluster.target().1, requests, &gateways);
    let step = REQUESTS_PER_END.max(requests / ENDS_MAX);
    let mut ended = Vec::new();
    for (turn, sent) in (step..requests.saturating_sub(step / 2)).step_by(step).enumerate() {
        until("requests to be sent", COMPLETION_DEADLINE, || {
            (clients.sent() >= sent).then_some(())
        });
        let gateway = turn / 2 % gateways.len();
        if turn % 2 == 0 {
            gateways.kill(gateway);
        } else {
            ended.push(end_under_load(&gateways, gateway, &scheduler));
        }
        gateways.start_again(gateway, &cluster);
    }
    let sent = clients.join();
    assert_eq!(sent.len(), requests);
    assert!(!scheduler.panicked() && !gateways.panicked());
    let under_way: usize = ended.iter().map(|end| assert_answered(&sent, *end)).sum();
    println!("{under_way} requests were under way at SIGTERM, and were answered");
    assert!(ended.is_empty() || under_way > 0, "none was under way at SIGTERM");
    println!("{}", clients::summary(&sent));
    let definite = sent.iter().filter(|sent| sent.is_definite()).count();
    assert!(definite * 100 >= sent.len() * DEFINITE_PERCENT, "{definite} are definite");
    assert_explained(&cluster, sent);
    scheduler.terminate();
}

/// Asks a gateway to end while no owner answers. Returns which process it was, and when.
fn end_under_load(gateways: &Gateways, gateway: usize, scheduler: &OrlojProcess) -> (usize, u64) {
    let pause = || {
        let _nothing: Option<()> = within(Duration::from_millis(UNANSWERED_MS), || None);
    };
    scheduler.signal(Signal::STOP);
    pause();
    let ended = gateways.begin_end(gateway);
    pause();
    scheduler.signal(Signal::CONT);
    gateways.await_end(gateway);
    ended
}

/// Every request that was under way when the gateway was asked to end, at `at`, has its answer.
/// Returns how many there were.
fn assert_answered(sent: &[Sent], (gateway, at): (usize, u64)) -> usize {
    let was_under_way = |sent: &&Sent| {
        let (number, started, answered) = sent.times();
        let is_open = answered.is_none_or(|answered| answered > at);
        number == gateway && started + UNDER_WAY_MS < at && is_open && !sent.is_cut
    };
    let under_way: Vec<_> = sent.iter().filter(was_under_way).collect();
    let lost: Vec<_> = under_way.iter().filter(|sent| sent.times().2.is_none()).collect();
    assert!(lost.is_empty(), "SIGTERM at {at}: {lost:#?}");
    under_way.len()
}

/// Waits until the log explains every answer. Only what is not decided yet may change.
fn assert_explained(cluster: &TestCluster, sent: Vec<Sent>) {
    let mut requests: Vec<_> = sent.into_iter().flat_map(|sent| sent.parts).collect();
    let mut found = Vec::new();
    let explained = within(COMPLETION_DEADLINE, || {
        let due_by = clock::now_ms() - DUE_MS;
        let logs = topics::read(cluster);
        resolve_keys(&mut requests, &logs);
        found = explain(&logs, &requests, RunTimes { slack: SLACK_MS, due_by });
        found.is_empty().then_some(())
    });
    let shown: Vec<_> = found.iter().take(20).map(ToString::to_string).collect();
    assert!(explained.is_some(), "{} without an explanation:\n{}", found.len(), shown.join("\n"));
}
