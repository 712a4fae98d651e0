//! A week in which no scheduler runs: what many schedules have missed is decided in short turns of
//! the loop, what is caught up on fires at the rate that is set, and deciding about twice as many
//! costs twice as much.
//!
//! Invariant: the week passes in the clock of the second process alone, which starts two seconds
//! after a full minute: no other occurrence is due while it catches up. No process after it could
//! decide anything for a week, so there is no second look.

use std::collections::BTreeMap;
use std::time::Duration;

use orloj::clock;
use orloj::model::outcome::OutcomeKind;
use orloj::telemetry;
use rdkafka::message::{Message as _, OwnedMessage};

use super::logged_turns::LOG_FILTER;
use super::processes::{assert_no_long_turn, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, Scale};
use crate::kafka_server::{KafkaServer, Options};
use crate::process::OrlojProcess;
use crate::records;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::until;

/// Schedules that are due every minute: so many, and twice as many.
const SCHEDULES: [usize; 2] = [50_000, 100_000];
/// How much more it may cost to decide about twice as many.
const COST_RATIO_MAX: f64 = 2.2;
/// How often that cost is measured. What else the machine does adds to CPU time, so the least
/// counts.
const COST_SAMPLES: usize = 3;
const MINUTE_MS: u64 = 60_000;
const WEEK_MS: u64 = 7 * 24 * 60 * MINUTE_MS;
/// Into a minute the second process starts, in ms.
const INTO_MINUTE_MS: u64 = 2_000;
/// `scheduler.catch_up_rate`, of each partition.
const CATCH_UP_RATE: u64 = 1_000;
/// By how much the fires of one second can be written later than others, in ms: a second after the
/// time that each was given, and the transaction before theirs.
const DELAY_MS: u64 = 2_000;
/// Beside what the rate allows, catching up takes so long, in ms: the takeover, and the decision
/// about every schedule.
const START_MS: u64 = 25_000;
/// How many missed occurrences the rule `all` catches up on.
const ALL_MAX: usize = 3;
/// More skipped ones are not counted exactly.
const SKIPPED_MIN: u32 = 10_000;

/// What becomes of missed occurrences.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MisfireRule {
    /// The last one fires.
    Default,
    /// None fires, except within the grace.
    Skip,
    /// The last [`ALL_MAX`] fire.
    All,
}

impl MisfireRule {
    fn of(n: usize) -> Self {
        match n % 10 {
            0 => Self::All,
            1 => Self::Skip,
            _ => Self::Default,
        }
    }

