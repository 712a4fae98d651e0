//! Clients that send requests one after the other, cut their connections, and repeat what was not
//! answered.
//!
//! Invariant: what is recorded of a request is what its client knows: when it began, and the answer
//! with the time when it was read.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use orloj::clock;
use reqwest::{Client, Method};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::gateways::{GatewayAddress, Gateways, ServingGateways, lock};
use crate::audit::explain::requests::{PlannedRequest, RequestPlan};
use crate::audit::explain::{Answer, SentRequest};

/// Clients at once.
const CLIENTS: u64 = 12;
/// One of so many requests is cut by its client, within so many ms.
const CUT: u64 = 10;
const CUT_MS: u64 = 40;
/// How long an answer may take at most.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A request that was sent, by trigger.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) parts: Vec<SentRequest>,
    /// Its client has closed the connection before it had the answer.
    pub(super) is_cut: bool,
}

/// The clients, and what they share.
pub(super) struct Clients {
    shared: Arc<SharedState>,
    tasks: Vec<JoinHandle<Vec<Sent>>>,
    runtime: Runtime,
}

struct SharedState {
    gateways: ServingGateways,
    plan: Mutex<(RequestPlan, ClientRng)>,
    sent: AtomicUsize,
    requests: usize,
}

/// A linear congruential generator.
struct ClientRng(u64);

impl ClientRng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

impl Clients {
    /// Sends so many requests, about triggers that fire into `topic`.
    pub(super) fn start(topic: &str, requests: usize, gateways: &Gateways) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let shared = Arc::new(SharedState {
            gateways: gateways.serving(),
            plan: Mutex::new((RequestPlan::new(topic), ClientRng(7))),
            sent: AtomicUsize::new(0),
            requests,
        });
        let tasks = (0..CLIENTS).map(|seed| runtime.spawn(run(Arc::clone(&shared), seed)));
        Self { tasks: tasks.collect(), shared, runtime }
    }

    /// How many requests were sent so far.
    pub(super) fn sent(&self) -> usize {
        self.shared.sent.load(Relaxed)
    }

    /// Waits for all answers.
    pub(super) fn join(self) -> Vec<Sent> {
        let Self { tasks, runtime, .. } = self;
        tasks.into_iter().flat_map(|task| runtime.block_on(task).unwrap()).collect()
    }
}

/// One client.
async fn run(shared: Arc<SharedState>, seed: u64) -> Vec<Sent> {
    let client = Client::builder().timeout(ANSWER_MAX).build().unwrap();
    let mut rng = ClientRng(seed);
    let (mut all, mut again) = (Vec::new(), None);
    while shared.sent.fetch_add(1, Relaxed) < shared.requests {
        let planned = again.take().unwrap_or_else(|| {
            let mut plan = lock(&shared.plan);
            let (plan, rng) = &mut *plan;
            plan.next(clock::now_ms(), &mut |bound| rng.below(bound))
        });
        let gateway = {
            let serving = lock(&shared.gateways);
            let place = usize::try_from(rng.below(serving.len() as u64)).unwrap();
            serving[place].clone()
        };
        let cut_after = (rng.below(CUT) == 0).then(|| rng.below(CUT_MS));
        let (sent, body) = send(&client, &gateway, &planned, cut_after).await;
        if !sent.is_definite() && rng.below(2) == 0 {
            again = Some(planned.clone());
        }
        lock(&shared.plan).0.on_answer(&planned, &body);
        all.push(sent);
    }
    all
}

async fn send(
    client: &Client,
    gateway: &GatewayAddress,
    planned: &PlannedRequest,
    cut_after: Option<u64>,
) -> (Sent, Value) {
    let url = format!("http://{}{}", gateway.address, planned.path);
    let method = Method::from_bytes(planned.method.as_bytes()).unwrap();
    let mut request = client.request(method, url);
    for (name, value) in &planned.headers {
        request = request.header(*name, value);
    }
    if let Some(body) = &planned.body {
        request = request.json(body);
    }
    let started = clock::now_ms();
    let answered = async {
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let body: Value = response.json().await.ok()?;
        Some((clock::now_ms(), status, body))
    };
    let time = cut_after.map_or(ANSWER_MAX, Duration::from_millis);
    let answered = tokio::time::timeout(time, answered).await;
    let is_cut = answered.is_err();
    let answered = answered.ok().flatten();
    let answer = answered.as_ref().map(|(at, status, body)| (*at, *status, body));
    let parts = planned.sent((gateway.number, started), answer);
    let body = answered.map(|(.., body)| body).unwrap_or_default();
    (Sent { parts, is_cut }, body)
}

impl Sent {
    /// Where it was sent to, when it began, and when it was answered.
    pub(super) fn times(&self) -> (usize, u64, Option<u64>) {
        let SentRequest { gateway, started, answer, .. } = &self.parts[0];
        (*gateway, *started, answer.as_ref().map(|(at, _)| *at))
    }

    /// Whether the answer says what was done.
    pub(super) fn is_definite(&self) -> bool {
        self.answer().is_some_and(|answer| ![202, 503].contains(&answer.status))
    }

    fn answer(&self) -> Option<&Answer> {
        self.parts[0].answer.as_ref().map(|(_, answer)| answer)
    }
}

/// How many answers of each kind there were.
pub(super) fn summary(sent: &[Sent]) -> String {
    let mut counts = BTreeMap::new();
    for request in sent {
        let answer = request.answer().map(|answer| (answer.status, &*answer.code));
        *counts.entry((answer, request.is_cut)).or_insert(0_usize) += 1;
    }
    let mut text = format!("{} requests:", sent.len());
    for ((answer, is_cut), count) in counts {
        let _written = match answer {
            Some((status, code)) => write!(text, " {status} {code} {count},"),
            None if is_cut => write!(text, " cut by the client {count},"),
            None => write!(text, " without an answer {count},"),
        };
    }
    text
}
