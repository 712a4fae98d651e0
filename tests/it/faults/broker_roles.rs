//! Each broker with a role in a cluster of three fails in turn, beside a plain producer and a plain
//! consumer: what Orloj adds to what Kafka itself needs.
//!
//! Invariant: the group survives, so no partition is taken over, and no process ends.

use orloj::clock;
use rustix::process::Signal;

use super::lateness::fire_times;
use super::processes::{assert_no_long_turn, long_turns, wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::brokers::{BrokerRole, ThreeBrokers};
use crate::fire_progress::FireProgress;
use crate::plain_clients::{PlainClients, PlainTimes};
use crate::plain_transactions::PlainTransactions;
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::wait::until;

/// What Orloj may add to the time for which a plain producer waits when a broker dies, in ms.
const KILLED_ADDED_MAX: u64 = 2_000;
/// The same while brokers end and start one by one, in ms.
const TERMINATED_ADDED_MAX: u64 = 1_500;
/// How late a fire may be while a broker does not answer, in ms: a plain producer waits longer.
const STOPPED_MAX: u64 = 15_000;
/// For how long a broker does not answer, in ms.
const STOPPED_FOR: u64 = 60_000;

/// Records of a plain transaction: to each partition one.
const PLAIN_TRANSACTION_RECORDS: usize = 6;

/// The names of the schedulers' processes, which are their instances.
const PROCESSES: [&str; 2] = ["first", "second"];

/// SIGKILL of the broker with each role.
pub(super) fn killed(scale: Scale) -> FaultResult {
    let mut case = RolesCase::start("role-killed");
    let late_max = |plain: u64| plain + KILLED_ADDED_MAX;
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let times = case.each_role(rounds, late_max, |case, place| case.kill(place));
    case.finish(times, late_max(times.longest()))
}

/// What brokers wait for an answer of each other, as `operations/deployment.md` has it: a marker of
/// a transaction that was under way to the one that is stopped is sent again after that. With their
/// default readers wait for 30 s: see `held_markers`.
const BROKER_REQUEST_TIMEOUT: (&str, &str) = ("request.timeout.ms", "3500");

/// SIGSTOP of the broker with each role, for longer than any timeout.
pub(super) fn stopped(scale: Scale) -> FaultResult {
    let brokers = ThreeBrokers::start_with(&[BROKER_REQUEST_TIMEOUT]);
    let installation = brokers.installation("role-stopped");
    let mut case = RolesCase::start_on(brokers, installation, ["", ""]);
    let late_max = |_plain: u64| STOPPED_MAX;
    let stop = |case: &mut RunningCase<'_>, place| case.stop(place, STOPPED_FOR);
    let times = case.each_role(rounds(scale), late_max, stop);
    let plain = times.producer;
    assert!(plain > STOPPED_MAX, "a plain producer waited {plain} ms: it should wait longer");
    case.finish(times, STOPPED_MAX)
}

/// How often each role fails: twelve times in all at the long scale.
fn rounds(scale: Scale) -> usize {
    if scale == Scale::Long { 3 } else { 1 }
}

/// SIGTERM of the broker with each role: with all of them, a rolling restart of the cluster.
pub(super) fn terminated(scale: Scale) -> FaultResult {
    let mut case = RolesCase::start("role-terminated");
    let late_max = |plain: u64| plain + TERMINATED_ADDED_MAX;
    let times = case.each_role(rounds(scale), late_max, |case, place| {
        case.brokers.terminate(place);
        case.start_again(place);
    });
    case.finish(times, late_max(times.longest()))
}

/// SIGKILL of the group's coordinator while a transaction is about to send it offsets.
pub(super) fn killed_before_offsets(_: Scale) -> FaultResult {
    let mut case =
        RolesCase::start_with_faults("commit-held", ["commit.before_offsets=stop@100", ""]);
    let late_max = |plain: u64| plain + KILLED_ADDED_MAX;
    let roles = [BrokerRole::GroupCoordinator(&case.fixture.cluster.names.scheduler_group())];
    let times = case.with_roles(&roles, late_max, |case, place| {
        let [first, _second] = &*case.processes;
        until("a stop before offsets are sent", COMPLETION_DEADLINE, || {
            first.is_stopped().then_some(())
        });
        case.brokers.kill(place);
        first.signal(Signal::CONT);
        case.start_again(place);
    });
    case.finish(times, late_max(times.longest()))
}

/// Two schedulers on three brokers, of which one after the other fails.
pub(super) struct RolesCase {
    /// They end before the brokers: their last records would be waited for.
    plain: PlainClients,
    transactions: [PlainTransactions; 2],
    brokers: ThreeBrokers,
    fixture: FaultFixture,
    processes: [OrlojProcess; 2],
    fires: FireProgress,
    /// Brokers that have failed.
    failures: usize,
    /// How often the first process was stopped: a turn of its loop that was stopped is long.
    stops: usize,
}

impl RolesCase {
    fn start(name: &str) -> Self {
        Self::start_with_faults(name, ["", ""])
    }

    /// With a fault armed in each process.
    fn start_with_faults(name: &str, faults: [&str; 2]) -> Self {
        let brokers = ThreeBrokers::start();
        let installation = brokers.installation(name);
        Self::start_on(brokers, installation, faults)
    }

    /// With these settings of the program.
    pub(super) fn start_with_settings(name: &str, settings: &[(&str, &str)]) -> Self {
        let brokers = ThreeBrokers::start();
        let installation =
            settings.iter().fold(brokers.installation(name), |installation, (setting, value)| {
                installation.set(setting, *value)
            });
        Self::start_on(brokers, installation, ["", ""])
    }

    fn start_on(brokers: ThreeBrokers, installation: TestCluster, faults: [&str; 2]) -> Self {
        let fixture = FaultFixture::from_cluster(installation);
        let cluster = &fixture.cluster;
        let processes = [0, 1].map(|place: usize| {
            cluster.named_scheduler_with_faults(PROCESSES[place], faults[place])
        });
        let share = PARTITIONS as usize / PROCESSES.len();
        processes.iter().for_each(|process| wait_until_owned(process, share));
        let group = cluster.names.scheduler_group();
        let plain = PlainClients::start(&brokers.client(), &group);
        let transactions = [(); 2]
            .map(|()| PlainTransactions::start(&brokers.client(), PLAIN_TRANSACTION_RECORDS));
        brokers.wait_until_in_sync();
        let fires = fixture.cluster.fire_progress();
        let stops = usize::from(!faults[0].is_empty());
        Self { plain, transactions, brokers, fixture, processes, fires, failures: 0, stops }
    }

    /// Fails the broker with each role in turn, `rounds` times, under a steady load. `late_max`:
    /// how late a fire may be if a plain client has waited for so long, in ms.
    fn each_role(
        &mut self,
        rounds: usize,
        late_max: impl Fn(u64) -> u64,
        fail: impl Fn(&mut RunningCase<'_>, usize),
    ) -> PlainTimes {
        let group = self.fixture.cluster.names.scheduler_group();
        let (target, id) = (self.target(), self.transactional_id());
        let roles = [
            BrokerRole::Leader(&target),
            BrokerRole::GroupCoordinator(&group),
            BrokerRole::TransactionCoordinator(&id),
            BrokerRole::Controller,
        ];
        self.with_roles(&roles.repeat(rounds), late_max, fail)
    }

    /// The same with these roles, one after the other.
    fn with_roles(
        &mut self,
        roles: &[BrokerRole<'_>],
        late_max: impl Fn(u64) -> u64,
        fail: impl Fn(&mut RunningCase<'_>, usize),
    ) -> PlainTimes {
        let began = clock::now_ms();
        self.assert_survives(roles, late_max, fail);
        self.plain.times_since(began)
    }

    /// The same; panics if a fire was later, or a partition was taken over.
    pub(super) fn assert_survives(
        &mut self,
        roles: &[BrokerRole<'_>],
        late_max: impl Fn(u64) -> u64,
        fail: impl Fn(&mut RunningCase<'_>, usize),
    ) {
        for (role, times) in roles.iter().zip(self.measure(roles, fail)) {
            let RoleTimes { late, plain, takeovers } = times;
            let allowed = late_max(plain.longest());
            assert!(late <= allowed, "{role:?}: {late} ms late; {allowed} are allowed");
            assert_eq!(takeovers, 0, "{role:?}: the group survives, and partitions moved");
        }
    }

    /// Fails each, and says how late fires were.
    fn measure(
        &mut self,
        roles: &[BrokerRole<'_>],
        fail: impl Fn(&mut RunningCase<'_>, usize),
    ) -> Vec<RoleTimes> {
        let Self { plain, transactions, brokers, fixture, processes, fires, failures, .. } = self;
        *failures += roles.len();
        fixture.under_load(|| {
            let times = roles.iter().map(|role| {
                wait_for_ms(3_000);
                // What was late before is not the fault's.
                RunningCase { brokers, processes, fires }.wait_for_fires();
                let before = takeovers(processes);
                let (place, failed) = (brokers.place_of(*role), clock::now_ms());
                fail(&mut RunningCase { brokers, processes, fires }, place);
                let plain = plain.times_since(failed);
                let takeovers = takeovers_since(processes, &before);
                let (late, due) = latest_since(fixture, failed);
                let waits = transactions.iter().map(|plain| plain.longest_wait_since(failed));
                let transaction = waits.max().unwrap_or(0);
                super::print_progress(&format!(
                    "  {role:?}: a fire that was due {due} ms after it was {late} ms late, a plain \
                     producer waited {} ms, a plain consumer {} ms and for its commit {} ms, a \
                     plain transaction {transaction} ms; {takeovers} takeovers",
                    plain.producer, plain.consumer, plain.commit
                ));
                RoleTimes { late, plain, takeovers }
            });
            times.collect()
        })
    }

    /// The topic of the fires.
    pub(super) fn target(&self) -> String {
        self.fixture.cluster.target().1.to_owned()
    }

    /// That of the first process.
    pub(super) fn transactional_id(&self) -> String {
        self.fixture.cluster.names.transactional_id("scheduler", PROCESSES[0])
    }

    /// Judges what has fired.
    pub(super) fn settled(mut self) -> FaultFigures {
        assert!(!self.processes.iter().any(OrlojProcess::panicked));
        let [first, second] = &mut self.processes;
        FaultFigures::of(&self.fixture.settled(&mut [first, second]))
    }

    fn finish(mut self, times: PlainTimes, late_max: u64) -> FaultResult {
        assert!(!self.processes.iter().any(OrlojProcess::panicked));
        let [first, second] = &self.processes;
        let long = long_turns(first);
        assert!(long <= self.stops, "{long} turns of more than 0.1 s, {} stops", self.stops);
        assert_no_long_turn(second);
        let takeovers = takeovers(&self.processes);
        let [first, second] = &mut self.processes;
        let report = self.fixture.settled(&mut [first, second]);
        let late = report.lateness_at(1.0);
        super::print_progress(&format!("  a fire was {late} ms late, of {late_max}"));
        assert!(late <= late_max, "a fire was {late} ms late; {late_max} are allowed: {times:?}");
        let figures = FaultFigures::of(&report).takeovers(takeovers);
        let ms = |ms: u64| usize::try_from(ms).unwrap();
        FaultResult::Passed(
            figures
                .with("brokers failed", self.failures)
                .with("ms a plain producer waited", ms(times.producer))
                .with("ms a plain consumer waited", ms(times.consumer))
                .with("ms a plain consumer waited for a commit", ms(times.commit)),
        )
    }
}

/// What is known when a broker has failed and is back.
struct RoleTimes {
    /// How late a fire was at most, in ms.
    late: u64,
    plain: PlainTimes,
    takeovers: usize,
}

/// What a fault acts on while the load runs.
pub(super) struct RunningCase<'a> {
    brokers: &'a mut ThreeBrokers,
    processes: &'a mut [OrlojProcess; 2],
    fires: &'a FireProgress,
}

impl RunningCase<'_> {
    /// SIGKILL of a broker, which starts again.
    pub(super) fn kill(&mut self, place: usize) {
        self.brokers.kill(place);
        self.start_again(place);
    }

    /// SIGSTOP of a broker, which goes on after so many ms.
    pub(super) fn stop(&mut self, place: usize, ms: u64) {
        self.brokers.signal(place, Signal::STOP);
        wait_for_ms(ms);
        self.brokers.signal(place, Signal::CONT);
        self.brokers.wait_until_in_sync();
    }

    /// Starts a broker that has ended, once all partitions fire at their times without it.
    fn start_again(&mut self, place: usize) {
        self.wait_for_fires();
        self.brokers.start_again(place);
    }

    /// Waits until all partitions fire at their times.
    fn wait_for_fires(&mut self) {
        let processes = &mut *self.processes;
        self.fires.wait_until_caught_up(COMPLETION_DEADLINE, || {
            for process in &mut *processes {
                let ended = process.exit_status();
                assert!(ended.is_none(), "one ended by itself: {ended:?}\n{}", process.log_text());
            }
        });
    }
}

/// How late a fire was at most that was visible at this time or later, and when it was due after
/// this time, in ms.
fn latest_since(fixture: &FaultFixture, since: u64) -> (u64, i64) {
    let fires = fixture.cluster.fires();
    let times = fire_times(&fixture.client.acknowledged(), &fires);
    let visible = times.iter().filter(|fire| fire.visible >= since);
    let latest = visible.max_by_key(|fire| fire.late());
    latest.map_or((0, 0), |fire| (fire.late(), fire.from.cast_signed() - since.cast_signed()))
}

/// How long each takeover took, in ms.
fn takeovers(processes: &[OrlojProcess; 2]) -> Vec<u64> {
    processes.iter().flat_map(OrlojProcess::takeovers).collect()
}

fn takeovers_since(processes: &[OrlojProcess; 2], before: &[u64]) -> usize {
    takeovers(processes).len() - before.len()
}
