//! Receivers that hang, lie, drip, flood and break off: what an attempt makes of each of them, and
//! what that does to the others of a worker.
//!
//! Invariant: an attempt ends by its timeout and a second, whatever the receiver does; nothing is
//! repeated underneath; memory is bounded, and the partition moves on.

mod cases;
pub(crate) mod certificates;
mod receiver;
mod worker_load;

use std::sync::Arc;
use std::time::Duration;

use orloj::callers::{CallerTable, Callers};
use orloj::clock;
use orloj::config::{Layers, Settings};
use orloj::guard::Guard;
use orloj::model::fire::Fire;
use orloj::model::limits::PAYLOAD_BYTES_MAX;
use orloj::worker::callback::CallbackClient;
use orloj::worker::disposition::CallbackResponse;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use self::cases::{CASES, ExpectedEnd, HostileCase};
use self::receiver::HostileReceiver;
use crate::test_cluster::exclusive_machine;
use crate::worker::fire_to;

/// How long an attempt may take here.
const TIMEOUT: Duration = Duration::from_secs(1);
/// By how much it may be longer.
const GRACE: Duration = Duration::from_secs(1);
/// Timers are as exact as that.
const TICK: Duration = Duration::from_millis(10);
/// Attempts one after the other, so that a connection may be used again.
const ATTEMPTS: usize = 3;

#[test]
fn every_attempt_ends_in_time_and_as_it_should() {
    let _machine = exclusive_machine();
    let (theirs, ours) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let settings = settings();
    let callers = Callers::fixed(CallerTable::read(&settings).unwrap());
    let caller =
        CallbackClient::new(&settings.worker, Guard::new(&settings), callers, None).unwrap();
    let caller = Arc::new(caller);
    let attempts = |case: &'static HostileCase| {
        let receiver = HostileReceiver::start(&theirs, case.connection, case.script);
        attempts(Arc::clone(&caller), case, receiver)
    };
    let findings = ours.block_on(async {
        let cases = CASES.iter().filter(|case| !case.needs_root());
        let all: JoinSet<_> = cases.map(attempts).collect();
        all.join_all().await.concat()
    });
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

fn settings() -> Settings {
    let timeout = format!("{}ms", TIMEOUT.as_millis());
    let overrides = vec![
        "worker.allow_addresses=any".to_owned(),
        format!("worker.timeout={timeout}"),
        format!("worker.connect_timeout={timeout}"),
    ];
    Settings::load(&Layers { overrides, ..Layers::default() }).unwrap()
}

/// What is not as it should be.
async fn attempts(
    caller: Arc<CallbackClient>,
    case: &'static HostileCase,
    receiver: HostileReceiver,
) -> Vec<String> {
    let fire = fire_at(case, &receiver, case.name);
    let mut findings = Vec::new();
    let (mut attempt, mut unreceived) = (1, 0);
    while attempt <= ATTEMPTS {
        let (started, asked) = (clock::monotonic(), receiver.requests());
        let called = caller.call(&fire, clock::now_ms());
        let reply = tokio::time::timeout(TIMEOUT + GRACE, called).await;
        let took = clock::monotonic() - started;
        let is_right = reply.as_ref().is_ok_and(|reply| case.ends_with(reply, took));
        // A connection that is kept may be closed just as it is used again: then no request was
        // received.
        let no_request_received = attempt > 1 && receiver.requests() == asked;
        if !is_right && no_request_received && unreceived < ATTEMPTS {
            unreceived += 1;
            continue;
        }
        if !is_right {
            findings.push(format!("{}, {attempt}: {reply:?} after {took:.1?}", case.name));
        }
        attempt += 1;
    }
    if receiver.requests() > ATTEMPTS {
        findings.push(format!("{}: {} requests", case.name, receiver.requests()));
    }
    findings
}

/// A fire whose callback goes there.
fn fire_at(case: &HostileCase, receiver: &HostileReceiver, trigger: &str) -> Fire {
    let mut fire = fire_to(trigger, &receiver.url);
    if case.is_huge {
        let payload = vec![b'x'; PAYLOAD_BYTES_MAX];
        fire.definition.payload = Some(payload.into());
    }
    fire
}

impl HostileCase {
    fn ends_with(&self, reply: &CallbackResponse, took: Duration) -> bool {
        let is_late = took + TICK >= TIMEOUT;
        let right_reply = match (self.end, reply) {
            (
                ExpectedEnd::Answered(wanted) | ExpectedEnd::AnsweredLate(wanted),
                CallbackResponse::Answered { status, .. },
            ) => *status == wanted,
            (
                ExpectedEnd::Race,
                CallbackResponse::Answered { status: 200, .. } | CallbackResponse::NoResponse(_),
            ) => true,
            (ExpectedEnd::Silent(words), CallbackResponse::NoResponse(reason)) => {
                reason.contains(words)
            }
            (ExpectedEnd::TimedOut, CallbackResponse::NoResponse(reason)) => {
                reason.starts_with("timed out")
            }
            _ => false,
        };
        let right_time =
            is_late == matches!(self.end, ExpectedEnd::AnsweredLate(_) | ExpectedEnd::TimedOut);
        // What was decompressed would be nothing but zeros.
        let is_as_sent = |body: &str| !self.name.starts_with("bombs") || !body.is_empty();
        let right_body = if let CallbackResponse::Answered { body, .. } = reply {
            is_as_sent(body)
        } else {
            true
        };
        right_reply && right_time && right_body
    }
}
