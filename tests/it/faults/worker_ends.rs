//! Workers end by SIGTERM while a receiver hangs.
//!
//! Invariant: what was in progress is finished and not repeated, and a callback to another receiver
//! waits neither for the one that hangs nor for the group.

use std::time::Duration;

use axum::http::StatusCode;
use orloj::clock;
use rustix::process::Signal;

use super::assignments::{
    assert_only_moved_are_repeated, moves, owned, partition_of, wait_until_shared,
};
use super::delivered::{CallLateness, delivered_once, figures, lateness};
use super::held_receiver::{HeldReceiver, UNTIL_RELEASED};
use super::processes::wait_for_ms;
use super::report::FaultResult;
use super::steady_load::SteadyLoad;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress};
use crate::audit::AcknowledgedCommands;
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::test_producer::CALLBACK_URL_HEADER;
use crate::wait::until;

/// Callbacks a second to the receiver that answers.
const PER_SECOND: u64 = 50;
/// Callbacks of each round to the one that hangs: some in each partition.
const HANGING: usize = 16;
/// For how long it hangs after SIGTERM, in ms.
const HANGS: u64 = 5_000;
/// How late a callback may be in a partition that the worker which ends does not have, in ms.
const OTHERS_LATE_MAX: u64 = 1_000;

pub(super) fn terminated(scale: Scale) -> FaultResult {
    let rounds = match scale {
        Scale::Short => 1,
        Scale::Full => 3,
        Scale::Long => 10,
    };
    let quick = HeldReceiver::start(StatusCode::OK, |_| Duration::ZERO);
    let slow = HeldReceiver::start(StatusCode::OK, |_| UNTIL_RELEASED);
    let cluster = TestCluster::new("worker-ends").set("worker.allow_addresses", "any");
    let fixture = FaultFixture::from_cluster(cluster);
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let start = |number: usize| fixture.cluster.start_ready("worker", &format!("worker-{number}"));
    let mut workers = [start(0), start(1)];
    let (url, calling) = (quick.url(), fixture.cluster.client());
    let target = Some((CALLBACK_URL_HEADER, url.as_str()));
    let load = SteadyLoad { per_second: PER_SECOND, other: target, ..fixture.steady_load() };
    let (mut ends, mut moved) = (Vec::new(), Vec::new());
    load.during(|| {
        for round in 0..rounds {
            wait_until_shared(&workers);
            for n in 0..HANGING {
                let (id, due) = (format!("slow-{round}-{n}"), clock::now_ms());
                calling.register(&id, due, (CALLBACK_URL_HEADER, &slow.url()), "{}", false);
            }
            until("all of them to be called", COMPLETION_DEADLINE, || {
                (slow.in_progress() == HANGING).then_some(())
            });
            let (began, owned) = (clock::now_ms(), owned(&workers[0]));
            workers[0].signal(Signal::TERM);
            wait_for_ms(HANGS);
            assert!(workers[0].exit_status().is_none(), "it waits for what hangs");
            slow.release();
            workers[0].await_end();
            assert!(!workers[0].panicked(), "{}", workers[0].log_text());
            moved.extend(moves(&workers[0]));
            ends.push(WorkerEnd { began, ended: clock::now_ms(), owned });
            workers[0] = start(round + 2);
            workers.rotate_left(1);
        }
        wait_for_ms(1_000);
    });
    let commands = fixture.client.acknowledged();
    for commands in [&commands, &calling.acknowledged()] {
        let _outcomes = delivered_once(&fixture.cluster, commands, COMPLETION_DEADLINE);
    }
    let all = workers.iter().flat_map(moves).chain(moved).collect::<Vec<_>>();
    let revoked: Vec<_> = all.into_iter().filter(|change| !change.is_assigned).collect();
    assert_only_moved_are_repeated(&quick.calls(), &revoked);
    assert_only_moved_are_repeated(&slow.calls(), &revoked);
    let calls = quick.calls();
    let late = lateness(&commands, |id| calls[id][0]);
    let others = others_late(&commands, &late, &ends);
    let all = late.iter().map(|call| call.late).max().unwrap_or_default();
    print_progress(&format!(
        "  {all} ms late, {others} ms in partitions of another worker than the one that ended"
    ));
    assert!(others <= OTHERS_LATE_MAX, "{others} ms late; {OTHERS_LATE_MAX} are allowed");
    workers.into_iter().for_each(OrlojProcess::terminate);
    scheduler.terminate();
    fixture.check_topics();
    FaultResult::Passed(figures(&late).with("workers ended", rounds))
}

/// The end of a worker.
struct WorkerEnd {
    /// When SIGTERM was sent, in ms since the epoch.
    began: u64,
    ended: u64,
    /// Its partitions.
    owned: Vec<i32>,
}

/// How late a callback was at most, in ms, while a worker ended that did not have its partition.
fn others_late(commands: &AcknowledgedCommands, late: &[CallLateness], ends: &[WorkerEnd]) -> u64 {
    let is_other = |call: &&CallLateness| {
        let due = commands[&call.trigger][0].registered_due().expect("it was registered");
        let during = ends.iter().find(|end| (end.began..end.ended).contains(&due));
        during.is_some_and(|end| !end.owned.contains(&partition_of(&call.trigger)))
    };
    let others = late.iter().filter(is_other).map(|call| call.late).max();
    others.expect("callbacks were due in partitions of the other worker")
}
