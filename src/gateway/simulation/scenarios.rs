//! Answers of gateways whose views are behind, step by step: what no random run would wait for.
//!
//! Invariant: a view reads only when a test says so, and an owner decides whatever is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::SharedParts;
use super::explain::Operation;
use super::explain::requests::PlannedRequest;
use super::gateway::SimulatedGateway;
use super::run::send;
use super::topics::SimulatedTopics;
use crate::clock;
use crate::model::Timestamp;
use crate::model::time::format_time;

/// How long a read waits here for a view that does not read.
const VIEW_WAIT_MAX: Duration = Duration::from_millis(300);
/// A request that is not answered by then waits for something that does not happen.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// Two gateways.
struct Scenario<'a> {
    topics: SimulatedTopics<'a>,
    gateways: Vec<SimulatedGateway>,
    clock: Arc<AtomicU64>,
    /// Whether owners decide what is written.
    has_owner: bool,
    /// Whether the view of a gateway reads while a request waits.
    reads: bool,
    _folder: TempDir,
}

impl<'a> Scenario<'a> {
    fn new(shared: &'a SharedParts) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicU64::new(clock::now_ms() / 1_000 * 1_000));
        let start = |number: usize| {
            let dir = folder.path().join(number.to_string());
            SimulatedGateway::start(shared, number, &dir, &clock)
        };
        let gateways = (0..2).map(start).collect();
        let topics = SimulatedTopics::new(shared);
        Self { topics, gateways, clock, has_owner: true, reads: false, _folder: folder }
    }

    fn now(&self) -> Timestamp {
        self.clock.load(Relaxed)
    }

    /// Time passes, and owners fire what is due.
    fn pass(&mut self, ms: Timestamp) {
        let _before = self.clock.fetch_add(ms, Relaxed);
        if self.has_owner {
            self.topics.decide(self.now());
        }
    }

    /// The view of a gateway reads everything.
    fn read(&mut self, gateway: usize) {
        let now = self.now();
        self.gateways[gateway].read_topics(&self.topics, now, |count| count);
    }

    /// Sends a request; what it writes is decided and answered at once.
    async fn ask(&mut self, gateway: usize, planned: PlannedRequest) -> (u16, Value) {
        let router = self.gateways[gateway].router.clone();
        let mut answer = tokio::spawn(send(router, planned.clone()));
        let started = clock::monotonic();
        while !answer.is_finished() {
            assert!(clock::monotonic() - started < ANSWERED_WITHIN, "{planned:?} has no answer");
            while let Some(write) = self.gateways[gateway].next_write() {
                let now = self.now();
                let offset = self.topics.append(&write.submission, now);
                write.acknowledge(Some(offset));
            }
            if self.has_owner {
                self.topics.decide(self.now());
            }
            self.gateways[gateway].deliver(&self.topics, usize::MAX);
            if self.reads {
                self.pass(1);
                self.read(gateway);
            }
            tokio::task::yield_now().await;
        }
        (&mut answer).await.unwrap()
    }

    async fn get(&mut self, gateway: usize, path: &str) -> (u16, Value) {
        self.ask(gateway, request("GET", path, None)).await
    }

    async fn post(&mut self, gateway: usize, path: &str, body: Value) -> (u16, Value) {
        self.ask(gateway, request("POST", path, Some(body))).await
    }

    /// The first gateway registers the trigger tea, which is due in an hour.
    async fn register_tea(&mut self) {
        let body = json!({"triggerId": "tea", "topic": "out", "delaySeconds": 3_600});
        assert_eq!(self.post(0, "/v1/triggers", body).await.0, 201);
    }

    async fn create_with_key(&mut self, gateway: usize, key: &str, body: &Value) -> (u16, Value) {
        let planned = request("POST", "/v1/triggers", Some(body.clone()));
        let headers = vec![("idempotency-key", format!("\"{key}\""))];
        self.ask(gateway, PlannedRequest { headers, ..planned }).await
    }
}

fn request(method: &'static str, path: &str, body: Option<Value>) -> PlannedRequest {
    let parts = vec![(String::new(), Operation::Get)];
    PlannedRequest { parts, method, path: path.to_owned(), headers: Vec::new(), body }
}

