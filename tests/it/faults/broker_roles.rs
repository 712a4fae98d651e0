//! Each broker with a role in a cluster of three fails in turn, beside a plain producer and a plain
//! consumer: what Orloj adds to what Kafka itself needs.
//!
//! Invariant: the group survives, so no partition is taken over, and no process ends.

use std::collections::BTreeMap;

use orloj::clock;
use rustix::process::Signal;

use super::assignments::partition_of;
use super::failed_round::{FailedRound, KafkaWaits, LatestFire, long_turns_by_round};
use super::lateness::fire_times;
use super::logged_turns::{LOG_FILTER, logged_turns};
use super::processes::{long_turns, wait_for_ms, wait_until_owned};
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
/// How late a fire may be while a broker does not answer, in ms: a plain transaction waits longer.
/// If fencing took longer than [`FENCING_MAX`], see [`stopped_late_max`].
const STOPPED_MAX: u64 = 15_000;
/// How long the cluster needs to fence a broker that is not the active controller, in ms: its
/// session of 9 s begins with its last heartbeat, and the controller looks every 1.125 s. That is
/// 10.2 s at most, and a margin for a busy machine.
const FENCING_MAX: u64 = 11_000;
/// How late a fire may be after fencing, in ms: up to 2.2 s until the new leaders have followers
/// that fetch from them, or 3.5 s until the brokers have repeated a request between each other, and
/// what Orloj adds.
const FENCED_ADDED_MAX: u64 = 4_000;
/// For how long a broker does not answer, in ms.
const STOPPED_FOR: u64 = 60_000;

/// Records of a plain transaction: to each partition one.
const PLAIN_TRANSACTION_RECORDS: usize = 6;

/// Transactional ids that a scheduler may use: `kafka::producer_pair` numbers them.
const TRANSACTIONAL_IDS: usize = 8;

/// The names of the schedulers' processes, which are their instances.
const PROCESSES: [&str; 2] = ["first", "second"];

/// SIGKILL of the broker with each role.
pub(super) fn killed(scale: Scale) -> FaultResult {
    let mut case = RolesCase::start("role-killed");
    let late_max = |waits: KafkaWaits| waits.plain + KILLED_ADDED_MAX;
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let times = case.each_role(rounds, late_max, |case, place| case.kill(place));
    case.finish(times)
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
    let stop = |case: &mut RunningCase<'_>, place| case.stop(place, STOPPED_FOR);
    let times = case.each_role(rounds(scale), stopped_late_max, stop);
    // Of a plain producer, which has the library with our changes, too, a record waits no longer.
    let plain = case.rounds.iter().map(|round| round.transaction).max().unwrap_or(0);
    assert!(plain > STOPPED_MAX, "a plain transaction waited {plain} ms: it should wait longer");
    case.finish(times)
}

/// How late a fire may be in a round in which a broker does not answer, in ms.
///
/// Until the cluster has fenced the broker, no other one gets its roles, and what is due waits,
/// whatever Orloj does. Fencing takes more than [`FENCING_MAX`] only if the broker is the active
/// controller, so only then more is allowed: the others notice after two seconds that it does not
/// answer, and elect another one among them. That one knows no heartbeat of before, so all sessions
/// of 9 s start with it. It fences the broker 11 to 13 s after it has stopped, as a rule, and a
/// second or two later for each election that fails. Then fires have the time after fencing that
/// they have in any round.
fn stopped_late_max(waits: KafkaWaits) -> u64 {
    let is_long = |fencing: &u64| waits.is_controller && *fencing > FENCING_MAX;
    let fencing = waits.fencing.filter(is_long);
    fencing.map_or(STOPPED_MAX, |fencing| fencing + FENCED_ADDED_MAX)
}

/// How often each role fails: twelve times in all at the long scale.
fn rounds(scale: Scale) -> usize {
    if scale == Scale::Long { 3 } else { 1 }
}

/// SIGTERM of the broker with each role: with all of them, a rolling restart of the cluster.
pub(super) fn terminated(scale: Scale) -> FaultResult {
    let mut case = RolesCase::start("role-terminated");
    let late_max = |waits: KafkaWaits| waits.plain + TERMINATED_ADDED_MAX;
    let times = case.each_role(rounds(scale), late_max, |case, place| {
        case.brokers.terminate(place);
        case.start_again(place);
    });
    case.finish(times)
}

/// SIGKILL of the group's coordinator while a transaction is about to send it offsets.
pub(super) fn killed_before_offsets(_: Scale) -> FaultResult {
    let mut case =
        RolesCase::start_with_faults("commit-held", ["commit.before_offsets=stop@100", ""]);
    let late_max = |waits: KafkaWaits| waits.plain + KILLED_ADDED_MAX;
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
    case.finish(times)
}

