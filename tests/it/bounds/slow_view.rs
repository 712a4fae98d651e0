//! A gateway whose view cannot apply as fast as others write: what it has read and not applied has
//! a bound, writes are answered as ever, and reads say that they cannot be answered now.
//!
//! Invariant: clients of Kafka register triggers, always so many more than the view has applied; no
//! read is answered without what the gateway itself has written.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use orloj::{clock, telemetry};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::registrations::{CallbackRegistration, RegistrationProducer};
use super::{BoundTime, end_all, resident_memory, start_all};
use crate::faults::background::beside;
use crate::process::OrlojProcess;
use crate::test_cluster::{TestCluster, exclusive_machine};
use crate::wait::{until, within};

/// Registrations that the view has not applied: more than a client has in memory, and more than it
/// applies while a read waits.
const BEHIND: usize = 60_000;
/// Bytes of the payload of each of them.
const PAYLOAD_BYTES: usize = 2_000;
/// Written between two looks at the view.
const ROUND: usize = 2_000;
const PAUSE: Duration = Duration::from_millis(10);
/// When they are due, in ms.
const LATER: u64 = 3_600_000;
/// How long a write may take, in ms, which needs the owner's answer.
const WRITE_MS_MAX: u64 = 5_000;
/// Of the gateway, in MiB.
const MEMORY_MIB: u64 = 640;
const DEADLINE: Duration = Duration::from_secs(180);

#[test]
#[ignore = "without other tests: `make test` runs it after them"]
fn a_view_that_is_behind_costs_no_memory_and_stops_no_write() {
    let _machine = exclusive_machine();
    let time = BoundTime::or_short(15);
    let cluster = TestCluster::new("slow-view");
    let processes = start_all(&cluster, ["scheduler", "gateway"]);
    let [scheduler, gateway] = &processes;
    let clients = GatewayClients::of(gateway, cluster.target().1);
    until("the view to have caught up", DEADLINE, || {
        clients.has_read("/v1/triggers").then_some(())
    });
    let flood = RegistrationFlood::of(&cluster, gateway);
    let ((answers, memory), written) = beside(
        |ended| flood.write(ended),
        || {
            until("the view to be behind", DEADLINE, || (flood.behind() >= BEHIND).then_some(()));
            let mut requests = Vec::new();
            let watched = [("gateway", gateway), ("scheduler", scheduler)];
            let memory = resident_memory::sample_for(time.seconds, &watched, || {
                let first = requests.len();
                requests.extend((first..first + 3).map(|n| clients.request(n)));
            });
            (clients.answers(requests), memory)
        },
    );
    eprintln!("{written} registrations, {} not applied, {} answers", flood.behind(), answers.len());
    assert!(flood.behind() >= BEHIND / 2, "the view has {} registrations to apply", flood.behind());
    assert_answers(&answers);
    // The scheduler keeps what is pending, on its disk.
    resident_memory::assert_flat(&memory[..1]);
    resident_memory::assert_peak(&memory, "gateway", MEMORY_MIB);
    until("the view to catch up", DEADLINE, || clients.has_read("/v1/triggers").then_some(()));
    for answer in &answers {
        let found = clients.read(&format!("/v1/triggers/{}", answer.id));
        assert_eq!(found["status"], "PENDING", "{found}");
    }
    end_all(processes);
}

/// Writes go on, and no read is answered before the view has what was written.
fn assert_answers(answers: &[WriteAndRead]) {
    let unavailable = |read: &ReadAnswer| {
        let is_right = read.status == StatusCode::SERVICE_UNAVAILABLE && read.retry_after
            || read.status == StatusCode::OK;
        assert!(is_right, "{read:?}");
        usize::from(read.status == StatusCode::SERVICE_UNAVAILABLE)
    };
    let slowest = answers.iter().map(|answer| answer.write_ms).max().unwrap();
    let refused: usize =
        answers.iter().map(|answer| unavailable(&answer.trigger) + unavailable(&answer.list)).sum();
    eprintln!("  the slowest write took {slowest} ms; {refused} reads were answered 503");
    for answer in answers {
        assert_eq!(answer.write, StatusCode::CREATED, "{answer:?}");
        assert!(answer.write_ms <= WRITE_MS_MAX, "{answer:?}");
    }
    assert!(refused >= answers.len(), "{refused} of {} reads", 2 * answers.len());
}