fn run(test: impl AsyncFnOnce(Scenario<'_>)) {
    let runtime = super::runtime();
    let _entered = runtime.enter();
    let shared = SharedParts::new(VIEW_WAIT_MAX);
    runtime.block_on(test(Scenario::new(&shared)));
}

/// What makes an answer: its status and its code.
fn outline((status, body): &(u16, Value)) -> (u16, &str) {
    (*status, body["code"].as_str().unwrap_or_default())
}

/// The second gateway reads the topics from their start, as each does after an upgrade.
#[test]
fn a_repetition_is_not_refused_by_a_view_that_is_behind() {
    run(async |mut scenario| {
        let fire_at = format_time(scenario.now() + 1_000);
        let body = json!({"topic": "out", "fireAt": fire_at});
        let first = scenario.create_with_key(0, "a", &body).await;
        assert_eq!(first.0, 201, "{first:?}");
        scenario.pass(5_000);
        let early = scenario.create_with_key(1, "a", &body).await;
        assert_eq!(outline(&early), (503, "unavailable"), "{early:?}");
        assert_eq!(early.1["mayBeWritten"], true);
        scenario.read(1);
        let again = scenario.create_with_key(1, "a", &body).await;
        assert_eq!(again, first);
    });
}

/// The record of the first request may still be on its way when its time has passed.
#[test]
fn a_time_that_has_passed_refuses_only_a_key_that_no_record_on_its_way_can_have() {
    run(async |mut scenario| {
        let body = json!({"topic": "out", "fireAt": format_time(scenario.now() - 1_000)});
        scenario.read(0);
        let early = scenario.create_with_key(0, "a", &body).await;
        assert_eq!(outline(&early), (503, "unavailable"), "{early:?}");
        scenario.pass(60_000);
        scenario.read(0);
        let late = scenario.create_with_key(0, "a", &body).await;
        assert_eq!(outline(&late), (422, "time-passed"), "{late:?}");
    });
}

/// What is written is decided later, while its partition has no owner.
#[test]
fn a_repetition_is_not_refused_before_the_first_request_is_decided() {
    run(async |mut scenario| {
        let body = json!({"topic": "out", "fireAt": format_time(scenario.now() + 1_000)});
        scenario.has_owner = false;
        let planned = request("POST", "/v1/triggers", Some(body.clone()));
        let headers = vec![("idempotency-key", "a".to_owned())];
        let router = scenario.gateways[0].router.clone();
        let first = tokio::spawn(send(router, PlannedRequest { headers, ..planned }));
        let write = loop {
            tokio::task::yield_now().await;
            if let Some(write) = scenario.gateways[0].next_write() {
                break write;
            }
        };
        let now = scenario.now();
        let _offset = scenario.topics.append(&write.submission, now);
        first.abort();
        scenario.pass(60_000);
        scenario.read(1);
        let undecided = scenario.create_with_key(1, "a", &body).await;
        assert_eq!(outline(&undecided), (503, "unavailable"), "{undecided:?}");
        scenario.has_owner = true;
        scenario.pass(1);
        scenario.read(1);
        let again = scenario.create_with_key(1, "a", &body).await;
        assert_eq!(again.0, 201, "{again:?}");
    });
}

/// A view that is rebuilt shows old rows on its way.
#[test]
fn a_read_is_not_answered_with_less_than_was_answered_before() {
    run(async |mut scenario| {
        scenario.register_tea().await;
        scenario.read(0);
        let cancelled = scenario.ask(0, request("DELETE", "/v1/triggers/tea", None)).await;
        assert_eq!(cancelled.0, 200, "{cancelled:?}");
        let paths =
            ["", "/tea", "/tea/executions", "/tea/next"].map(|of| format!("/v1/triggers{of}"));
        let others = ["/v1/circuits", "/v1/unsettled", "/v1/dead-letters", "/v1/dead-letters/0-1"];
        for path in paths.iter().map(String::as_str).chain(others) {
            let early = scenario.get(0, path).await;
            assert_eq!(outline(&early), (503, "unavailable"), "{path}: {early:?}");
        }
        scenario.read(0);
        for path in &paths {
            assert_eq!(scenario.get(0, path).await.0, 200, "{path}");
        }
        assert_eq!(scenario.get(0, "/v1/triggers/tea").await.1["status"], "CANCELLED");
    });
}

#[test]
fn a_view_that_has_never_caught_up_does_not_say_that_a_trigger_is_unknown() {
    run(async |mut scenario| {
        scenario.register_tea().await;
        let early = scenario.get(1, "/v1/triggers/tea").await;
        assert_eq!(outline(&early), (503, "unavailable"), "{early:?}");
        scenario.read(1);
        assert_eq!(scenario.get(1, "/v1/triggers/tea").await.0, 200);
        let unknown = scenario.get(1, "/v1/triggers/milk").await;
        assert_eq!(outline(&unknown), (404, "unknown-trigger"), "{unknown:?}");
    });
}

#[test]
fn after_a_fire_now_a_read_waits_until_the_trigger_is_shown_as_fired() {
    run(async |mut scenario| {
        scenario.register_tea().await;
        let called = scenario.post(0, "/v1/triggers/tea:fireNow", Value::Null).await;
        assert_eq!(called.0, 200, "{called:?}");
        scenario.read(0);
        let early = scenario.get(0, "/v1/triggers/tea").await;
        assert_eq!(outline(&early), (503, "unavailable"), "in this ms it may not have fired");
        scenario.pass(1);
        scenario.read(0);
        assert_eq!(scenario.get(0, "/v1/triggers/tea").await.1["status"], "FIRED");
    });
}

#[test]
fn a_patch_without_if_match_applies_to_what_another_gateway_has_changed() {
    run(async |mut scenario| {
        scenario.register_tea().await;
        scenario.read(0);
        scenario.read(1);
        let patch = |name: &str| request("PATCH", "/v1/triggers/tea", Some(json!({"name": name})));
        assert_eq!(scenario.ask(0, patch("green")).await.0, 200);
        let behind = scenario.ask(1, patch("black")).await;
        assert_eq!(outline(&behind), (503, "unavailable"), "{behind:?}");
        assert_eq!(behind.1["mayBeWritten"], false);
        scenario.read(1);
        let known = scenario.ask(1, patch("black")).await;
        assert_eq!(known.0, 200, "{known:?}");
        scenario.reads = true;
        let planned_again = scenario.ask(0, patch("white")).await;
        assert_eq!(planned_again.0, 200, "{planned_again:?}");
        assert_eq!(scenario.get(0, "/v1/triggers/tea").await.1["name"], "white");
        let headers = vec![("if-match", format!("\"{}\"", known.1["revision"]))];
        let conditional = PlannedRequest { headers, ..patch("red") };
        let refused = scenario.ask(0, conditional).await;
        assert_eq!(outline(&refused), (412, "generation-differs"), "{refused:?}");
    });
}