/// The roles that a broker can have: what leads the first partition of the target, coordinates the
/// group, coordinates transactions with this id, and controls the cluster.
fn roles_of<'a>(target: &'a str, group: &'a str, id: &'a str) -> [BrokerRole<'a>; 4] {
    [
        BrokerRole::Leader(target),
        BrokerRole::GroupCoordinator(group),
        BrokerRole::TransactionCoordinator(id),
        BrokerRole::Controller,
    ]
}

/// What a broker with this role is called in the line of a round.
fn title(role: BrokerRole<'_>) -> &'static str {
    match role {
        BrokerRole::Leader(_) => "leader",
        BrokerRole::GroupCoordinator(_) => "group's coordinator",
        BrokerRole::TransactionCoordinator(_) => "transaction's coordinator",
        BrokerRole::Controller => "active controller",
    }
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
    /// One for each broker that has failed.
    rounds: Vec<FailedRound>,
    /// How late a fire may be in one of them, in ms: the most of all.
    late_max: u64,
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
        let installation = installation.set("log.filter", LOG_FILTER);
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
        let (rounds, late_max) = (Vec::new(), 0);
        Self { plain, transactions, brokers, fixture, processes, fires, rounds, late_max, stops }
    }

    /// Fails the broker with each role in turn, `rounds` times, under a steady load. `late_max`:
    /// how late a fire may be if Kafka itself has needed so long, in ms.
    fn each_role(
        &mut self,
        rounds: usize,
        late_max: impl Fn(KafkaWaits) -> u64,
        fail: impl Fn(&mut RunningCase<'_>, usize),
    ) -> PlainTimes {
        let group = self.fixture.cluster.names.scheduler_group();
        let (target, id) = (self.target(), self.transactional_id());
        let roles = roles_of(&target, &group, &id);
        self.with_roles(&roles.repeat(rounds), late_max, fail)
    }

    /// The same with these roles, one after the other.
    fn with_roles(
        &mut self,
        roles: &[BrokerRole<'_>],
        late_max: impl Fn(KafkaWaits) -> u64,
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
        late_max: impl Fn(KafkaWaits) -> u64,
        fail: impl Fn(&mut RunningCase<'_>, usize),
    ) {
        let before = self.rounds.len();
        self.measure(roles, fail);
        for round in &self.rounds[before..] {
            let (role, waits, late) = (&round.role, round.waits(), round.late());
            let allowed = late_max(waits);
            self.late_max = self.late_max.max(allowed);
            assert!(late <= allowed, "{role}: {late} ms late; {allowed} are allowed: {waits:?}");
            assert_eq!(round.takeovers, 0, "{role}: the group survives, and partitions moved");
        }
    }

    /// Fails each, and prints what is known of it then.
    fn measure(&mut self, roles: &[BrokerRole<'_>], fail: impl Fn(&mut RunningCase<'_>, usize)) {
        let Self { plain, transactions, brokers, fixture, processes, fires, rounds, .. } = self;
        let fixture = &*fixture;
        let running = RunningCase { brokers, processes, fires };
        let mut case = MeasuredCase { plain, transactions, fixture, running };
        // Before the load: with it, a process would come to its fault while this is asked for.
        let mut first = Some(case.places());
        fixture.under_load(|| {
            for role in roles {
                let places = first.take().unwrap_or_else(|| case.places());
                let round = case.measure(*role, &places, &fail);
                super::print_progress(&format!("  {round}"));
                rounds.push(round);
            }
        });
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

    /// No turn of a loop was long in any round, nor between them, but for one that was stopped:
    /// meanwhile nothing fires.
    fn assert_no_long_turn(&self) {
        for (place, process) in self.processes.iter().enumerate() {
            let (name, stops) = (PROCESSES[place], if place == 0 { self.stops } else { 0 });
            let long = long_turns(process);
            assert!(
                long <= stops,
                "{name}: {long} turns of more than 0.1 s, {stops} stops; by round: {}; in its \
                 whole log: {:?}",
                long_turns_by_round(&self.rounds),
                logged_turns(process, 0)
            );
        }
    }

    fn finish(mut self, times: PlainTimes) -> FaultResult {
        assert!(!self.processes.iter().any(OrlojProcess::panicked));
        self.assert_no_long_turn();
        let late_max = self.late_max;
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
                .with("brokers failed", self.rounds.len())
                .with("ms a plain producer waited", ms(times.producer))
                .with("ms a plain consumer waited", ms(times.consumer))
                .with("ms a plain consumer waited for a commit", ms(times.commit)),
        )
    }
}

/// What a round is measured by.
struct MeasuredCase<'a> {
    plain: &'a PlainClients,
    transactions: &'a [PlainTransactions; 2],
    fixture: &'a FaultFixture,
    running: RunningCase<'a>,
}

impl MeasuredCase<'_> {
    /// Which broker has which role now, by its place.
    fn places(&self) -> [(&'static str, usize); 4] {
        let cluster = &self.fixture.cluster;
        let (target, group) = (cluster.target().1, cluster.names.scheduler_group());
        let id = cluster.names.transactional_id("scheduler", PROCESSES[0]);
        let roles = roles_of(target, &group, &id);
        roles.map(|role| (title(role), self.running.brokers.place_of(role)))
    }

    /// Fails the broker with this role. `places`: which one had which role a moment ago.
    fn measure(
        &mut self,
        role: BrokerRole<'_>,
        places: &[(&'static str, usize)],
        fail: impl Fn(&mut RunningCase<'_>, usize),
    ) -> FailedRound {
        wait_for_ms(3_000);
        // What was late before is not the fault's.
        self.running.wait_for_fires();
        let before = takeovers(self.running.processes);
        let brokers = &self.running.brokers;
        let place = brokers.place_of(role);
        let leaders = brokers.leaders(&self.fixture.cluster.names.triggers());
        let watch = brokers.watch_fencing(place);
        let coordinators = brokers.watch_coordinators(&transactional_ids(self.fixture));
        let began = clock::now_ms();
        fail(&mut self.running, place);
        let plain = self.plain.times_since(began);
        let (fencing, coordinator) = (watch.times(), coordinators.longest_without());
        let takeovers = takeovers_since(self.running.processes, &before);
        let latest = latest_since(self.fixture, began, &leaders);
        let waits = self.transactions.iter().map(|plain| plain.longest_wait_since(began));
        let transaction = waits.max().unwrap_or(0);
        let others = places.iter().filter(|(other, at)| *at == place && *other != title(role));
        let controller = (title(BrokerRole::Controller), place);
        FailedRound {
            role: format!("{role:?}"),
            broker: place + 1,
            other_roles: others.map(|(other, _)| *other).collect(),
            is_controller: role == BrokerRole::Controller || places.contains(&controller),
            began,
            fencing,
            plain,
            transaction,
            coordinator,
            takeovers,
            latest,
            long_turns: long_turns_since(self.running.processes, began),
        }
    }
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

/// Those that the schedulers may use: each has pairs of producers with numbers.
fn transactional_ids(fixture: &FaultFixture) -> Vec<String> {
    let names = &fixture.cluster.names;
    let of_each = PROCESSES.iter().flat_map(|name| {
        let id = names.transactional_id("scheduler", name);
        (1..=TRANSACTIONAL_IDS).map(move |number| match number {
            1 => id.clone(),
            number => format!("{id}/{number}"),
        })
    });
    of_each.collect()
}

/// The latest fire of those that were visible at this time or later. `leaders`: of the partitions
/// of triggers.
fn latest_since(
    fixture: &FaultFixture,
    since: u64,
    leaders: &BTreeMap<i32, i32>,
) -> Option<LatestFire> {
    let fires = fixture.cluster.fires();
    let times = fire_times(&fixture.client.acknowledged(), &fires);
    let visible = times.iter().filter(|fire| fire.visible >= since);
    let latest = visible.max_by_key(|fire| fire.late())?;
    let partition = partition_of(latest.trigger);
    Some(LatestFire {
        late: latest.late(),
        due: latest.due,
        appended: latest.appended,
        visible: latest.visible,
        partition,
        leader: leaders.get(&partition).copied(),
    })
}

/// The long turns of the processes that ended at this time or later, and how many ms after it.
fn long_turns_since(processes: &[OrlojProcess; 2], since: u64) -> Vec<String> {
    let of_each = PROCESSES.iter().zip(processes).flat_map(|(name, process)| {
        let turns = logged_turns(process, since).into_iter();
        turns.map(move |turn| format!("{name} after {} ms {}", turn.ended - since, turn.figures))
    });
    of_each.collect()
}

/// How long each takeover took, in ms.
fn takeovers(processes: &[OrlojProcess; 2]) -> Vec<u64> {
    processes.iter().flat_map(OrlojProcess::takeovers).collect()
}

fn takeovers_since(processes: &[OrlojProcess; 2], before: &[u64]) -> usize {
    takeovers(processes).len() - before.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fire_may_be_later_only_if_fencing_the_controller_took_longer_than_another_broker() {
        let allowed = |fencing, is_controller| {
            stopped_late_max(KafkaWaits { plain: 50_000, fencing, is_controller })
        };
        assert_eq!(allowed(None, true), 15_000);
        assert_eq!(allowed(Some(9_700), true), 15_000);
        assert_eq!(allowed(Some(11_000), true), 15_000);
        assert_eq!(allowed(Some(12_100), true), 16_100);
        assert_eq!(allowed(Some(12_100), false), 15_000);
    }
}
