//! Traces, from a request that registers to the span of its callback at a collector: a stub that
//! takes what OTLP sends over HTTP.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use orloj::callers::{KeyHash, new_key};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::callers::CallersScenario;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

#[test]
fn a_callback_is_a_span_linked_to_its_registration() {
    let collector = Collector::start();
    let fixture = CallersScenario::new("traces", "1h").set("trace.endpoint", &collector.endpoint);
    let key = new_key().unwrap();
    let hash = KeyHash::of(&key);
    fixture.write(
        "callers.toml",
        &format!("callers.a = {{ role = \"caller\", keys = [\"{hash}\"] }}"),
    );
    let running = fixture.start();
    let traced = |id: &str, flags: &str| {
        let mut registration = running.callback(id, &json!(null));
        registration["headers"] = json!({
            "traceparent": format!("00-{TRACE}-{SPAN}-{flags}"), "tracestate": "shop=7",
        });
        assert_eq!(running.register(Some(&key), &registration).status(), StatusCode::CREATED);
        running.delivered(id)
    };

    let unsampled = traced("unsampled", "00");
    assert_eq!(unsampled.text("traceparent"), format!("00-{TRACE}-{SPAN}-00"));
    assert_eq!(unsampled.text("tracestate"), "shop=7");

    let sampled = traced("sampled", "01");
    let parts: Vec<_> = sampled.text("traceparent").split('-').collect();
    let [version, trace, span, flags] = parts[..] else { panic!("{parts:?}") };
    assert_eq!((version, flags), ("00", "01"));
    assert!(trace != TRACE && !sampled.headers.contains_key("tracestate"));

    let exported = until("the span at the collector", DEADLINE, || collector.spans().pop());
    assert_eq!(exported["traceId"], trace);
    assert_eq!(exported["spanId"], span);
    let link = &exported["links"][0];
    let linked = ["traceId", "spanId", "traceState"].map(|name| link[name].as_str().unwrap());
    assert_eq!(linked, [TRACE, SPAN, "shop=7"]);
    assert!(exported["parentSpanId"].as_str().is_none_or(str::is_empty), "{exported}");
    assert_eq!(collector.spans().len(), 1);
    running.end();
}

/// Takes spans.
struct Collector {
    endpoint: String,
    requests: OtlpRequests,
    _runtime: Runtime,
}

type OtlpRequests = Arc<Mutex<Vec<Value>>>;

impl Collector {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let requests = OtlpRequests::default();
        let routes = Router::new().route("/v1/traces", post(take));
        let routes = routes.with_state(Arc::clone(&requests));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { endpoint, requests, _runtime: runtime }
    }

    fn spans(&self) -> Vec<Value> {
        let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|request| list(request, "resourceSpans"));
        let scopes = resources.flat_map(|resource| list(&resource, "scopeSpans"));
        scopes.flat_map(|scope| list(&scope, "spans")).collect()
    }
}

async fn take(State(requests): State<OtlpRequests>, Json(request): Json<Value>) -> Json<Value> {
    requests.lock().unwrap().push(request);
    Json(json!({}))
}
