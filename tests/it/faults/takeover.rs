//! How long a takeover lasts when the owner dies or ends: with a follower, and without.
//!
//! Invariant: the brokers keep Apache's timings. Of an owner that dies with a transaction open and
//! a million triggers pending, it is measured from the assignment to the survivor until that fires.
//! Of one of two that dies, with and without a restart at once, or ends under a steady load, how
//! late fires are; and of one that dies in its first transaction.

use std::collections::BTreeSet;
use std::time::Duration;

use orloj::{clock, telemetry};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rustix::process::Signal;

use super::lateness::{FireTimes, fire_times};
use super::processes::{assert_no_long_turn, wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress};
use crate::kafka_server::{DEFAULT_TIMINGS, KafkaServer, Options};
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::{until, within};

/// What a takeover may last with a follower, and without, in ms.
const FOLLOWED_MAX: u64 = 1_000;
const COLD_MAX: u64 = 5_000;

/// How late fires may be when one of two schedulers dies, or ends, in ms: of one that dies the
/// session's timeout of 6 s and a second, of one that is started again at once 3 s, of one that
/// ends a second.
const KILLED_MAX: u64 = 7_000;
const RESTARTED_MAX: u64 = 3_000;
const ENDED_MAX: u64 = 1_000;

/// Pending triggers are due so much later, in ms: after the end of the test.
const FAR: u64 = 3_600_000;

/// The broker has written the markers of a committed transaction by then.
const MARKERS: Duration = Duration::from_millis(300);

/// How long the load runs before one of two ends, and after its takeover, in ms.
const SETTLE_MS: u64 = 3_000;

/// Reading a million triggers while another process writes them.
const CATCH_UP: Duration = Duration::from_secs(180);

/// The survivor follows what the other owns.
pub(super) fn followed(scale: Scale) -> FaultResult {
    let server = server();
    let survivor = |fixture: &FaultFixture, died: &str| {
        let survivor = fixture.cluster.scheduler("survivor");
        wait_until_owned(&survivor, PARTITIONS as usize / 2);
        until(&format!("the survivor to follow {died}"), CATCH_UP, || {
            // It may also have followed what it owns now, before the group assigned it.
            let known: BTreeSet<_> = ["taken over", "caught up"]
                .iter()
                .flat_map(|words| survivor.numbers(words, "partition"))
                .collect();
            (known.len() == PARTITIONS as usize).then_some(())
        });
        survivor
    };
    let cluster = TestCluster::on_server("followed", &server).set("standby.replicas", 1);
    measure(&FaultFixture::with_long_tail(cluster), scale, FOLLOWED_MAX, survivor)
}

/// The survivor has never seen what the other owns.
pub(super) fn cold(scale: Scale) -> FaultResult {
    let survivor = |fixture: &FaultFixture, _: &str| {
        let survivor = fixture.cluster.scheduler("survivor");
        wait_until_owned(&survivor, PARTITIONS as usize / 2);
        survivor
    };
    let server = server();
    let fixture = FaultFixture::with_long_tail(TestCluster::on_server("cold", &server));
    measure(&fixture, scale, COLD_MAX, survivor)
}

/// One of two schedulers dies, and one ends, in turn: nothing else happens.
pub(super) fn ends(scale: Scale) -> FaultResult {
    let server = server();
    let figures = [("ends-unfollowed", 0), ("ends-followed", 1)].map(|(name, replicas)| {
        let cluster = TestCluster::on_server(name, &server).set("standby.replicas", replicas);
        one_of_two_ends(&FaultFixture::from_cluster(cluster), scale, replicas == 1)
    });
    let [unfollowed, followed] = figures;
    FaultResult::Passed(unfollowed.and(&followed))
}

/// What happens to one of two schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// SIGKILL.
    Killed,
    /// SIGKILL, and it is started again at once: the group gives it what it had.
    Restarted,
    /// SIGTERM.
    Terminated,
}

const ENDS: [End; 3] = [End::Killed, End::Restarted, End::Terminated];

impl End {
    fn signal(self) -> Signal {
        if self == Self::Terminated { Signal::TERM } else { Signal::KILL }
    }

