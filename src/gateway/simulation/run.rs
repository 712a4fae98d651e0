//! One run: clients and gateways, and chance, which says what happens next.
//!
//! Invariant: one thing happens at a time, and each has a ms of its own, so that the times of
//! requests and records compare.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::http::header::CONTENT_TYPE;
use serde_json::Value;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use super::SharedParts;
use super::explain::requests::{PlannedRequest, RequestPlan, resolve_keys};
use super::explain::{Inexplicable, Operation, RunTimes, SentRequest, explain};
use super::gateway::{PendingWrite, SimulatedGateway, some_of};
use super::rng::SimulationRng;
use super::topics::SimulatedTopics;
use crate::callers::ANONYMOUS;
use crate::client::Submission;
use crate::clock;
use crate::gateway::idempotency::{self, IdempotencyKey};
use crate::model::Timestamp;

/// Clients, each with one request at a time.
const CLIENTS: usize = 6;
/// How often everything is done that can be done until no request waits.
const ROUNDS_MAX: usize = 1_000;
/// From the end of the requests until what is due soon has fired, in ms.
const LAST_DUE_MS: Timestamp = 10_000;
/// How long a record that is not acknowledged may still be written, in ms.
const WRITTEN_WITHIN_MS: Timestamp = 20_000;
/// The largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A request in progress.
struct OpenRequest {
    client: usize,
    /// The place of its gateway, and the number of its process.
    gateway: usize,
    number: usize,
    planned: PlannedRequest,
    started: Timestamp,
    answer: JoinHandle<(u16, Value)>,
}

/// One run.
pub(super) struct GatewayRun<'a> {
    shared: &'a SharedParts,
    rng: SimulationRng,
    topics: SimulatedTopics<'a>,
    gateways: Vec<SimulatedGateway>,
    processes: usize,
    plan: RequestPlan,
    open: Vec<OpenRequest>,
    /// What each client sends again.
    again: Vec<Option<PlannedRequest>>,
    /// Records whose writers know, since then, that they may be written.
    unknown: Vec<(Timestamp, Submission)>,
    sent: Vec<SentRequest>,
    counts: AnswerCounts,
    /// Where the views are.
    dir: PathBuf,
    now: Timestamp,
    /// The same, for the views.
    clock: Arc<AtomicU64>,
    polls: Arc<AtomicU64>,
}

impl<'a> GatewayRun<'a> {
    pub(super) fn new(shared: &'a SharedParts, dir: &Path, seed: u64) -> Self {
        // The gateway reads the clock of the machine, too.
        let now = clock::now_ms() / 1_000 * 1_000;
        let clock = Arc::new(AtomicU64::new(now));
        let start = |number: usize| {
            SimulatedGateway::start(shared, number, &dir.join(number.to_string()), &clock)
        };
        Self {
            shared,
            rng: SimulationRng::new(seed),
            topics: SimulatedTopics::new(shared),
            gateways: (0..2).map(start).collect(),
            processes: 2,
            plan: RequestPlan::new("out"),
            open: Vec::new(),
            again: vec![None; CLIENTS],
            unknown: Vec::new(),
            sent: Vec::new(),
            counts: AnswerCounts::default(),
            now,
            dir: dir.to_owned(),
            polls: Arc::default(),
            clock,
        }
    }

    /// Sends so many requests; returns what nothing explains.
    pub(super) async fn run(mut self, requests: usize) -> (Vec<Inexplicable>, AnswerCounts) {
        let mut started = 0;
        while started < requests {
            started += self.act().await;
        }
        for _ in 0..ROUNDS_MAX {
            if self.open.is_empty() {
                break;
            }
            self.do_everything().await;
        }
        assert!(self.open.is_empty(), "requests without an answer");
        while !self.unknown.is_empty() {
            self.pass(1);
            self.write_later();
        }
        // What a batch registers is decided one time later.
        for _ in 0..3 {
            self.pass(LAST_DUE_MS);
            self.topics.decide(self.now);
        }
        let logs = self.topics.logs();
        resolve_keys(&mut self.sent, &logs);
        let times = RunTimes { slack: 0, due_by: self.now };
        let mut found = explain(&logs, &self.sent, times);
        found.extend(self.compare_views().await);
        for finding in &mut found {
            let sent = self.sent.iter().filter(|sent| sent.trigger == finding.trigger);
            let sent: Vec<_> = sent.map(|sent| format!("{sent:?}")).collect();
            let log = logs.get(&finding.trigger).cloned().unwrap_or_default();
            let records: Vec<_> = log.records.iter().map(|it| format!("{it:?}")).collect();
            let (sent, records, fires) = (sent.join("\n"), records.join("\n"), log.fires);
            let _result = write!(finding.why, "\n{sent}\n{records}\n{fires:?}");
        }
        (found, self.counts)
    }

