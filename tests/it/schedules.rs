//! Recurring triggers and commands on a real Kafka, through kills and lost disks.
//!
//! Invariant: each occurrence fires once for `read_committed` readers, with its own number and
//! time.

use std::collections::BTreeMap;
use std::time::Duration;

use orloj::clock;
use orloj::model::Timestamp;
use orloj::model::outcome::OutcomeKind;

use crate::test_cluster::{READY_DEADLINE, TestCluster, exclusive_machine};
use crate::wait::until;

const COMPLETION_DEADLINE: Duration = Duration::from_secs(120);
/// Recurring triggers.
const SCHEDULES: u64 = 200;
/// Occurrences of each, a second apart.
const OCCURRENCES: u64 = 20;

#[test]
fn every_occurrence_fires_once_through_kills_and_lost_disks() {
    let _machine = exclusive_machine();
    let cluster = TestCluster::new("recurring");
    let client = cluster.client();
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let start = clock::now_ms() / 1_000 * 1_000 + 3_000;
    for n in 0..SCHEDULES {
        let schedule = format!(
            r#"{{"topic": {:?}, "schedule": {{"every": "PT1S", "start": {start},
                "maxExecutions": {OCCURRENCES}, "misfire": {{"all": 100}}}}}}"#,
            cluster.target().1
        );
        client.post(&format!("s-{n}"), &schedule, None);
    }
    let _all = client.acknowledged();
    let fires = cluster.count_fires();
    for (kill, wipe) in [(1, false), (2, true), (3, false)] {
        let seen = SCHEDULES * OCCURRENCES / 4 * kill;
        until("fires", COMPLETION_DEADLINE, || (fires.count() as u64 >= seen).then_some(()));
        scheduler.kill();
        if wipe {
            cluster.wipe("first");
        }
        scheduler = cluster.scheduler("first");
    }
    let all = SCHEDULES * OCCURRENCES;
    until("all fires", COMPLETION_DEADLINE, || (fires.count() as u64 >= all).then_some(()));
    until("all ends", COMPLETION_DEADLINE, || (ends(&cluster) == SCHEDULES).then_some(()));
    scheduler.wait_until_ready(READY_DEADLINE);
    scheduler.terminate();
    // The next process adds nothing.
    cluster.wipe("first");
    let mut again = cluster.scheduler("first");
    again.wait_until_ready(READY_DEADLINE);
    again.terminate();

    let mut occurrences = BTreeMap::<String, Vec<(u32, Timestamp)>>::new();
    for fired in cluster.fires() {
        assert!(fired.visible >= fired.due, "early: {fired:?}");
        occurrences.entry(fired.trigger).or_default().push((fired.occurrence, fired.due));
    }
    let expected: Vec<_> = (0..OCCURRENCES).map(|k| (k as u32, start + k * 1_000)).collect();
    assert_eq!(occurrences.len() as u64, SCHEDULES);
    for (trigger, mut fired) in occurrences {
        fired.sort_unstable();
        assert_eq!(fired, expected, "{trigger}");
    }
}

fn ends(cluster: &TestCluster) -> u64 {
    let ended = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Ended { .. });
    cluster.outcomes().iter().filter(|outcome| ended(&outcome.kind)).count() as u64
}

#[test]
fn commands_take_effect_and_survive_a_takeover() {
    let cluster = TestCluster::new("commands");
    let client = cluster.client();
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let soon = clock::now_ms() + 10_000;
    for id in ["paused", "called", "resumed"] {
        client.register(id, soon, cluster.target(), id, true);
    }
    client.post("paused", "", Some("pause"));
    client.post("resumed", "", Some("pause"));
    client.post("called", "", Some("fire-now"));
    client.post("unknown", "", Some("pause"));
    let answers = |count| {
        until("answers", COMPLETION_DEADLINE, || {
            Some(cluster.outcomes()).filter(|outcomes| outcomes.len() >= count)
        })
    };
    let outcomes = answers(7);
    let of = |id: &str| {
        outcomes.iter().filter(|outcomes| outcomes.trigger == *id).map(|t| &t.kind).last()
    };
    assert!(matches!(of("paused"), Some(OutcomeKind::Paused { .. })), "{outcomes:?}");
    assert!(
        matches!(of("called"), Some(OutcomeKind::Called { occurrence: 0, .. })),
        "{outcomes:?}"
    );
    assert!(matches!(of("unknown"), Some(OutcomeKind::NotPending { .. })), "{outcomes:?}");
    scheduler.kill();
    cluster.wipe("first");
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    client.post("resumed", "", Some("resume"));
    let outcomes = answers(8);
    let resumed = outcomes.iter().any(|outcomes| {
        matches!(outcomes.kind, OutcomeKind::Resumed { fire_at, .. }
        if fire_at == soon)
    });
    assert!(resumed, "{outcomes:?}");
    // One that is due later says that the time of the others has passed.
    client.register("last", soon + 1_000, cluster.target(), "last", false);
    let fires = until("the last one", COMPLETION_DEADLINE, || {
        Some(cluster.fires()).filter(|fires| fires.iter().any(|fired| fired.trigger == "last"))
    });
    let mut fired: Vec<_> = fires.iter().map(|fired| fired.trigger.as_str()).collect();
    fired.sort_unstable();
    assert_eq!(fired, ["called", "last", "resumed"]);
    assert!(fires.iter().any(|fired| fired.trigger == "called" && fired.visible < soon));
    scheduler.terminate();
}
