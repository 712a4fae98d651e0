//! What each role says at `/readyz` while something fails that it needs, and while something fails
//! that it can do without: the cells of the table in `docs/operations/monitoring.md` that no other
//! test shows.
//!
//! Invariant: a role that is not ready says so itself, with 503, because a process that has died is
//! not ready either. Only a gateway that was asked to end takes no connection any more.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use orloj::model::PartitionId;
use orloj::{clock, telemetry};
use rustix::process::Signal;

use crate::endpoint::Endpoint;
use crate::faults::proxy::{END_TXN, JOIN_GROUP, LIST_OFFSETS, OFFSET_FETCH, Proxy};
use crate::fire_producer::FireProducer;
use crate::kafka_server::{KafkaServer, Options, free_ports};
use crate::notifications::write_letter;
use crate::process::OrlojProcess;
use crate::readiness::{assert_stay_ready, is_refusal, wait_for_refusal, wait_until_leading};
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::{until, within};
use crate::worker::fire_to;

const DEADLINE: Duration = Duration::from_secs(60);
/// Within so long a role says that its brokers are away, or do not answer: the table has it.
const FAILS_WITHIN: Duration = Duration::from_secs(20);
/// How much later a request goes on without which a role that starts is not ready.
const START_DELAY: Duration = Duration::from_millis(1_500);
/// A session that outlasts what the test does to the broker.
const LONG_SESSION: &str = "60s";
/// The places of a caller in a worker.
const PLACES: usize = 12;
/// Callbacks that fail: more than a circuit needs to open.
const FAILING: usize = 40;
/// A value in the form of a schema registry: zero, the number of the schema, and its fields.
const REGISTRY_VALUE: [u8; 6] = [0, 0, 0, 0, 7, 1];

/// All roles of an installation, on a broker of their own that they reach through a proxy.
struct ProxiedRoles {
    scheduler: OrlojProcess,
    worker: OrlojProcess,
    gateway: OrlojProcess,
    notifier: OrlojProcess,
    _cluster: TestCluster,
    proxy: Proxy,
    _server: KafkaServer,
}

impl ProxiedRoles {
    /// Starts one after the other. Each must say what it waits for before it is ready.
    fn start(test: &str) -> Self {
        let [listener, port] = free_ports();
        let proxied = Some([listener, port]);
        let server = KafkaServer::start(&Options { proxied, ..Options::default() });
        let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
        let kafka = [("bootstrap.servers", format!("127.0.0.1:{port}"))];
        let cluster = TestCluster::with_client(test, server.client(), &kafka)
            .set("scheduler.session_timeout", LONG_SESSION);

        proxy.hold_next(OFFSET_FETCH);
        let worker = cluster.start("worker", "worker");
        wait_for_refusal(&worker, &format!("0 of {PARTITIONS} partitions read"));
        proxy.release();

        proxy.delay(LIST_OFFSETS, START_DELAY);
        let gateway = cluster.start("gateway", "gateway");
        wait_for_refusal(&gateway, "gateway outcomes: ");

        proxy.delay(JOIN_GROUP, START_DELAY);
        let notifier = cluster.start("notifier", "notifier");
        wait_for_refusal(&notifier, "no group assignment yet");
        let scheduler = cluster.scheduler("scheduler");
        wait_for_refusal(&scheduler, "no partition is assigned yet");
        proxy.delay(JOIN_GROUP, Duration::ZERO);

        let (_cluster, _server) = (cluster, server);
        let mut roles = Self { scheduler, worker, gateway, notifier, _cluster, proxy, _server };
        roles.wait_until_ready();
        wait_until_leading(&roles.notifier);
        roles
    }

    fn all(&self) -> [&OrlojProcess; 4] {
        [&self.scheduler, &self.worker, &self.gateway, &self.notifier]
    }

    fn wait_until_ready(&mut self) {
        let Self { scheduler, worker, gateway, notifier, .. } = self;
        for role in [scheduler, worker, gateway, notifier] {
            role.wait_until_ready(READY_DEADLINE);
        }
    }

    /// Waits until all of them say at once that they are not ready.
    fn wait_until_all_refuse(&self) {
        let mut answers = Vec::new();
        let refused = within(FAILS_WITHIN, || {
            answers = Vec::from(self.all().map(OrlojProcess::readiness));
            answers.iter().all(|answer| is_refusal(answer)).then_some(())
        });
        assert!(refused.is_some(), "after {FAILS_WITHIN:?} they say {answers:#?}");
    }
}

