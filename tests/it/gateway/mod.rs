//! The gateway over real sockets: HTTP in, a record out, the owner's outcome back. The owner is
//! played by the test, so that every answer, and none, can be shown.

mod own_outcomes;

use std::sync::Arc;
use std::time::Duration;

use orloj::clock;
use orloj::codec::schemas::Schemas;
use orloj::config::{Layers, Settings};
use orloj::gateway;
use orloj::health::{self, Health};
use orloj::kafka::reader::{LogReader, ReadEvent};
use orloj::kafka::topics::TopicDefinitions;
use orloj::kafka::{Names, producer_config};
use orloj::model::outcome::{Outcome, OutcomeKind};
use orloj::model::text::Text;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use reqwest::{Client, Method, Response, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::kafka_server::{self, KafkaServer, Options, unique_prefix};
use crate::wait::{until, within};

const DEADLINE: Duration = Duration::from_secs(30);
/// More than one poll of the reader of outcomes.
const READER_ENDS: Duration = Duration::from_secs(1);

/// A gateway on a free port, and the settings it runs with.
struct RunningGateway {
    address: String,
    settings: Settings,
    shutdown: CancellationToken,
    client: Client,
    running: JoinHandle<()>,
    _view: TempDir,
}

/// A record of `triggers` as its owner sees it.
struct ReceivedRecord {
    key: String,
    value: Option<String>,
    headers: Vec<(String, String)>,
    partition: i32,
    offset: u64,
}

impl RunningGateway {
    async fn start(server: &KafkaServer, overrides: &[&str]) -> Self {
        let prefix = unique_prefix("gateway");
        let view = tempfile::tempdir().unwrap();
        let settings = [
            format!("gateway.view_dir={}", view.path().display()),
            format!("kafka.bootstrap.servers={}", server.bootstrap()),
            format!("topics.prefix={prefix}"),
            "topics.partitions=2".to_owned(),
        ];
        let overrides = overrides.iter().map(|&text| text.to_owned()).chain(settings).collect();
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let topics = &settings.topics;
        let topics = TopicDefinitions::load(&prefix, topics.partitions, topics.replication_factor);
        topics.apply_with(&server.client()).await.unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (health, shutdown) = (Health::new("gateway"), CancellationToken::new());
        let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let probes = health::routes(vec![Arc::clone(&health)], metrics.handle());
        let of_gateway = (settings.clone(), shutdown.clone());
        let running = tokio::spawn(async move {
            let (settings, shutdown) = of_gateway;
            gateway::run(&settings, listener, probes, health, shutdown).await.unwrap();
        });
        let client = Client::new();
        let gateway = Self { address, settings, shutdown, client, running, _view: view };
        gateway.until_readiness_is(StatusCode::OK).await;
        gateway
    }

    async fn until_readiness_is(&self, wanted: StatusCode) {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        let look = async {
            while self.call(Method::GET, "/readyz", None).await.status() != wanted {
                look.tick().await;
            }
        };
        let what = format!("/readyz does not become {wanted}");
        tokio::time::timeout(DEADLINE, look).await.expect(&what);
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Response {
        let request = self.client.request(method, format!("{}{path}", self.address));
        let request = match body {
            Some(body) => request.body(body.to_string()),
            None => request,
        };
        request.send().await.unwrap()
    }

    async fn register(&self, body: Value) -> Response {
        self.call(Method::POST, "/v1/triggers", Some(body)).await
    }

    async fn cancel(&self, id: &str) -> Response {
        self.call(Method::DELETE, &format!("/v1/triggers/{id}"), None).await
    }

    /// Plays the owner on a thread of its own: answers the next record with what `kind` says.
    fn play_owner(
        &self,
        kind: impl FnOnce(&ReceivedRecord) -> OutcomeKind + Send + 'static,
    ) -> std::thread::JoinHandle<ReceivedRecord> {
        self.play_owner_of_many(|seen| vec![seen.outcome(kind(seen))])
    }

    /// Plays an owner that writes these outcomes after the next record.
    fn play_owner_of_many(
        &self,
        outcomes: impl FnOnce(&ReceivedRecord) -> Vec<Outcome> + Send + 'static,
    ) -> std::thread::JoinHandle<ReceivedRecord> {
        let settings = self.settings.clone();
        let names = Names::new(&settings.topics.prefix);
        let reader = LogReader::open(&settings, "owner").unwrap();
        for partition in 0..2 {
            // A partition just made may be without a leader for a moment.
            let end = until("the end of triggers", DEADLINE, || {
                reader.last_stable_offset(&names.triggers(), partition, DEADLINE).ok()
            });
            reader.start(&names.triggers(), partition, end).unwrap();
        }
        std::thread::spawn(move || {
            let seen = next_record(&reader);
            let (schemas, topic) = (Schemas::new(), names.outcomes());
            let producer: BaseProducer = producer_config(&settings).create().unwrap();
            for outcome in outcomes(&seen) {
                let bytes = schemas.encode_outcome(&outcome);
                let record = BaseRecord::to(&topic).partition(seen.partition);
                producer
                    .send(record.key(outcome.trigger.bytes().as_ref()).payload(&bytes))
                    .unwrap();
            }
            producer.flush(DEADLINE).unwrap();
            seen
        })
    }
}

impl ReceivedRecord {
    /// The owner's outcome of it.
    fn outcome(&self, kind: OutcomeKind) -> Outcome {
        let request = self.headers.iter().find(|(name, _)| name == "orloj-request");
        Outcome {
            trigger: Text::from(self.key.as_str()),
            answers: Some(self.offset),
            request: request.map(|(_, value)| Text::from(value.as_str())),
            at: clock::now_ms(),
            kind,
        }
    }

    /// Its headers but the one that differs from record to record.
    fn instructions(&self) -> Vec<(String, String)> {
        self.headers.iter().filter(|(name, _)| name != "orloj-request").cloned().collect()
    }
}

impl Drop for RunningGateway {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn next_record(reader: &LogReader) -> ReceivedRecord {
    until("a record of triggers", DEADLINE, || {
        let Ok(Some(ReadEvent::Record(record))) = reader.poll(Duration::from_millis(100)) else {
            return None;
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some(ReceivedRecord {
            key: text(record.key().unwrap()),
            value: record.value().map(text),
            headers: record.headers().map(|(k, v)| (k.to_owned(), text(v.unwrap()))).collect(),
            partition: record.partition(),
            offset: record.offset(),
        })
    })
}

/// The status, the content type and the JSON of an answer.
async fn read(response: Response) -> (u16, String, Value) {
    let status = response.status().as_u16();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = response.bytes().await.unwrap();
    (status, kind, serde_json::from_slice(&body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_returns_the_owners_outcome() {
    let gateway =
        RunningGateway::start(kafka_server::shared(), &["worker.allow_addresses=any"]).await;
    let fire_at = 1_900_000_000_000;
    let owner = gateway.play_owner(move |seen| OutcomeKind::Accepted {
        generation: seen.offset,
        fire_at,
        replaced: None,
    });
    let answer = gateway
        .register(json!({
            "triggerId": "tea", "callbackUrl": "http://127.0.0.1:8000/x", "delaySeconds": 1.5,
            "payload": {"cups": 2}, "headers": {"traceparent": "00-1"},
        }))
        .await;
    let seen = owner.join().unwrap();
    let expected = json!({
        "triggerId": "tea", "fireAt": "2030-03-17T17:46:40Z", "generation": seen.offset,
        "revision": seen.offset,
    });
    assert_eq!(read(answer).await, (201, "application/json".to_owned(), expected));

    assert_eq!((seen.key.as_str(), seen.value.as_deref()), ("tea", Some(r#"{"cups":2}"#)));
    let headers = [
        ("orloj-delay", "1500"),
        ("orloj-callback-url", "http://127.0.0.1:8000/x"),
        ("orloj-callback-method", "POST"),
        ("traceparent", "00-1"),
        ("orloj-ack", "true"),
    ];
    assert_eq!(
        seen.instructions(),
        headers.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_way_is_answered_when_the_gateway_ends() {
    let gateway = RunningGateway::start(kafka_server::shared(), &[]).await;
    let shutdown = gateway.shutdown.clone();
    let owner = gateway.play_owner(move |seen| {
        shutdown.cancel();
        // So long that a reader of outcomes that ends with it has ended.
        let _nothing = within(READER_ENDS, || None::<()>);
        OutcomeKind::Accepted { generation: seen.offset, fire_at: 1, replaced: None }
    });
    let answer = gateway.register(json!({"topic": "t", "delaySeconds": 1})).await;
    owner.join().unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_never_ends_does_not_keep_the_gateway() {
    let mut gateway =
        RunningGateway::start(kafka_server::shared(), &["gateway.answer_timeout=1s"]).await;
    let address = gateway.address.strip_prefix("http://").unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = "POST /v1/triggers HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n\
                Content-Length: 99\r\nExpect: 100-continue\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    // It reads the body, which does not follow.
    let mut answer = [0; 12];
    let _read = client.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    gateway.shutdown.cancel();
    let ended = tokio::time::timeout(DEADLINE, &mut gateway.running).await;
    ended.expect("the gateway does not end").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_returns_the_owners_reason() {
    let gateway = RunningGateway::start(kafka_server::shared(), &[]).await;
    let owner = gateway.play_owner(|_| OutcomeKind::Rejected { reason: "too much tea".to_owned() });
    let (status, kind, problem) =
        read(gateway.register(json!({"topic": "t", "delaySeconds": 1})).await).await;
    let id = owner.join().unwrap().key;
    assert_eq!((status, kind.as_str()), (422, "application/problem+json"));
    assert_eq!((&problem["detail"], &problem["triggerId"]), (&json!("too much tea"), &json!(id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_returns_its_actual_outcome() {
    let gateway = RunningGateway::start(kafka_server::shared(), &[]).await;
    let owner = gateway.play_owner(|_| OutcomeKind::Cancelled { generation: 7 });
    let (status, _, answer) = read(gateway.cancel("green%20tea").await).await;
    let seen = owner.join().unwrap();
    assert_eq!((status, answer), (200, json!({"cancelled": true, "generation": 7})));
    assert_eq!((seen.key.as_str(), seen.value.as_deref()), ("green tea", None));
    assert_eq!(seen.instructions(), [("orloj-ack".to_owned(), "true".to_owned())]);

    let owner =
        gateway.play_owner(|_| OutcomeKind::NotPending { fired: Some(7), withdrawal: false });
    let (status, kind, problem) = read(gateway.cancel("tea").await).await;
    owner.join().unwrap();
    assert_eq!((status, kind.as_str()), (409, "application/problem+json"));
    assert_eq!((&problem["cancelled"], &problem["fired"]), (&json!(false), &json!(7)));
    assert_eq!(problem["withdrawalRequested"], json!(false));

    let owner =
        gateway.play_owner(|_| OutcomeKind::NotPending { fired: Some(7), withdrawal: true });
    let (status, _, problem) = read(gateway.cancel("tea").await).await;
    owner.join().unwrap();
    assert_eq!((status, &problem["withdrawalRequested"]), (409, &json!(true)));
    let detail = problem["detail"].as_str().unwrap();
    let outcomes = format!("{}.outcomes with the key tea", gateway.settings.topics.prefix);
    assert!(detail.contains("withdrawal requested") && detail.contains(&outcomes), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recurring_and_dependent_registrations_reach_the_owner_unchanged() {
    let gateway = RunningGateway::start(kafka_server::shared(), &[]).await;
    let accepted = |seen: &ReceivedRecord| OutcomeKind::Accepted {
        generation: seen.offset,
        fire_at: 1_900_000_000_000,
        replaced: None,
    };
    let owner = gateway.play_owner(accepted);
    let answer = gateway
        .register(json!({
            "triggerId": "report", "topic": "t", "schedule": {"daily": "09:00"}, "count": "keep",
            "retain": "7d", "priority": 200,
        }))
        .await;
    let (status, _, answer) = read(answer).await;
    assert_eq!((status, &answer["fireAt"]), (201, &json!("2030-03-17T17:46:40Z")), "{answer}");
    let headers = [
        ("orloj-schedule", r#"{"daily":"09:00"}"#),
        ("orloj-count", "keep"),
        ("orloj-retain", "7d"),
        ("orloj-priority", "200"),
        ("orloj-target-topic", "t"),
        ("orloj-ack", "true"),
    ];
    let seen = owner.join().unwrap();
    assert_eq!(
        seen.instructions(),
        headers.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );

    let owner =
        gateway.play_owner(|_| OutcomeKind::Kept { generation: 3, fire_at: 1_900_000_000_000 });
    let answer = gateway
        .register(json!({
            "triggerId": "load", "topic": "t", "onConflict": "keep", "expireAfter": "5m",
            "after": {"ids": ["a,b", "c"], "onFailure": "skip", "timeout": 60_000},
        }))
        .await;
    let kept = json!({
        "triggerId": "load", "fireAt": "2030-03-17T17:46:40Z", "generation": 3, "kept": true,
    });
    assert_eq!(read(answer).await, (200, "application/json".to_owned(), kept));
    let headers = [
        ("orloj-expire-after", "5m"),
        ("orloj-after", r#"["a,b","c"]"#),
        ("orloj-on-failure", "skip"),
        ("orloj-after-timeout", "60000"),
        ("orloj-target-topic", "t"),
        ("orloj-on-conflict", "keep"),
        ("orloj-ack", "true"),
    ];
    let seen = owner.join().unwrap();
    assert_eq!(
        seen.instructions(),
        headers.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_returns_its_actual_outcome() {
    let gateway = RunningGateway::start(kafka_server::shared(), &[]).await;
    let by_hand = || "by a command".to_owned();
    let command = async |verb: &str, kind: OutcomeKind| {
        let owner = gateway.play_owner(move |_| kind);
        let path = format!("/v1/triggers/green%20tea:{verb}");
        let answer = read(gateway.call(Method::POST, &path, None).await).await;
        let seen = owner.join().unwrap();
        assert_eq!((seen.key.as_str(), seen.value.as_deref()), ("green tea", Some("")));
        let [(name, word), (ack, _)] = &seen.instructions()[..] else {
            panic!("{:?}", seen.headers)
        };
        assert_eq!((name.as_str(), ack.as_str()), ("orloj-command", "orloj-ack"));
        (word.clone(), answer.0, answer.2)
    };
    let paused = OutcomeKind::Paused { generation: 7, reason: by_hand() };
    let expected = json!({"triggerId": "green tea", "paused": true, "generation": 7});
    assert_eq!(command("pause", paused).await, ("pause".to_owned(), 200, expected));

    let resumed = OutcomeKind::Resumed { generation: 7, fire_at: 1_900_000_000_000 };
    let fire_at = "2030-03-17T17:46:40Z";
    let expected =
        json!({"triggerId": "green tea", "resumed": true, "generation": 7, "fireAt": fire_at});
    assert_eq!(command("resume", resumed).await, ("resume".to_owned(), 200, expected));

    let called = OutcomeKind::Called { generation: 7, occurrence: 4 };
    let expected =
        json!({"triggerId": "green tea", "called": true, "generation": 7, "occurrence": 4});
    assert_eq!(command("fireNow", called).await, ("fire-now".to_owned(), 200, expected));

    let not_pending = OutcomeKind::NotPending { fired: Some(7), withdrawal: false };
    let (_, status, problem) = command("pause", not_pending).await;
    assert_eq!((status, &problem["fired"]), (409, &json!(7)), "{problem}");

    for path in ["/v1/triggers/tea:stop", "/v1/triggers/tea"] {
        let (status, kind, problem) = read(gateway.call(Method::POST, path, None).await).await;
        assert_eq!((status, kind.as_str()), (404, "application/problem+json"), "{path}");
        assert!(problem["detail"].as_str().unwrap().contains("{id}:fireNow"), "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_is_refused_before_anything_is_written() {
    let gateway = RunningGateway::start(kafka_server::shared(), &[]).await;
    let own_topic = format!("{}.ledger", gateway.settings.topics.prefix);
    let bodies = [
        (422, "/fireAt", json!({"topic": "t"})),
        (422, "/fireAt", json!({"topic": "t", "fireAt": "2020-01-01T00:00:00Z"})),
        (422, "/topic", json!({"topic": own_topic, "delaySeconds": 1})),
        (422, "/callbackUrl", json!({"callbackUrl": "tea", "delaySeconds": 1})),
        (422, "/fireAt", json!({"topic": "t", "fireAt": "9999-01-01T00:00:00Z"})),
        (400, "/delaySeconds", json!({"topic": "t", "delaySeconds": -1})),
        (422, "/triggerId", json!({"topic": "t", "delaySeconds": 1, "triggerId": ""})),
        (422, "/schedule/cron", json!({"topic": "t", "schedule": {"cron": "61 * * * *"}})),
        (422, "/schedule", json!({"topic": "t", "schedule": "daily"})),
        (422, "/fireAt", json!({"topic": "t", "schedule": {"daily": "09:00"}, "fireAt": 1})),
        (422, "/expireAfter", json!({"topic": "t", "delaySeconds": 1, "expireAfter": "soon"})),
        (422, "/after", json!({"topic": "t", "after": []})),
        (
            422,
            "/after/onFailure",
            json!({"topic": "t", "after": {"ids": ["a"], "onFailure": "no"}}),
        ),
        (422, "/count", json!({"topic": "t", "delaySeconds": 1, "count": "keep"})),
        (422, "/retain", json!({"topic": "t", "delaySeconds": 1, "retain": 0})),
        (422, "/priority", json!({"topic": "t", "delaySeconds": 1, "priority": 256})),
        (400, "/expiresAfter", json!({"topic": "t", "delaySeconds": 1, "expiresAfter": "1m"})),
        (413, "/payload", json!({"topic": "t", "delaySeconds": 1, "payload": "x".repeat(5000)})),
    ];
    for (expected, field, body) in bodies {
        let (status, kind, problem) = read(gateway.register(body).await).await;
        assert_eq!((status, kind.as_str()), (expected, "application/problem+json"), "{problem}");
        assert_eq!(problem["errors"][0]["pointer"], json!(field), "{problem}");
    }
    let too_large = json!({"payload": "x".repeat(200_000)});
    assert_eq!(gateway.register(too_large).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let nowhere = gateway.call(Method::GET, "/v1/tea", None).await;
    assert_eq!(read(nowhere).await.1, "application/problem+json");
    let wrong = gateway.call(Method::PUT, "/v1/triggers", None).await;
    assert_eq!(wrong.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_to_a_forbidden_address_is_refused_before_it_is_written() {
    let gateway =
        RunningGateway::start(kafka_server::shared(), &["gateway.answer_timeout=1s"]).await;
    let register = async |url: &str| {
        let body = json!({"callbackUrl": url, "delaySeconds": 3600});
        read(gateway.register(body).await).await
    };
    for (url, reason) in [
        ("http://127.0.0.1/", "127.0.0.1 must not be called: it is loopback"),
        ("http://localhost:8000/", "localhost must not be called: it is loopback"),
        ("https://receiver.example:22/", "port 22 must not be called"),
    ] {
        let (status, _, problem) = register(url).await;
        let pointer = &problem["errors"][0]["pointer"];
        assert_eq!((status, pointer), (422, &json!("/callbackUrl")), "{url}: {problem}");
        assert!(problem["detail"].as_str().unwrap().starts_with(reason), "{url}: {problem}");
    }
    // A receiver that cannot be resolved now may be there when it is due.
    let (status, _, answer) = register("https://not-there-yet.invalid/hook").await;
    assert_eq!(status, 202, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_broker_returns_when_to_retry() {
    let mut server = KafkaServer::start(&Options::default());
    let gateway = RunningGateway::start(&server, &["gateway.answer_timeout=2s"]).await;
    let broker = Pid::from_raw(server.process_id().cast_signed()).unwrap();
    kill_process(broker, Signal::STOP).unwrap();
    let answer = gateway.cancel("tea").await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["retry-after"], "5");
    assert_eq!(read(answer).await.2["mayBeWritten"], true, "it is sent, and not acknowledged");
    server.kill();
    gateway.until_readiness_is(StatusCode::SERVICE_UNAVAILABLE).await;
    assert_eq!(read(gateway.cancel("tea").await).await.2["mayBeWritten"], false);

    server.start_again();
    gateway.until_readiness_is(StatusCode::OK).await;
    assert_eq!(gateway.cancel("tea").await.status(), StatusCode::ACCEPTED);
}