    /// What the view of each gateway shows in the end otherwise than a second opinion, which has
    /// all records.
    async fn compare_views(&mut self) -> Vec<Inexplicable> {
        let mut found = Vec::new();
        for gateway in &mut self.gateways {
            let differences = gateway.compare_view(&self.topics, self.now).await;
            let number = gateway.number;
            found.extend(differences.into_iter().map(|(trigger, difference)| {
                let why = format!("the view of gateway {number} differs: {difference}");
                Inexplicable { trigger, why }
            }));
        }
        found
    }

    /// One thing happens. Returns how many requests have started.
    async fn act(&mut self) -> usize {
        self.pass(1);
        let gateway = self.rng.place(self.gateways.len());
        let mut started = 0;
        match self.rng.below(100) {
            0..26 => started = self.begin(gateway),
            26..46 => self.write(gateway),
            46..60 => self.topics.decide(self.now),
            60..76 => {
                let count = self.rng.place(4) + 1;
                self.gateways[gateway].deliver(&self.topics, count);
            }
            76..90 => {
                let Self { rng, topics, gateways, now, .. } = self;
                gateways[gateway].read_topics(topics, *now, |count| some_of(rng, count));
            }
            90..93 => {
                let leap = self.rng.below(1_500);
                self.pass(leap);
            }
            93..95 => self.cut(),
            95..97 => self.end_waiting(),
            97 if self.rng.one_in(3) => self.kill(gateway),
            98 => self.topics.lose_owner(self.rng.one_in(2)),
            _ => self.write_later(),
        }
        self.settle().await;
        self.collect().await;
        started
    }

    /// Everything happens that is not a loss.
    async fn do_everything(&mut self) {
        self.pass(1);
        for gateway in 0..self.gateways.len() {
            while let Some(write) = self.gateways[gateway].next_write() {
                self.write_or_lose(write, true);
            }
        }
        self.topics.decide(self.now);
        self.settle().await;
        for gateway in &mut self.gateways {
            gateway.read_topics(&self.topics, self.now, |count| count);
            gateway.deliver(&self.topics, usize::MAX);
        }
        self.settle().await;
        self.collect().await;
    }

    fn pass(&mut self, ms: Timestamp) {
        self.now += ms;
        self.clock.store(self.now, Relaxed);
    }

    fn begin(&mut self, gateway: usize) -> usize {
        let is_idle = |client: &usize| self.open.iter().all(|open| open.client != *client);
        let Some(client) = (0..CLIENTS).find(is_idle) else { return 0 };
        let rng = &mut self.rng;
        let planned = self.again[client].take();
        let planned =
            planned.unwrap_or_else(|| self.plan.next(self.now, &mut |bound| rng.below(bound)));
        let SimulatedGateway { router, number, .. } = &self.gateways[gateway];
        let answer = CountedPolls {
            polls: Arc::clone(&self.polls),
            future: Box::pin(send(router.clone(), planned.clone())),
        };
        let answer = tokio::spawn(answer);
        let (number, started) = (*number, self.now);
        self.open.push(OpenRequest { client, gateway, number, planned, started, answer });
        1
    }

    /// The next record of a gateway reaches the broker, or is lost, or its acknowledgement is.
    fn write(&mut self, gateway: usize) {
        let Some(write) = self.gateways[gateway].next_write() else { return };
        match self.rng.below(20) {
            0 if self.rng.one_in(2) => write.refuse(),
            0 => write.acknowledge(None),
            1 => {
                let _offset = self.topics.append(&write.submission, self.now);
                write.acknowledge(None);
            }
            2 => {
                self.unknown.push((self.now, write.submission.clone()));
                write.acknowledge(None);
            }
            _ => self.write_or_lose(write, true),
        }
    }

    fn write_or_lose(&mut self, write: PendingWrite, surely: bool) {
        let is_written = surely || self.rng.one_in(2);
        let offset = is_written.then(|| self.topics.append(&write.submission, self.now));
        write.acknowledge(offset);
    }

    /// A record is written after its writer knows that it may be, or not at all.
    fn write_later(&mut self) {
        if let Some((since, submission)) = self.unknown.pop()
            && self.now < since + WRITTEN_WITHIN_MS
            && self.rng.one_in(2)
        {
            let _offset = self.topics.append(&submission, self.now);
        }
    }

