//! Receivers that hang, lie, drip, flood and break off: what an attempt makes of each of them, and
//! what that does to the others of a worker.
//!
//! Law: an attempt ends by its timeout and a second, whatever the receiver does; nothing is
//! repeated underneath; memory is bounded, and the partition moves on.

mod cases;
pub(crate) mod certificates;
mod receiver;
mod siege;

use std::sync::Arc;
use std::time::Duration;

use orloj::callers::Callers;
use orloj::clock;
use orloj::config::callers::CallerTable;
use orloj::config::{Layers, Settings};
use orloj::guard::Guard;
use orloj::model::fire::Fire;
use orloj::model::limits::PAYLOAD_BYTES_MAX;
use orloj::worker::callback::Caller;
use orloj::worker::verdict::Reply;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use self::cases::{CASES, Case, End};
use self::receiver::Receiver;
use crate::stage::whole_machine;
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
    let _machine = whole_machine();
    let (theirs, ours) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let settings = settings();
    let callers = Callers::of(CallerTable::read(&settings).unwrap());
    let caller = Caller::new(&settings.worker, Guard::new(&settings), callers, None).unwrap();
    let caller = Arc::new(caller);
    let attempts = |case: &'static Case| {
        let receiver = Receiver::start(&theirs, case.door, case.script);
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
async fn attempts(caller: Arc<Caller>, case: &'static Case, receiver: Receiver) -> Vec<String> {
    let fire = fire_at(case, &receiver, case.name);
    let mut findings = Vec::new();
    let (mut attempt, mut unheard) = (1, 0);
    while attempt <= ATTEMPTS {
        let (begun, asked) = (clock::monotonic(), receiver.requests());
        let called = caller.call(&fire, clock::now_ms());
        let reply = tokio::time::timeout(TIMEOUT + GRACE, called).await;
        let took = clock::monotonic() - begun;
        let is_right = reply.as_ref().is_ok_and(|reply| case.ends_with(reply, took));
        // A connection that is kept may be closed just as it is used again: then nobody was asked.
        let nobody_asked = attempt > 1 && receiver.requests() == asked;
        if !is_right && nobody_asked && unheard < ATTEMPTS {
            unheard += 1;
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
fn fire_at(case: &Case, receiver: &Receiver, trigger: &str) -> Fire {
    let mut fire = fire_to(trigger, &receiver.url);
    if case.is_huge {
        let payload = vec![b'x'; PAYLOAD_BYTES_MAX];
        fire.definition.payload = Some(payload.into());
    }
    fire
}

impl Case {
    fn ends_with(&self, reply: &Reply, took: Duration) -> bool {
        let is_late = took + TICK >= TIMEOUT;
        let right_reply = match (self.end, reply) {
            (End::Answered(wanted) | End::AnsweredLate(wanted), Reply::Answered { status, .. }) => {
                *status == wanted
            }
            (End::Race, Reply::Answered { status: 200, .. } | Reply::Silent(_)) => true,
            (End::Silent(words), Reply::Silent(reason)) => reason.contains(words),
            (End::TimedOut, Reply::Silent(reason)) => reason.starts_with("timed out"),
            _ => false,
        };
        let right_time = is_late == matches!(self.end, End::AnsweredLate(_) | End::TimedOut);
        // What was decompressed would be nothing but zeros.
        let is_as_sent = |body: &str| !self.name.starts_with("bombs") || !body.is_empty();
        let right_body =
            if let Reply::Answered { body, .. } = reply { is_as_sent(body) } else { true };
        right_reply && right_time && right_body
    }
}