/// Waits until the role says this of one of its parts.
fn wait_for_remark(role: &OrlojProcess, remark: &str) {
    until(&format!("the remark {remark:?}"), DEADLINE, || {
        role.readiness_of_parts().contains(remark).then_some(())
    });
}

/// A server that takes connections, as far as the kernel does, and says nothing.
fn silent_server() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// Begins a request that the gateway reads, and does not end it.
fn begin_request(gateway: &OrlojProcess) -> TcpStream {
    let mut client = TcpStream::connect(gateway.address()).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = "POST /v1/triggers HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n\
                Content-Length: 99\r\nExpect: 100-continue\r\n\r\n";
    client.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100");
    client
}

/// None of them has anything to do meanwhile.
#[test]
fn no_role_is_ready_before_it_has_started_or_while_brokers_do_not_answer_or_are_away() {
    let mut roles = ProxiedRoles::start("readiness");

    // They take connections, and answer nothing.
    roles.proxy.close();
    roles.wait_until_all_refuse();
    roles.proxy.release();
    roles.wait_until_ready();

    // They take none.
    roles.proxy.cut();
    roles.wait_until_all_refuse();
    wait_for_refusal(&roles.notifier, "notifier broker: topics cannot be read: ");
    wait_for_refusal(&roles.gateway, "gateway outcomes: outcomes cannot be read: ");
    roles.proxy.release();
    roles.wait_until_ready();
    assert!(roles.all().iter().all(|role| !role.panicked()));
}

#[test]
fn a_worker_is_ready_while_receivers_hang_and_a_circuit_is_open() {
    let (failing, hanging) = (Endpoint::start(), Endpoint::start());
    let cluster = TestCluster::new("readiness-receivers")
        .set("worker.allow_addresses", "any")
        .set("worker.caller_in_flight_max", i64::try_from(PLACES).unwrap());
    let worker = cluster.start_ready("worker", "worker");
    let fires = FireProducer::open(cluster.kafka(), &cluster.names.fires());
    let publish = |name: &str, count: usize, url: &str| {
        for n in 0..count {
            let partition = PartitionId::try_from(n).unwrap() % PARTITIONS;
            fires.publish(partition, &fire_to(&format!("{name}-{n}"), url));
        }
        fires.flush();
    };
    publish("fails", FAILING, &failing.url("broken"));
    let open_circuits = format!("{}{{state=\"open\"}}", telemetry::CIRCUITS);
    until("a circuit to open", DEADLINE, || {
        (worker.gauge(&open_circuits) == Some(1)).then_some(())
    });
    // More than their caller has places.
    publish("hangs", 2 * PLACES, &hanging.url("hang"));
    until("receivers that hang", DEADLINE, || (hanging.requests().len() == PLACES).then_some(()));
    assert_stay_ready(&[&worker]);
}

#[test]
fn a_notifier_is_ready_while_mail_and_webhooks_fail_and_its_callers_file_is_refused() {
    let (mail, hook) = (silent_server(), silent_server());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("callers.toml");
    let callers = format!(
        "[callers.billing.notify]\nemail = [\"ops@example.com\"]\nwebhook = \"http://{}/hook\"\n",
        hook.local_addr().unwrap()
    );
    fs::write(&file, callers).unwrap();
    let cluster = TestCluster::new("readiness-notifier")
        .set("callers.file", file.to_str().unwrap())
        .set("callers.reload_interval", "200ms")
        .set("worker.allow_addresses", "any")
        .set("notifier.smtp_url", format!("smtp://{}", mail.local_addr().unwrap()))
        .set("notifier.batch_delay", "100ms")
        .set("notifier.timeout", "1s");
    let notifier = cluster.start_ready("notifier", "notifier");
    wait_until_leading(&notifier);
    write_letter(&cluster, "billing");
    for channel in ["ops@example.com", "webhook at 127.0.0.1"] {
        until(&format!("{channel} to fail"), DEADLINE, || {
            let log = notifier.log_text();
            let mut failed = log.lines().filter(|line| line.contains("failed; retrying"));
            failed.any(|line| line.contains(channel)).then_some(())
        });
    }
    wait_for_remark(&notifier, "notifier mail: ready, but ");
    fs::write(&file, "[callers.billing]\nkey = []").unwrap();
    wait_for_remark(&notifier, "notifier callers: ready, but the previous callers stay in use");
    assert_stay_ready(&[&notifier]);
}

