//! Sending spans to a collector: OTLP over HTTP, as JSON.
//!
//! Invariant: telemetry never delays a callback. What does not fit into the queue, and what the
//! collector does not take, is dropped and counted.

use std::time::Duration;

use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::telemetry;

/// Spans that wait to be sent: a few megabytes at most.
const QUEUE_MAX: usize = 4_096;
/// Spans of one request.
const BATCH_MAX: usize = 512;
/// How long spans are collected while there are few.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends spans to the collector.
#[derive(Clone, Debug)]
pub struct SpanExporter(Sender<Value>);

impl SpanExporter {
    /// Sends to the collector at `endpoint`, a base URL, for as long as there is a clone. Call it
    /// inside of a runtime.
    pub fn start(endpoint: &str) -> reqwest::Result<Self> {
        let client = Client::builder().timeout(TIMEOUT).no_proxy().build()?;
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let (spans, queue) = channel(QUEUE_MAX);
        let _detached = tokio::spawn(export(client, url, queue));
        Ok(Self(spans))
    }

    /// Queues a span in the form of OTLP's JSON.
    pub(super) fn send(&self, span: Value) {
        if self.0.try_send(span).is_err() {
            drop_spans(1);
        }
    }
}

async fn export(client: Client, url: String, mut queue: Receiver<Value>) {
    let mut spans = Vec::with_capacity(BATCH_MAX);
    let mut is_unreachable = false;
    while queue.recv_many(&mut spans, BATCH_MAX).await > 0 {
        let count = spans.len();
        let body = request(std::mem::take(&mut spans)).to_string();
        let post = client.post(&url).header(CONTENT_TYPE, "application/json").body(body);
        match post.send().await.and_then(reqwest::Response::error_for_status) {
            Ok(_) => is_unreachable = false,
            Err(error) => {
                drop_spans(count);
                // Once for each time that it becomes unavailable.
                if !std::mem::replace(&mut is_unreachable, true) {
                    tracing::warn!(%error, "spans cannot be sent to the collector");
                }
            }
        }
        if count < BATCH_MAX {
            tokio::time::sleep(BATCH_DELAY).await;
        }
    }
}

fn drop_spans(count: usize) {
    metrics::counter!(telemetry::SPANS_DROPPED).increment(count as u64);
}

fn request(spans: Vec<Value>) -> Value {
    let name = json!({ "key": "service.name", "value": { "stringValue": "orloj-worker" } });
    let scope = json!({ "name": "orloj", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceSpans": [{
        "resource": { "attributes": [name] },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] })
}
