//! The effect of a replayed dead letter on the watchers of its trigger.

use super::fixture::{EngineFixture, NOW};
use super::harness::{TestStore, definition};
use crate::engine::step::Emit;
use crate::model::entry::FireId;
use crate::model::input::{Registration, Request, SignalRecord};
use crate::model::lifecycle::Watcher;
use crate::model::signal::{CallbackEnded, Signal, Watch};
use crate::model::{Millis, Offset};

const RETAIN: Millis = 50_000;

/// A callback that failed for good and is delivered by a replay has succeeded, while it is
/// retained; and a failure that is reported late changes nothing.
#[test]
fn a_watcher_added_after_a_replay_gets_the_result_of_the_replay() {
    for loses_store in [false, true] {
        let mut fixture = EngineFixture::new();
        let new = Registration::one_time("a", NOW, definition(true));
        let new = Registration { retain: Some(RETAIN), ..new };
        fixture.log.append(NOW, Request::Register(new));
        fixture.run_until_idle();
        for (ok, expected) in [(false, false), (false, false), (true, true), (false, true)] {
            report_callback_end(&mut fixture, ok);
            fixture.run_until_idle();
            if loses_store {
                let now = fixture.now;
                fixture.take_over(TestStore::default(), now);
            }
            assert_eq!(results_for_new_watcher(&mut fixture), [expected]);
        }
        fixture.now += RETAIN;
        fixture.run_until_idle();
        assert!(
            results_for_new_watcher(&mut fixture).is_empty(),
            "it is retained no longer than requested"
        );
    }
}

fn report_callback_end(fixture: &mut EngineFixture, ok: bool) {
    let id = FireId { trigger: "a".into(), generation: 0, occurrence: 0, attempt: 1, deferral: 0 };
    signal(fixture, Signal::CallbackEnded(CallbackEnded { id, ok }));
}

/// The results that a new watcher of `a` gets from now on.
fn results_for_new_watcher(fixture: &mut EngineFixture) -> Vec<bool> {
    let watcher = Watcher { trigger: "b".into(), generation: 9 };
    let until = fixture.now + 10 * RETAIN;
    signal(fixture, Signal::Watch(Watch { trigger: "a".into(), watcher, until }));
    let mut results = Vec::new();
    while let Some(step) = fixture.step() {
        for emit in step.emits {
            let Emit::Signal { signal, .. } = emit else { continue };
            if let Signal::DependencySettled(settlement) = *signal {
                results.push(settlement.ok);
            }
        }
    }
    results
}

fn signal(fixture: &mut EngineFixture, signal: Signal) {
    let offset = fixture.log.signals.len() as Offset;
    fixture.log.signals.push(SignalRecord { offset, signal: Ok(signal) });
}
