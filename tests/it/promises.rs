//! What the HTTP API promises whatever happens meanwhile: one trigger a key, and true answers to
//! cancels. Real gateways and schedulers, killed in between.
//!
//! Invariant: an answer is judged by what the target topic has in the end, not by other answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use orloj::clock;
use orloj::model::Timestamp;
use orloj::model::outcome::OutcomeKind;
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster, exclusive_machine};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(90);
/// Requests with the one key.
const REPETITIONS: usize = 1_000;
/// Cancels under way at once.
const AT_ONCE: usize = 200;
/// Over how long the cancelled triggers are due, in ms.
const SPREAD_MS: Timestamp = 8_000;
/// How far from its time a trigger is cancelled, at most, in ms.
const NEAR_MS: Timestamp = 40;

#[test]
fn an_idempotency_key_creates_one_trigger_through_two_gateways_and_a_killed_scheduler() {
    let _machine = exclusive_machine();
    let cluster = TestCluster::new("one-key").set("gateway.answer_timeout", "2s");
    let mut scheduler = cluster.scheduler("a");
    scheduler.wait_until_ready(READY_DEADLINE);
    let mut gateways = [cluster.start("gateway", "g1"), cluster.start("gateway", "g2")];
    gateways.iter_mut().for_each(|gateway| gateway.wait_until_ready(READY_DEADLINE));
    let addresses = gateways.each_ref().map(OrlojProcess::address);

    let body = json!({ "topic": cluster.target().1, "payload": 7, "delaySeconds": 20 });
    let (asked, created) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let runtime = runtime();
    let repetitions = runtime.spawn({
        let (asked, created) = (Arc::clone(&asked), Arc::clone(&created));
        async move {
            let client = Client::new();
            let mut repetitions = JoinSet::new();
            for n in 0..REPETITIONS {
                let url = format!("http://{}/v1/triggers", addresses[n % addresses.len()]);
                let request = client.post(url).header("Idempotency-Key", "\"order-7\"");
                let request = request.json(&body);
                let (asked, created) = (Arc::clone(&asked), Arc::clone(&created));
                repetitions.spawn(until_created(request, asked, created));
            }
            repetitions.join_all().await
        }
    });
    until("every request to be made once", DEADLINE, || {
        (asked.load(Ordering::Relaxed) >= REPETITIONS).then_some(())
    });
    until("some to be answered", DEADLINE, || (created.load(Ordering::Relaxed) > 0).then_some(()));
    let before = created.load(Ordering::Relaxed);
    scheduler.kill();
    let mut scheduler = cluster.scheduler("a");
    scheduler.wait_until_ready(READY_DEADLINE);
    let answers = runtime.block_on(repetitions).unwrap();
    assert!(before < REPETITIONS, "it was killed after the last answer");

    let distinct: BTreeSet<_> = answers.iter().collect();
    assert_eq!(distinct.len(), 1, "{distinct:?}");
    let answer: Value = serde_json::from_str(&answers[0]).unwrap();
    let id = answer["triggerId"].as_str().unwrap();
    let fired = until("it to fire", DEADLINE, || Some(cluster.fires()).filter(|f| !f.is_empty()));
    assert_eq!(fired.len(), 1);
    assert_eq!(fired[0].trigger, id);
    assert_eq!(answer["generation"], fired[0].generation);
    let accepted = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Accepted { .. });
    let accepted = cluster.outcomes().into_iter().filter(|outcome| accepted(&outcome.kind));
    assert_eq!(accepted.count(), 1, "one registration of them all");

    another_body_is_refused(&runtime, &gateways[1].address(), cluster.target().1);
    scheduler.terminate();
}

/// Repeats a request until it has made its trigger, and returns that answer's body.
async fn until_created(
    request: reqwest::RequestBuilder,
    asked: Arc<AtomicUsize>,
    created: Arc<AtomicUsize>,
) -> String {
    let mut answered = 0;
    loop {
        let response = request.try_clone().unwrap().send().await.unwrap();
        let status = response.status();
        let body = response.text().await.unwrap();
        if answered == 0 {
            asked.fetch_add(1, Ordering::Relaxed);
        }
        answered += 1;
        match status {
            StatusCode::CREATED => {
                created.fetch_add(1, Ordering::Relaxed);
                return body;
            }
            // The owner is away, or another one with this key is under way.
            StatusCode::ACCEPTED | StatusCode::CONFLICT => {}
            other => panic!("{other}: {body}"),
        }
        tokio::task::yield_now().await;
    }
}

