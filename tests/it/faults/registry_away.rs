//! A schema registry that is away, and one that denies access: what needs a schema waits, and
//! nothing else does.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use orloj::{clock, telemetry};

use super::background::beside;
use super::processes::{wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, recorded};
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::{until, within};

/// The schema of the producer that uses the registry.
const SCHEMA: &str = r#"{"type": "record", "name": "Trigger", "fields": [
    {"name": "fireAt", "type": "long"}, {"name": "payload", "type": "bytes"},
    {"name": "topic", "type": "string"}]}"#;
/// Its id from the beginning: all processes know it.
const KNOWN_ID: u32 = 1;
/// Its id in every second registration since the registry is away: no process knows that one.
const NEW_ID: u32 = 2;
/// From a registration until it is due, in ms.
const DELAY: u64 = 3_000;
/// So long before that it is cancelled, in ms.
const CANCEL_AHEAD: u64 = 1_500;
/// How late a trigger may be that needs no schema, in ms.
const LATE_MAX: u64 = 250;
/// Some trigger waits for its schema for as long at least, in ms.
const WAITED_MIN: u64 = 60_000;
/// From the time at which the takeover is over until what has waited for it has fired, in ms.
const CATCH_UP: u64 = 3_000;

pub(super) fn away(_: Scale) -> FaultResult {
    let registry = RegistryServer::start();
    let cluster = TestCluster::new("registry").set("triggers.registry_url", registry.url());
    let fixture = FaultFixture::from_cluster(cluster);
    let first = fixture.cluster.scheduler("first");
    let mut second = fixture.cluster.scheduler("second");
    wait_until_owned(&first, PARTITIONS as usize / 2);
    wait_until_owned(&second, PARTITIONS as usize / 2);
    let mut taken_over = (0, 0);
    let load = AvroLoad { fixture: &fixture, uses_new: AtomicBool::new(false) };
    fixture.steady_load().during(|| {
        load.during(|| {
            wait_for_ms(5_000);
            registry.answer(503);
            load.uses_new.store(true, Relaxed);
            wait_for_ms(20_000);
            taken_over.0 = clock::now_ms();
            first.kill();
            wait_until_owned(&second, PARTITIONS as usize);
            taken_over.1 = clock::now_ms() + CATCH_UP;
            let away_until = taken_over.0 + 40_000;
            wait_for_ms(away_until.saturating_sub(clock::now_ms()));
            registry.answer(401);
            second.wait_for_log("the schema registry answers 401", READY_DEADLINE);
            wait_for_ms(10_000);
            assert!(second.gauge(telemetry::PARKED) > Some(0), "{}", second.log_text());
            registry.answer(200);
            until("nothing to be parked", COMPLETION_DEADLINE, || {
                (second.gauge(telemetry::PARKED) == Some(0)).then_some(())
            });
            wait_for_ms(5_000);
        });
    });
    let takeovers = second.takeovers();
    assert!(registry.requests() > 0 && !second.panicked(), "{}", second.log_text());
    let report = fixture.settled(&mut [&mut second]);
    recorded::keep_schema(&fixture.cluster, &[KNOWN_ID, NEW_ID], SCHEMA);
    let (mut latest, mut waited, mut with_schema) = (0, 0, 0);
    for fire in fixture.cluster.fires() {
        let late = fire.visible.saturating_sub(fire.due);
        if fire.trigger.starts_with("avro-") || fire.trigger.starts_with("mixed-") {
            with_schema += 1;
            waited = waited.max(late);
        } else if !(taken_over.0..taken_over.1).contains(&fire.visible) {
            latest = latest.max(late);
        }
    }
    assert!(waited >= WAITED_MIN, "no trigger has waited for its schema longer than {waited} ms");
    assert!(latest <= LATE_MAX, "a trigger that needs no schema was {latest} ms late");
    let figures = FaultFigures::of(&report).takeovers(takeovers);
    let latest = usize::try_from(latest).unwrap();
    let figures = figures.with("late ms, others", latest);
    FaultResult::Passed(figures.with("fires with schema", with_schema))
}

/// Registrations in the wire format of the registry. Of `avro-…` two of four are cancelled; all of
/// `mixed-…` are, which are registered without a schema and replaced with one.
struct AvroLoad<'a> {
    fixture: &'a FaultFixture,
    /// Whether every second registration has a schema that is new.
    uses_new: AtomicBool,
}

impl AvroLoad<'_> {
    /// Flows for as long as `body` runs.
    fn during(&self, body: impl FnOnce()) {
        beside(|ended| self.write(ended), body).0
    }

    fn write(&self, ended: &AtomicBool) {
        let FaultFixture { client, cluster, .. } = self.fixture;
        let mut cancels = std::collections::VecDeque::new();
        for n in 0_usize.. {
            let due = clock::now_ms() + DELAY;
            let (avro, mixed) = (format!("avro-{n}"), format!("mixed-{n}"));
            let payload = format!("avro {n}");
            let is_new = n % 2 == 1 && self.uses_new.load(Relaxed);
            let schema = if is_new { NEW_ID } else { KNOWN_ID };
            let value = encode(schema, due, payload.as_bytes(), cluster.target().1);
            client.register_encoded(&avro, due, &value, payload.as_bytes());
            client.register(&mixed, due, cluster.target(), "plain", false);
            client.register_encoded(&mixed, due, &value, payload.as_bytes());
            cancels.push_back((due - CANCEL_AHEAD, mixed));
            if n % 4 < 2 {
                cancels.push_back((due - CANCEL_AHEAD, avro));
            }
            while let Some((at, id)) = cancels.front()
                && *at <= clock::now_ms()
            {
                client.cancel(id);
                let _cancelled = cancels.pop_front();
            }
            let is_over = || ended.load(Relaxed).then_some(());
            if within(Duration::from_millis(100), is_over).is_some() {
                break;
            }
        }
    }
}

/// A value as its producer's serializer writes it.
fn encode(schema: u32, due: u64, payload: &[u8], topic: &str) -> Vec<u8> {
    let mut value = vec![0];
    value.extend_from_slice(&schema.to_be_bytes());
    put_number(&mut value, due);
    for bytes in [payload, topic.as_bytes()] {
        put_number(&mut value, bytes.len() as u64);
        value.extend_from_slice(bytes);
    }
    value
}

/// A number that is not negative, as Avro's `long`.
fn put_number(value: &mut Vec<u8>, number: u64) {
    let mut rest = number << 1;
    while rest >= 0x80 {
        value.push((rest & 0x7F) as u8 | 0x80);
        rest >>= 7;
    }
    value.push(rest as u8);
}

/// A registry whose answer the case chooses.
struct RegistryServer {
    port: u16,
    status: Arc<AtomicU16>,
    requests: Arc<AtomicU16>,
}

impl RegistryServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (status, requests) = (Arc::new(AtomicU16::new(200)), Arc::<AtomicU16>::default());
        let server = Self { port, status: Arc::clone(&status), requests: Arc::clone(&requests) };
        // It ends with the process of the tests.
        let _server = thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                    head.push(byte[0]);
                }
                let status = status.load(Relaxed);
                let _before = requests.fetch_add(1, Relaxed);
                let body = match status {
                    200 => serde_json::json!({ "schema": SCHEMA }).to_string(),
                    _ => "{}".to_owned(),
                };
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _closed = stream.write_all(answer.as_bytes());
            }
        });
        server
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All further requests are answered so.
    fn answer(&self, status: u16) {
        self.status.store(status, Relaxed);
    }

    fn requests(&self) -> u16 {
        self.requests.load(Relaxed)
    }
}
