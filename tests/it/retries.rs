//! Retry policies and pools, from a registration in Kafka to a request at a receiver.

use std::time::Duration;

use orloj::model::attempt::Attempt;
use orloj::model::dead_letter::{Content, DeadLetter};
use orloj::model::outcome::OutcomeKind;
use serde_json::json;

use crate::endpoint::{Endpoint, EndpointRequest};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn a_trigger_has_its_own_retry_policy() {
    let cluster = callbacks("policy").set("worker.name", "w-1");
    let endpoint = Endpoint::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);
    let register = |id: &str, to: &str, retry, target| {
        endpoint.register(&cluster, id, to, json!({"retry": retry}), target);
    };
    let soon = json!({"delays": ["100ms"], "attempts": 4, "jitter": 50});
    register("dated", "dated", soon.clone(), json!({}));
    register("seconds", "seconds", soon.clone(), json!({}));
    register("broken", "broken", soon, json!({}));
    register("absent", "absent", json!({"finalStatuses": [404]}), json!({}));
    register("slow", "hang", json!({"attempts": 1}), json!({"timeout": "300ms"}));

    let letter = letter_of(&cluster, "broken");
    assert_eq!(letter.reason, "attempt 4 was the last: answered 500: boom");
    let made = attempts(&letter);
    let numbers: Vec<_> = made.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert!(made.windows(2).all(|pair| pair[0].at <= pair[1].at), "{made:?}");
    for attempt in made {
        assert_eq!((attempt.status, attempt.error.as_ref()), (Some(500), None));
        assert_eq!(attempt.excerpt, Some("boom".into()));
        assert_eq!(attempt.worker.as_str(), "w-1");
    }
    let letter = letter_of(&cluster, "absent");
    assert_eq!(letter.reason, "final: answered 404: no such order");
    assert_eq!(endpoint.requests_for("absent").len(), 1);

    let letter = letter_of(&cluster, "slow");
    let [attempt] = attempts(&letter) else { panic!("{letter:?}") };
    assert!(attempt.error.as_ref().is_some_and(|e| e.as_str().starts_with("timed out")));
    assert!((300..5_000).contains(&attempt.duration_ms), "{attempt:?}");

    assert_delivered(&cluster, "dated", 2);
    assert_paused(&endpoint.requests_for("dated"), Duration::from_secs(3));
    assert_delivered(&cluster, "seconds", 2);
    assert_paused(&endpoint.requests_for("seconds"), Duration::from_secs(2));
    worker.terminate();
    scheduler.terminate();
}

#[test]
fn a_slow_pool_delays_no_other_pool() {
    const MANY: usize = 6;
    let cluster = callbacks("pools")
        .set("topics.pools", vec!["slow"])
        .set("targets.lookup_ttl", "1s")
        .set("worker.in_flight_max", 2);
    let slow = cluster.settings.clone().set("worker.pool", "slow");
    let (said, applied) = cluster.settings.run(&["topics", "apply"]);
    assert!(applied && said.contains(&cluster.names.fires_of("slow")), "{said}");
    let endpoint = Endpoint::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    let mut slow = OrlojProcess::start("worker", "slow", &slow, "");
    for process in [&mut scheduler, &mut worker, &mut slow] {
        process.wait_until_ready(READY_DEADLINE);
    }

    let pool = |name: &str| json!({"pool": name, "timeout": "20s"});
    for n in 0..MANY {
        endpoint.register(&cluster, &format!("slow-{n}"), "hang", json!({}), pool("slow"));
    }
    until("the slow pool to be full", DEADLINE, || (endpoint.requests().len() >= 2).then_some(()));
    for n in 0..MANY {
        endpoint.register(&cluster, &format!("quick-{n}"), "fine", json!({}), json!({}));
    }
    (0..MANY).for_each(|n| assert_delivered(&cluster, &format!("quick-{n}"), 1));
    let waiting = endpoint.requests().iter().filter(|r| r.trigger.starts_with("slow")).count();
    assert_eq!(waiting, 2, "the slow pool has its own limit, and holds it still");
    endpoint.recover();
    (0..MANY).for_each(|n| assert_delivered(&cluster, &format!("slow-{n}"), 1));

    endpoint.register(&cluster, "lost", "fine", json!({}), pool("unserved"));
    let letter = letter_of(&cluster, "lost");
    assert!(letter.reason.starts_with("pool unserved: topic"), "{}", letter.reason);
    assert!(letter.reason.contains("`orloj topics apply`"), "{}", letter.reason);

    // The way out that the reason names, and no attempt was spent.
    let with_pool = cluster.settings.clone().set("topics.pools", vec!["slow", "unserved"]);
    let (said, applied) = with_pool.run(&["topics", "apply"]);
    assert!(applied, "{said}");
    let settings = with_pool.set("worker.pool", "unserved");
    let mut unserved = OrlojProcess::start("worker", "unserved", &settings, "");
    unserved.wait_until_ready(READY_DEADLINE);
    until("the replay to find the pool", DEADLINE, || {
        let replay = ["dead-letters", "replay", "--trigger", "lost", "--yes"];
        let (said, done) = cluster.settings.run(&replay);
        assert!(done, "{said}");
        (!endpoint.requests_for("lost").is_empty()).then_some(())
    });
    assert_delivered(&cluster, "lost", 1);
    for process in [unserved, slow, worker, scheduler] {
        process.terminate();
    }
}

fn callbacks(test: &str) -> TestCluster {
    TestCluster::new(test).set("worker.allow_addresses", "any")
}

fn assert_delivered(cluster: &TestCluster, trigger: &str, number: u32) {
    until(&format!("{trigger} to be delivered"), DEADLINE, || {
        let delivered = cluster.outcomes().into_iter().find_map(|outcome| match outcome.kind {
            OutcomeKind::Delivered { attempt, .. } if outcome.trigger == *trigger => Some(attempt),
            _ => None,
        });
        delivered.map(|attempt| assert_eq!(attempt, number, "{trigger}"))
    });
}

/// Two requests, so far apart at least.
fn assert_paused(requests: &[EndpointRequest], least: Duration) {
    let [first, second] = requests else { panic!("{requests:?}") };
    assert_eq!((first.attempt, second.attempt, &first.id), (1, 2, &second.id));
    let pause = second.at - first.at;
    assert!(pause >= least && pause < 3 * least + DEADLINE / 10, "{pause:?}");
}

fn letter_of(cluster: &TestCluster, trigger: &str) -> DeadLetter {
    until(&format!("{trigger} to be given up"), DEADLINE, || {
        cluster.dead_letters().into_iter().find(|letter| {
            matches!(&letter.content, Content::Fire { fire, .. } if fire.id.trigger == *trigger)
        })
    })
}

fn attempts(letter: &DeadLetter) -> &[Attempt] {
    let Content::Fire { fire, .. } = &letter.content else { panic!("{letter:?}") };
    fire.history.as_ref().map_or(&[][..], |history| &history.attempts[..])
}
