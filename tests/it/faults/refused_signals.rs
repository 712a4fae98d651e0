//! A retry that no transaction takes: its topic refuses it for its size.
//!
//! Invariant: it becomes one dead letter, callbacks beside it are not late, and none of them is
//! made more than twice.

use std::time::Duration;

use axum::http::StatusCode;
use orloj::clock;

use super::delivered::{delivered_once, figures, lateness};
use super::held_receiver::HeldReceiver;
use super::processes::wait_for_ms;
use super::report::FaultResult;
use super::rng::FaultRng;
use super::steady_load::SteadyLoad;
use super::topic_admin::FaultTopicAdmin;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::test_producer::CALLBACK_URL_HEADER;
use crate::wait::until;

/// Callbacks a second beside it, in all partitions.
const PER_SECOND: u64 = 50;
/// The largest batch that the topic takes, in bytes, and of a payload that does not fit into it.
const SMALL: &str = "100000";
const PAYLOAD: usize = 200_000;
/// How late a callback beside it may be, in ms.
const LATE_MAX: u64 = 1_000;

pub(super) fn refused(scale: Scale) -> FaultResult {
    let rounds = match scale {
        Scale::Short => 1,
        Scale::Full => 2,
        Scale::Long => 10,
    };
    let good = HeldReceiver::start(StatusCode::OK, |_| Duration::ZERO);
    let bad = HeldReceiver::start(StatusCode::SERVICE_UNAVAILABLE, |_| Duration::ZERO);
    let cluster = TestCluster::new("refused-signals").set("worker.allow_addresses", "any");
    let fixture = FaultFixture::from_cluster(cluster);
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let worker = fixture.cluster.start_ready("worker", "worker");
    FaultTopicAdmin::of(&fixture.cluster).set(
        &fixture.cluster.names.signals(),
        "max.message.bytes",
        SMALL,
    );
    let (url, calling) = (good.url(), fixture.cluster.client());
    let target = Some((CALLBACK_URL_HEADER, url.as_str()));
    let load = SteadyLoad { per_second: PER_SECOND, other: target, ..fixture.steady_load() };
    let mut rng = FaultRng::new(7);
    load.during(|| {
        for round in 0..rounds {
            wait_for_ms(3_000);
            // It does not shrink when it is compressed.
            let digits = (0..PAYLOAD / 16).map(|_| format!("{:016x}", rng.below(u64::MAX)));
            let payload = format!("\"{}\"", digits.collect::<String>());
            let (id, to) = (format!("large-{round}"), bad.url());
            calling.register(&id, clock::now_ms(), (CALLBACK_URL_HEADER, &to), &payload, false);
            until("its dead letter", COMPLETION_DEADLINE, || {
                (fixture.cluster.dead_letters().len() > round).then_some(())
            });
        }
        wait_for_ms(2_000);
    });
    let commands = fixture.client.acknowledged();
    let _outcomes = delivered_once(&fixture.cluster, &commands, COMPLETION_DEADLINE);
    let letters = fixture.cluster.dead_letters();
    let mut refused: Vec<_> = letters.iter().map(|letter| letter.trigger().unwrap()).collect();
    refused.sort_unstable();
    let mut expected: Vec<_> = (0..rounds).map(|round| format!("large-{round}")).collect();
    expected.sort_unstable();
    assert_eq!(refused, expected);
    let good = good.calls();
    let calls: Vec<_> = good.clone().into_iter().chain(bad.calls()).collect();
    let repeated = calls.iter().filter(|(_, times)| times.len() > 1).count();
    for (trigger, times) in &calls {
        assert!(times.len() <= 2, "{trigger} was called at {times:?}");
    }
    let late = lateness(&commands, |id| good[id][0]);
    let latest = late.iter().map(|call| call.late).max().unwrap_or_default();
    print_progress(&format!("  others were {latest} ms late, and {repeated} made again"));
    assert!(latest <= LATE_MAX, "{latest} ms late; {LATE_MAX} are allowed");
    assert!(!worker.panicked(), "{}", worker.log_text());
    OrlojProcess::terminate(worker);
    scheduler.terminate();
    fixture.check_topics();
    let figures = figures(&late).with("callbacks repeated", repeated);
    FaultResult::Passed(figures.with("retries refused", rounds))
}