    /// How late fires may be, in ms.
    fn late_max(self) -> u64 {
        match self {
            Self::Killed => KILLED_MAX,
            Self::Restarted => RESTARTED_MAX,
            Self::Terminated => ENDED_MAX,
        }
    }
}

fn one_of_two_ends(fixture: &FaultFixture, scale: Scale, is_followed: bool) -> FaultFigures {
    let rounds = if scale == Scale::Long { 10 } else { 3 };
    let share = PARTITIONS as usize / 2;
    let mut processes =
        ["first", "second"].map(|name| (name, fixture.cluster.named_scheduler(name)));
    let (mut times, mut takeovers) = (Vec::new(), Vec::new());
    fixture.under_load(|| {
        for end in ENDS.repeat(rounds) {
            for (_, process) in &processes {
                wait_until_owned(process, share);
                until("the other's partitions to be followed", CATCH_UP, || {
                    let followed = process.gauge(telemetry::FOLLOWED).unwrap_or(0);
                    (!is_followed || followed == share).then_some(())
                });
            }
            wait_for_ms(SETTLE_MS);
            processes.rotate_left(1);
            let [(name, victim), (_, other)] = &mut processes;
            let before = other.takeovers().len();
            let began = clock::now_ms();
            victim.signal(end.signal());
            until("it to end", COMPLETION_DEADLINE, || victim.exit_status());
            if end == End::Restarted {
                *victim = fixture.cluster.named_scheduler(name);
                wait_until_owned(victim, share);
                assert_eq!(other.takeovers().len(), before, "partitions have moved");
            } else {
                wait_until_owned(other, PARTITIONS as usize);
            }
            wait_for_ms(SETTLE_MS);
            times.push((end, began..clock::now_ms()));
            takeovers.extend(other.takeovers().split_off(before));
            assert_no_long_turn(other);
            if end != End::Restarted {
                *victim = fixture.cluster.named_scheduler(name);
            }
        }
        processes.iter().for_each(|(_, process)| wait_until_owned(process, share));
    });
    assert!(!processes.iter().any(|(_, process)| process.panicked()));
    processes.iter().for_each(|(_, process)| assert_no_long_turn(process));
    let [(_, first), (_, second)] = &mut processes;
    let report = fixture.settled(&mut [first, second]);
    let fires = fixture.cluster.fires();
    let fires = fire_times(&fixture.client.acknowledged(), &fires);
    let late_after = |end: End| {
        let times = times.iter().filter(|(of, _)| *of == end).map(|(_, times)| times);
        let late = times.flat_map(|times| {
            let within = fires.iter().filter(|fire| times.contains(&fire.visible));
            within.map(FireTimes::late)
        });
        late.max().expect("fires were due meanwhile")
    };
    let late = ENDS.map(late_after);
    let [killed, restarted, ended] = late;
    print_progress(&format!(
        "  followed: {is_followed}; late by {killed} ms after SIGKILL, {restarted} ms if it was \
         started again at once, {ended} ms after SIGTERM"
    ));
    for (end, late) in ENDS.into_iter().zip(late) {
        assert!(late <= end.late_max(), "{end:?}: {late} ms late; {} are allowed", end.late_max());
    }
    let figures = FaultFigures::of(&report).takeovers(takeovers);
    figures.with("schedulers killed", 2 * rounds).with("schedulers ended", rounds)
}

/// In its first transaction a newcomer dies here: after it has sent records, and offsets.
const FIRST_STEPS: [&str; 3] = ["step.sent", "commit.before_offsets", "commit.before_end"];

