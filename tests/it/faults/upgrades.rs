//! Schedulers of an earlier release are replaced by this program one by one, on their own disks and
//! under load, and then this program by the earlier one.
//!
//! Invariant: a process ends before the next one starts on its disk, as in a rolling restart. Each
//! release has triggers to fire that the other one has written to the ledger. The program of the
//! earlier release is built by `scripts/earlier-release.sh`.

use orloj::clock;
use orloj::model::Timestamp;
use rdkafka::Message;

use super::processes::{end, wait_for_ms};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::records;
use crate::test_cluster::READY_DEADLINE;
use crate::wait::until;

/// Names the program of the earlier release.
const EARLIER: &str = "ORLOJ_TEST_EARLIER";
/// How long each mixture of releases runs, in ms.
const EACH_MS: u64 = 10_000;
/// Fires by which it is known that all partitions go on.
const FIRES: usize = 500;
/// Triggers that wait while processes are replaced, and for how long at most, in ms.
const WAITING: u64 = 500;
const WAITING_FOR: u64 = 45_000;
const NAMES: [&str; 2] = ["first", "second"];
/// A ledger value of the first release: its first ten bytes name the schema.
const LEDGER_V0: &str = include_str!("../../golden/ledger-skip-0.hex");

/// Which program a process runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Release {
    Earlier,
    This,
}

pub(super) fn there_and_back(scale: Scale) -> FaultResult {
    let Some(earlier) = std::env::var(EARLIER).ok().filter(|program| !program.is_empty()) else {
        return FaultResult::Skipped(format!("{EARLIER} is not set: `make upgrade` sets it"));
    };
    let fixture = FaultFixture::new("upgrade");
    let start = |release: Release, name: &str| {
        let mut process = match release {
            // In place of the first argument, which is this program.
            Release::Earlier => {
                let script = format!("shift; exec '{earlier}' \"$@\"");
                fixture.cluster.traced_scheduler(&["sh", "-c", &script, "earlier"], name)
            }
            Release::This => fixture.cluster.scheduler(name),
        };
        process.wait_until_ready(READY_DEADLINE);
        process
    };
    let mut processes = NAMES.map(|name| start(Release::Earlier, name));
    let fires = fixture.cluster.count_fires();
    let rounds = if scale == Scale::Long { 5 } else { 1 };
    fixture.steady_load().during(|| {
        wait_for_ms(EACH_MS);
        for release in [Release::This, Release::Earlier].repeat(rounds) {
            let written = ledger_values(&fixture);
            let last_due = register_waiting(&fixture);
            for (name, process) in NAMES.into_iter().zip(&mut processes) {
                end(process);
                *process = start(release, name);
                let before = fires.count();
                until("fires to go on", COMPLETION_DEADLINE, || {
                    (fires.count() > before + FIRES).then_some(())
                });
                wait_for_ms(EACH_MS);
            }
            assert!(clock::now_ms() < last_due, "nothing waited for the other release");
            assert!(ledger_values(&fixture) > written, "nothing that waited was in the ledger");
        }
    });
    let [mut first, mut second] = processes;
    let report = fixture.settled(&mut [&mut first, &mut second]);
    let replaced = 2 * rounds * NAMES.len();
    FaultResult::Passed(FaultFigures::of(&report).with("processes replaced", replaced))
}

/// How many values are in the ledger. All of them are as the first release writes them.
fn ledger_values(fixture: &FaultFixture) -> usize {
    let cluster = &fixture.cluster;
    let records = records::read_all(cluster.kafka(), &cluster.names.ledger());
    let values: Vec<_> = records.iter().filter_map(Message::payload).collect();
    let schema = |value: &&[u8]| {
        let hex = value[..10].iter().map(|byte| format!("{byte:02x}"));
        LEDGER_V0.starts_with(&hex.collect::<String>())
    };
    assert!(values.iter().all(schema), "the first release reads none of another schema");
    values.len()
}

/// Registers triggers that are due from now on until the processes are of the other release.
/// Returns when the last one is due.
fn register_waiting(fixture: &FaultFixture) -> Timestamp {
    let now = clock::now_ms();
    for n in 0..WAITING {
        let due = now + n * WAITING_FOR / WAITING;
        let id = format!("waiting-{now}-{n}");
        fixture.client.register(&id, due, fixture.cluster.target(), "{}", false);
    }
    now + WAITING_FOR
}
