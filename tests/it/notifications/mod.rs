//! Notifications: an outage of a receiver, real dead letters and circuits, and what those who want
//! to know are notified: by mail to a server, and by a signed webhook. How often each letter and
//! each circuit is reported is judged while notifiers end and are killed, and after the offsets of
//! their group were deleted, also while rights are missing.

mod failure_log;
mod group_offsets;
mod judge;
mod log_rights;
mod notifier_ends;
mod stopped_leader;
mod unknown_offsets;
mod unwritable_log;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use orloj::callers::NewSecret;
use orloj::clock;
use orloj::model::dead_letter::{Content, DeadLetter, Origin};
use orloj::model::definition::Header;
use orloj::model::outcome::{CircuitState, OutcomeKind};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::callers::{Delivery, is_signed};
use crate::endpoint::Endpoint;
use crate::mail_server::{MailServer, NAME, PASSWORD, ReceivedMail};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(90);
/// Between two messages.
const INTERVAL: Duration = Duration::from_secs(6);
/// Callbacks that fail in the first outage.
const FAILING: usize = 500;
/// Callbacks in the second one: enough to open a circuit.
const MORE: usize = 40;
/// Callbacks in an outage during which the circuit is probed again and again.
const LONG_OUTAGE: usize = 100;
/// A caller whose failures are mailed.
pub(crate) const CALLERS: &str =
    "[callers.billing.notify]\nemail = [\"ops@example.com\"]\ninterval = \"1s\"\n";

#[test]
fn an_outage_sends_one_message_and_the_next_after_the_interval() {
    let (mail, hook, endpoint) = (MailServer::start(), WebhookReceiver::start(), Endpoint::start());
    let secret = NewSecret::shared().unwrap().secret;
    let callers = format!(
        "[callers.billing]\nsecrets = [{{ secret = \"{secret}\" }}]\n[callers.billing.notify]\n\
         email = [\"ops@example.com\"]\nwebhook = \"{}\"\ninterval = \"{INTERVAL:?}\"\n",
        hook.url()
    );
    let (cluster, _folder) = cluster("notify", &mail, &callers);
    // From its first start on nothing is missed, even while none runs.
    let mut notifier = cluster.start("notifier", "notifier-0");
    notifier.wait_until_ready(READY_DEADLINE);
    notifier.terminate();

    let mut scheduler = cluster.scheduler("scheduler");
    scheduler.wait_until_ready(READY_DEADLINE);
    fail(&cluster, &endpoint, 100, "first", FAILING).terminate();
    let mut notifier = cluster.start("notifier", "notifier-1");
    notifier.wait_until_ready(READY_DEADLINE);
    let first = mail_number(&mail, 1);
    assert!(first.text.contains("Subject: 500 dead letters of billing\n"), "{}", first.text);
    assert!(first.text.contains("500  127.0.0.1: answered 500\n"), "{}", first.text);
    assert!(first.text.contains("orloj dead-letters replay --caller billing --since 20"));
    let posted = until("the webhook", DEADLINE, || hook.posted().into_iter().next());
    assert!(is_signed(&posted, &secret));
    let event: Value = serde_json::from_slice(&posted.body).unwrap();
    assert_eq!(event["type"], "orloj.failures");
    assert_eq!(event["data"]["deadLetters"], 500);

    let worker = fail(&cluster, &endpoint, 50, "second", MORE);
    let second = mail_number(&mail, 2);
    assert!(second.at - first.at >= INTERVAL, "{:?}", second.at - first.at);
    until("the mail about the open circuit", DEADLINE, || mail_with(&mail, ": not called since "));
    endpoint.recover();
    until("the mail about the closed circuit", DEADLINE, || {
        mail_with(&mail, "called again since ")
    });

    // What was sent before a graceful end is not sent again.
    notifier.terminate();
    let before = mail.received_by("ops@example.com").len();
    let mut notifier = cluster.start("notifier", "notifier-2");
    notifier.wait_until_ready(READY_DEADLINE);
    write_letter(&cluster, "billing");
    let last = mail_number(&mail, before + 1);
    assert!(last.text.contains("Subject: 1 dead letter of billing\n"), "{}", last.text);
    for process in [notifier, worker, scheduler] {
        assert!(!process.panicked() && !process.log_text().contains(PASSWORD));
        process.terminate();
    }
}