/// One that has just joined dies with its first transaction open. The committed offsets of its
/// partitions name the owner before it, and are stable if it has sent none.
pub(super) fn first_transaction(scale: Scale) -> FaultResult {
    let server = server();
    let fixture = FaultFixture::on_server("first-transaction", &server);
    let rounds = if scale == Scale::Long { 3 } else { 1 };
    let steps = FIRST_STEPS.repeat(rounds);
    let share = PARTITIONS as usize / 2;
    let mut survivor = fixture.cluster.named_scheduler("survivor");
    wait_until_owned(&survivor, PARTITIONS as usize);
    let before = survivor.takeovers().len();
    fixture.under_load(|| {
        for (round, step) in (1..).zip(&steps) {
            let (name, fault) = (format!("newcomer-{round}"), format!("{step}=kill@1"));
            let mut newcomer = fixture.cluster.named_scheduler_with_faults(&name, &fault);
            until("it to die in its first transaction", COMPLETION_DEADLINE, || {
                newcomer.exit_status()
            });
            until("the survivor to own everything again", CATCH_UP, || {
                (survivor.takeovers().len() >= before + round * share).then_some(())
            });
            wait_for_ms(SETTLE_MS);
        }
    });
    let took = survivor.takeovers().split_off(before);
    let report = fixture.settled(&mut [&mut survivor]);
    let figures = FaultFigures::of(&report).takeovers(took);
    FaultResult::Passed(figures.with("schedulers killed", steps.len()))
}

fn server() -> KafkaServer {
    let properties = DEFAULT_TIMINGS.map(|(name, value)| (name, value.to_owned())).into();
    KafkaServer::start(&Options { properties, ..Options::default() })
}

/// Stops it in the middle of a transaction: what is open stays open when it dies.
fn stop_in_transaction(ends: &TargetEndOffsets, victim: &OrlojProcess) {
    until("a transaction to be open", COMPLETION_DEADLINE, || {
        victim.signal(Signal::STOP);
        // What was to be committed the broker still ends.
        let ended = within(MARKERS, || (!ends.some_open()).then_some(()));
        if ended.is_some() {
            victim.signal(Signal::CONT);
        }
        ended.is_none().then_some(())
    });
}

/// Where the target topic ends, for one who waits for transactions and for one who does not.
struct TargetEndOffsets {
    stable: BaseConsumer,
    last: BaseConsumer,
    topic: String,
}

impl TargetEndOffsets {
    fn of(cluster: &TestCluster) -> Self {
        let reader = |isolation| {
            let mut config = cluster.kafka().clone();
            config.set("group.id", "ends").set("isolation.level", isolation).create().unwrap()
        };
        let (stable, last) = (reader("read_committed"), reader("read_uncommitted"));
        Self { stable, last, topic: cluster.target().1.to_owned() }
    }

    /// Whether a partition holds records that are not decided.
    fn some_open(&self) -> bool {
        let end = |reader: &BaseConsumer, partition| {
            reader.fetch_watermarks(&self.topic, partition, READY_DEADLINE).unwrap().1
        };
        (0..PARTITIONS).any(|partition| end(&self.stable, partition) < end(&self.last, partition))
    }
}

fn measure(
    fixture: &FaultFixture,
    scale: Scale,
    limit: u64,
    survive: impl Fn(&FaultFixture, &str) -> OrlojProcess,
) -> FaultResult {
    let pending = if scale == Scale::Short { 50_000 } else { 1_000_000 };
    let mut victim = fixture.cluster.scheduler("victim");
    victim.wait_until_ready(READY_DEADLINE);
    let due = clock::now_ms() + FAR;
    for n in 0..pending {
        fixture.client.register(&format!("far-{n}"), due, fixture.cluster.target(), "far", false);
    }
    fixture.client.acknowledged();
    let (mut survivor, since_kill) = fixture.steady_load().during(|| {
        let survivor = survive(fixture, "victim");
        let before = survivor.takeovers().len();
        stop_in_transaction(&TargetEndOffsets::of(&fixture.cluster), &victim);
        let killed = clock::now_ms();
        victim.kill();
        until("the survivor to own everything", CATCH_UP, || {
            (survivor.takeovers().len() >= before + PARTITIONS as usize / 2).then_some(())
        });
        let since_kill = clock::now_ms() - killed;
        (survivor, since_kill)
    });
    let took = survivor.takeovers().split_off(PARTITIONS as usize / 2);
    let report = fixture.settled(&mut [&mut survivor]);
    assert!(took.iter().all(|ms| *ms <= limit), "takeovers of {took:?} ms; {limit} are allowed");
    let figures = FaultFigures::of(&report).takeovers(took);
    FaultResult::Passed(figures.with("ms since the kill", since_kill as usize))
}