/// First the gateway cannot open the file of its view. Then it makes a new one, for which it cannot
/// read a record whose schema is in a registry that does not answer.
#[test]
fn without_a_view_or_a_schema_registry_a_gateway_and_a_scheduler_are_ready() {
    let registry = silent_server();
    let url = format!("http://{}", registry.local_addr().unwrap());
    let cluster = TestCluster::new("readiness-registry").set("triggers.registry_url", url);
    let view = cluster.data_of("gateway").join("view.sqlite");
    // A folder cannot be opened as a file.
    fs::create_dir_all(&view).unwrap();
    let mut scheduler = cluster.scheduler("scheduler");
    let gateway = cluster.start_ready("gateway", "gateway");
    scheduler.wait_until_ready(READY_DEADLINE);
    wait_for_remark(&gateway, "gateway view: ready, but the view's database: ");
    assert_stay_ready(&[&gateway]);

    let client = cluster.client();
    client.register_encoded("waits", clock::now_ms(), &REGISTRY_VALUE, b"");
    let _all = client.acknowledged();
    fs::remove_dir(&view).unwrap();
    until("a record that waits for its schema", DEADLINE, || {
        (scheduler.gauge(telemetry::PARKED) > Some(0)).then_some(())
    });
    wait_for_remark(&gateway, "gateway view: ready, but it reads the topics");
    assert_stay_ready(&[&scheduler, &gateway]);
}

#[test]
fn a_role_that_is_asked_to_end_is_not_ready_while_it_finishes_its_work() {
    let (endpoint, mail) = (Endpoint::start(), silent_server());
    mail.set_nonblocking(true).unwrap();
    let cluster = TestCluster::new("readiness-ends")
        .set("worker.allow_addresses", "any")
        .set("notifier.smtp_url", format!("smtp://{}", mail.local_addr().unwrap()))
        .set("notifier.operator_email", vec!["operator@example.com"])
        .set("notifier.batch_delay", "100ms");
    let [worker, gateway, notifier] =
        ["worker", "gateway", "notifier"].map(|role| cluster.start(role, role));
    let mut roles = [cluster.scheduler("scheduler"), worker, gateway, notifier];
    roles.iter_mut().for_each(|role| role.wait_until_ready(READY_DEADLINE));
    let [_, _, gateway, notifier] = &roles;
    wait_until_leading(notifier);

    let fires = FireProducer::open(cluster.kafka(), &cluster.names.fires());
    fires.publish(0, &fire_to("hangs", &endpoint.url("hang")));
    fires.flush();
    until("a callback in progress", DEADLINE, || (!endpoint.requests().is_empty()).then_some(()));
    write_letter(&cluster, "unlisted");
    let sending = until("a mail that is being sent", DEADLINE, || mail.accept().ok());
    let request = begin_request(gateway);

    roles.iter().for_each(|role| role.signal(Signal::TERM));
    for role in &roles {
        until("a role to end", DEADLINE, || (!role.is_ready()).then_some(()));
    }
    for role in [&roles[1], &roles[3]] {
        wait_for_refusal(role, "shutting down");
    }
    // The scheduler has nothing to wait for: another test holds its last commit up.
    for role in &mut roles[1..] {
        assert_eq!(role.exit_status(), None, "it has work to finish");
    }
    endpoint.recover();
    drop((sending, request));
    roles.iter_mut().for_each(OrlojProcess::await_end);
}

/// Its last commit waits for the answer of a broker.
#[test]
fn a_scheduler_that_is_asked_to_end_is_not_ready_until_its_last_commit_has_ended() {
    let [listener, port] = free_ports();
    let proxied = Some([listener, port]);
    let server = KafkaServer::start(&Options { proxied, ..Options::default() });
    let proxy = Proxy::start(port, format!("127.0.0.1:{listener}"));
    let kafka = [("bootstrap.servers", format!("127.0.0.1:{port}"))];
    let cluster = TestCluster::with_client("readiness-end", server.client(), &kafka)
        .set("scheduler.session_timeout", LONG_SESSION);
    let mut scheduler = cluster.scheduler("scheduler");
    scheduler.wait_until_ready(READY_DEADLINE);
    scheduler.wait_until_owner(READY_DEADLINE);
    let commits = proxy.requests(END_TXN);
    proxy.hold_next(END_TXN);
    scheduler.signal(Signal::TERM);
    until("its last commit", DEADLINE, || (proxy.requests(END_TXN) > commits).then_some(()));
    wait_for_refusal(&scheduler, "shutting down");
    assert_eq!(scheduler.exit_status(), None, "it waits for its last commit");
    proxy.release();
    scheduler.await_end();
}
