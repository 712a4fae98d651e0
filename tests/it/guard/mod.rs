//! The address guard over real sockets: the production client, a resolver that lies, and a counter
//! that must not see a single connection.

mod cases;
mod fixture;

use std::process::Command;
use std::time::Duration;

use orloj::model::callback_url;
use orloj::worker::disposition::CallbackResponse;
use reqwest::Url;
use tokio::time::timeout;

use cases::{NAME_CASES, RefusalPoint, URL_CASES};
use fixture::{ALLOWED, AllowedReceiver, ConnectionCounter, GuardFixture, settings};

const DEADLINE: Duration = Duration::from_secs(10);
/// Every address of this machine, of both kinds.
const EVERYWHERE: &str = "[::]:0";

#[tokio::test(flavor = "multi_thread")]
async fn no_request_reaches_a_forbidden_address() {
    let counter = ConnectionCounter::listen(EVERYWHERE);
    let receiver = AllowedReceiver::start("http://127.0.0.1/".to_owned()).await;
    let subject = GuardFixture::new(&settings(&[]));
    subject.resolver.set("receiver.test", &[ALLOWED]);
    subject.resolver.set("public.test", &[ALLOWED]);
    let mut tried = 0;

    for (refused, urls) in URL_CASES {
        for url in *urls {
            let url = url.replace("{c}", &counter.port().to_string());
            assert_admitted(&subject, &url, *refused).await;
            assert_refused(&subject, &url).await;
            tried += 1;
        }
    }
    for (refused, name, registered, called) in NAME_CASES {
        let url = format!("http://{name}:{}/", counter.port());
        subject.resolver.set(name, registered);
        assert_admitted(&subject, &url, *refused).await;
        subject.resolver.set(name, called);
        assert_refused(&subject, &url).await;
        tried += 1;
    }
    assert_eq!(counter.connections(), 0);
    assert!(tried >= 100, "{tried}");

    // All that is refused would have been made: what is allowed is.
    for host in [ALLOWED, "receiver.test", "[::ffff:127.0.0.2]"] {
        let url = format!("http://{host}:{}/200", receiver.address.port());
        assert_eq!(subject.registrar.check_and_resolve(&url, None, DEADLINE).await, Ok(()));
        assert!(answered(&subject.call(&url).await) == Some(200), "{url}");
    }
    assert_eq!(receiver.count(), 3);
}

async fn assert_admitted(subject: &GuardFixture, url: &str, refused: RefusalPoint) {
    let by_bytes = callback_url::parse(url);
    assert_eq!(by_bytes.is_err(), refused == RefusalPoint::Always, "{url:?}: {by_bytes:?}");
    let admitted = subject.registrar.check_and_resolve(url, None, DEADLINE).await;
    assert_eq!(admitted.is_ok(), refused == RefusalPoint::AtConnect, "{url:?}: {admitted:?}");
}

async fn assert_refused(subject: &GuardFixture, url: &str) {
    let reply = subject.call(url).await;
    assert!(matches!(reply, CallbackResponse::Unsendable(_)), "{url:?}: {reply:?}");
}

fn answered(reply: &CallbackResponse) -> Option<u16> {
    reply.status()
}

/// Why the receiver was not contacted.
fn not_contacted(reply: CallbackResponse) -> String {
    let CallbackResponse::NotContacted(reason) = reply else { panic!("{reply:?}") };
    reason
}

