//! The caller: a plain loop around reqwest, without Kafka, that makes the callbacks of the worker.
//!
//! Invariant: it is what the worker could reach at most on this machine, so it has all of the
//! worker's HTTP and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use reqwest::Client;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Of the body that a worker makes of a payload of 300 bytes.
const BODY_BYTES: usize = 340;
/// The headers that a worker adds.
const HEADERS: [&str; 5] =
    ["x-trigger-id", "x-trigger-attempt", "x-idempotency-key", "webhook-id", "webhook-timestamp"];

/// Makes `count` requests, `at_once` of them at a time.
pub(crate) fn run(url: &str, count: u32, at_once: u32) {
    let client = Client::builder().no_proxy().http1_only().build().unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for name in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static("callback-0000001"));
    }
    let taken = Arc::new(AtomicU32::new(0));
    println!("ready");
    Runtime::new().unwrap().block_on(async {
        let calls = (0..at_once).map(|_| {
            let (client, headers, taken) = (client.clone(), headers.clone(), Arc::clone(&taken));
            let url = url.to_owned();
            async move {
                while taken.fetch_add(1, Relaxed) < count {
                    let request = client.post(&url).headers(headers.clone());
                    let answer = request.body(vec![b'x'; BODY_BYTES]).send().await.unwrap();
                    answer.bytes().await.unwrap();
                }
            }
        });
        calls.collect::<JoinSet<_>>().join_all().await;
    });
}
