//! Delivery to receivers that do not behave: the whole way from a registration to a request, with
//! the real program and real sockets.
//!
//! Invariant: what `make test` runs of it is short; what is ignored there, `make test-delivery`
//! runs.

mod circuits;
mod concurrency;
mod isolation;
mod mail;
mod withdrawal;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use orloj::clock;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How an endpoint behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// It answers at once.
    Answer(u16),
    /// It answers nothing until it behaves otherwise.
    Hang,
}

/// Many endpoints at one address, `/<name>`, each with a behaviour; 200 by default.
struct BehaviourReceiver {
    address: SocketAddr,
    behaviours: watch::Sender<HashMap<String, Behaviour>>,
    state: Arc<Mutex<ReceivedCalls>>,
    _runtime: Runtime,
}

/// The requests received, in order, and which triggers got a 200.
#[derive(Default)]
struct ReceivedCalls {
    calls: Vec<ReceivedCall>,
    answered: HashSet<String>,
}

/// A received request.
#[derive(Clone, Debug)]
struct ReceivedCall {
    endpoint: String,
    trigger: String,
    attempt: u32,
    /// When it was received, in ms since the epoch.
    at: u64,
}

impl BehaviourReceiver {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let (behaviours, behaving) = watch::channel(HashMap::new());
        let seen = Arc::new(Mutex::new(ReceivedCalls::default()));
        let state = (behaving, Arc::clone(&seen));
        let routes = Router::new().route("/{name}", post(receive)).with_state(state);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, behaviours, state: seen, _runtime: runtime }
    }

    fn url(&self, endpoint: &str) -> String {
        format!("http://{}/{endpoint}", self.address)
    }

    fn set_behaviour(&self, endpoint: &str, behaviour: Behaviour) {
        self.behaviours.send_modify(|all| {
            all.insert(endpoint.to_owned(), behaviour);
        });
    }

    fn received(&self) -> MutexGuard<'_, ReceivedCalls> {
        self.state.lock().unwrap()
    }
}

type BehaviourWatch = watch::Receiver<HashMap<String, Behaviour>>;

async fn receive(
    State((mut behaving, seen)): State<(BehaviourWatch, Arc<Mutex<ReceivedCalls>>)>,
    Path(endpoint): Path<String>,
    headers: HeaderMap,
) -> StatusCode {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (trigger, attempt) = (text("x-trigger-id"), text("x-trigger-attempt").parse().unwrap());
    let (name, at) = (endpoint.clone(), clock::now_ms());
    let call = ReceivedCall { endpoint: name, trigger: trigger.clone(), attempt, at };
    seen.lock().unwrap().calls.push(call);
    let of = |all: &HashMap<String, Behaviour>| {
        all.get(&endpoint).copied().unwrap_or(Behaviour::Answer(200))
    };
    let answers = behaving.wait_for(|all| of(all) != Behaviour::Hang).await.map(|all| of(&all));
    match answers {
        Ok(Behaviour::Answer(status)) => {
            if status == 200 {
                seen.lock().unwrap().answered.insert(trigger);
            }
            StatusCode::from_u16(status).unwrap()
        }
        Ok(Behaviour::Hang) | Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
