//! Callers, end to end: a key at the gateway, the caller's name on the record, its signature on the
//! callback; and a file that is changed, broken and repaired while the processes run.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::hmac;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orloj::callers::{KeyHash, NewSecret, new_key};
use orloj::telemetry;
use reqwest::{Client, Response, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn a_key_leads_to_callbacks_with_the_signature_of_its_caller() {
    let fixture = CallersScenario::new("callers", "1h");
    let (key, looking) = (new_key().unwrap(), new_key().unwrap());
    let secrets = [(); 2].map(|()| NewSecret::shared().unwrap().secret);
    fixture.write("secret", &secrets[0]);
    let mut file = format!(
        r#"
        [callers.billing]
        keys = ["{}"]
        role = "caller"
        topics = ["billing.*"]
        secrets = [{{ secret = "file:secret" }}]
        limits.payload = "1KiB"

        [callers.auditor]
        keys = ["{}"]
        role = "read-only"
        "#,
        KeyHash::of(&key),
        KeyHash::of(&looking),
    );
    fixture.write("callers.toml", &file);
    let running = fixture.start();

    refused(&running, &looking);
    let topic = json!({ "topic": "orders", "delaySeconds": 0 });
    assert_eq!(running.register(Some(&key), &topic).status(), StatusCode::FORBIDDEN);
    let large = running.callback("large", &json!("x".repeat(1_100)));
    assert_eq!(running.register(Some(&key), &large).status(), StatusCode::PAYLOAD_TOO_LARGE);

    let pending = json!({ "triggerId": "tea", "topic": "billing.eu", "delaySeconds": 3_600 });
    assert_eq!(running.register(Some(&key), &pending).status(), StatusCode::CREATED);
    assert_eq!(running.cancel(None, "tea"), StatusCode::UNAUTHORIZED);
    assert_eq!(running.cancel(Some(&key), "tea"), StatusCode::OK);

    let delivery = running.deliver(&key, "signed", &json!({"n": 1}));
    assert!(is_signed(&delivery, &secrets[0]) && !is_signed(&delivery, &secrets[1]));

    // Both processes read the file only on a signal.
    fixture.write("secret", &secrets[1]);
    running.wait_for_log_lines("callers loaded", 2);
    let delivery = running.deliver(&key, "rotated", &json!({"n": 2}));
    assert!(is_signed(&delivery, &secrets[1]) && !is_signed(&delivery, &secrets[0]));

    file = file.replace("role", "rule");
    fixture.write("callers.toml", &file);
    running.wait_for_log_lines("the previous callers stay in use", 1);
    for process in [&running.gateway, &running.worker] {
        let (status, response) = running.get(process, "/readyz?verbose");
        assert_eq!(status, StatusCode::OK);
        assert!(response.contains("`callers.auditor.rule`; did you mean"), "{response}");
        let metrics = running.get(process, "/metrics").1;
        assert!(metrics.contains(&format!("{} 1", telemetry::CALLERS_REFUSED)), "{metrics}");
        assert!(!process.log_text().contains(&secrets[1]) && !process.log_text().contains(&key));
    }
    assert!(is_signed(&running.deliver(&key, "as before", &json!(null)), &secrets[1]));

    // Repaired, with other bindings: callbacks to the former receiver are refused now.
    let bound = "role = \"caller\"\nurls = [\"https://hooks.example.com/\"]";
    let file = file.replace("rule = \"caller\"", bound).replace("rule", "role");
    fixture.write("callers.toml", &file);
    running.wait_for_log_lines("callers loaded", 3);
    let outside = running.register(Some(&key), &running.callback("outside", &json!(null)));
    assert_eq!(outside.status(), StatusCode::UNPROCESSABLE_ENTITY);
    running.end();
}

fn refused(running: &CallersCluster, looking: &str) {
    let body = running.callback("refused", &json!(null));
    for (key, status) in [
        (None, StatusCode::UNAUTHORIZED),
        (Some("orloj_guess"), StatusCode::UNAUTHORIZED),
        (Some(looking), StatusCode::FORBIDDEN),
    ] {
        let answer = running.register(key, &body);
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let challenge = answer.headers().contains_key("www-authenticate");
        assert_eq!(challenge, status == StatusCode::UNAUTHORIZED);
    }
}

/// Whether one of the signatures is the secret's.
pub(crate) fn is_signed(delivery: &Delivery, secret: &str) -> bool {
    let secret = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
    let [id, time] = ["webhook-id", "webhook-timestamp"].map(|name| delivery.text(name));
    let mut signed = format!("{id}.{time}.").into_bytes();
    signed.extend_from_slice(&delivery.body);
    delivery.text("webhook-signature").split(' ').any(|signature| {
        let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
        hmac::verify(&key, &signed, &signature).is_ok()
    })
}

/// An installation with a file of callers.
pub(crate) struct CallersScenario {
    cluster: TestCluster,
    folder: TempDir,
}

/// Its processes, and who is called back.
pub(crate) struct CallersCluster {
    scheduler: OrlojProcess,
    worker: OrlojProcess,
    gateway: OrlojProcess,
    client: Client,
    receiver: DeliveryReceiver,
}

impl CallersScenario {
    /// One that looks at its file every `interval`.
    pub(crate) fn new(test: &str, interval: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callers.toml");
        let cluster = TestCluster::new(test)
            .set("worker.allow_addresses", "any")
            .set("callers.reload_interval", interval)
            .set("callers.file", file.to_str().unwrap());
        Self { cluster, folder }
    }

    /// With one more setting.
    pub(crate) fn set(self, name: &str, value: &str) -> Self {
        Self { cluster: self.cluster.set(name, value), ..self }
    }

    /// Writes a file beside that of the callers, or that one.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub(crate) fn start(&self) -> CallersCluster {
        let mut scheduler = self.cluster.scheduler("scheduler");
        let mut worker = self.cluster.start("worker", "worker");
        let mut gateway = self.cluster.start("gateway", "gateway");
        for process in [&mut scheduler, &mut worker, &mut gateway] {
            process.wait_until_ready(READY_DEADLINE);
        }
        let receiver = DeliveryReceiver::start();
        CallersCluster { scheduler, worker, gateway, client: Client::new(), receiver }
    }
}

