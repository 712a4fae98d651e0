//! Processes that stop for longer than the group waits, and that come and go all the time.

use std::thread;
use std::time::Duration;

use orloj::{clock, telemetry};
use rustix::process::Signal;

use super::logged_turns::logged_turns;
use super::readiness::{self, ReadinessProbe};
use super::report::{FaultFigures, FaultResult};
use super::rng::FaultRng;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::{until, within};

/// Where a process stops, in the middle of what others wait for.
const STOPS: [&str; 5] = [
    "commit.before_end",
    "commit.before_offsets",
    "commit.after_end",
    "store.before_apply",
    "store.after_apply",
];

/// Processes that come and go, and one that stays.
const JOINING_MEMBERS: [&str; 3] = ["second", "third", "fourth"];

/// A process is stopped in mid-transaction until another has everything, and then goes on.
pub(super) fn stopped(scale: Scale) -> FaultResult {
    // So that what happens to the store happens soon.
    let fixture = FaultFixture::from_cluster(
        TestCluster::new("stopped").set("store.flush_interval", "300ms"),
    );
    let mut other = fixture.cluster.scheduler("other");
    other.wait_until_ready(READY_DEADLINE);
    let probe = ReadinessProbe::of(&other);
    let places = if scale == Scale::Short { &STOPS[..1] } else { &STOPS[..] };
    fixture.under_load(|| {
        for place in places {
            let fault = format!("{place}=stop@20");
            let mut victim =
                fixture.cluster.scheduler_with_faults(&place.replace('.', "-"), &fault);
            until(&format!("a stop at {place}"), READY_DEADLINE, || {
                victim.is_stopped().then_some(())
            });
            wait_until_owned(&other, PARTITIONS as usize);
            let before = victim.takeovers().len();
            victim.signal(Signal::CONT);
            until("the stopped one to take part again", COMPLETION_DEADLINE, || {
                let ended = victim.exit_status();
                assert!(ended.is_none(), "it ended by itself: {ended:?}\n{}", victim.log_text());
                (victim.takeovers().len() > before).then_some(())
            });
            assert!(!victim.panicked(), "{}", victim.log_text());
            victim.terminate();
        }
    });
    let report = fixture.settled(&mut [&mut other]);
    readiness::assert_readiness_was_correct(
        &[&probe],
        &fixture.client.acknowledged(),
        &fixture.cluster.fires(),
    );
    let figures = FaultFigures::of(&report).takeovers(other.takeovers());
    FaultResult::Passed(figures.with("stops", places.len()))
}

/// One of two is stopped at any time for longer than every timeout, and goes on.
pub(super) fn paused(scale: Scale) -> FaultResult {
    /// Beyond the session's and the transaction's timeout, in ms.
    const PAUSE: u64 = 40_000;
    let rounds = match scale {
        Scale::Short => 1,
        Scale::Full => 2,
        Scale::Long => 10,
    };
    let fixture = FaultFixture::new("paused");
    let mut processes = ["first", "second"].map(|name| fixture.cluster.scheduler(name));
    let share = PARTITIONS as usize / 2;
    processes.iter().for_each(|process| wait_until_owned(process, share));
    fixture.under_load(|| {
        for _ in 0..rounds {
            wait_for_ms(3_000);
            processes.rotate_left(1);
            let [victim, other] = &processes;
            victim.signal(Signal::STOP);
            wait_for_ms(PAUSE);
            assert_eq!(other.owned_partitions(), PARTITIONS as usize, "{}", other.log_text());
            victim.signal(Signal::CONT);
            until("each to have its share", COMPLETION_DEADLINE, || {
                for process in &mut processes {
                    let ended = process.exit_status();
                    assert!(ended.is_none(), "one ended: {ended:?}\n{}", process.log_text());
                }
                let shares = processes.iter().all(|process| process.owned_partitions() == share);
                shares.then_some(())
            });
        }
    });
    assert!(!processes.iter().any(OrlojProcess::panicked));
    let takeovers = processes.iter().flat_map(OrlojProcess::takeovers).collect();
    let [first, second] = &mut processes;
    let report = fixture.settled(&mut [first, second]);
    FaultResult::Passed(FaultFigures::of(&report).takeovers(takeovers).with("pauses", rounds))
}

/// A process ends gracefully and starts again: it must get its share back at once.
pub(super) fn restarted(_: Scale) -> FaultResult {
    let fixture = FaultFixture::new("restarted");
    let mut other = fixture.cluster.scheduler("other");
    other.wait_until_ready(READY_DEADLINE);
    fixture.under_load(|| {
        for _ in 0..3 {
            let process = fixture.cluster.scheduler("first");
            wait_until_owned(&process, PARTITIONS as usize / 2);
            wait_for_ms(1_000);
            process.terminate();
        }
    });
    let report = fixture.settled(&mut [&mut other]);
    FaultResult::Passed(FaultFigures::of(&report).takeovers(other.takeovers()))
}

