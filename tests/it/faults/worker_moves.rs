//! Workers come and go while thousands of callbacks are in progress.
//!
//! Invariant: each callback is delivered by one outcome, and one is made again only if its
//! partition has moved since.

use std::collections::VecDeque;
use std::time::Duration;

use axum::http::StatusCode;
use xxhash_rust::xxh3::xxh3_64;

use super::assignments::{assert_only_moved_are_repeated, moves, wait_until_shared};
use super::delivered::{delivered_once, figures, lateness};
use super::held_receiver::HeldReceiver;
use super::processes::end;
use super::report::FaultResult;
use super::steady_load::SteadyLoad;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress};
use crate::fd_limit;
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::test_producer::CALLBACK_URL_HEADER;
use crate::wait::until;

/// How long a request is held, in ms: this, and as much again at most.
const HELD: u64 = 2_000;
pub(super) fn moved(scale: Scale) -> FaultResult {
    let (in_progress, rounds) = match scale {
        Scale::Short => (400, 1),
        Scale::Full => (400, 3),
        Scale::Long => (2_000, 20),
    };
    fd_limit::raise_open_files_limit(in_progress * 4);
    let receiver = HeldReceiver::start(StatusCode::OK, |trigger| {
        Duration::from_millis(HELD + xxh3_64(trigger.as_bytes()) % HELD)
    });
    let cluster = TestCluster::new("worker-moves")
        .set("worker.allow_addresses", "any")
        .set("worker.caller_in_flight_max", 10_000)
        .set("worker.caller_queue_max", 10_000);
    let fixture = FaultFixture::from_cluster(cluster);
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let start = |number: usize| fixture.cluster.start_ready("worker", &format!("worker-{number}"));
    let mut workers = VecDeque::from([start(0), start(1)]);
    let url = receiver.url();
    let load = SteadyLoad {
        // A few more than are held for the mean time.
        per_second: in_progress as u64 * 750 / HELD,
        other: Some((CALLBACK_URL_HEADER, &url)),
        ..fixture.steady_load()
    };
    let mut changes = Vec::new();
    load.during(|| {
        for round in 0..rounds {
            until("so many callbacks in progress", COMPLETION_DEADLINE, || {
                (receiver.in_progress() >= in_progress).then_some(())
            });
            workers.push_back(start(round + 2));
            wait_until_shared(&workers);
            let mut oldest = workers.pop_front().expect("there are three");
            end(&mut oldest);
            changes.extend(moves(&oldest));
            wait_until_shared(&workers);
        }
    });
    let commands = fixture.client.acknowledged();
    let _outcomes = delivered_once(&fixture.cluster, &commands, COMPLETION_DEADLINE);
    changes.extend(workers.iter().flat_map(moves));
    let calls = receiver.calls();
    let repeated = assert_only_moved_are_repeated(&calls, &changes);
    print_progress(&format!("  {} callbacks, {repeated} of them made again", calls.len()));
    workers.into_iter().for_each(OrlojProcess::terminate);
    scheduler.terminate();
    fixture.check_topics();
    let late = lateness(&commands, |id| calls[id][0]);
    let figures = figures(&late);
    FaultResult::Passed(
        figures
            .with("callbacks repeated", repeated)
            .with("callbacks in progress at each change", in_progress)
            .with("workers added and removed", rounds),
    )
}