fn another_body_is_refused(runtime: &Runtime, gateway: &str, topic: &str) {
    let body = json!({ "topic": topic, "payload": 8, "delaySeconds": 20 });
    let request = Client::new().post(format!("http://{gateway}/v1/triggers"));
    let request = request.header("Idempotency-Key", "order-7").json(&body);
    let (status, problem) = runtime.block_on(async {
        let response = request.send().await.unwrap();
        (response.status(), response.json::<Value>().await.unwrap())
    });
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    assert_eq!(problem["code"], "idempotency-key-reused", "{problem}");
}

#[test]
fn cancels_that_race_with_fires_return_the_actual_outcome() {
    let _machine = exclusive_machine();
    let cancels = std::env::var("ORLOJ_CANCELS").map_or(2_000, |count| count.parse().unwrap());
    let cluster = TestCluster::new("cancel-race");
    let mut scheduler = cluster.scheduler("a");
    scheduler.wait_until_ready(READY_DEADLINE);
    let mut gateway = cluster.start("gateway", "g");
    gateway.wait_until_ready(READY_DEADLINE);

    let client = cluster.client();
    // The first is due when all are registered.
    let begin = clock::now_ms() + 4_000 + cancels / 2;
    let due = |n: u64| begin + n * SPREAD_MS / cancels;
    for n in 0..cancels {
        client.register(&format!("race-{n}"), due(n), cluster.target(), "x", false);
    }
    let _acknowledged = client.acknowledged();
    let runtime = runtime();
    let answers = runtime.block_on(cancel_all(gateway.address(), cancels, due));

    let fires = until("what was not cancelled to fire", DEADLINE, || {
        let fires = cluster.fires();
        let stopped = answers.values().filter(|(status, _)| *status == StatusCode::OK).count();
        (fires.len() + stopped >= answers.len()).then_some(fires)
    });
    let mut fired: BTreeMap<String, u32> = BTreeMap::new();
    for fire in fires {
        *fired.entry(fire.trigger).or_default() += 1;
    }
    let mut stopped = 0;
    for (id, (status, body)) in &answers {
        let times = fired.get(id).copied().unwrap_or(0);
        match *status {
            StatusCode::OK => {
                assert_eq!(times, 0, "{id} fired, though it was cancelled: {body}");
                stopped += 1;
            }
            StatusCode::CONFLICT => {
                assert_eq!(times, 1, "{id}: {body}");
                assert_eq!(body["code"], "not-pending", "{id}: {body}");
                assert!(body["detail"].as_str().unwrap().contains("has fired"), "{id}: {body}");
            }
            other => panic!("{id}: {other}: {body}"),
        }
    }
    let raced = usize::try_from(cancels).unwrap();
    assert_eq!(answers.len(), raced);
    assert!((raced / 10..raced * 9 / 10).contains(&stopped), "{stopped} of {raced}: no race");
    scheduler.terminate();
}

/// Cancels each trigger close to its time, before or after.
async fn cancel_all(
    gateway: String,
    cancels: u64,
    due: impl Fn(u64) -> Timestamp,
) -> BTreeMap<String, (StatusCode, Value)> {
    let client = Client::new();
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    let mut answers = JoinSet::new();
    for n in 0..cancels {
        // Before or after its time, by turns and by different amounts.
        let when = due(n) + n * 7_919 % (2 * NEAR_MS) - NEAR_MS;
        while clock::now_ms() < when {
            tick.tick().await;
        }
        let turn = Arc::clone(&at_once).acquire_owned().await.unwrap();
        let id = format!("race-{n}");
        let request = client.delete(format!("http://{gateway}/v1/triggers/{id}"));
        answers.spawn(async move {
            let response = request.send().await.unwrap();
            let answer = (response.status(), response.json().await.unwrap());
            drop(turn);
            (id, answer)
        });
    }
    answers.join_all().await.into_iter().collect()
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
