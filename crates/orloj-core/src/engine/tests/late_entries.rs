//! Triggers that are due when they are ingested: they fire in the same step, unless a later record
//! of it cancels or replaces them.

use super::fixture::{EngineFixture, NOW};
use crate::engine::step::Emit;
use crate::model::outcome::OutcomeKind;
use crate::model::work::tests::counted;

/// A step that registers so many late triggers, cancels every other one and replaces the rest:
/// which generations fire, and how much work it is to find the late entries.
fn registered_cancelled_and_replaced(count: usize) -> (Vec<u64>, usize) {
    let mut fixture = EngineFixture::new();
    fixture.records = usize::MAX;
    let ids: Vec<_> = (0..count).map(|n| format!("t-{n}")).collect();
    for id in &ids {
        fixture.register(id, NOW - 900);
    }
    for (n, id) in ids.iter().enumerate() {
        let _offset = if n % 2 == 0 { fixture.cancel(id) } else { fixture.register(id, NOW - 800) };
    }
    let (step, work) = counted(|| fixture.step().unwrap());
    let mut fired = Vec::new();
    let mut cancelled = 0;
    for emit in &step.emits {
        match emit {
            Emit::ToTopic(fire) => {
                let row = crate::codec::row::view(&fire.row).unwrap().unwrap();
                fired.push(row.generation);
            }
            Emit::Outcome(outcome) => {
                cancelled += usize::from(matches!(outcome.kind, OutcomeKind::Cancelled { .. }));
            }
            _ => {}
        }
    }
    assert_eq!(cancelled, count.div_ceil(2), "a late trigger is pending until it fires");
    (fired, work)
}

#[test]
fn what_is_cancelled_or_replaced_in_the_same_step_does_not_fire() {
    let (fired, _) = registered_cancelled_and_replaced(7);
    assert_eq!(fired, [8, 10, 12], "in the order of their records");
}

#[test]
fn twice_as_many_late_triggers_are_twice_the_work() {
    let (_, once) = registered_cancelled_and_replaced(1_000);
    let (fired, twice) = registered_cancelled_and_replaced(2_000);
    assert_eq!(fired.len(), 1_000);
    assert!(twice as f64 <= 2.2 * once as f64, "{once} units of work, twice as many: {twice}");
}
