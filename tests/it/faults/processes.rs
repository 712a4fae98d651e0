//! Processes that stop for longer than the group waits, and that come and go all the time.

use std::thread;
use std::time::Duration;

use orloj::clock;
use rustix::process::Signal;

use super::dice::Dice;
use super::report::{Figures, Verdict};
use super::witness::{self, Witness};
use super::{SETTLE, Scale, Scene};
use crate::process::Orloj;
use crate::stage::{PARTITIONS, READY, Stage};
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
const VISITORS: [&str; 3] = ["second", "third", "fourth"];

/// A process is stopped in mid-transaction until another has everything, and then goes on.
pub(super) fn stopped(scale: Scale) -> Verdict {
    // So that what happens to the store happens soon.
    let scene = Scene::of(Stage::new("stopped").set("store.flush_interval", "300ms"));
    let mut other = scene.stage.scheduler("other");
    other.ready(READY);
    let witness = Witness::of(&other);
    let places = if scale == Scale::Short { &STOPS[..1] } else { &STOPS[..] };
    scene.flow().during(|| {
        for place in places {
            let fault = format!("{place}=stop@20");
            let mut victim = scene.stage.armed_scheduler(&place.replace('.', "-"), &fault);
            until(&format!("a stop at {place}"), READY, || victim.is_stopped().then_some(()));
            owns(&other, PARTITIONS as usize);
            let before = victim.takeovers().len();
            victim.signal(Signal::CONT);
            until("the stopped one to take part again", SETTLE, || {
                let ended = victim.ended();
                assert!(ended.is_none(), "it ended by itself: {ended:?}\n{}", victim.said());
                (victim.takeovers().len() > before).then_some(())
            });
            assert!(!victim.panicked(), "{}", victim.said());
            victim.terminate();
        }
    });
    let report = scene.settled();
    witness::assert_true(&[&witness], &scene.client.acknowledged(), &scene.stage.fires());
    let figures = Figures::of(&report).takeovers(other.takeovers()).with("stops", places.len());
    other.terminate();
    Verdict::Passed(figures)
}

/// A process ends gracefully and starts again: it must get its share back at once.
pub(super) fn restarted(_: Scale) -> Verdict {
    let scene = Scene::new("restarted");
    let mut other = scene.stage.scheduler("other");
    other.ready(READY);
    scene.flow().during(|| {
        for _ in 0..3 {
            let process = scene.stage.scheduler("first");
            owns(&process, PARTITIONS as usize / 2);
            stay(1_000);
            process.terminate();
        }
    });
    let report = scene.settled();
    let figures = Figures::of(&report).takeovers(other.takeovers());
    other.terminate();
    Verdict::Passed(figures)
}

/// Two processes were given one name: they throw each other out until one gives up and says why.
pub(super) fn namesakes(_: Scale) -> Verdict {
    let stage = Stage::new("namesakes").set("scheduler.instance_id", "twin");
    let scene = Scene::of(stage);
    let mut first = scene.stage.scheduler("first");
    first.ready(READY);
    let mut second = scene.stage.scheduler("second");
    let survivor = scene.flow().during(|| {
        until("one of the two to give up", SETTLE, || {
            let given_up = [first.ended().is_some(), second.ended().is_some()];
            given_up.contains(&true).then_some(())
        });
        let (lost, mut survivor) =
            if first.ended().is_some() { (first, second) } else { (second, first) };
        lost.says("does another process have the same scheduler.instance_id", READY);
        survivor.ready(READY);
        owns(&survivor, PARTITIONS as usize);
        survivor
    });
    let report = scene.settled();
    let figures = Figures::of(&report).takeovers(survivor.takeovers());
    survivor.terminate();
    Verdict::Passed(figures)
}

/// Four processes, of which three come and go every few seconds, gracefully or not.
pub(super) fn storm(scale: Scale) -> Verdict {
    let seconds = match scale {
        Scale::Short => 10,
        Scale::Full => 60,
        Scale::Long => 600,
    };
    let scene = Scene::new("storm");
    let mut first = scene.stage.scheduler("first");
    first.ready(READY);
    let end = clock::now_ms() + seconds * 1_000;
    let visits = scene.flow().during(|| {
        thread::scope(|scope| {
            let visitors: Vec<_> = (1..).zip(VISITORS).collect();
            let visits = visitors.into_iter().map(|(seed, name)| {
                let scene = &scene;
                scope.spawn(move || visit_until(scene, name, end, Dice::new(seed)))
            });
            let visits: Vec<_> = visits.collect();
            visits.into_iter().map(|visits| visits.join().unwrap()).sum::<usize>()
        })
    });
    owns(&first, PARTITIONS as usize);
    let report = scene.settled();
    let figures = Figures::of(&report).takeovers(first.takeovers()).with("visits", visits);
    assert!(!first.panicked());
    first.terminate();
    Verdict::Passed(figures)
}

fn visit_until(scene: &Scene, name: &str, end: u64, mut dice: Dice) -> usize {
    let mut visits = 0;
    while clock::now_ms() < end {
        let process = scene.stage.scheduler(name);
        stay(2_000 + dice.below(3_000));
        visits += 1;
        assert!(!process.panicked(), "{}", process.said());
        if dice.below(3) == 0 {
            process.kill()
        } else {
            process.terminate()
        }
        stay(dice.below(2_000));
    }
    visits
}

/// Lets so many ms pass: what happens meanwhile is the test.
pub(super) fn stay(ms: u64) {
    let _nothing: Option<()> = within(Duration::from_millis(ms), || None);
}

/// Waits until a process fires for so many partitions.
pub(super) fn owns(process: &Orloj, partitions: usize) {
    let what = format!("{partitions} partitions to be its own");
    until(&what, SETTLE, || (process.owned() == partitions).then_some(()));
}