/// Two processes were given one name: they throw each other out until one gives up and says why.
pub(super) fn same_names(_: Scale) -> FaultResult {
    let cluster = TestCluster::new("namesakes").set("scheduler.instance_id", "twin");
    let fixture = FaultFixture::from_cluster(cluster);
    let mut first = fixture.cluster.scheduler("first");
    first.wait_until_ready(READY_DEADLINE);
    let mut second = fixture.cluster.scheduler("second");
    let mut survivor = fixture.under_load(|| {
        until("one of the two to give up", COMPLETION_DEADLINE, || {
            let given_up = [first.exit_status().is_some(), second.exit_status().is_some()];
            given_up.contains(&true).then_some(())
        });
        let (lost, mut survivor) =
            if first.exit_status().is_some() { (first, second) } else { (second, first) };
        lost.wait_for_log(
            "does another process have the same scheduler.instance_id",
            READY_DEADLINE,
        );
        survivor.wait_until_ready(READY_DEADLINE);
        wait_until_owned(&survivor, PARTITIONS as usize);
        survivor
    });
    let report = fixture.settled(&mut [&mut survivor]);
    FaultResult::Passed(FaultFigures::of(&report).takeovers(survivor.takeovers()))
}

/// Four processes, of which three come and go every few seconds, gracefully or not.
pub(super) fn rebalance_storm(scale: Scale) -> FaultResult {
    let seconds = match scale {
        Scale::Short => 10,
        Scale::Full => 60,
        Scale::Long => 600,
    };
    let fixture = FaultFixture::new("storm");
    let mut first = fixture.cluster.scheduler("first");
    first.wait_until_ready(READY_DEADLINE);
    let end = clock::now_ms() + seconds * 1_000;
    let visits = fixture.under_load(|| {
        thread::scope(|scope| {
            let visitors: Vec<_> = (1..).zip(JOINING_MEMBERS).collect();
            let visits = visitors.into_iter().map(|(seed, name)| {
                let fixture = &fixture;
                scope.spawn(move || join_and_leave_until(fixture, name, end, FaultRng::new(seed)))
            });
            let visits: Vec<_> = visits.collect();
            visits.into_iter().map(|visits| visits.join().unwrap()).sum::<usize>()
        })
    });
    wait_until_owned(&first, PARTITIONS as usize);
    let report = fixture.settled(&mut [&mut first]);
    assert!(!first.panicked());
    let figures = FaultFigures::of(&report).takeovers(first.takeovers());
    FaultResult::Passed(figures.with("visits", visits))
}

fn join_and_leave_until(fixture: &FaultFixture, name: &str, end: u64, mut rng: FaultRng) -> usize {
    let mut visits = 0;
    while clock::now_ms() < end {
        let process = fixture.cluster.scheduler(name);
        wait_for_ms(2_000 + rng.below(3_000));
        visits += 1;
        assert!(!process.panicked(), "{}", process.log_text());
        if rng.below(3) == 0 {
            process.kill()
        } else {
            process.terminate()
        }
        wait_for_ms(rng.below(2_000));
    }
    visits
}

/// How long a turn of the loop may take, in s, as the metric has it.
const TURN_MAX: &str = "0.1";

/// No turn of the loop of this process was long: meanwhile nothing fires.
pub(super) fn assert_no_long_turn(process: &OrlojProcess) {
    let longer = long_turns(process);
    let logged = logged_turns(process, 0);
    assert_eq!(longer, 0, "turns of more than {TURN_MAX} s; in the log {logged:?}");
}

/// How many turns were longer than that.
pub(super) fn long_turns(process: &OrlojProcess) -> usize {
    process.longer_than(telemetry::TURN, TURN_MAX)
}

/// Asks a process to end, and waits until it has.
pub(super) fn end(process: &mut OrlojProcess) {
    process.signal(Signal::TERM);
    let status = until("it to end", COMPLETION_DEADLINE, || process.exit_status());
    assert!(status.success() && !process.panicked(), "{status}\n{}", process.log_text());
}

/// Lets so many ms pass: what happens meanwhile is the test.
pub(super) fn wait_for_ms(ms: u64) {
    let _nothing: Option<()> = within(Duration::from_millis(ms), || None);
}

/// Waits until a process fires for so many partitions.
pub(super) fn wait_until_owned(process: &OrlojProcess, partitions: usize) {
    let what = format!("{partitions} partitions to be its own");
    until(&what, COMPLETION_DEADLINE, || (process.owned_partitions() == partitions).then_some(()));
}
