//! The endpoint of a receiver, and registrations of callbacks to it. It behaves as the path
//! of a request says, until the test repairs it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use orloj::clock;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};

use crate::test_cluster::TestCluster;

const DEADLINE: Duration = Duration::from_secs(60);

/// A receiver of callbacks.
pub(crate) struct Endpoint {
    address: SocketAddr,
    state: Arc<EndpointState>,
    _runtime: Runtime,
}

struct EndpointState {
    requests: Mutex<Vec<EndpointRequest>>,
    triggers: Mutex<HashMap<String, Arc<TriggerRequests>>>,
    is_healthy: watch::Sender<bool>,
}

/// What is known of a trigger's requests besides the requests themselves.
struct TriggerRequests {
    /// How many of those that wait may be answered.
    permits: Semaphore,
    /// How many are under way, and how many were at once.
    concurrency: watch::Sender<(usize, usize)>,
}

/// A request that is under way.
struct ActiveRequest<'a>(&'a TriggerRequests);

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct EndpointRequest {
    pub(crate) trigger: String,
    pub(crate) attempt: u32,
    /// Its `webhook-id`.
    pub(crate) id: String,
    pub(crate) at: Instant,
}

impl Endpoint {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let (requests, triggers) = (Mutex::default(), Mutex::default());
        let state =
            Arc::new(EndpointState { requests, triggers, is_healthy: watch::Sender::new(false) });
        let routes = Router::new().route("/{behaviour}", post(receive));
        let routes = routes.with_state(Arc::clone(&state));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, state, _runtime: runtime }
    }

    pub(crate) fn url(&self, behaviour: &str) -> String {
        format!("http://{}/{behaviour}", self.address)
    }

    /// From now on everything is answered with success.
    pub(crate) fn recover(&self) {
        self.state.is_healthy.send_replace(true);
    }

    /// All requests so far, in order of arrival.
    pub(crate) fn requests(&self) -> Vec<EndpointRequest> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Answers one request of a trigger whose path is `wait`: one that waits, or the next.
    pub(crate) fn answer_one(&self, trigger: &str) {
        self.state.watched(trigger).permits.add_permits(1);
    }

    /// How many requests of a trigger were under way at the same time.
    pub(crate) fn max_concurrency(&self, trigger: &str) -> usize {
        self.state.watched(trigger).concurrency.borrow().1
    }

    /// Those for one trigger.
    pub(crate) fn requests_for(&self, trigger: &str) -> Vec<EndpointRequest> {
        let mut requests = self.requests();
        requests.retain(|request| request.trigger == trigger);
        requests
    }

    /// Registers a callback that is due now, as JSON: `more` are fields beside URL and time, and
    /// `target` such of its target.
    pub(crate) fn register(
        &self,
        cluster: &TestCluster,
        id: &str,
        to: &str,
        more: Value,
        target: Value,
    ) {
        let mut envelope = json!({"fireAt": clock::now_ms(), "target": {"url": self.url(to)}});
        merge(&mut envelope, more);
        merge(&mut envelope["target"], target);
        write(cluster, id, &envelope.to_string());
    }
}

impl EndpointState {
    fn watched(&self, trigger: &str) -> Arc<TriggerRequests> {
        let mut triggers = self.triggers.lock().unwrap();
        Arc::clone(triggers.entry(trigger.to_owned()).or_insert_with(|| {
            Arc::new(TriggerRequests {
                permits: Semaphore::new(0),
                concurrency: watch::Sender::new((0, 0)),
            })
        }))
    }
}

impl TriggerRequests {
    fn begin(&self) -> ActiveRequest<'_> {
        self.concurrency.send_modify(|(now, most)| {
            *now += 1;
            *most = (*most).max(*now);
        });
        ActiveRequest(self)
    }
}

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.0.concurrency.send_modify(|(now, _)| *now -= 1);
    }
}

/// Writes a record to the triggers, as any client would.
pub(crate) fn write(cluster: &TestCluster, id: &str, value: &str) {
    send(cluster, BaseRecord::to(&cluster.names.triggers()).key(id).payload(value));
}

/// Commands a trigger: `pause`, `resume` or `fire-now`.
pub(crate) fn command(cluster: &TestCluster, id: &str, command: &str) {
    let header = Header { key: "orloj-command", value: Some(command) };
    let headers = OwnedHeaders::new().insert(header);
    send(cluster, BaseRecord::to(&cluster.names.triggers()).key(id).payload("").headers(headers));
}

fn send(cluster: &TestCluster, record: BaseRecord<'_, str, str>) {
    let mut config = cluster.kafka().clone();
    config.set("partitioner", "murmur2_random");
    let producer: BaseProducer = config.create().unwrap();
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(DEADLINE).unwrap();
}

pub(crate) fn merge(object: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { return };
    object.as_object_mut().unwrap().extend(fields);
}

async fn receive(
    State(state): State<Arc<EndpointState>>,
    Path(behaviour): Path<String>,
    headers: HeaderMap,
) -> Response {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let attempt = text("x-trigger-attempt").parse().unwrap();
    let (trigger, id) = (text("x-trigger-id"), text("webhook-id"));
    let watched = state.watched(&trigger);
    let _under_way = watched.begin();
    state.requests.lock().unwrap().push(EndpointRequest {
        trigger,
        attempt,
        id,
        at: clock::monotonic(),
    });
    let mut repaired = state.is_healthy.subscribe();
    if *repaired.borrow() {
        return StatusCode::OK.into_response();
    }
    let dates = [
        (header::DATE, "Wed, 21 Oct 2015 07:28:00 GMT"),
        (header::RETRY_AFTER, "Wed, 21 Oct 2015 07:28:03 GMT"),
    ];
    match behaviour.as_str() {
        "hang" => {
            let _repaired = repaired.wait_for(|repaired| *repaired).await;
            StatusCode::OK.into_response()
        }
        "wait" => {
            tokio::select! {
                answer = watched.permits.acquire() => answer.unwrap().forget(),
                _repaired = repaired.wait_for(|repaired| *repaired) => {}
            }
            StatusCode::OK.into_response()
        }
        "flaky" if attempt == 1 => (StatusCode::INTERNAL_SERVER_ERROR, "boom\n").into_response(),
        "dated" if attempt == 1 => (StatusCode::SERVICE_UNAVAILABLE, dates).into_response(),
        "seconds" if attempt == 1 => {
            (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "2")]).into_response()
        }
        "absent" => (StatusCode::NOT_FOUND, "no such order").into_response(),
        "broken" => (StatusCode::INTERNAL_SERVER_ERROR, "boom\n").into_response(),
        _ => StatusCode::OK.into_response(),
    }
}