    fn schedule(self) -> String {
        match self {
            Self::Default => r#"{"cron": "* * * * *"}"#.to_owned(),
            Self::Skip => r#"{"cron": "* * * * *", "misfire": "skip"}"#.to_owned(),
            Self::All => format!(r#"{{"cron": "* * * * *", "misfire": {{"all": {ALL_MAX}}}}}"#),
        }
    }

    /// How many occurrences fire that were due when the process started.
    fn fires(self) -> usize {
        if self == Self::All { ALL_MAX } else { 1 }
    }
}

pub(super) fn of_a_week(_: Scale) -> FaultResult {
    // Records that must not be older than their due time carry that time, which is a week ahead of
    // the broker's clock: by default a broker refuses what is an hour ahead.
    let properties = vec![("log.message.timestamp.after.max.ms", i64::MAX.to_string())];
    let server = KafkaServer::start(&Options { properties, ..Options::default() });
    let [once, twice] = SCHEDULES.map(|schedules| Downtime::pass(&server, schedules));
    let ratio = twice.cost.as_secs_f64() / once.cost.as_secs_f64();
    let (once_ms, twice_ms) = (once.cost.as_millis(), twice.cost.as_millis());
    assert!(
        ratio <= COST_RATIO_MAX,
        "{once_ms} ms of CPU time for {}, {twice_ms} ms for {}: {ratio:.2} times",
        SCHEDULES[0],
        SCHEDULES[1]
    );
    let whole = |ms: u128| usize::try_from(ms).unwrap();
    let mut figures = FaultFigures::default()
        .takeovers(twice.takeovers)
        .with("cpu-ms-to-decide", whole(twice_ms))
        .with("cpu-ms-to-decide-half", whole(once_ms))
        .with("cpu-ms", whole(twice.whole_cost.as_millis()))
        .with("most-in-a-second", twice.most_in_a_second);
    figures.count(SCHEDULES[0] + SCHEDULES[1], once.fired + twice.fired);
    FaultResult::Passed(figures)
}

/// What was seen of a process that started after the week.
struct Downtime {
    /// The least CPU time from a start until all that was missed was decided.
    cost: Duration,
    /// CPU time from its start until it had caught up. Most of it is for waiting: firing takes as
    /// long as the rate says.
    whole_cost: Duration,
    takeovers: Vec<u64>,
    fired: usize,
    /// Of one partition.
    most_in_a_second: usize,
}

impl Downtime {
    fn pass(server: &KafkaServer, schedules: usize) -> Self {
        let samples = (1..COST_SAMPLES).map(|_| AfterDowntime::start(server, schedules).cost);
        let least = samples.min().expect("there are several");
        let AfterDowntime { cluster, scheduler, back, cost } =
            AfterDowntime::start(server, schedules);
        let caught_up = (0..schedules).map(|n| MisfireRule::of(n).fires()).sum();
        let limit = Duration::from_millis(caught_up as u64 / 4 * 1_000 / CATCH_UP_RATE + START_MS);
        until("what was missed to fire", limit, || {
            (scheduler.gauge(FIRED_INTO_TOPICS) >= Some(caught_up)).then_some(())
        });
        let whole_cost = scheduler.cpu_time();
        assert_owner_was_never_held_up(&scheduler);
        let takeovers = scheduler.takeovers();
        scheduler.terminate();
        let fires = records::read_all(cluster.kafka(), cluster.target().1);
        let fires: Vec<_> = fires.iter().filter(|fire| due(fire) > back - WEEK_MS / 2).collect();
        assert_each_rule_holds(&fires, schedules, back);
        assert_all_skipped(&cluster, schedules);
        let most_in_a_second = most_within(&fires, back, 1_000);
        let allowed = usize::try_from(CATCH_UP_RATE * (1_000 + DELAY_MS) / 1_000).unwrap();
        assert!(most_in_a_second <= allowed, "{most_in_a_second} in a second of one partition");
        let (cost, fired) = (cost.min(least), fires.len());
        Self { cost, whole_cost, takeovers, fired, most_in_a_second }
    }
}

/// A process that has started after the week, and has decided what becomes of all that was missed.
struct AfterDowntime {
    cluster: TestCluster,
    scheduler: OrlojProcess,
    /// The full minute after the week, in ms since the epoch.
    back: u64,
    /// CPU time since its start.
    cost: Duration,
}

impl AfterDowntime {
    fn start(server: &KafkaServer, schedules: usize) -> Self {
        let cluster = TestCluster::on_server(&format!("downtime-{schedules}"), server)
            .set("scheduler.catch_up_rate", i64::try_from(CATCH_UP_RATE).unwrap())
            .set("log.filter", LOG_FILTER);
        register(&cluster, schedules);
        let (before, outcomes) = (cluster.outcomes().len(), cluster.count_outcomes());
        let now = clock::now_ms();
        let back = (now + WEEK_MS) / MINUTE_MS * MINUTE_MS + MINUTE_MS;
        let ahead = back + INTO_MINUTE_MS - now;
        let scheduler = cluster.scheduler_with_faults("owner", &format!("clock=ahead{ahead}@1"));
        // Each schedule says that it has skipped the week.
        until("all that was missed to be decided", COMPLETION_DEADLINE, || {
            (outcomes.count() >= before + schedules).then_some(())
        });
        let cost = scheduler.cpu_time();
        Self { cluster, scheduler, back, cost }
    }
}

const FIRED_INTO_TOPICS: &str = "orloj_fired_total{target=\"topic\"}";

/// Registers so many schedules while a scheduler runs, which then ends.
fn register(cluster: &TestCluster, schedules: usize) {
    let client = cluster.client();
    let mut scheduler = cluster.scheduler("owner");
    scheduler.wait_until_ready(READY_DEADLINE);
    wait_until_owned(&scheduler, PARTITIONS as usize);
    for n in 0..schedules {
        client.register_schedule(&id(n), &MisfireRule::of(n).schedule(), cluster.target());
    }
    until("all schedules to be registered", COMPLETION_DEADLINE, || {
        (scheduler.gauge(telemetry::INGESTED) >= Some(schedules)).then_some(())
    });
    scheduler.terminate();
}

fn id(n: usize) -> String {
    format!("every-minute-{n}")
}

fn due(fire: &OwnedMessage) -> u64 {
    records::header(fire, "orloj-due").expect("every fire says its due time").parse().unwrap()
}

/// No turn of its loop was long, and the group has never expelled it: it would have taken its
/// partitions over again.
fn assert_owner_was_never_held_up(scheduler: &OrlojProcess) {
    assert_no_long_turn(scheduler);
    assert_eq!(scheduler.takeovers().len(), PARTITIONS as usize, "{}", scheduler.log_text());
    let failures = scheduler.gauge(telemetry::COMMIT_FAILURES).unwrap_or_default();
    assert_eq!(failures, 0, "{}", scheduler.log_text());
    assert!(!scheduler.log_text().contains("fenced by the group"), "{}", scheduler.log_text());
    assert!(!scheduler.panicked(), "{}", scheduler.log_text());
}

/// Each schedule has fired what its rule says, once, the oldest first.
fn assert_each_rule_holds(fires: &[&OwnedMessage], schedules: usize, back: u64) {
    let mut dues = BTreeMap::<String, Vec<u64>>::new();
    for fire in fires {
        dues.entry(records::observed(fire).trigger).or_default().push(due(fire));
    }
    for n in 0..schedules {
        let expected = (0..MisfireRule::of(n).fires() as u64).rev();
        let expected: Vec<_> = expected.map(|before| back - before * MINUTE_MS).collect();
        let mut fired = dues.remove(&id(n)).unwrap_or_default();
        // The minute after it may have come.
        fired.retain(|due| *due <= back);
        assert_eq!(fired, expected, "schedule {n}");
    }
    assert!(dues.is_empty(), "{dues:?} were never registered");
}

/// Each schedule has said once that it has skipped a week.
fn assert_all_skipped(cluster: &TestCluster, schedules: usize) {
    let mut skipped = BTreeMap::<String, usize>::new();
    for outcome in cluster.outcomes() {
        let OutcomeKind::Skipped { occurrences, .. } = outcome.kind else { continue };
        assert!(occurrences >= SKIPPED_MIN, "{outcome:?}");
        *skipped.entry(outcome.trigger.as_str().to_owned()).or_default() += 1;
    }
    assert!(skipped.values().all(|times| *times == 1), "{skipped:?}");
    assert_eq!(skipped.len(), schedules);
}

/// How many missed occurrences of one partition were written within so many ms at most.
fn most_within(fires: &[&OwnedMessage], back: u64, span: u64) -> usize {
    let mut written = BTreeMap::<i32, Vec<u64>>::new();
    for fire in fires.iter().filter(|fire| due(fire) <= back && is_limited(fire)) {
        written.entry(fire.partition()).or_default().push(records::appended(fire));
    }
    let most = written.values_mut().map(|times| {
        times.sort_unstable();
        let within = |(n, from): (usize, &u64)| {
            times.get(n..).map_or(0, |rest| rest.partition_point(|at| *at < from + span))
        };
        times.iter().enumerate().map(within).max().unwrap_or_default()
    });
    most.max().unwrap_or_default()
}

/// What is fired within the grace is not caught up on.
fn is_limited(fire: &OwnedMessage) -> bool {
    let trigger = records::observed(fire).trigger;
    let n = trigger.rsplit('-').next().and_then(|n| n.parse().ok()).expect("ids end in numbers");
    MisfireRule::of(n) != MisfireRule::Skip
}
