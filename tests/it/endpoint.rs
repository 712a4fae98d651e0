//! An endpoint of somebody else's, and the registrations that lead to it. It behaves as the path
//! of a request says, until the test mends it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use orloj::clock;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::stage::Stage;

const DEADLINE: Duration = Duration::from_secs(60);

/// A receiver of callbacks.
pub(crate) struct Endpoint {
    address: SocketAddr,
    site: Arc<Site>,
    _runtime: Runtime,
}

struct Site {
    requests: Mutex<Vec<Request>>,
    mended: watch::Sender<bool>,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) trigger: String,
    pub(crate) attempt: u32,
    /// Its `webhook-id`.
    pub(crate) id: String,
    pub(crate) at: Instant,
}

impl Endpoint {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let site = Arc::new(Site { requests: Mutex::default(), mended: watch::Sender::new(false) });
        let routes = Router::new().route("/{behaviour}", post(receive));
        let routes = routes.with_state(Arc::clone(&site));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, site, _runtime: runtime }
    }

    pub(crate) fn url(&self, behaviour: &str) -> String {
        format!("http://{}/{behaviour}", self.address)
    }

    /// From now on everything is answered with success.
    pub(crate) fn mend(&self) {
        self.site.mended.send_replace(true);
    }

    /// All requests so far, in order of arrival.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.site.requests.lock().unwrap().clone()
    }

    /// Those for one trigger.
    pub(crate) fn of(&self, trigger: &str) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|request| request.trigger == trigger);
        requests
    }

    /// Registers a callback that is due now, as JSON: `more` are fields beside URL and time, and
    /// `target` such of its target.
    pub(crate) fn register(&self, stage: &Stage, id: &str, to: &str, more: Value, target: Value) {
        let mut envelope = json!({"fireAt": clock::now_ms(), "target": {"url": self.url(to)}});
        merge(&mut envelope, more);
        merge(&mut envelope["target"], target);
        write(stage, id, &envelope.to_string());
    }
}

/// Writes a record to the triggers, as any client would.
pub(crate) fn write(stage: &Stage, id: &str, value: &str) {
    let mut config = stage.kafka().clone();
    config.set("partitioner", "murmur2_random");
    let producer: BaseProducer = config.create().unwrap();
    let triggers = stage.names.triggers();
    let record = BaseRecord::to(&triggers).key(id).payload(value);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(DEADLINE).unwrap();
}

fn merge(object: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { return };
    object.as_object_mut().unwrap().extend(fields);
}

async fn receive(
    State(site): State<Arc<Site>>,
    Path(behaviour): Path<String>,
    headers: HeaderMap,
) -> Response {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let attempt = text("x-trigger-attempt").parse().unwrap();
    let (trigger, id) = (text("x-trigger-id"), text("webhook-id"));
    site.requests.lock().unwrap().push(Request { trigger, attempt, id, at: clock::monotonic() });
    let mut mended = site.mended.subscribe();
    if *mended.borrow() {
        return StatusCode::OK.into_response();
    }
    let dates = [
        (header::DATE, "Wed, 21 Oct 2015 07:28:00 GMT"),
        (header::RETRY_AFTER, "Wed, 21 Oct 2015 07:28:03 GMT"),
    ];
    match behaviour.as_str() {
        "hang" => {
            let _mended = mended.wait_for(|mended| *mended).await;
            StatusCode::OK.into_response()
        }
        "dated" if attempt == 1 => (StatusCode::SERVICE_UNAVAILABLE, dates).into_response(),
        "seconds" if attempt == 1 => {
            (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "2")]).into_response()
        }
        "absent" => (StatusCode::NOT_FOUND, "no such order").into_response(),
        "broken" => (StatusCode::INTERNAL_SERVER_ERROR, "boom\n").into_response(),
        _ => StatusCode::OK.into_response(),
    }
}
