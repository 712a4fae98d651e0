//! A circuit from its opening to its closing: nothing is requested while it is open, no attempt is
//! spent, and `orloj circuits` lists it.

use std::process::Command;
use std::time::Duration;

use orloj::clock;
use orloj::model::fire::{Fire, WorkerRecord};
use orloj::model::outcome::{Circuit, CircuitState, OutcomeKind};
use rdkafka::message::Message as _;

use super::{Behaviour, BehaviourReceiver, ReceivedCall};
use crate::records;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(90);
/// A request that was admitted before the circuit opened is on its way for so long, in ms.
const REQUEST_DELAY_MAX: u64 = 500;
/// Triggers whose failures open the circuit.
const FIRST: usize = 25;
/// Triggers that come while it is open.
const LATER: usize = 10;

#[test]
fn an_open_circuit_sends_no_request_and_uses_no_attempt_until_it_closes() {
    let cluster = TestCluster::new("circuit")
        .set("worker.allow_addresses", "any")
        .set("worker.circuit_open_duration", "4s")
        .set("worker.retry_delays", vec!["500ms"; 40]);
    let receiver = BehaviourReceiver::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);
    let client = cluster.client();
    let register = |name: &str, count: usize, caller: &str| {
        for n in 0..count {
            let (id, url) = (format!("{name}-{n}"), receiver.url(caller));
            client.register_callback(&id, clock::now_ms(), &url, caller);
        }
    };

    receiver.set_behaviour("billing", Behaviour::Answer(503));
    register("first", FIRST, "billing");
    let opened = until("the circuit to open", DEADLINE, || changes(&cluster).into_iter().next());
    assert_eq!(opened.1.state, CircuitState::Open);
    let reason = &opened.1.reason;
    assert!(reason.ends_with("attempts in 30s failed, the last: answered 503"), "{reason}");
    register("later", LATER, "billing");
    register("other", LATER, "support");
    until("the other caller's callbacks at the same host", DEADLINE, || {
        (calls(&receiver, "support").len() == LATER).then_some(())
    });
    let shown = orloj(&cluster, &["circuits"]);
    let host = receiver.address.to_string();
    assert!(shown.lines().any(|line| is_row(line, ["open", "billing", &host])), "{shown}");

    until("a circuit that has opened twice", DEADLINE, || {
        let opened = changes(&cluster).into_iter().filter(|(_, c)| c.state == CircuitState::Open);
        (opened.count() >= 2).then_some(())
    });
    receiver.set_behaviour("billing", Behaviour::Answer(200));
    let changes = until("the circuit to close", DEADLINE, || {
        let changes = changes(&cluster);
        (changes.last()?.1.state == CircuitState::Closed).then_some(changes)
    });
    assert_states(&changes);
    assert_no_request_while_open(&receiver, &changes);
    until("all to be delivered", DEADLINE, || {
        (delivered(&cluster).len() == FIRST + 2 * LATER).then_some(())
    });
    assert_no_attempt_used(&cluster);

    let json: Vec<serde_json::Value> =
        serde_json::from_str(&orloj(&cluster, &["circuits", "--json"])).unwrap();
    let [circuit] = &json[..] else { panic!("{json:?}") };
    assert_eq!((&circuit["state"], &circuit["caller"]), (&"closed".into(), &"billing".into()));
    assert_eq!((&circuit["host"], &circuit["probeAt"]), (&host.into(), &().into()));
    assert!(!scheduler.panicked() && !worker.panicked());
    worker.terminate();
    scheduler.terminate();
}

/// Open, half-open, open again as long as probes fail, and closed in the end.
fn assert_states(changes: &[(u64, Circuit)]) {
    let states: Vec<_> = changes.iter().map(|(_, circuit)| circuit.state).collect();
    let follows = |pair: &[CircuitState]| match (pair[0], pair[1]) {
        (CircuitState::Open, next) => next == CircuitState::HalfOpen,
        (CircuitState::HalfOpen, next) => next != CircuitState::HalfOpen,
        (CircuitState::Closed, next) => next == CircuitState::Open,
    };
    assert!(states.windows(2).all(follows), "{states:?}");
}

/// While it was open, no request was sent.
fn assert_no_request_while_open(receiver: &BehaviourReceiver, changes: &[(u64, Circuit)]) {
    let calls = calls(receiver, "billing");
    for (since, circuit) in changes {
        let Some(probe_at) = circuit.probe_at else { continue };
        assert_eq!(probe_at - since, 4_000, "{circuit:?}");
        let called =
            calls.iter().find(|call| call.at > since + REQUEST_DELAY_MAX && call.at < probe_at);
        assert!(called.is_none(), "{called:?} between {since} and {probe_at}");
    }
}

/// Fires that arrived while it was open were deferred, and delivered by an attempt that counts
/// from 1 or from the probes that it has made.
fn assert_no_attempt_used(cluster: &TestCluster) {
    let fires: Vec<Box<Fire>> = records::read_all(cluster.kafka(), &cluster.names.fires())
        .iter()
        .filter_map(|record| {
            match cluster.schemas.decode_worker_record(record.payload().unwrap()).unwrap() {
                WorkerRecord::Callback(fire) => Some(fire),
                WorkerRecord::Withdrawal(_) => None,
            }
        })
        .collect();
    let failed: Vec<_> = cluster
        .outcomes()
        .into_iter()
        .filter_map(|outcome| match outcome.kind {
            OutcomeKind::Failed { attempt, .. } => Some((outcome.trigger, attempt)),
            _ => None,
        })
        .collect();
    for (trigger, attempt) in delivered(cluster) {
        let spent = failed.iter().filter(|(failed, _)| *failed == *trigger).count();
        assert_eq!(spent + 1, attempt as usize, "{trigger}: each attempt was made");
        let deferred = fires.iter().any(|f| f.id.trigger == *trigger && f.id.deferral > 0);
        assert_eq!(deferred, !trigger.starts_with("other"), "{trigger}");
    }
}

fn delivered(cluster: &TestCluster) -> Vec<(String, u32)> {
    let outcomes = cluster.outcomes().into_iter();
    let delivered = outcomes.filter_map(|outcome| match outcome.kind {
        OutcomeKind::Delivered { attempt, .. } => Some((outcome.trigger.to_string(), attempt)),
        _ => None,
    });
    delivered.collect()
}

/// Every change of a circuit, with its time.
fn changes(cluster: &TestCluster) -> Vec<(u64, Circuit)> {
    let outcomes = cluster.outcomes().into_iter();
    let changes = outcomes.filter_map(|outcome| match outcome.kind {
        OutcomeKind::Circuit(circuit) => Some((outcome.at, circuit)),
        _ => None,
    });
    changes.collect()
}

fn calls(receiver: &BehaviourReceiver, endpoint: &str) -> Vec<ReceivedCall> {
    let seen = receiver.received();
    seen.calls.iter().filter(|call| call.endpoint == endpoint).cloned().collect()
}

fn is_row(line: &str, begins: [&str; 3]) -> bool {
    line.split_whitespace().take(3).eq(begins)
}

fn orloj(cluster: &TestCluster, arguments: &[&str]) -> String {
    let prefix = cluster.names.triggers();
    let prefix = prefix.strip_suffix(".triggers").unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_orloj"))
        .args(arguments)
        .args(["--bootstrap-servers", cluster.kafka().get("bootstrap.servers").unwrap()])
        .args(["--set", &format!("topics.prefix={prefix}")])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}
