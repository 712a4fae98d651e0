//! A worker dies with thousands of callbacks under way.
//!
//! Invariant: none is lost; what was under way is repeated once, under the same ids, and nothing
//! else is.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::routing::post;
use bytes::Bytes;
use orloj::model::outcome::OutcomeKind;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::fd_limit;
use crate::fire_producer::FireProducer;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster, exclusive_machine};
use crate::wait::until;
use crate::worker::fire_to;

const CALLERS: usize = 100;

#[test]
fn what_was_in_flight_is_repeated_and_nothing_else() {
    kill_with_in_flight("in-flight", 400);
}

mod delivery {
    #[test]
    #[ignore = "a minute, and 5,000 open files; `make test-delivery` runs it"]
    fn five_thousand_in_flight_are_repeated_and_nothing_else() {
        super::kill_with_in_flight("in-flight-long", 5_000);
    }
}

fn kill_with_in_flight(name: &str, in_flight: usize) {
    let _machine = exclusive_machine();
    // A connection here, and half of the files there.
    fd_limit::raise_open_files_limit(in_flight * 3);
    let cluster = TestCluster::new(name)
        .set("worker.allow_addresses", "any")
        .set("worker.timeout", "2min")
        .set("worker.timeout_max", "2min")
        .set("worker.in_flight_max", i64::try_from(in_flight).unwrap() + 1);
    let receiver = BlockingReceiver::start();
    let mut first = cluster.start("worker", "first");
    first.wait_until_ready(READY_DEADLINE);
    let (held, all) = publish(&cluster, &receiver, in_flight);

    until("all to be under way, or done", READY_DEADLINE, || {
        let done = cluster.outcomes().len();
        (receiver.request_count() == all && done == all - held).then_some(())
    });
    first.kill();
    receiver.release.send_replace(true);
    let second = cluster.start("worker", "second");
    let outcomes = until("an outcome of each", READY_DEADLINE, || {
        let outcomes = cluster.outcomes();
        (outcomes.len() >= all).then_some(outcomes)
    });
    second.terminate();

    let delivered = |kind: &OutcomeKind| matches!(kind, OutcomeKind::Delivered { attempt: 1, .. });
    assert!(outcomes.iter().all(|outcome| delivered(&outcome.kind)), "{outcomes:?}");
    let once: HashMap<_, _> = outcomes.iter().map(|outcome| (&outcome.trigger, ())).collect();
    assert_eq!((once.len(), outcomes.len()), (all, all), "each is delivered by one outcome");
    let requests = receiver.requests.lock().unwrap();
    assert_eq!(requests.len(), all);
    let mut ids = HashMap::new();
    for (trigger, of_it) in requests.iter() {
        let times = if trigger.starts_with("held") { 2 } else { 1 };
        assert_eq!(of_it.len(), times, "{trigger}: {of_it:?}");
        assert!(of_it.iter().all(|request| *request == of_it[0]), "{of_it:?}");
        let same = ids.insert(of_it[0].id.clone(), trigger);
        assert_eq!(same, None, "an id of two triggers");
    }
}

/// So many that are held, and beside each fourth of them one that is answered at once. Says how
/// many are held, and how many there are.
fn publish(cluster: &TestCluster, receiver: &BlockingReceiver, held: usize) -> (usize, usize) {
    let fires = FireProducer::open(cluster.kafka(), &cluster.names.fires());
    let mut all = 0;
    let mut publish = |kind: &str, n: usize| {
        let url = format!("http://{}/{kind}", receiver.address);
        let partition = i32::try_from(all).unwrap() % PARTITIONS;
        let mut fire = fire_to(&format!("{kind}-{n}"), &url);
        // One caller alone may not have so many under way.
        fire.definition.caller = Some(format!("caller-{}", n % CALLERS).as_str().into());
        fires.publish(partition, &fire);
        all += 1;
    };
    for n in 0..held {
        if n % 4 == 0 {
            publish("answered", n);
        }
        publish("held", n);
    }
    fires.flush();
    (held, all)
}

/// Holds every request to `/held` until it is released.
struct BlockingReceiver {
    address: SocketAddr,
    requests: BlockedRequests,
    release: watch::Sender<bool>,
    _runtime: Runtime,
}

/// By trigger.
type BlockedRequests = Arc<Mutex<HashMap<String, Vec<BlockedRequest>>>>;

/// What must not differ between two requests of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockedRequest {
    id: HeaderValue,
    key: HeaderValue,
    attempt: HeaderValue,
    body: Bytes,
}

impl BlockingReceiver {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let requests = BlockedRequests::default();
        let (release, released) = watch::channel(false);
        let routes = Router::new()
            .route("/{kind}", post(receive))
            .with_state((Arc::clone(&requests), released));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, requests, release, _runtime: runtime }
    }

    /// Triggers that were called.
    fn request_count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

async fn receive(
    State((requests, mut released)): State<(BlockedRequests, watch::Receiver<bool>)>,
    Path(kind): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) {
    let of = |name: &str| headers[name].clone();
    let trigger = of("x-trigger-id").to_str().unwrap().to_owned();
    let (id, key) = (of("webhook-id"), of("x-idempotency-key"));
    let request = BlockedRequest { id, key, attempt: of("x-trigger-attempt"), body };
    requests.lock().unwrap().entry(trigger).or_default().push(request);
    if kind == "held" {
        let _released = released.wait_for(|released| *released).await;
    }
}
