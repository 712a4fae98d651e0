//! Target topics that the brokers show and that take no fire: those that may be described and not
//! written, and those whose `max.message.bytes` is too small.
//!
//! Invariant: of each kind one topic has taken a fire before, so that its refusal is not expected,
//! and one never has.

use orloj::clock;
use orloj::telemetry;

use super::lateness::{FireTimes, fire_times};
use super::processes::{assert_no_long_turn, wait_for_ms};
use super::report::{FaultFigures, FaultResult};
use super::rng::FaultRng;
use super::topic_admin::FaultTopicAdmin;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress};
use crate::kafka_server::KafkaServer;
use crate::process::OrlojProcess;
use crate::records;
use crate::test_cluster::READY_DEADLINE;
use crate::test_producer::{TARGET_TOPIC_HEADER, TestProducer};
use crate::wait::until;

/// How late other fires may be, in ms.
const LATE_MAX: u64 = 2_000;
/// How often the producers may be opened again for a kind of topic.
const REOPENED_MAX: usize = 2;
/// Fires into the topics of a kind, and the time between two of them, in ms: together they take
/// longer than `targets.lookup_ttl`.
const FIRES: usize = 200;
const APART: u64 = 200;
/// From a registration until it is due, in ms.
const DELAY: u64 = 1_000;
/// The largest batch that a topic takes, and what is to be written to it, in random bytes: it is
/// compressed.
const SMALL: &str = "300";
const PAYLOAD: u64 = 1_000;

/// What kind of topic refuses fires.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Denied,
    TooSmall,
}

pub(super) fn unwritable(_: Scale) -> FaultResult {
    let server = KafkaServer::with_rules();
    let mut fixture = FaultFixture::on_server("unwritable", &server);
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let client = fixture.cluster.client();
    let mut expected = Vec::new();
    let phases = fixture.steady_load().during(|| {
        wait_for_ms(3_000);
        [Kind::Denied, Kind::TooSmall].map(|kind| {
            let topics = topics(&server, &fixture, &client, kind);
            let phase = write_to(&fixture, &client, &scheduler, (kind, &topics));
            expected.extend(phase.triggers);
            (kind, phase.began, phase.ended, phase.reopened)
        })
    });
    assert!(!scheduler.panicked(), "{}", scheduler.log_text());
    assert_no_long_turn(&scheduler);
    fixture.expected_letters = expected;
    let report = fixture.settled(&mut [&mut scheduler]);
    let fires = fixture.cluster.fires();
    let times = fire_times(&fixture.client.acknowledged(), &fires);
    let mut figures =
        FaultFigures::of(&report).with("dead letters", fixture.expected_letters.len());
    for (kind, began, ended, reopened) in phases {
        let within = times.iter().filter(|fire| (began..ended).contains(&fire.visible));
        let late = within.map(FireTimes::late).max().expect("others fire meanwhile");
        print_progress(&format!(
            "  {kind:?}: others were {late} ms late, producers were opened again {reopened} times"
        ));
        assert!(late <= LATE_MAX, "{kind:?}: others were {late} ms late; {LATE_MAX} are allowed");
        assert!(
            reopened <= REOPENED_MAX,
            "{kind:?}: the producers were opened again {reopened} times of {REOPENED_MAX}"
        );
        figures = figures.with("times the producers were opened again", reopened);
    }
    FaultResult::Passed(figures)
}

/// A topic that has taken a fire and will take no other one, and one that never takes any.
fn topics(
    server: &KafkaServer,
    fixture: &FaultFixture,
    client: &TestProducer,
    kind: Kind,
) -> [String; 2] {
    let known = server.new_topic(1, &[]);
    let to = (TARGET_TOPIC_HEADER, known.as_str());
    client.register(&format!("first-{kind:?}"), clock::now_ms(), to, "in time", false);
    until("a fire into the topic", COMPLETION_DEADLINE, || {
        (!records::read_all(fixture.cluster.kafka(), &known).is_empty()).then_some(())
    });
    let unknown = match kind {
        Kind::Denied => {
            let unknown = server.new_topic(1, &[]);
            server.allow_only_describe(&unknown);
            server.allow_only_describe(&known);
            unknown
        }
        Kind::TooSmall => {
            let admin = FaultTopicAdmin::of(&fixture.cluster);
            admin.set(&known, "max.message.bytes", SMALL);
            server.new_topic(1, &[("max.message.bytes", SMALL)])
        }
    };
    [known, unknown]
}

/// What happened while fires were due for topics of a kind.
struct Phase {
    triggers: Vec<String>,
    /// In ms since the epoch.
    began: u64,
    ended: u64,
    reopened: usize,
}

/// Registers fires that no topic takes, until each is a dead letter.
fn write_to(
    fixture: &FaultFixture,
    client: &TestProducer,
    scheduler: &OrlojProcess,
    (kind, topics): (Kind, &[String; 2]),
) -> Phase {
    // Every failed transaction has producers opened.
    let opened = || scheduler.gauge(telemetry::COMMIT_FAILURES).unwrap_or(0);
    let (before, letters) = (opened(), fixture.cluster.dead_letters().len());
    let began = clock::now_ms();
    let payload = FaultRng::new(7).bytes(PAYLOAD).escape_ascii().to_string();
    let mut triggers = Vec::new();
    for n in 0..FIRES {
        let id = format!("in-vain-{kind:?}-{n}");
        let to = (TARGET_TOPIC_HEADER, topics[n % topics.len()].as_str());
        client.register(&id, clock::now_ms() + DELAY, to, &payload, false);
        triggers.push(id);
        wait_for_ms(APART);
    }
    until("a dead letter for each", COMPLETION_DEADLINE, || {
        (fixture.cluster.dead_letters().len() >= letters + FIRES).then_some(())
    });
    let ended = clock::now_ms();
    Phase { triggers, began, ended, reopened: opened() - before }
}
