//! Entries that are due while a record of their trigger is parked: how long they are put off.

use super::fixture::{EngineFixture, NOW, index, ledger_put, postponed, put, topic_trigger};
use super::harness::definition;
use super::scenario::EngineScenario;
use crate::engine::index_row::IdHash;
use crate::engine::parked_schemas::ParkedSchemas;
use crate::engine::partition::{IndexRows, Input};
use crate::engine::prefetch::{Prefetched, TimelineRows};
use crate::engine::step::Emit;
use crate::model::Timestamp;
use crate::model::input::{Registration, Request};
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::lifecycle::Command;

/// How long an entry is put off at most, in ms.
const MOST: u64 = 1_000;

/// A trigger `a` is pending, and a record of it is parked.
struct HeldFixture(EngineFixture);

impl HeldFixture {
    fn new(due: Timestamp) -> Self {
        let mut fixture = EngineFixture::new();
        fixture.owner.partition.config_mut().target_retry_interval = MOST;
        fixture.register("a", due);
        fixture.run_until_idle();
        let mut held = Self(fixture);
        held.park();
        held
    }

    /// A record of it is parked.
    fn park(&mut self) {
        self.0.owner.partition.hold([IdHash::of("a")]);
    }

    /// All parked records of it are read.
    fn unpark(&mut self) {
        let unparked = Input::Unparked { ids: vec!["a".into()], schemas: ParkedSchemas::NONE };
        let (index, rows) = (&IndexRows::default(), &TimelineRows::default());
        let prefetched = Prefetched { index, rows };
        self.0.owner.partition.ingest(vec![unparked], prefetched).unwrap();
    }
}

#[test]
fn a_trigger_is_put_off_by_how_long_it_is_held_and_not_by_how_late_it_is() {
    let mut held = HeldFixture::new(1_020);
    let a = topic_trigger("a", 0, 1_020);
    let assert_put_off = |held: &mut HeldFixture, now, until| {
        held.0.now = now;
        let a = postponed(&a, until);
        held.0.assert_decides(&[ledger_put(&a)], &[put(&a), index("a", &[&a])]);
    };
    // The process was stopped when it was due.
    for (now, until) in [(9_000, 9_100), (9_100, 9_200), (9_200, 9_400)] {
        assert_put_off(&mut held, now, until);
        held.park(); // one more record
    }
    held.unpark();
    held.park();
    assert_put_off(&mut held, 9_400, 9_500);
}

#[test]
fn a_trigger_that_a_command_fires_early_is_put_off_for_longer_each_time() {
    let mut held = HeldFixture::new(60_000);
    let command = Request::Command { id: "a".into(), command: Command::FireNow, caller: None };
    let _offset = held.0.log.append(held.0.now, command);
    let mut due = Vec::new();
    for now in held.0.now..6_000 {
        held.0.now = now;
        let Some(step) = held.0.step() else { continue };
        due.extend(step.emits.iter().filter_map(|emit| match emit {
            Emit::Ledger { value: Some(value), .. } => match &**value {
                LedgerValue::Entry(entry) => Some(entry.key.due),
                _ => None,
            },
            _ => None,
        }));
    }
    let pauses: Vec<_> = due.windows(2).map(|due| due[1] - due[0]).collect();
    assert!(pauses.is_sorted() && pauses.last() == Some(&MOST), "{pauses:?}");
}

#[test]
fn a_trigger_of_which_no_record_is_parked_fires_beside_one_that_is_held() {
    let mut held = HeldFixture::new(1_020);
    held.0.register("b", 1_020);
    held.0.run_until_idle();
    held.0.now = 1_020;
    let (a, b) = (postponed(&topic_trigger("a", 0, 1_020), 1_120), topic_trigger("b", 1, 1_020));
    let emits = [ledger_put(&a), held.0.fire_emit(&b)];
    held.0.assert_decides(&emits, &[put(&a), index("a", &[&a])]);
}

#[test]
fn what_is_retained_of_a_trigger_is_forgotten_in_time_although_a_record_of_it_is_parked() {
    let mut scenario = EngineScenario::new();
    let new = Registration::one_time("a", NOW, definition(false));
    scenario.register(Registration { retain: Some(1_000), ..new });
    scenario.run_until(1_999);
    scenario.fixture.owner.partition.hold([IdHash::of("a")]);
    assert_eq!(scenario.ledger_keys(), [LedgerKey::Main("a".into())]);
    scenario.run_until(2_001).assert_events(&["a accepted", "1000 a#0 of 1000"]);
    assert_eq!(scenario.ledger_keys(), []);
}
