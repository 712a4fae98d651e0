//! A leader that is stopped until the group has expelled it and another one leads, and that
//! continues then.
//!
//! Invariant: it has committed something that it has not written to the log, so that it has
//! something to write when it continues. What it reads then gathers for longer than it takes to
//! find out that it was expelled. Whether it tries to write before it finds out is not decided
//! here, and shown in the output; that a producer which was replaced writes nothing has a test of
//! its own, with `BatchProducer`.

use orloj::model::outcome::CircuitState;
use rustix::process::Signal;

use super::failure_log::FailureLog;
use super::group_offsets::{committed, is_recorded, recorded};
use super::judge::{NotificationSinks, REASON};
use super::unknown_offsets::{SOURCE_PARTITIONS, assert_reported_once, wait_for_all};
use super::{DEADLINE, cluster};
use crate::process::OrlojProcess;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

/// An outage is reported by the first, and its end by the second.
#[test]
fn a_leader_that_was_stopped_until_another_one_leads_writes_and_repeats_nothing() {
    let sinks = NotificationSinks::start();
    let (cluster, _folder) = cluster("notify-stopped", &sinks.mail, &sinks.callers());
    let failures = FailureLog::open(&cluster);
    let mut first = cluster.start_ready("notifier", "first");
    until("the first to lead", DEADLINE, || {
        (committed(&cluster).len() == SOURCE_PARTITIONS).then_some(())
    });
    failures.write("host-0", CircuitState::Open);
    let stops = stop_before_record(&first, &cluster, &failures, &sinks);

    // It is ready as soon as it leads: the group has no other member then.
    let second = cluster.start_ready("notifier", "second");
    failures.write("host-0", CircuitState::Closed);
    failures.write_letters("reason-second");
    wait_for_all(&sinks, &cluster);
    until("the second to write", DEADLINE, || is_recorded(&cluster).then_some(()));

    first.signal(Signal::CONT);
    until("the first to be a member again", DEADLINE, || {
        let log = first.log_text();
        log.split_once("Lost(")?.1.contains("Assigned(").then_some(())
    });
    first.wait_until_ready(READY_DEADLINE);
    assert!(is_recorded(&cluster), "{:?} {:?}", recorded(&cluster), committed(&cluster));
    let refused = first.log_text().contains("what was reported cannot be written to ");
    println!("when it continued it has tried to write: {refused}");

    failures.write_letters("reason-last");
    wait_for_all(&sinks, &cluster);
    for notifier in [second, first] {
        assert!(!notifier.panicked());
        notifier.terminate();
    }
    assert_reported_once(&sinks, &cluster, 4 + stops);
    let recorded = recorded(&cluster);
    assert!(recorded.values().all(|offsets| offsets.is_sorted()), "{recorded:?}");
}

/// Stops it after a commit and before it writes the same to the log. Returns how many times it was
/// stopped: each time, letters of one reason more were reported.
fn stop_before_record(
    leader: &OrlojProcess,
    cluster: &TestCluster,
    failures: &FailureLog,
    sinks: &NotificationSinks,
) -> usize {
    let mut stops = 0;
    until("a stop between a commit and its record", DEADLINE, || {
        failures.write_letters(&format!("{REASON}{stops}"));
        stops += 1;
        wait_for_all(sinks, cluster);
        wait_until_committed(cluster);
        leader.signal(Signal::STOP);
        until("it to be stopped", DEADLINE, || leader.is_stopped().then_some(()));
        let is_recorded = is_recorded(cluster);
        if is_recorded {
            leader.signal(Signal::CONT);
        }
        (!is_recorded).then_some(())
    });
    stops
}

/// Waits until the group's offsets are beyond all letters.
fn wait_until_committed(cluster: &TestCluster) {
    let topic = cluster.names.dead_letters();
    until("the letters to be committed", DEADLINE, || {
        let committed = committed(cluster);
        let letters = committed.iter().filter(|(key, _)| key.starts_with(topic.as_str()));
        let offsets: i64 = letters.map(|(_, offset)| offset).sum();
        (usize::try_from(offsets) == Ok(cluster.dead_letters().len())).then_some(())
    });
}
