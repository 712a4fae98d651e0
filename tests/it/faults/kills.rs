//! SIGKILL at every named step: under a steady load a process is armed, dies there, and is started
//! again, over and over; then everything is judged at once.
//!
//! Invariant: a process that was to die at a step died of it and of nothing else. Every step that
//! the sources name is in [`SCHEDULER`] or [`WORKER`], but for [`AFTER_FAILURE`].

use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::Duration;

use orloj::clock;
use orloj::environment::transaction::PRODUCERS_MAX;
use rustix::process::Signal;

use super::processes::wait_until_owned;
use super::receiver::CountingReceiver;
use super::report::{FaultFigures, FaultResult};
use super::steady_load::SteadyLoad;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress};
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::test_producer::CALLBACK_URL_HEADER;
use crate::wait::until;

/// A named step, and up to which time it is reached the process lives; chosen at random.
struct KillPoint {
    name: &'static str,
    times_max: u32,
    when: KillPhase,
}

/// What a process must do to get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KillPhase {
    /// Run.
    Running,
    /// Hand its partitions over.
    Stopping,
}

const fn running(name: &'static str, times_max: u32) -> KillPoint {
    KillPoint { name, times_max, when: KillPhase::Running }
}

const fn stopping(name: &'static str) -> KillPoint {
    KillPoint { name, times_max: 1, when: KillPhase::Stopping }
}

/// A takeover of its four partitions reaches each of its steps so often.
const KILLS_EACH: u32 = 4;

const SCHEDULER: &[KillPoint] = &[
    running("transactor.before_init", 1),
    running("transactor.after_init", 1),
    running("takeover.before_offsets", KILLS_EACH),
    running("takeover.before_barrier", KILLS_EACH),
    running("takeover.before_ledger", KILLS_EACH),
    running("takeover.after_ledger", KILLS_EACH),
    running("takeover.before_replay", KILLS_EACH),
    running("takeover.after_replay", KILLS_EACH),
    running("takeover.before_activate", KILLS_EACH),
    running("takeover.after_activate", KILLS_EACH),
    running("step.sealed", 40),
    running("step.sent", 40),
    running("commit.before_offsets", 40),
    running("commit.before_end", 40),
    running("commit.after_end", 40),
    running("step.before_settle", 40),
    running("step.after_settle", 40),
    running("store.before_apply", 20),
    running("store.after_apply", 20),
    running("store.before_flush", 6),
    running("store.after_flush", 6),
    stopping("revoke.before_last_words"),
    stopping("revoke.after_last_words"),
    stopping("member.before_release"),
    stopping("member.after_release"),
];

const WORKER: &[KillPoint] = &[
    running("transactor.before_init", 1),
    running("transactor.after_init", 1),
    running("worker.before_request", 40),
    running("worker.after_request", 40),
    running("worker.before_report", 40),
    running("worker.after_report", 40),
    running("commit.before_offsets", 10),
    running("commit.before_end", 10),
    running("commit.after_end", 10),
    running("worker.after_commit", 10),
];

/// These are reached only when a transaction has failed. The simulation ends processes there.
#[cfg(test)]
const AFTER_FAILURE: [&str; 3] =
    ["interrupted.committed", "interrupted.sent_again", "interrupted.taken_over"];

/// Short, so that the other one soon takes over; long enough for a busy machine.
const SESSION_TIMEOUT: &str = "3s";

/// Installations that are attacked side by side: starting a process is mostly waiting.
const SIDE_BY_SIDE: usize = 3;
/// A process dies within that time of its start.
const EXIT_DEADLINE: Duration = Duration::from_secs(60);

fn kills_each(scale: Scale) -> usize {
    match scale {
        Scale::Short => 1,
        Scale::Full => 30,
        Scale::Long => 100,
    }
}

pub(super) fn schedulers(scale: Scale) -> FaultResult {
    side_by_side(SCHEDULER, |part, steps| kill_schedulers(part, steps, kills_each(scale)))
}

pub(super) fn one_of_two(scale: Scale) -> FaultResult {
    // A session timeout for every second kill.
    let kills_each = kills_each(scale).div_ceil(10);
    side_by_side(SCHEDULER, |part, steps| kill_one_of_two(part, steps, kills_each))
}

