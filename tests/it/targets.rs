//! Target topics of users that take not everything: what they do not take are dead letters or wait,
//! and no other fire is held up.
//!
//! Invariant: the broker alone refuses; the program knows nothing of it before.

use std::time::Duration;

use orloj::clock;

use crate::kafka_server::{KafkaServer, shared};
use crate::records;
use crate::test_cluster::{READY_DEADLINE, TestCluster, exclusive_machine};
use crate::test_producer::TARGET_TOPIC_HEADER;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

/// `max.message.bytes` limits what a client sends at once, which has several records.
#[test]
fn fires_that_are_due_together_go_to_a_topic_that_takes_only_some_at_once() {
    const FIRES: usize = 3_000;
    let cluster = TestCluster::new("batches");
    let topic = shared().new_topic(1, &[("max.message.bytes", "10000")]);
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let client = cluster.client();
    let due = clock::now_ms() + 1_000;
    for n in 0..FIRES {
        let payload: String = (0..16).map(|_| uuid::Uuid::now_v7().to_string()).collect();
        let to = (TARGET_TOPIC_HEADER, topic.as_str());
        client.register(&format!("batched-{n}"), due, to, &payload, false);
    }
    let done = until("all to fire, or to be dead letters", DEADLINE, || {
        let fired = records::read_all(cluster.kafka(), &topic).len();
        let letters = cluster.dead_letters();
        (fired + letters.len() >= FIRES).then_some((fired, letters))
    });
    let reasons: Vec<_> = done.1.iter().map(|letter| letter.reason.as_str()).collect();
    assert_eq!((done.0, reasons), (FIRES, vec![]));
    assert!(!scheduler.panicked());
    scheduler.terminate();
}

/// The broker refuses the whole transaction then, and does not say because of which topic.
#[test]
fn a_topic_that_may_not_be_written_holds_up_no_other_fire() {
    const DENIED: usize = 50;
    const HELD_UP_MAX: u64 = 5_000;
    let _machine = exclusive_machine();
    let server = KafkaServer::with_rules();
    let cluster = TestCluster::on_server("denied", &server);
    let known = server.new_topic(1, &[]);
    let unknown = server.new_topic(1, &[]);
    server.allow_only_describe(&unknown);
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let (client, denied) = (cluster.client(), cluster.client());
    denied.register("warm", clock::now_ms(), (TARGET_TOPIC_HEADER, &known), "in time", false);
    until("its fire", DEADLINE, || {
        (!records::read_all(cluster.kafka(), &known).is_empty()).then_some(())
    });
    // Its state is known to the scheduler, so that the refusal comes as a surprise.
    server.allow_only_describe(&known);
    let due = clock::now_ms() + 1_000;
    for n in 0..DENIED {
        let to = if n % 2 == 0 { &known } else { &unknown };
        let to = (TARGET_TOPIC_HEADER, to.as_str());
        denied.register(&format!("denied-{n}"), due + n as u64, to, "in vain", false);
        client.register(&format!("other-{n}"), due + n as u64, cluster.target(), "ok", false);
    }
    let letters = until("a dead letter for each", DEADLINE, || {
        let letters = cluster.dead_letters();
        (letters.len() >= DENIED).then_some(letters)
    });
    let is_named = |reason: &str| reason.contains("may not write") && reason.contains("WRITE");
    let unnamed = letters.iter().find(|letter| !is_named(&letter.reason));
    assert!(unnamed.is_none() && letters.len() == DENIED, "{letters:?}");
    let report = cluster.audit_when_complete(&client, 0, DEADLINE);
    assert!(report.is_clean(), "{report}");
    let late = report.lateness_at(1.0);
    assert!(late <= HELD_UP_MAX, "others were held up for {late} ms");
    assert!(!scheduler.panicked());
    scheduler.terminate();
}