/// The circuit is probed, and opens again, every two seconds.
#[test]
fn the_next_notifier_reports_the_end_of_an_outage_and_not_its_beginning_again() {
    let (mail, endpoint) = (MailServer::start(), Endpoint::start());
    let (cluster, _folder) = cluster("notify-outage", &mail, CALLERS);
    let mut scheduler = cluster.scheduler("scheduler");
    scheduler.wait_until_ready(READY_DEADLINE);
    let mut first = cluster.start("notifier", "first");
    first.wait_until_ready(READY_DEADLINE);
    let worker = fail(&cluster, &endpoint, 50, "outage", LONG_OUTAGE);
    until("the mail about the open circuit", DEADLINE, || mail_with(&mail, ": not called since "));
    first.terminate();
    let before = mail.received_by("ops@example.com").len();

    let mut second = cluster.start("notifier", "second");
    second.wait_until_ready(READY_DEADLINE);
    let opened = openings(&cluster);
    until("the circuit to open again", DEADLINE, || (openings(&cluster) > opened).then_some(()));
    endpoint.recover();
    until("the mail about the closed circuit", DEADLINE, || {
        mail_with(&mail, ": called again since ")
    });
    let mails = mail.received_by("ops@example.com");
    let repeated = |mail: &&ReceivedMail| mail.text.contains(": not called since ");
    assert_eq!(mails[before..].iter().find(repeated).map(|mail| mail.text.as_str()), None);
    for process in [second, worker, scheduler] {
        process.terminate();
    }
}

/// How often a circuit has opened.
fn openings(cluster: &TestCluster) -> usize {
    let is_open = |kind: &OutcomeKind| match kind {
        OutcomeKind::Circuit(circuit) => circuit.state == CircuitState::Open,
        _ => false,
    };
    cluster.outcomes().iter().filter(|outcome| is_open(&outcome.kind)).count()
}

#[test]
fn undelivered_notifications_are_sent_by_the_next_notifier_and_delay_no_others() {
    let mail = MailServer::start();
    let callers = ["later", "unknown", "well"]
        .map(|name| format!("[callers.{name}]\nnotify.email = [\"{name}@example.com\"]\n"));
    let (cluster, _folder) = cluster("notify-crash", &mail, &callers.concat());
    let mut both = ["one", "other"].map(|name| cluster.start("notifier", name));
    both.iter_mut().for_each(|notifier| notifier.wait_until_ready(READY_DEADLINE));
    for caller in ["later", "unknown", "well", "later", "unlisted"] {
        write_letter(&cluster, caller);
    }
    let sent = |to: &str| mail.received_by(&format!("{to}@example.com"));
    until("the reachable recipients to be notified", DEADLINE, || {
        (!sent("well").is_empty() && !sent("operator").is_empty()).then_some(())
    });
    assert!(sent("operator")[0].text.contains("Subject: 1 dead letter of no caller\n"));
    let says = |notifier: &OrlojProcess, words: &str| notifier.log_text().contains(words);
    until("the others' failures to be said", DEADLINE, || {
        let said = |words| both.iter().any(|notifier| says(notifier, words));
        (said("notification given up") && said("notification failed; retrying")).then_some(())
    });
    assert!(sent("later").is_empty() && sent("unknown").is_empty());

    let leads =
        both.iter().position(|notifier| says(notifier, "notification failed; retrying")).unwrap();
    let [one, other] = both;
    let (leader, next) = if leads == 0 { (one, other) } else { (other, one) };
    leader.kill();
    mail.recover();
    let sent_again = until("the next notification", DEADLINE, || sent("later").into_iter().next());
    assert!(sent_again.text.contains("Subject: 2 dead letters of later\n"), "{}", sent_again.text);
    assert!(!next.panicked());
    next.terminate();
}

/// An installation whose notifiers reach `mail`, and the folder of its callers.
fn cluster(test: &str, mail: &MailServer, callers: &str) -> (TestCluster, TempDir) {
    with_notifiers(TestCluster::new(test), mail, callers)
}