pub(super) fn workers(scale: Scale) -> FaultResult {
    side_by_side(WORKER, |part, steps| kill_workers(part, steps, kills_each(scale)))
}

/// Deals the steps out to several installations and adds up what they found.
fn side_by_side(
    steps: &[KillPoint],
    attack: impl Fn(usize, &[&KillPoint]) -> FaultFigures + Sync,
) -> FaultResult {
    let share = |part| steps.iter().skip(part).step_by(SIDE_BY_SIDE).collect::<Vec<_>>();
    let attack = &attack;
    let figures = thread::scope(|scope| {
        let attacks: Vec<_> =
            (0..SIDE_BY_SIDE).map(|part| scope.spawn(move || attack(part, &share(part)))).collect();
        let ended = attacks.into_iter().map(|attack| attack.join());
        ended
            .map(|figures| figures.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .reduce(|all, figures| all.and(&figures))
    });
    FaultResult::Passed(figures.expect("there is more than none"))
}

/// A part of the load is in the ledger, and flushes come often enough to be died in.
fn fixture(name: &str, part: usize) -> FaultFixture {
    let cluster = TestCluster::new(&format!("{name}-{part}")).set("store.flush_interval", "300ms");
    let fixture = FaultFixture::from_cluster(cluster);
    fixture.cluster.register_distant_trigger(&fixture.client);
    fixture
}

/// The killed one is started again, and there is no other one. Every command asks for an answer.
fn kill_schedulers(part: usize, steps: &[&KillPoint], kills_each: usize) -> FaultFigures {
    let fixture = fixture("kill-scheduler", part);
    let mut takeovers = Vec::new();
    let flow = SteadyLoad { ack: true, ..fixture.steady_load() };
    let kill_each = || {
        for kill in kills(steps, kills_each) {
            let mut scheduler = fixture.cluster.scheduler_with_faults("first", &kill.fault());
            kill.wait_for_exit(&mut scheduler);
            takeovers.extend(scheduler.takeovers());
        }
    };
    fixture.with_other_kinds(|| flow.during(kill_each));
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    finish(&fixture, &mut scheduler, takeovers, steps.len() * kills_each)
}

/// Another one lives on. It takes over what the killed one had: at every second kill before that
/// one is back.
fn kill_one_of_two(part: usize, steps: &[&KillPoint], kills_each: usize) -> FaultFigures {
    let mut fixture = fixture("kill-one-of-two", part);
    fixture.cluster = fixture.cluster.set("scheduler.session_timeout", SESSION_TIMEOUT);
    let mut other = fixture.cluster.scheduler("other");
    other.wait_until_ready(READY_DEADLINE);
    fixture.under_load(|| {
        for (place, mut kill) in kills(steps, kills_each).enumerate() {
            // It has a half of the partitions, and reaches these steps only for them.
            if kill.step.times_max == KILLS_EACH {
                kill.time = kill.time.min(KILLS_EACH / 2);
            }
            let mut scheduler = fixture.cluster.scheduler_with_faults("first", &kill.fault());
            kill.wait_for_exit(&mut scheduler);
            if (place / steps.len() + place).is_multiple_of(2) {
                wait_until_owned(&other, PARTITIONS as usize);
                wait_until_fenced(&other);
            }
            assert!(other.exit_status().is_none(), "{}", other.log_text());
        }
    });
    let takeovers = other.takeovers();
    finish(&fixture, &mut other, takeovers, steps.len() * kills_each)
}

/// A process that starts while it is still being fenced is fenced itself: then it takes its
/// partitions over once more, and does not get to its step.
fn wait_until_fenced(other: &OrlojProcess) {
    until("the killed one to be fenced", COMPLETION_DEADLINE, || {
        let log = other.log_text();
        let count = |words: &str| log.matches(words).count();
        let (ok, failed) = ("the earlier owner is fenced", "the earlier owner cannot be fenced");
        let started = count("fencing the earlier owner") * PRODUCERS_MAX;
        (started == count(ok) + count(failed)).then_some(())
    });
}

fn finish(
    fixture: &FaultFixture,
    scheduler: &mut OrlojProcess,
    takeovers: Vec<u64>,
    kills: usize,
) -> FaultFigures {
    let report = fixture.settled(&mut [scheduler]);
    let is_pending = fixture.cluster.distant_trigger_is_pending();
    assert!(is_pending, "the ledger lost the trigger due in 400 days");
    FaultFigures::of(&report).takeovers(takeovers).with("kills", kills)
}

fn kill_workers(part: usize, steps: &[&KillPoint], kills_each: usize) -> FaultFigures {
    let cluster = TestCluster::new(&format!("kill-worker-{part}"))
        .set("scheduler.session_timeout", "1500ms")
        .set("worker.allow_addresses", "any")
        .set("worker.retry_delays", vec!["1s", "1s", "1s"]);
    let client = cluster.client();
    let receiver = CountingReceiver::start();
    let mut scheduler = cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let url = receiver.url();
    let flow = SteadyLoad {
        cluster: &cluster,
        client: &client,
        per_second: 50,
        ack: false,
        other: Some((CALLBACK_URL_HEADER, &url)),
    };
    flow.during(|| {
        for kill in kills(steps, kills_each) {
            let mut worker = cluster.start_with_faults("worker", "worker", &kill.fault());
            kill.wait_for_exit(&mut worker);
            receiver.record_kill();
        }
    });
    let worker = cluster.start("worker", "worker");
    let figures = receiver.check(&cluster, &client.acknowledged(), COMPLETION_DEADLINE);
    worker.terminate();
    scheduler.terminate();
    // The second look: all of them start again, of the schedulers one with an empty disk.
    cluster.wipe("first");
    let (scheduler, worker) = (cluster.scheduler("first"), cluster.start("worker", "worker"));
    wait_until_owned(&scheduler, PARTITIONS as usize);
    for n in 0..4 * PARTITIONS {
        let to = (CALLBACK_URL_HEADER, url.as_str());
        client.register(&format!("second-look-{n}"), clock::now_ms(), to, "{}", false);
    }
    receiver.check(&cluster, &client.acknowledged(), COMPLETION_DEADLINE);
    assert_eq!(cluster.dead_letters(), []);
    worker.terminate();
    scheduler.terminate();
    figures.with("kills", steps.len() * kills_each)
}

/// One process's end.
struct Kill<'a> {
    step: &'a KillPoint,
    time: u32,
}

