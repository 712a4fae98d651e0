//! What the guard is tested with: a resolver that answers what a test sets, a listener that must
//! see nothing, and a receiver that must be reached.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use orloj::callers::{CallerTable, Callers};
use orloj::config::{Layers, Settings};
use orloj::guard::Guard;
use orloj::model::definition::{Definition, Header, HttpTarget, Target};
use orloj::model::entry::FireId;
use orloj::model::fire::Fire;
use orloj::worker::callback::CallbackClient;
use orloj::worker::disposition::CallbackResponse;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(30);

/// Where receivers are that policy allows here: this machine by another of its addresses.
pub(crate) const ALLOWED: &str = "127.0.0.2";

/// Settings under which only [`ALLOWED`] is called on this machine.
pub(crate) fn settings(overrides: &[String]) -> Settings {
    let allowed = format!("worker.allow_addresses=[\"{ALLOWED}\"]");
    let overrides = std::iter::once(allowed).chain(overrides.iter().cloned()).collect();
    Settings::load(&Layers { overrides, ..Layers::default() }).unwrap()
}

/// A fire of a callback.
pub(crate) fn fire(url: &str, headers: &[(&str, &str)]) -> Fire {
    let header = |(name, value): &(&str, &str)| Header {
        name: (*name).into(),
        value: Some(value.as_bytes().to_vec().into()),
    };
    let trigger = "guarded".into();
    Fire {
        id: FireId { trigger, generation: 1, occurrence: 0, attempt: 1, deferral: 0 },
        scheduled: 1_000,
        fired: 1_001,
        definition: Definition {
            target: Target::from(HttpTarget::post(url)),
            payload: None,
            headers: headers.iter().map(header).collect(),
            retry: None,
            caller: None,
        },
        history: None,
        report_end: false,
        priority: 127,
    }
}

/// The production's client, and a resolver in the test's hand.
pub(crate) struct GuardFixture {
    pub(crate) resolver: Arc<TestResolver>,
    pub(crate) registrar: Guard,
    caller: CallbackClient,
}

impl GuardFixture {
    pub(crate) fn new(settings: &Settings) -> Self {
        let zone = Arc::new(TestResolver::default());
        let guard = || Guard::with_resolver(settings, Arc::clone(&zone) as Arc<dyn Resolve>);
        let callers = Callers::fixed(CallerTable::read(settings).unwrap());
        let caller = CallbackClient::new(&settings.worker, guard(), callers, None).unwrap();
        Self { registrar: guard(), caller, resolver: zone }
    }

    pub(crate) async fn call(&self, url: &str) -> CallbackResponse {
        self.caller.call(&fire(url, &[]), 0).await
    }

    pub(crate) async fn call_of(&self, caller: &str, url: &str) -> CallbackResponse {
        let mut fire = fire(url, &[]);
        fire.definition.caller = Some(caller.into());
        self.caller.call(&fire, 0).await
    }

    pub(crate) async fn call_with(&self, url: &str, headers: &[(&str, &str)]) -> CallbackResponse {
        self.caller.call(&fire(url, headers), 0).await
    }
}

/// A resolver that answers what was set last, and nothing about names under `.silent.test` and
/// those that are silent now.
#[derive(Default)]
pub(crate) struct TestResolver(Mutex<BTreeMap<String, Option<Vec<IpAddr>>>>);

impl TestResolver {
    /// No address at all: the name is unknown.
    pub(crate) fn set(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.0.lock().unwrap().insert(name.to_ascii_lowercase(), Some(addresses));
    }

    /// From now on it answers nothing about this name.
    pub(crate) fn silence(&self, name: &str) {
        self.0.lock().unwrap().insert(name.to_owned(), None);
    }
}

impl Resolve for TestResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let known = self.0.lock().unwrap().get(name.as_str()).cloned();
        if known == Some(None) || name.as_str().ends_with(".silent.test") {
            return Box::pin(std::future::pending());
        }
        let known = known.flatten().unwrap_or_default();
        Box::pin(async move {
            if known.is_empty() {
                return Err(io::Error::from(io::ErrorKind::NotFound).into());
            }
            // A resolver's port must not replace the URL's.
            let addresses = known.into_iter().map(|address| SocketAddr::new(address, 1));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

/// Listens, and counts who connects.
pub(crate) struct ConnectionCounter {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl ConnectionCounter {
    /// One that listens at `address`; `[::]:0` is every address of this machine.
    pub(crate) fn listen(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let (address, connections) =
            (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&connections);
        let _until_the_process_ends = std::thread::spawn(move || {
            // A connection is counted and closed at once.
            for _connection in listener.incoming() {
                count.fetch_add(1, SeqCst);
            }
        });
        Self { address, connections }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// The number of connections so far. We connect too: every earlier connection has been counted
    /// when we are.
    pub(crate) fn connections(&self) -> usize {
        let before = self.connections.load(SeqCst);
        let host = if self.address.ip().is_unspecified() {
            IpAddr::from([127, 0, 0, 1])
        } else {
            self.address.ip()
        };
        let _ours = TcpStream::connect((host, self.port())).unwrap();
        let count = until("the counter to count our connection", DEADLINE, || {
            let count = self.connections.load(SeqCst);
            (count > before).then_some(count)
        });
        self.connections.fetch_sub(1, SeqCst);
        count - 1
    }
}

/// A receiver at [`ALLOWED`], which redirects by the status in its path, or answers 200 with the
/// `Host` that it was called by.
pub(crate) struct AllowedReceiver {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Arc<Mutex<Vec<HeaderMap>>>,
}

impl AllowedReceiver {
    pub(crate) async fn start(redirect_to: String) -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let state = (Arc::clone(&requests), redirect_to);
        let router = Router::new().route("/{status}", axum::routing::any(answer)).with_state(state);
        let listener = tokio::net::TcpListener::bind((ALLOWED, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { address, requests }
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

type ReceiverState = (Arc<Mutex<Vec<HeaderMap>>>, String);

async fn answer(
    State((requests, redirect_to)): State<ReceiverState>,
    Path(status): Path<u16>,
    headers: HeaderMap,
) -> Response {
    requests.lock().unwrap().push(headers);
    let status = StatusCode::from_u16(status).unwrap();
    let alternative = format!("h2=\"{redirect_to}\"");
    let headers = [
        (LOCATION.as_str(), redirect_to.as_str()),
        ("refresh", &format!("0; url={redirect_to}")),
        ("alt-svc", &alternative),
        (CONTENT_TYPE.as_str(), "text/plain"),
    ];
    (status, headers.map(|(name, value)| (name.to_owned(), value.to_owned())), "").into_response()
}