impl CallersCluster {
    /// A registration of a callback that is due at once.
    pub(crate) fn callback(&self, id: &str, payload: &Value) -> Value {
        let url = format!("http://{}/", self.receiver.address);
        json!({ "triggerId": id, "callbackUrl": url, "delaySeconds": 0, "payload": payload })
    }

    pub(crate) fn register(&self, key: Option<&str>, body: &Value) -> Response {
        let url = format!("http://{}/v1/triggers", self.gateway.address());
        let request = self.client.post(url).body(body.to_string());
        let request = match key {
            Some(key) => request.bearer_auth(key).header("orloj-caller", "other-caller"),
            None => request,
        };
        self.receiver.runtime.block_on(request.send()).unwrap()
    }

    fn cancel(&self, key: Option<&str>, id: &str) -> StatusCode {
        let url = format!("http://{}/v1/triggers/{id}", self.gateway.address());
        let request = self.client.delete(url).header("x-api-key", key.unwrap_or_default());
        self.receiver.runtime.block_on(request.send()).unwrap().status()
    }

    /// Registers a callback, and waits for its request.
    pub(crate) fn deliver(&self, key: &str, id: &str, payload: &Value) -> Delivery {
        let answer = self.register(Some(key), &self.callback(id, payload));
        assert_eq!(answer.status(), StatusCode::CREATED);
        self.delivered(id)
    }

    /// Waits for the request of a trigger.
    pub(crate) fn delivered(&self, id: &str) -> Delivery {
        until(&format!("the callback of {id}"), DEADLINE, || self.receiver.delivery_for(id))
    }

    /// Asks gateway and worker to look at the file, until each has said `words` so often.
    fn wait_for_log_lines(&self, words: &str, times: usize) {
        for process in [&self.gateway, &self.worker] {
            process.signal(Signal::HUP);
            until(&format!("{words:?} in a log"), DEADLINE, || {
                (process.log_text().matches(words).count() >= times).then_some(())
            });
        }
    }

    fn get(&self, process: &OrlojProcess, path: &str) -> (StatusCode, String) {
        let url = format!("http://{}{path}", process.address());
        self.receiver.runtime.block_on(async {
            let answer = self.client.get(url).send().await.unwrap();
            (answer.status(), answer.text().await.unwrap())
        })
    }

    pub(crate) fn end(self) {
        for process in [self.gateway, self.worker, self.scheduler] {
            assert!(!process.panicked());
            process.terminate();
        }
    }
}

/// A request as it was received.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Delivery {
    pub(crate) fn text(&self, header: &str) -> &str {
        self.headers[header].to_str().unwrap()
    }
}

struct DeliveryReceiver {
    address: SocketAddr,
    deliveries: ReceivedDeliveries,
    runtime: Runtime,
}

type ReceivedDeliveries = Arc<Mutex<Vec<Delivery>>>;

impl DeliveryReceiver {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let deliveries = ReceivedDeliveries::default();
        let routes = Router::new().route("/", post(receive)).with_state(Arc::clone(&deliveries));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, deliveries, runtime }
    }

    fn delivery_for(&self, id: &str) -> Option<Delivery> {
        let deliveries = self.deliveries.lock().unwrap();
        deliveries.iter().find(|delivery| delivery.headers["x-trigger-id"] == id).cloned()
    }
}

async fn receive(State(deliveries): State<ReceivedDeliveries>, headers: HeaderMap, body: Bytes) {
    deliveries.lock().unwrap().push(Delivery { headers, body });
}