/// Every step as often, in turn; at which time a step kills differs from round to round.
fn kills<'a>(steps: &'a [&'a KillPoint], each: usize) -> impl Iterator<Item = Kill<'a>> {
    (0..each).flat_map(move |round| {
        if round % 10 == 0 {
            print_progress(&format!(
                "  {round} of {each} rounds, {} steps from {}",
                steps.len(),
                steps[0].name
            ));
        }
        let kill = move |step: &&'a KillPoint| {
            let round = u32::try_from(round).expect("few rounds");
            // A prime spreads neighbours; an early and a late time alternate.
            Kill { step, time: 1 + round * 7_919 % step.times_max }
        };
        steps.iter().map(kill)
    })
}

impl Kill<'_> {
    fn fault(&self) -> String {
        format!("{}=kill@{}", self.step.name, self.time)
    }

    fn wait_for_exit(&self, process: &mut OrlojProcess) {
        if self.step.when == KillPhase::Stopping {
            process.wait_until_ready(READY_DEADLINE);
            process.wait_until_owner(READY_DEADLINE);
            process.signal(Signal::TERM);
        }
        let what = format!("death of {}", self.fault());
        let status = until(&what, EXIT_DEADLINE, || process.exit_status());
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        assert!(killed, "{what}: instead {status}; it said:\n{}", process.log_text());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn named_below(folder: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                named_below(&path, names);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let calls = text.split("reached").skip(1);
            let named = calls.filter_map(|rest| rest.trim_start_matches(')').strip_prefix("(\""));
            names.extend(named.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }

    #[test]
    fn every_named_step_is_a_kill_point() {
        let mut named = BTreeSet::new();
        named_below(Path::new("src"), &mut named);
        named_below(Path::new("crates/orloj-core/src"), &mut named);
        let died_in = SCHEDULER.iter().chain(WORKER).map(|step| step.name);
        let died_in = died_in.chain(AFTER_FAILURE).map(str::to_owned);
        assert_eq!(died_in.collect::<BTreeSet<_>>(), named);
    }
}
