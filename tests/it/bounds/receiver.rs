//! A receiver whose endpoints answer at once, slowly, or not at all, until it recovers.
//!
//! Invariant: it knows when each trigger was called, and how many requests it has not answered.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::post;
use orloj::clock;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How long `slow` takes.
pub(super) const SLOW: Duration = Duration::from_secs(2);

/// Endpoints at one address.
pub(super) struct BoundReceiver {
    address: SocketAddr,
    shared: Arc<SharedCalls>,
    _runtime: Runtime,
}

struct SharedCalls {
    /// When each trigger was called, in ms since the epoch.
    times: Mutex<HashMap<String, Vec<u64>>>,
    unanswered: AtomicUsize,
    recovered: watch::Sender<bool>,
}

impl BoundReceiver {
    pub(super) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let shared = Arc::new(SharedCalls {
            times: Mutex::default(),
            unanswered: AtomicUsize::new(0),
            recovered: watch::Sender::new(false),
        });
        let routes =
            Router::new().route("/{endpoint}", post(receive)).with_state(Arc::clone(&shared));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, shared, _runtime: runtime }
    }

    /// `quick`, `slow` or `hang`.
    pub(super) fn url(&self, endpoint: &str) -> String {
        format!("http://{}/{endpoint}", self.address)
    }

    /// From now on everything is answered at once.
    pub(super) fn recover(&self) {
        self.shared.recovered.send_replace(true);
    }

    pub(super) fn unanswered(&self) -> usize {
        self.shared.unanswered.load(Relaxed)
    }

    /// When each trigger was called, in ms since the epoch.
    pub(super) fn times(&self) -> HashMap<String, Vec<u64>> {
        self.shared.times.lock().unwrap().clone()
    }

    /// How many triggers were called whose ids begin so.
    pub(super) fn called(&self, prefix: &str) -> usize {
        self.shared.times.lock().unwrap().keys().filter(|id| id.starts_with(prefix)).count()
    }
}

async fn receive(
    State(shared): State<Arc<SharedCalls>>,
    Path(endpoint): Path<String>,
    headers: HeaderMap,
) {
    /// Also if the caller closes the connection.
    struct AnsweredOnDrop(Arc<SharedCalls>);
    impl Drop for AnsweredOnDrop {
        fn drop(&mut self) {
            self.0.unanswered.fetch_sub(1, Relaxed);
        }
    }
    let trigger = headers["x-trigger-id"].to_str().unwrap().to_owned();
    shared.times.lock().unwrap().entry(trigger).or_default().push(clock::now_ms());
    shared.unanswered.fetch_add(1, Relaxed);
    let _answered = AnsweredOnDrop(Arc::clone(&shared));
    let mut recovered = shared.recovered.subscribe();
    let recovered = recovered.wait_for(|recovered| *recovered);
    match endpoint.as_str() {
        "hang" => drop(recovered.await),
        "slow" => drop(tokio::time::timeout(SLOW, recovered).await),
        _ => {}
    }
}
