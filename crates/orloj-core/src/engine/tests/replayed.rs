//! What a dead letter that is replayed means to those who wait for its trigger.

use super::scene::{NOW, Scene};
use super::world::{Disk, definition, registration};
use crate::engine::step::Emit;
use crate::model::course::Watcher;
use crate::model::entry::FireId;
use crate::model::input::{Registration, Request, SignalRecord};
use crate::model::signal::{Settled, Signal, Watch};
use crate::model::{Millis, Offset};

const RETAIN: Millis = 50_000;

/// A callback that was given up and is delivered after all has come off, for as long as it is
/// remembered; and a failure that is told late takes nothing back.
#[test]
fn who_asks_after_a_replay_is_told_how_that_ended() {
    for forgetful in [false, true] {
        let mut scene = Scene::new();
        let new = registration("a", NOW, definition(true));
        let new = Registration { retain: Some(RETAIN), ..new };
        scene.log.append(NOW, Request::Register(new));
        scene.run();
        for (ok, told) in [(false, false), (true, true), (false, true)] {
            ended(&mut scene, ok);
            scene.run();
            if forgetful {
                let now = scene.now;
                scene.take_over(Disk::default(), now);
            }
            assert_eq!(asked(&mut scene), [told]);
        }
        scene.now += RETAIN;
        scene.run();
        assert!(asked(&mut scene).is_empty(), "it is remembered no longer than it asked for");
    }
}

fn ended(scene: &mut Scene, ok: bool) {
    let id = FireId { trigger: "a".into(), generation: 0, occurrence: 0, attempt: 1, deferral: 0 };
    signal(scene, Signal::Settled(Settled { id, ok }));
}

/// What is said to one who waits for `a` from now on.
fn asked(scene: &mut Scene) -> Vec<bool> {
    let watcher = Watcher { trigger: "b".into(), generation: 9 };
    let until = scene.now + 10 * RETAIN;
    signal(scene, Signal::Watch(Watch { trigger: "a".into(), watcher, until }));
    let mut told = Vec::new();
    while let Some(step) = scene.step() {
        for emit in step.emits {
            let Emit::Signal { signal, .. } = emit else { continue };
            if let Signal::Settlement(settlement) = *signal {
                told.push(settlement.ok);
            }
        }
    }
    told
}

fn signal(scene: &mut Scene, signal: Signal) {
    let offset = scene.log.signals.len() as Offset;
    scene.log.signals.push(SignalRecord { offset, signal: Ok(signal) });
}