/// Registrations that are due in an hour, by a client of Kafka.
struct RegistrationFlood<'a> {
    gateway: &'a OrlojProcess,
    producer: RegistrationProducer,
    written: AtomicUsize,
}

impl<'a> RegistrationFlood<'a> {
    fn of(cluster: &TestCluster, gateway: &'a OrlojProcess) -> Self {
        let (producer, written) = (RegistrationProducer::connect(cluster), AtomicUsize::new(0));
        Self { gateway, producer, written }
    }

    /// Writes until `ended`; returns how many.
    fn write(&self, ended: &AtomicBool) -> usize {
        let payload = format!("\"{}\"", "many words ".repeat(PAYLOAD_BYTES / 11));
        while !ended.load(Relaxed) {
            if self.behind() > BEHIND + ROUND {
                let _ended = within(PAUSE, || ended.load(Relaxed).then_some(()));
                continue;
            }
            let first = self.written.load(Relaxed);
            for n in first..first + ROUND {
                self.producer.register(CallbackRegistration {
                    id: &format!("flood-{n}"),
                    due: clock::now_ms() + LATER,
                    url: &format!("http://{n}.example.com/path"),
                    caller: "flood",
                    payload: payload.as_bytes(),
                });
            }
            self.written.store(first + ROUND, Relaxed);
        }
        self.producer.flush();
        self.written.load(Relaxed)
    }

    /// How many registrations the view has not applied.
    fn behind(&self) -> usize {
        let applied = format!("{}{{topic=\"triggers\"}}", telemetry::VIEW_FOLDED);
        let applied = self.gateway.gauge(&applied).unwrap_or(0);
        self.written.load(Relaxed).saturating_sub(applied)
    }
}

/// Clients of the gateway.
struct GatewayClients {
    runtime: Runtime,
    client: Client,
    base: String,
    topic: String,
}

/// What was answered to a registration, and to two reads after it.
#[derive(Debug)]
struct WriteAndRead {
    id: String,
    write: StatusCode,
    write_ms: u64,
    trigger: ReadAnswer,
    list: ReadAnswer,
}

#[derive(Debug)]
struct ReadAnswer {
    status: StatusCode,
    retry_after: bool,
}

impl ReadAnswer {
    async fn of(client: &Client, url: String) -> Self {
        let response = client.get(url).send().await.unwrap();
        let retry_after = response.headers().contains_key("retry-after");
        Self { status: response.status(), retry_after }
    }
}

impl GatewayClients {
    fn of(gateway: &OrlojProcess, topic: &str) -> Self {
        let (runtime, client) = (Runtime::new().unwrap(), Client::new());
        let base = format!("http://{}", gateway.address());
        Self { runtime, client, base, topic: topic.to_owned() }
    }

    /// Registers a trigger that is due in an hour, and looks at it and at all.
    fn request(&self, n: usize) -> JoinHandle<WriteAndRead> {
        let (client, base, id) = (self.client.clone(), self.base.clone(), format!("written-{n}"));
        let body = json!({"triggerId": id, "topic": self.topic, "delaySeconds": 3_600});
        self.runtime.spawn(async move {
            let sent = clock::now_ms();
            let write = client.post(format!("{base}/v1/triggers")).json(&body).send().await;
            let (write, write_ms) = (write.unwrap().status(), clock::now_ms() - sent);
            let trigger = ReadAnswer::of(&client, format!("{base}/v1/triggers/{id}")).await;
            let list = ReadAnswer::of(&client, format!("{base}/v1/triggers")).await;
            WriteAndRead { id, write, write_ms, trigger, list }
        })
    }

    fn answers(&self, requests: Vec<JoinHandle<WriteAndRead>>) -> Vec<WriteAndRead> {
        requests.into_iter().map(|request| self.runtime.block_on(request).unwrap()).collect()
    }

    fn has_read(&self, path: &str) -> bool {
        let response = self.client.get(format!("{}{path}", self.base)).send();
        self.runtime.block_on(response).is_ok_and(|response| response.status() == StatusCode::OK)
    }

    fn read(&self, path: &str) -> Value {
        self.runtime.block_on(async {
            let response = self.client.get(format!("{}{path}", self.base)).send().await;
            response.unwrap().json().await.unwrap()
        })
    }
}