/// The same, of an installation that is there.
pub(crate) fn with_notifiers(
    cluster: TestCluster,
    mail: &MailServer,
    callers: &str,
) -> (TestCluster, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("callers.toml");
    std::fs::write(&file, callers).unwrap();
    let mut cluster = cluster
        .set("callers.file", file.to_str().unwrap())
        .set("worker.allow_addresses", "any")
        .set("worker.retry_delays", Vec::<String>::new())
        .set("worker.circuit_open_duration", "2s")
        .set("worker.circuit_probes", 1)
        .set("notifier.smtp_url", mail.url())
        .set("notifier.smtp_username", NAME)
        .set("notifier.operator_email", vec!["operator@example.com"])
        .set("notifier.batch_delay", "3s");
    cluster.settings = cluster.settings.environment("ORLOJ_NOTIFIER__SMTP_PASSWORD", PASSWORD);
    (cluster, folder)
}

/// Starts a worker whose circuits open at so many percent of failures, and has so many callbacks
/// of billing fail: until all are dead, or a circuit holds the rest.
fn fail(
    cluster: &TestCluster,
    endpoint: &Endpoint,
    percent: i64,
    name: &str,
    count: usize,
) -> OrlojProcess {
    let settings = cluster.settings.clone().set("worker.circuit_failures_percent", percent);
    // So few at once that some are left when the circuit opens.
    let settings = settings.set("worker.caller_in_flight_max", 5);
    let mut worker = OrlojProcess::start("worker", name, &settings, "");
    worker.wait_until_ready(READY_DEADLINE);
    let (client, url) = (cluster.client(), endpoint.url("broken"));
    let before = cluster.dead_letters().len();
    for n in 0..count {
        client.register_callback(&format!("{name}-{n}"), clock::now_ms(), &url, "billing");
    }
    let dead = if percent == 100 { count } else { 20 };
    until("callbacks to be given up", DEADLINE, || {
        (cluster.dead_letters().len() >= before + dead).then_some(())
    });
    worker
}

fn mail_number(mail: &MailServer, number: usize) -> ReceivedMail {
    until(&format!("mail number {number}"), DEADLINE, || {
        mail.received_by("ops@example.com").into_iter().nth(number - 1)
    })
}

fn mail_with(mail: &MailServer, words: &str) -> Option<()> {
    mail.received_by("ops@example.com").iter().any(|mail| mail.text.contains(words)).then_some(())
}

/// Writes a dead letter of a caller.
pub(crate) fn write_letter(cluster: &TestCluster, caller: &str) {
    let letter = new_letter(caller, "nothing says when");
    let producer: BaseProducer = cluster.kafka().create().unwrap();
    let (topic, value) =
        (cluster.names.dead_letters(), cluster.schemas.encode_dead_letter(&letter));
    let record = BaseRecord::to(&topic).key("order-7").payload(&value[..]);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(DEADLINE).unwrap();
}

/// A dead letter of a caller, as a scheduler writes it of a record that it cannot read.
fn new_letter(caller: &str, reason: &str) -> DeadLetter {
    let caller = Header { name: "orloj-caller".into(), value: Some(caller.to_owned().into()) };
    let (key, headers) = (Some("order-7".into()), vec![caller]);
    DeadLetter {
        origin: Origin { topic: "triggers".into(), partition: 0, offset: 1 },
        reason: reason.to_owned(),
        at: clock::now_ms(),
        content: Content::Record { key, value: None, headers },
    }
}

/// Where webhooks arrive.
struct WebhookReceiver {
    address: std::net::SocketAddr,
    posted: PostedDeliveries,
    _runtime: Runtime,
}

type PostedDeliveries = Arc<Mutex<Vec<Delivery>>>;

impl WebhookReceiver {
    fn start() -> Self {
        let (runtime, posted) = (Runtime::new().unwrap(), PostedDeliveries::default());
        let routes = Router::new().route("/hook", post(receive)).with_state(Arc::clone(&posted));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { axum::serve(listener, routes).await.unwrap() });
        Self { address, posted, _runtime: runtime }
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    fn posted(&self) -> Vec<Delivery> {
        self.posted.lock().unwrap().clone()
    }
}

async fn receive(State(posted): State<PostedDeliveries>, headers: HeaderMap, body: Bytes) {
    posted.lock().unwrap().push(Delivery { headers, body });
}
