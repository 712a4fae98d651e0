//! SIGKILL at every named step: under a steady load a process is armed, dies there, and is started
//! again, over and over; then everything is judged at once.
//!
//! Law: a process that was to die at a step died of it and of nothing else. Every step that the
//! sources name is in [`SCHEDULER`] or [`WORKER`].

use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::flow::Flow;
use super::receiver::Receiver;
use super::report::{Figures, Verdict};
use super::{SETTLE, Scale, say, settled};
use crate::process::Orloj;
use crate::stage::{READY, Stage};
use crate::wait::until;

/// A named step, and up to which time it is reached the process lives; chosen at random.
struct Step {
    name: &'static str,
    times_max: u32,
    when: When,
}

/// What a process must do to get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Run.
    Running,
    /// Hand its partitions over.
    Leaving,
}

const fn running(name: &'static str, times_max: u32) -> Step {
    Step { name, times_max, when: When::Running }
}

const fn leaving(name: &'static str) -> Step {
    Step { name, times_max: 1, when: When::Leaving }
}

/// A takeover of its four partitions reaches each of its steps so often.
const EACH: u32 = 4;

const SCHEDULER: &[Step] = &[
    running("transactor.before_init", 1),
    running("transactor.after_init", 1),
    running("takeover.before_offsets", EACH),
    running("takeover.before_barrier", EACH),
    running("takeover.before_ledger", EACH),
    running("takeover.after_ledger", EACH),
    running("takeover.before_replay", EACH),
    running("takeover.after_replay", EACH),
    running("takeover.before_activate", EACH),
    running("takeover.after_activate", EACH),
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
    leaving("revoke.before_last_words"),
    leaving("revoke.after_last_words"),
    leaving("member.before_release"),
    leaving("member.after_release"),
];

const WORKER: &[Step] = &[
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

/// Installations that are attacked side by side: starting a process is mostly waiting.
const SIDE_BY_SIDE: usize = 3;
/// A process dies within that time of its start.
const DEATH: Duration = Duration::from_secs(60);

fn kills_each(scale: Scale) -> usize {
    match scale {
        Scale::Short => 1,
        Scale::Full => 30,
        Scale::Long => 100,
    }
}

pub(super) fn schedulers(scale: Scale) -> Verdict {
    side_by_side(SCHEDULER, |lane, steps| kill_schedulers(lane, steps, kills_each(scale)))
}

pub(super) fn workers(scale: Scale) -> Verdict {
    side_by_side(WORKER, |lane, steps| kill_workers(lane, steps, kills_each(scale)))
}

/// Deals the steps out to several installations and adds up what they found.
fn side_by_side(steps: &[Step], attack: impl Fn(usize, &[&Step]) -> Figures + Sync) -> Verdict {
    let share = |lane| steps.iter().skip(lane).step_by(SIDE_BY_SIDE).collect::<Vec<_>>();
    let attack = &attack;
    let figures = thread::scope(|scope| {
        let attacks: Vec<_> =
            (0..SIDE_BY_SIDE).map(|lane| scope.spawn(move || attack(lane, &share(lane)))).collect();
        let ended = attacks.into_iter().map(|attack| attack.join());
        ended
            .map(|figures| figures.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .reduce(|all, figures| all.and(&figures))
    });
    Verdict::Passed(figures.expect("there is more than none"))
}

fn kill_schedulers(lane: usize, steps: &[&Step], kills_each: usize) -> Figures {
    // A part of the load is in the ledger, and flushes come often enough to be died in.
    let stage = Stage::new(&format!("kill-scheduler-{lane}"))
        .set("scheduler.ledger_after", "2s")
        .set("store.flush_interval", "300ms");
    let client = stage.client();
    stage.register_far_one(&client);
    let mut takeovers = Vec::new();
    let flow = Flow { stage: &stage, client: &client, per_second: 100, callback: None };
    flow.during(|| {
        for kill in kills(steps, kills_each) {
            let mut scheduler = stage.armed_scheduler("first", &kill.fault());
            kill.await_death(&mut scheduler);
            takeovers.extend(scheduler.takeovers());
        }
    });
    let mut scheduler = stage.scheduler("first");
    scheduler.ready(READY);
    let report = settled(&stage, &client);
    scheduler.terminate();
    assert!(stage.far_one_is_kept(), "the ledger lost the trigger due in 400 days");
    Figures::of(&report).takeovers(takeovers).with("kills", steps.len() * kills_each)
}

fn kill_workers(lane: usize, steps: &[&Step], kills_each: usize) -> Figures {
    let stage = Stage::new(&format!("kill-worker-{lane}"))
        .set("scheduler.session_timeout", "1500ms")
        .set("worker.allow_addresses", "any")
        .set("worker.retry_delays", vec!["1s", "1s", "1s"]);
    let client = stage.client();
    let receiver = Receiver::start();
    let mut scheduler = stage.scheduler("first");
    scheduler.ready(READY);
    let url = receiver.url();
    let flow = Flow { stage: &stage, client: &client, per_second: 50, callback: Some(&url) };
    flow.during(|| {
        for kill in kills(steps, kills_each) {
            let mut worker = stage.armed("worker", "worker", &kill.fault());
            kill.await_death(&mut worker);
            receiver.note_kill();
        }
    });
    let worker = stage.start("worker", "worker");
    let figures = receiver.judge(&stage, &client.acknowledged(), SETTLE);
    worker.terminate();
    scheduler.terminate();
    figures.with("kills", steps.len() * kills_each)
}

/// One process's end.
struct Kill<'a> {
    step: &'a Step,
    time: u32,
}

/// Every step as often, in turn; at which time a step kills differs from round to round.
fn kills<'a>(steps: &'a [&'a Step], each: usize) -> impl Iterator<Item = Kill<'a>> {
    (0..each).flat_map(move |round| {
        if round % 10 == 0 {
            say(&format!(
                "  {round} of {each} rounds, {} steps from {}",
                steps.len(),
                steps[0].name
            ));
        }
        let kill = move |step: &&'a Step| {
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

    fn await_death(&self, process: &mut Orloj) {
        if self.step.when == When::Leaving {
            process.ready(READY);
            process.owns_a_partition(READY);
            process.signal(Signal::TERM);
        }
        let what = format!("death of {}", self.fault());
        let status = until(&what, DEATH, || process.ended());
        let killed = status.signal() == Some(Signal::KILL.as_raw());
        assert!(killed, "{what}: instead {status}; it said:\n{}", process.said());
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
            let named = text.split("fault::reached(\"").skip(1);
            names.extend(named.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }

    #[test]
    fn every_named_step_is_died_in() {
        let mut named = BTreeSet::new();
        named_below(Path::new("src"), &mut named);
        let died_in = SCHEDULER.iter().chain(WORKER).map(|step| step.name.to_owned());
        assert_eq!(died_in.collect::<BTreeSet<_>>(), named);
    }
}
