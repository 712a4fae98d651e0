//! The promise: what Kafka acknowledged fires exactly once, never early, and a cancel in time
//! wins — through kills, takeovers, lost disks and downtime.

use std::io::Write as _;
use std::time::Duration;

use orloj::clock;

use crate::audit::AuditReport;
use crate::load::{MARGIN, TRIGGERS, TriggerLoad};
use crate::records::{self, RecordCounter};
use crate::test_cluster::{READY_DEADLINE, TestCluster, exclusive_machine};
use crate::wait::until;

/// From the last write until everything has fired.
const COMPLETION_DEADLINE: Duration = Duration::from_secs(120);

/// What a graceful handover may cost, in ms.
const LATE_MAX: u64 = 1_000;

#[test]
fn a_killed_scheduler_fires_everything_once() {
    let _machine = exclusive_machine();
    // Half of the load is in the ledger, half in the replay tail.
    let cluster = TestCluster::new("killed").set("scheduler.ledger_after", "15s");
    assert_clean(
        "five kills",
        &cluster,
        &killed(&cluster, TriggerLoad { triggers: TRIGGERS }, 5, false),
    );
}

#[test]
fn a_lost_disk_loses_nothing() {
    let _machine = exclusive_machine();
    let cluster = TestCluster::new("wiped").set("scheduler.ledger_after", "15s");
    let load = TriggerLoad { triggers: TRIGGERS / 2 };
    assert_clean("three lost disks", &cluster, &killed(&cluster, load, 3, true));
}

#[test]
fn a_handover_is_neither_lossy_nor_late() {
    let _machine = exclusive_machine();
    let cluster = TestCluster::new("handover");
    // A second is asked of the handover, not of how fast this machine reads a backlog: a quarter of
    // the load that the kills have.
    let load = TriggerLoad { triggers: TRIGGERS / 4 };
    let client = cluster.client();
    cluster.register_distant_trigger(&client);
    let mut first = cluster.scheduler("first");
    first.wait_until_ready(READY_DEADLINE);
    let fires = cluster.count_fires();
    std::thread::scope(|scope| {
        scope.spawn(|| load.write(&cluster, &client));
        await_fires(&fires, load.fires_min() / 4);
        let second = cluster.scheduler("second");
        second.wait_until_owner(READY_DEADLINE);
        await_fires(&fires, load.fires_min() * 3 / 4);
        second.terminate();
    });
    let report = cluster.audit_when_complete(&client, MARGIN, COMPLETION_DEADLINE);
    first.terminate();
    assert_clean("joining and leaving", &cluster, &report);
    assert!(report.lateness_at(1.0) <= LATE_MAX, "late by up to {} ms", report.lateness_at(1.0));
}

#[test]
fn what_is_due_while_all_are_down_fires_unless_it_was_cancelled() {
    /// Due times and cancels are on the broker's clock: a cancel strictly before must win.
    const MARGIN: u64 = 1;
    const TRIGGERS: u64 = 10_000;
    const CANCELLED: u64 = 1_000;
    let _machine = exclusive_machine();
    let cluster = TestCluster::new("down");
    let client = cluster.client();
    let id = |trigger: u64| format!("down-{trigger}");
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    cluster.register_distant_trigger(&client);
    let due = clock::now_ms() + 8_000;
    let register = |trigger: u64| {
        let due = due + trigger % 500;
        client.register(&id(trigger), due, cluster.target(), "due in the dark", true);
    };
    // Half of them the scheduler has taken in when it dies, half it has never seen.
    (0..TRIGGERS / 2).for_each(register);
    let before = client.acknowledged().len();
    until("the first half to be accepted", COMPLETION_DEADLINE, || {
        (cluster.outcomes().len() >= before).then_some(())
    });
    scheduler.kill();
    (TRIGGERS / 2..TRIGGERS).for_each(register);
    client.acknowledged();
    (0..CANCELLED).map(|n| id(n * TRIGGERS / CANCELLED)).for_each(|id| client.cancel(&id));
    client.acknowledged();
    until("everything to be overdue", COMPLETION_DEADLINE, || {
        (clock::now_ms() > due + 1_000).then_some(())
    });
    assert_eq!(cluster.fires().len(), 0, "nothing fires while everything is down");

    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let report = cluster.audit_when_complete(&client, MARGIN, COMPLETION_DEADLINE);
    scheduler.terminate();
    assert_clean("down while due", &cluster, &report);
    assert_eq!((report.stops_in_time, report.stops_too_late), (1_000, 0));
    assert_eq!(report.fired, 9_000);
}

