//! A receiver that holds requests before it answers, and knows when each trigger was called.
//!
//! Invariant: a request that is held is answered after its time, or when all are released.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use orloj::clock;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::delivered::CallTimes;

/// Until all are released.
pub(super) const UNTIL_RELEASED: Duration = Duration::from_secs(3_600);

/// An endpoint with one answer.
pub(super) struct HeldReceiver {
    address: SocketAddr,
    shared: Arc<HeldReceiverState>,
    _runtime: Runtime,
}

struct HeldReceiverState {
    status: StatusCode,
    /// How long a request of this trigger is held.
    hold: fn(&str) -> Duration,
    calls: Mutex<CallTimes>,
    in_progress: AtomicUsize,
    released: watch::Sender<u32>,
}

impl HeldReceiver {
    pub(super) fn start(status: StatusCode, hold: fn(&str) -> Duration) -> Self {
        let runtime = Runtime::new().unwrap();
        let shared = Arc::new(HeldReceiverState {
            status,
            hold,
            calls: Mutex::default(),
            in_progress: AtomicUsize::new(0),
            released: watch::Sender::new(0),
        });
        let routes = Router::new().route("/", post(receive)).with_state(Arc::clone(&shared));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, shared, _runtime: runtime }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Answers all requests that are held now.
    pub(super) fn release(&self) {
        self.shared.released.send_modify(|times| *times += 1);
    }

    pub(super) fn in_progress(&self) -> usize {
        self.shared.in_progress.load(Relaxed)
    }

    pub(super) fn calls(&self) -> CallTimes {
        self.shared.calls.lock().unwrap().clone()
    }
}

async fn receive(State(shared): State<Arc<HeldReceiverState>>, headers: HeaderMap) -> StatusCode {
    /// Also if the caller closes the connection.
    struct Ended(Arc<HeldReceiverState>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.in_progress.fetch_sub(1, Relaxed);
        }
    }
    let trigger = headers["x-trigger-id"].to_str().unwrap().to_owned();
    let hold = (shared.hold)(&trigger);
    shared.in_progress.fetch_add(1, Relaxed);
    let ended = Ended(Arc::clone(&shared));
    let mut released = shared.released.subscribe();
    shared.calls.lock().unwrap().entry(trigger).or_default().push(clock::now_ms());
    if !hold.is_zero() {
        let _released = tokio::time::timeout(hold, released.changed()).await;
    }
    drop(ended);
    shared.status
}
