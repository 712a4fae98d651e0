//! Clocks that are set back: nothing fires early or twice; what must wait for the clock says so.

use super::processes::{owns, stay};
use super::report::{Figures, Verdict};
use super::witness::{self, Witness};
use super::{Scale, Scene};
use crate::stage::{PARTITIONS, READY};

/// Back by 8 s, at the n-th reading of the clock.
const AT_ONCE: &str = "clock=back8000@1";
const LATER: &str = "clock=back8000@3000";

pub(super) fn set_back(_: Scale) -> Verdict {
    let scene = Scene::new("clock");
    let mut witnesses = Vec::new();
    let mut takeovers = Vec::new();
    scene.flow().during(|| {
        for fault in ["", AT_ONCE, LATER] {
            let scheduler = scene.stage.armed_scheduler("first", fault);
            witnesses.push(Witness::of(&scheduler));
            owns(&scheduler, PARTITIONS as usize);
            stay(12_000);
            assert!(!scheduler.panicked(), "{}", scheduler.said());
            if fault == AT_ONCE {
                scheduler.says("this clock is behind", READY);
            }
            takeovers.extend(scheduler.takeovers());
            scheduler.kill();
        }
    });
    let mut last = scene.stage.scheduler("first");
    last.ready(READY);
    let report = scene.settled();
    let witnesses: Vec<_> = witnesses.iter().collect();
    witness::assert_true(&witnesses, &scene.client.acknowledged(), &scene.stage.fires());
    last.terminate();
    Verdict::Passed(Figures::of(&report).takeovers(takeovers))
}