/// Half of what the promise of time rests on: see `CommitLead`. The other half is that every
/// test here, and every fault, judges fires by the end of their transaction.
#[test]
fn records_sent_ahead_become_visible_on_time() {
    /// So many that a transaction takes longer than a millisecond anywhere.
    const AT_ONCE: u64 = 500;
    const TIMES: u64 = 20;
    const APART: u64 = 100;
    let sent_ahead = |commit_lead_max: &str| {
        let cluster = TestCluster::new("ahead").set("scheduler.commit_lead_max", commit_lead_max);
        let client = cluster.client();
        cluster.register_distant_trigger(&client);
        let mut scheduler = cluster.scheduler("first");
        scheduler.wait_until_ready(READY_DEADLINE);
        assert!(!scheduler.has_huge_pages(), "each of them stops everything until it is zeroed");
        let first = clock::now_ms() + 3_000;
        for n in 0..TIMES * AT_ONCE {
            let due = first + n / AT_ONCE * APART;
            client.register(&format!("ahead-{n}"), due, cluster.target(), "x", false);
        }
        client.acknowledged();
        await_fires(&cluster.count_fires(), (TIMES * AT_ONCE) as usize);
        scheduler.terminate();
        let report = cluster.audit(&client, MARGIN);
        assert_clean(&format!("sent ahead by {commit_lead_max}"), &cluster, &report);
        let fires = records::read_all(cluster.kafka(), cluster.target().1);
        let due = |fire| records::header(fire, "orloj-due").unwrap().parse::<u64>().unwrap();
        fires.iter().filter(|&fire| records::appended(fire) < due(fire)).count()
    };
    let _machine = exclusive_machine();
    assert_eq!(sent_ahead("none"), 0);
    assert!(sent_ahead("20ms") > 0, "they were there before their time");
}

/// Writes the load while a scheduler is killed again and again, each time after its share of the
/// fires was seen; then starts it once more, which must add nothing.
fn killed(cluster: &TestCluster, load: TriggerLoad, kills: usize, wipe: bool) -> AuditReport {
    let client = cluster.client();
    cluster.register_distant_trigger(&client);
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let fires = cluster.count_fires();
    let mut scheduler = std::thread::scope(|scope| {
        scope.spawn(|| load.write(cluster, &client));
        for kill in 1..=kills {
            await_fires(&fires, load.fires_min() * kill / (kills + 1));
            scheduler.kill();
            if wipe {
                cluster.wipe("first");
            }
            scheduler = cluster.scheduler("first");
        }
        scheduler
    });
    let report = cluster.audit_when_complete(&client, MARGIN, COMPLETION_DEADLINE);
    if !report.is_complete() {
        return report;
    }
    scheduler.wait_until_ready(READY_DEADLINE);
    scheduler.terminate();
    let mut again = cluster.scheduler("first");
    again.wait_until_ready(READY_DEADLINE);
    again.terminate();
    cluster.audit(&client, MARGIN)
}

fn await_fires(fires: &RecordCounter, count: usize) {
    until(&format!("{count} fires"), COMPLETION_DEADLINE, || {
        (fires.count() >= count).then_some(())
    });
}

/// Prints the result past the test harness, which would hide it when all is well.
fn assert_clean(scenario: &str, cluster: &TestCluster, report: &AuditReport) {
    let mut terminal = std::io::stderr().lock();
    writeln!(terminal, "{scenario}:\n{report}").unwrap();
    assert!(report.is_clean(), "{scenario}:\n{report}");
    assert_eq!(cluster.dead_letters(), [], "{scenario}");
    assert!(
        cluster.distant_trigger_is_pending(),
        "{scenario}: the ledger lost the trigger due in 400 days"
    );
}
