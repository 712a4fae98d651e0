//! Callbacks, from a registration in Kafka to a request at a receiver: attempts, their spacing,
//! their end in the dead letters, and a cancel between two of them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use orloj::clock;
use orloj::model::dead_letter::Content;
use orloj::model::outcome::OutcomeKind;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::test_producer::CALLBACK_URL_HEADER;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

/// Between attempts; long enough to cancel in, on a busy machine.
const DELAY: Duration = Duration::from_secs(2);
/// A retry travels through two topics and a timeline.
const SLACK: Duration = Duration::from_secs(2);

#[test]
fn callbacks_are_tried_again_given_up_and_cancelled() {
    let cluster = TestCluster::new("callbacks")
        .set("worker.retry_delays", vec!["2s", "2s"])
        .set("worker.timeout", "1s")
        .set("worker.connect_timeout", "1s")
        .set("worker.allow_addresses", "any")
        .set("worker.retry_jitter", 0);
    let receiver = CallbackReceiver::start();
    let mut scheduler = cluster.scheduler("scheduler");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);
    let client = cluster.client();
    let register = |id: &str, behaviour: &str, due: u64| {
        let url = format!("http://{}/{behaviour}", receiver.address);
        client.register(id, due, (CALLBACK_URL_HEADER, &url), r#"{"n": 1}"#, true);
    };
    let now = clock::now_ms();
    register("flaky", "flaky", now);
    register("silent", "silent", now);
    register("cancelled", "broken", now);

    assert_cancelled_gets_no_further(&cluster, &receiver, || {
        client.cancel("cancelled");
        // Once this one is called, the cancelled one's time has passed.
        let later = clock::now_ms() + 2 * u64::try_from(DELAY.as_millis()).unwrap();
        register("last", "fine", later);
    });
    assert_delivered_at_the_third_attempt(&cluster, &receiver);
    assert_given_up(&cluster, &receiver);
    assert!(!scheduler.panicked() && !worker.panicked());
    worker.terminate();
    scheduler.terminate();
}

fn assert_delivered_at_the_third_attempt(cluster: &TestCluster, receiver: &CallbackReceiver) {
    until("the flaky one to be delivered", DEADLINE, || {
        let delivered = |kind: &OutcomeKind| {
            matches!(kind, OutcomeKind::Delivered { attempt: 3, status: 200, .. })
        };
        outcome_kinds(cluster, "flaky").iter().any(delivered).then_some(())
    });
    let requests = receiver.requests_for("flaky");
    assert_attempts(&requests);
    let body: serde_json::Value = serde_json::from_slice(&requests[0].body).unwrap();
    assert_eq!(body, serde_json::json!({"triggerId": "flaky", "payload": {"n": 1}}));
}

fn assert_given_up(cluster: &TestCluster, receiver: &CallbackReceiver) {
    let letters = until("the silent one to be given up", DEADLINE, || {
        let letters = cluster.dead_letters();
        (!letters.is_empty()).then_some(letters)
    });
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    let Content::Fire { fire, attempts } = &letter.content else { panic!("{letter:?}") };
    assert_eq!((fire.id.trigger.as_str(), fire.id.attempt, *attempts), ("silent", 3, 3));
    assert_attempts(&receiver.requests_for("silent"));
    let retried: Vec<_> = outcome_kinds(cluster, "silent")
        .into_iter()
        .filter_map(|kind| match kind {
            OutcomeKind::Failed { attempt, retry_at, .. } => Some((attempt, retry_at.is_some())),
            _ => None,
        })
        .collect();
    assert_eq!(retried, [(1, true), (2, true), (3, false)]);
}

fn assert_cancelled_gets_no_further(
    cluster: &TestCluster,
    receiver: &CallbackReceiver,
    cancel: impl FnOnce(),
) {
    until("the broken one to fail once", DEADLINE, || {
        let failed = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Failed { .. });
        outcome_kinds(cluster, "cancelled").iter().any(failed).then_some(())
    });
    cancel();
    until("the last callback", DEADLINE, || {
        (!receiver.requests_for("last").is_empty()).then_some(())
    });
    assert_eq!(receiver.requests_for("cancelled").len(), 1);
    let is_reported = |kind: &OutcomeKind| {
        // The cancel meets the retry on the timeline or still on its way there.
        matches!(
            kind,
            OutcomeKind::Cancelled { .. } | OutcomeKind::NotPending { withdrawal: true, .. }
        )
    };
    let outcome_kinds = outcome_kinds(cluster, "cancelled");
    assert!(outcome_kinds.iter().any(is_reported), "{outcome_kinds:?}");
}

/// Three requests for the same fire, numbered and spaced.
fn assert_attempts(requests: &[CallbackRequest]) {
    let attempts: Vec<_> = requests.iter().map(|request| request.attempt.as_str()).collect();
    assert_eq!(attempts, ["1", "2", "3"]);
    for pair in requests.windows(2) {
        assert_eq!(pair[0].key, pair[1].key, "the id is stable");
        let pause = pair[1].at - pair[0].at;
        assert!(pause >= DELAY && pause <= DELAY + SLACK + Duration::from_secs(1), "{pause:?}");
    }
}

fn outcome_kinds(cluster: &TestCluster, trigger: &str) -> Vec<OutcomeKind> {
    let ours = cluster.outcomes().into_iter().filter(|outcome| outcome.trigger == *trigger);
    ours.map(|outcome| outcome.kind).collect()
}

/// An endpoint that behaves as its path says.
struct CallbackReceiver {
    address: SocketAddr,
    requests: CallbackRequests,
    _runtime: Runtime,
}

type CallbackRequests = Arc<Mutex<Vec<CallbackRequest>>>;

#[derive(Clone, Debug)]
struct CallbackRequest {
    trigger: String,
    attempt: String,
    key: String,
    body: Bytes,
    at: Instant,
}

impl CallbackReceiver {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let requests = CallbackRequests::default();
        let routes = Router::new().route("/{behaviour}", post(receive));
        let routes = routes.with_state(Arc::clone(&requests));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, requests, _runtime: runtime }
    }

    /// The requests for a trigger, in order of arrival.
    fn requests_for(&self, trigger: &str) -> Vec<CallbackRequest> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.trigger == trigger).cloned().collect()
    }
}

async fn receive(
    State(requests): State<CallbackRequests>,
    Path(behaviour): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (trigger, attempt) = (text("x-trigger-id"), text("x-trigger-attempt"));
    let key = text("x-idempotency-key");
    let third = attempt == "3";
    let request = CallbackRequest { trigger, attempt, key, body, at: clock::monotonic() };
    requests.lock().unwrap().push(request);
    match behaviour.as_str() {
        "silent" => std::future::pending().await,
        "fine" => StatusCode::OK,
        "flaky" if third => StatusCode::OK,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