    /// A client closes its connection.
    fn cut(&mut self) {
        if !self.open.is_empty() {
            let cut = self.open.swap_remove(self.rng.place(self.open.len()));
            self.end(cut, None);
        }
    }

    /// An owner takes too long.
    fn end_waiting(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let open = &self.open[self.rng.place(self.open.len())];
        let PlannedRequest { parts, headers, .. } = &open.planned;
        let (trigger, operation) = &parts[self.rng.place(parts.len())];
        let key = headers.iter().find(|(name, _)| *name == idempotency::HEADER);
        let id = match (operation, key) {
            (Operation::Create { .. }, Some((_, key))) => {
                IdempotencyKey::read(key.as_bytes()).unwrap().trigger_id(ANONYMOUS)
            }
            _ => trigger.clone(),
        };
        self.gateways[open.gateway].end_waiting(&id);
    }

    /// A gateway is killed and started again.
    fn kill(&mut self, gateway: usize) {
        let (lost, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|open| open.gateway == gateway);
        self.open = open;
        lost.into_iter().for_each(|open| self.end(open, None));
        let number = self.processes;
        self.processes += 1;
        if self.rng.one_in(2) {
            self.gateways[gateway].lose_view(&self.dir.join(number.to_string()), &self.clock);
        }
        let writes = self.gateways[gateway].restart(self.shared, number, &self.topics);
        for write in writes {
            self.write_or_lose(write, false);
        }
    }

    /// Requests run until they wait for something that happens here.
    async fn settle(&self) {
        loop {
            let before = self.polls.load(Relaxed);
            // Queries that began before this one have ended when it has.
            tokio::task::spawn_blocking(|| ()).await.unwrap();
            tokio::task::yield_now().await;
            if self.polls.load(Relaxed) == before {
                return;
            }
        }
    }

    /// Clients read the answers that are there.
    async fn collect(&mut self) {
        let (done, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|open| open.answer.is_finished());
        self.open = open;
        for mut open in done {
            let answer = (&mut open.answer).await.unwrap();
            self.end(open, Some(answer));
        }
    }

    fn end(&mut self, open: OpenRequest, answer: Option<(u16, Value)>) {
        open.answer.abort();
        let OpenRequest { client, number, planned, started, .. } = open;
        let status = answer.as_ref().map(|(status, _)| *status);
        let body = answer.map(|(_, body)| body).unwrap_or_default();
        self.plan.on_answer(&planned, &body);
        self.counts.count(status, body["code"].as_str().unwrap_or_default());
        let answered = status.map(|status| (self.now, status, &body));
        self.sent.extend(planned.sent((number, started), answered));
        let is_sure = status.is_some_and(|status| ![202, 503].contains(&status));
        if !is_sure && self.rng.one_in(2) {
            self.again[client] = Some(planned);
        }
    }
}

/// Sends a request to a gateway.
pub(super) async fn send(router: Router, planned: PlannedRequest) -> (u16, Value) {
    let mut request = Request::builder().method(planned.method).uri(&planned.path);
    for (name, value) in &planned.headers {
        request = request.header(*name, value);
    }
    let body = planned.body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    let request = request.header(CONTENT_TYPE, "application/json").body(body).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Counts how often a future is polled, so that the run knows when all of them wait.
struct CountedPolls<F> {
    polls: Arc<AtomicU64>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for CountedPolls<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _before = self.polls.fetch_add(1, Relaxed);
        self.future.as_mut().poll(context)
    }
}

/// How many answers of each kind there were; 0 is none.
#[derive(Debug, Default)]
pub(super) struct AnswerCounts(BTreeMap<(u16, String), usize>);

impl AnswerCounts {
    fn count(&mut self, status: Option<u16>, code: &str) {
        *self.0.entry((status.unwrap_or(0), code.to_owned())).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (kind, count) in &other.0 {
            *self.0.entry(kind.clone()).or_default() += count;
        }
    }

    /// Every kind of answer was given.
    pub(super) fn assert_varied(&self) {
        let statuses = [0, 200, 201, 202, 404, 409, 412, 422, 503];
        let given = |status| self.0.keys().any(|(known, _)| *known == status);
        let missing: Vec<_> = statuses.into_iter().filter(|status| !given(*status)).collect();
        assert!(missing.is_empty(), "no answer had {missing:?}: {self}");
    }
}

impl fmt::Display for AnswerCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: usize = self.0.values().sum();
        write!(f, "{total} requests")?;
        for ((status, code), count) in &self.0 {
            write!(f, ", {status} {code} {count}")?;
        }
        Ok(())
    }
}
