//! A receiver of callbacks while workers die: counts every request, and checks the count of each.
//!
//! Invariant: an attempt is repeated only if a worker died between its request and the commit of
//! its outcome; and every trigger is delivered by exactly one outcome.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use orloj::clock;
use orloj::model::fire::WorkerRecord;
use rdkafka::message::Message as _;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::delivered::{
    AttemptOutcome, REQUEST_DELAY_MAX, TriggerAttempt, delivered_once, lateness,
};
use super::report::FaultFigures;
use crate::audit::AcknowledgedCommands;
use crate::records;
use crate::test_cluster::TestCluster;

/// An endpoint that refuses the first attempt of every fifth trigger.
pub(super) struct CountingReceiver {
    address: SocketAddr,
    requests: RequestTimes,
    /// When a worker died, in ms since the epoch.
    kills: Mutex<Vec<u64>>,
    _runtime: Runtime,
}

/// When each attempt was requested, in ms since the epoch.
type RequestTimes = Arc<Mutex<HashMap<TriggerAttempt, Vec<u64>>>>;

impl CountingReceiver {
    pub(super) fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let requests = RequestTimes::default();
        let routes = Router::new().route("/", post(receive)).with_state(Arc::clone(&requests));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, requests, kills: Mutex::default(), _runtime: runtime }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// A worker has just died.
    pub(super) fn record_kill(&self) {
        self.kills.lock().unwrap_or_else(PoisonError::into_inner).push(clock::now_ms());
    }

    /// Waits until everything is delivered, and judges: a worker's death alone repeats a request.
    pub(super) fn check(
        &self,
        cluster: &TestCluster,
        commands: &AcknowledgedCommands,
        deadline: Duration,
    ) -> FaultFigures {
        let (outcomes, figures) = self.delivered(cluster, commands, deadline);
        let (repeated, open) = self.repetitions(&outcomes);
        figures.with("callbacks repeated", repeated).with("callbacks in flight at kills", open)
    }

    /// The same, if brokers die: also a transaction of a worker that fails repeats requests.
    pub(super) fn check_at_least_once(
        &self,
        cluster: &TestCluster,
        commands: &AcknowledgedCommands,
        deadline: Duration,
    ) -> FaultFigures {
        let (outcomes, figures) = self.delivered(cluster, commands, deadline);
        let requests = self.requests.lock().unwrap();
        let unrequested = outcomes.keys().find(|attempt| !requests.contains_key(*attempt));
        assert_eq!(unrequested, None, "it has an outcome and was not requested");
        let repeated = requests.values().map(|times| times.len() - 1).sum();
        figures.with("callbacks repeated", repeated)
    }

    /// Panics if an attempt was requested more than once.
    pub(super) fn assert_nothing_repeated(&self) {
        for (attempt, times) in self.requests.lock().unwrap().iter() {
            assert_eq!(times.len(), 1, "{attempt:?} was requested at {times:?}");
        }
    }

    /// Waits until everything is delivered, by one outcome for each attempt.
    fn delivered(
        &self,
        cluster: &TestCluster,
        commands: &AcknowledgedCommands,
        deadline: Duration,
    ) -> (HashMap<TriggerAttempt, AttemptOutcome>, FaultFigures) {
        let outcomes = delivered_once(cluster, commands, deadline);
        let fires = fires(cluster);
        assert!(fires.values().all(|&times| times == 1), "a fire record is there twice");
        let requests = self.requests.lock().unwrap();
        let late = lateness(commands, |id| requests[&(id.to_owned(), 1)][0]);
        let mut figures = FaultFigures::default();
        figures.count(commands.len(), fires.len());
        (outcomes, figures.late(late.into_iter().map(|call| call.late).collect()))
    }

    /// How many requests were repetitions, and how many attempts were open at a kill.
    fn repetitions(&self, outcomes: &HashMap<TriggerAttempt, AttemptOutcome>) -> (usize, usize) {
        let requests = self.requests.lock().unwrap();
        let kills = self.kills.lock().unwrap();
        let (mut repeated, mut open) = (0, 0);
        for (attempt, times) in requests.iter() {
            let ended = outcomes[attempt].at;
            let sent = |noted: u64| noted.saturating_sub(REQUEST_DELAY_MAX);
            open += kills.iter().filter(|&&kill| sent(times[0]) <= kill && kill < ended).count();
            repeated += times.len() - 1;
            for pair in times.windows(2) {
                let died = kills.iter().any(|kill| (sent(pair[0])..=pair[1]).contains(kill));
                assert!(died, "{attempt:?} requested at {pair:?} with no kill between");
            }
        }
        assert!(repeated <= open, "{repeated} repeated, {open} in flight at the kills");
        (repeated, open)
    }
}

/// How often each fire record is in the topic of the workers.
fn fires(cluster: &TestCluster) -> BTreeMap<(String, u64, u32, u32, u32), u32> {
    let mut times = BTreeMap::new();
    for record in records::read_all(cluster.kafka(), &cluster.names.fires()) {
        let record = cluster.schemas.decode_worker_record(record.payload().unwrap()).unwrap();
        let WorkerRecord::Callback(fire) = record else { continue };
        let id = fire.id;
        let of = (id.generation, id.occurrence, id.attempt, id.deferral);
        let id = (id.trigger.as_str().to_owned(), of.0, of.1, of.2, of.3);
        *times.entry(id).or_default() += 1;
    }
    times
}

async fn receive(State(requests): State<RequestTimes>, headers: HeaderMap) -> StatusCode {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let trigger = text("x-trigger-id");
    let attempt: u32 = text("x-trigger-attempt").parse().unwrap();
    let refused = attempt == 1 && trigger.ends_with(['0', '5']);
    let mut requests = requests.lock().unwrap();
    requests.entry((trigger, attempt)).or_default().push(clock::now_ms());
    if refused { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}