/// Without the guard the counter does see connections for the same URLs and the same resolver.
#[tokio::test(flavor = "multi_thread")]
async fn allowed_requests_are_counted() {
    let counter = ConnectionCounter::listen(EVERYWHERE);
    let subject = GuardFixture::new(&settings(&["worker.allow_addresses=any".to_owned()]));
    subject.resolver.set("localhost", &["127.0.0.1"]);
    subject.resolver.set("v6.test", &["::1"]);
    let hosts = [
        "127.0.0.1",
        "127.0.0.3",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "v6.test",
    ];
    for host in hosts {
        let reply = subject.call(&format!("http://{host}:{}/", counter.port())).await;
        assert!(matches!(reply, CallbackResponse::NoResponse(_)), "{host}: {reply:?}");
    }
    assert_eq!(counter.connections(), hosts.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_not_followed() {
    let counter = ConnectionCounter::listen(EVERYWHERE);
    let at = counter.port();
    let subject = GuardFixture::new(&settings(&[]));
    subject.resolver.set("localhost", &["127.0.0.1"]);
    for to in ["http://127.0.0.1", "http://localhost", "//127.0.0.1", "http://127.0.0.2"] {
        let receiver = AllowedReceiver::start(format!("{to}:{at}/")).await;
        for status in [300, 301, 302, 303, 305, 307, 308] {
            let url = format!("http://{}/{status}", receiver.address);
            assert_eq!(answered(&subject.call(&url).await), Some(status), "{url} to {to}");
        }
        // What such an answer names is not taken up by a later request either.
        let url = format!("http://{}/200", receiver.address);
        assert_eq!(answered(&subject.call(&url).await), Some(200));
    }
    assert_eq!(counter.connections(), 0);
}

/// A kept connection leads where it was judged, whatever its name means since. A new one is judged
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_dns_answer_moves_no_connection() {
    let receiver = AllowedReceiver::start(String::new()).await;
    let port = receiver.address.port();
    let counter = ConnectionCounter::listen(&format!("127.0.0.1:{port}"));
    let subject = GuardFixture::new(&settings(&[]));
    let url = format!("http://moving.test:{port}/200");
    // A connection is kept a moment after its answer was read.
    let mut reused = false;
    for _ in 0..1_000 {
        subject.resolver.set("moving.test", &[ALLOWED]);
        assert_eq!(answered(&subject.call(&url).await), Some(200));
        subject.resolver.set("moving.test", &["127.0.0.1"]);
        let before = receiver.count();
        match subject.call(&url).await {
            CallbackResponse::Answered { status: 200, .. } => {
                reused = receiver.count() == before + 1
            }
            CallbackResponse::Unsendable(_) => {}
            other => panic!("{other:?}"),
        }
        if reused {
            break;
        }
    }
    assert!(reused, "no connection was ever kept");
    // Another host at the same port is another connection, even of the same address.
    subject.resolver.set("other.test", &["127.0.0.1"]);
    assert_refused(&subject, &format!("http://other.test:{port}/200")).await;
    assert_eq!(counter.connections(), 0);
}

/// Names without an answer delay their own caller only, and only where it needs names.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_do_not_resolve_delay_no_other_caller() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("callers.toml");
    std::fs::write(&file, "[callers.unlucky]\n[callers.other]\n").unwrap();
    let subject = GuardFixture::new(&settings(&[
        format!("callers.file={}", file.display()),
        "worker.dns_lookups_max=4".to_owned(), // one for each caller
        "worker.connect_timeout=300ms".to_owned(),
    ]));
    let receiver = AllowedReceiver::start(String::new()).await;
    subject.resolver.set("receiver.test", &[ALLOWED]);
    let named = format!("http://receiver.test:{}/200", receiver.address.port());
    let literal = format!("http://{}/200", receiver.address);
    let why = |reply: CallbackResponse| match reply {
        CallbackResponse::NoResponse(reason) => reason,
        other => panic!("{other:?}"),
    };

    let reason = why(subject.call_of("unlucky", "http://a.silent.test/").await);
    assert_eq!(reason, "timed out: no connection within 300ms");
    // The look-up goes on, and is all that this caller may have.
    let reason = not_contacted(subject.call_of("unlucky", &named).await);
    assert!(reason.starts_with("timed out: ") && reason.contains("dns_lookups_max"), "{reason}");
    assert_eq!(answered(&subject.call_of("unlucky", &literal).await), Some(200));
    assert_eq!(answered(&subject.call_of("other", &named).await), Some(200));
}

/// Brokers, registry and our own listeners, under a policy that allows everything else.
#[tokio::test(flavor = "multi_thread")]
async fn our_own_endpoints_are_never_called() {
    let counter = ConnectionCounter::listen(EVERYWHERE);
    let at = counter.port();
    let same = ["127.0.0.1", "127.0.0.3", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]"];
    for ours in [
        format!("kafka.bootstrap.servers=elsewhere.test:9093, SASL_SSL://127.0.0.1:{at}"),
        format!("kafka.bootstrap.servers=ours.test:{at}"),
        format!("triggers.registry_url=http://ours.test:{at}/registry"),
        format!("gateway.listen=127.0.0.1:{at}"),
        format!("worker.listen=0.0.0.0:{at}"),
        format!("scheduler.listen=[::]:{at}"),
        format!("notifier.listen=127.0.0.1:{at}"),
    ] {
        let overrides = ["worker.allow_addresses=any".to_owned(), ours.clone()];
        let subject = GuardFixture::new(&settings(&overrides));
        subject.resolver.set("ours.test", &["127.0.0.1"]);
        subject.resolver.set("alias.test", &["127.0.0.1"]);
        for host in same.iter().chain(&["alias.test"]) {
            let url = format!("http://{host}:{at}/");
            let admitted = subject.registrar.check_and_resolve(&url, None, DEADLINE).await;
            assert!(admitted.is_err(), "{ours}: {url}");
            assert_refused(&subject, &url).await;
        }
        subject.resolver.set("rebound.test", &["93.184.216.34"]);
        let url = format!("http://rebound.test:{at}/");
        assert_eq!(subject.registrar.check_and_resolve(&url, None, DEADLINE).await, Ok(()));
        subject.resolver.set("rebound.test", &["127.0.0.1"]);
        assert_refused(&subject, &url).await;
    }
    assert_eq!(counter.connections(), 0);
}

/// Before an address is called it is compared with those of our own endpoints.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_ends_in_time_although_the_name_of_our_own_endpoint_is_not_answered() {
    let receiver = AllowedReceiver::start(String::new()).await;
    let port = receiver.address.port();
    let subject = GuardFixture::new(&settings(&[
        format!("kafka.bootstrap.servers=broker.silent.test:{port}"),
        "worker.timeout=300ms".to_owned(),
        "worker.connect_timeout=200ms".to_owned(),
    ]));
    subject.resolver.set("receiver.test", &[ALLOWED]);
    for host in [ALLOWED, "receiver.test"] {
        let url = format!("http://{host}:{port}/200");
        let reply = timeout(DEADLINE, subject.call(&url)).await.unwrap();
        let reason = not_contacted(reply);
        assert!(reason.starts_with("timed out: the addresses that must not"), "{url}: {reason}");
        let admitted = subject.registrar.check_and_resolve(&url, None, Duration::from_millis(300));
        assert_eq!(
            timeout(DEADLINE, admitted).await,
            Ok(Ok(())),
            "{url} is checked when it is due"
        );
    }
    assert_eq!(receiver.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_names_of_our_own_endpoints_are_looked_up_beside_requests() {
    let receiver = AllowedReceiver::start(String::new()).await;
    let registry = format!("http://ours.test:{}/", receiver.address.port());
    let subject = GuardFixture::new(&settings(&[format!("triggers.registry_url={registry}")]));
    subject.resolver.set("ours.test", &["93.184.216.34"]);
    let url = format!("http://{}/200", receiver.address);
    assert_eq!(answered(&subject.call(&url).await), Some(200));
    subject.resolver.silence("ours.test");
    let reply = timeout(DEADLINE, subject.call(&url)).await.unwrap();
    assert_eq!(answered(&reply), Some(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_triggers_headers_neither_smuggle_nor_impersonate() {
    let receiver = AllowedReceiver::start(String::new()).await;
    let subject = GuardFixture::new(&settings(&[]));
    let url = format!("http://{}/200", receiver.address);
    let headers = [
        ("Host", "internal"),
        ("Content-Length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "x-trigger-id"),
        ("Expect", "100-continue"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Trigger-Id", "another"),
        ("x-split", "a\r\nx-injected: b"),
        ("x\r\nx-injected", "b"),
        ("traceparent", "00-1"),
    ];
    assert_eq!(answered(&subject.call_with(&url, &headers).await), Some(200));
    let requests = receiver.requests.lock().unwrap();
    let [received] = &requests[..] else { panic!("{requests:?}") };
    let mut names: Vec<_> = received.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "accept",
        "content-length",
        "content-type",
        "host",
        "traceparent",
        "user-agent",
        "webhook-id",
        "webhook-timestamp",
        "x-idempotency-key",
        "x-trigger-attempt",
        "x-trigger-id",
    ];
    assert_eq!(names, expected);
    assert_eq!(received["host"], receiver.address.to_string());
    assert_eq!(received["x-trigger-id"], "guarded");
}

/// The tests above once more, in a process whose environment names a counter as every proxy.
#[test]
fn proxies_of_the_environment_are_not_used() {
    let counter = ConnectionCounter::listen("127.0.0.1:0");
    let mut child = Command::new(std::env::current_exe().unwrap());
    for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
    {
        child.env(name, format!("http://127.0.0.1:{}", counter.port()));
    }
    let tests =
        ["guard::no_request_reaches_a_forbidden_address", "guard::redirects_are_not_followed"];
    let output = child.env_remove("NO_PROXY").env_remove("no_proxy").arg("--exact").args(tests);
    let output = output.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("2 passed"), "{said}");
    assert_eq!(counter.connections(), 0);
}

/// What a caller's base URLs do not cover is not called, and a base opens no address.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_can_call_only_its_base_urls() {
    let subject = GuardFixture::new(&settings(&[]));
    subject.resolver.set("api.test", &[ALLOWED]);
    let bases = ["https://api.test/hooks/", "http://127.0.0.1"];
    let bases = bases.map(|base| Url::parse(base).unwrap());
    let admits = async |url: &str| {
        subject.registrar.check_and_resolve(url, Some(&bases), DEADLINE).await.is_ok()
    };
    assert!(admits("https://api.test/hooks/7").await);
    assert!(!admits("https://api.test/other").await);
    assert!(!admits("http://api.test/hooks/7").await);
    assert!(!admits("http://127.0.0.1/").await, "a base URL is no way around the policy");
}
