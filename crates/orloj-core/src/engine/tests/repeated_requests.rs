//! Records with an idempotency key that are written twice, because their writer does not know
//! whether the first one was written.
//!
//! Invariant: the second changes nothing and is answered as the first, also by an owner that has
//! lost its disk.

use super::fixture::NOW;
use super::scenario::EngineScenario;
use crate::codec::registration::{NoWriterSchemas, RawRecord, ReadContext, read_trigger};
use crate::codec::schemas::Schemas;
use crate::model::Offset;
use crate::model::partitioner::Partitioner;

/// Writes a record of the trigger a.
fn write(scenario: &mut EngineScenario, value: &[u8], headers: &[(&str, &str)]) {
    let (schemas, writers) = (Schemas::new(), NoWriterSchemas);
    let context = ReadContext {
        partitioner: Partitioner::Any,
        partitions: 1,
        schemas: &schemas,
        writers: &writers,
    };
    let ack = [("orloj-ack", "true")];
    let headers = ack.iter().chain(headers).map(|(name, value)| (*name, Some(value.as_bytes())));
    let raw = RawRecord {
        partition: 0,
        offset: scenario.fixture.log.triggers.len() as Offset,
        timestamp: scenario.now(),
        key: Some(b"a"),
        value: Some(value),
        headers: headers.collect(),
    };
    scenario.fixture.log.triggers.push(read_trigger(&raw, &context).unwrap());
}

fn fire_now(scenario: &mut EngineScenario, key: &str) {
    write(scenario, b"", &[("orloj-command", "fire-now"), ("orloj-idempotency-key", key)]);
}

fn register(scenario: &mut EngineScenario, key: &str, delay: &str) {
    let target = ("orloj-target-topic", "out");
    let headers = [("orloj-delay", delay), target, ("orloj-idempotency-key", key)];
    write(scenario, b"p", &headers);
}

/// Far from now.
const DAILY: &str = r#"{"daily": "09:00"}"#;

#[test]
fn a_fire_now_with_the_key_of_an_earlier_one_fires_nothing() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, DAILY);
        fire_now(&mut scenario, "k-1");
        let fired = format!("{NOW} a#0 of {NOW}");
        scenario.run_until(NOW).assert_events(&["a accepted", "a called #0", &fired]);
        fire_now(&mut scenario, "k-1");
        scenario.run_until(NOW + 10).assert_events(&["a called #0"]);
        fire_now(&mut scenario, "k-2");
        let fired = format!("{0} a#1 of {0}", NOW + 10);
        scenario.run_until(NOW + 10).assert_events(&["a called #1", &fired]);
        fire_now(&mut scenario, "k-1");
        fire_now(&mut scenario, "k-2");
        scenario.run_until(NOW + 20).assert_events(&["a called #0", "a called #1"]);
    });
}

/// Both are executed by the same fire.
#[test]
fn a_fire_now_with_another_key_before_the_fire_is_remembered_too() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, DAILY);
        fire_now(&mut scenario, "k-1");
        fire_now(&mut scenario, "k-2");
        scenario.run_until(NOW + 10).take_events();
        fire_now(&mut scenario, "k-2");
        scenario.run_until(NOW + 20).assert_events(&["a called #0"]);
    });
}

#[test]
fn a_replacement_forgets_no_key() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, DAILY);
        fire_now(&mut scenario, "k-1");
        scenario.run_until(NOW).take_events();
        scenario.recurring("a", false, DAILY);
        scenario.run_until(NOW + 10).take_events();
        fire_now(&mut scenario, "k-1");
        scenario.run_until(NOW + 20).assert_events(&["a called #0"]);
    });
}

#[test]
fn a_registration_with_the_key_of_an_earlier_one_registers_nothing() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        register(&mut scenario, "k-1", "0");
        let fired = format!("{NOW} a#0 of {NOW}");
        scenario.run_until(NOW).assert_events(&["a accepted", &fired]);
        register(&mut scenario, "k-1", "0");
        let kept = format!("a kept for {NOW}");
        scenario.run_until(NOW + 10).assert_events(&[&kept]);
        register(&mut scenario, "k-2", "1h");
        scenario.run_until(NOW + 10).assert_events(&["a accepted"]);
        register(&mut scenario, "k-1", "0");
        let kept = format!("a kept for {}", NOW + 10 + 3_600_000);
        scenario.run_until(NOW + 20).assert_events(&[&kept]);
    });
}

/// The replacement is not retained; the key is.
#[test]
fn the_key_of_what_was_replaced_is_remembered_for_a_day() {
    const DAY: u64 = 86_400_000;
    EngineScenario::with_and_without_restarts(|mut scenario| {
        register(&mut scenario, "k-1", "0");
        scenario.run_until(NOW + 10).take_events();
        write(&mut scenario, b"p", &[("orloj-delay", "0"), ("orloj-target-topic", "out")]);
        let fired = format!("{0} a#0 of {0}", NOW + 10);
        scenario.run_until(NOW + 10).assert_events(&["a accepted", &fired]);
        register(&mut scenario, "k-1", "0");
        let kept = format!("a kept for {}", NOW + 10);
        scenario.run_until(NOW + 20).assert_events(&[&kept]);
        scenario.run_until(NOW + 20 + DAY).take_events();
        register(&mut scenario, "k-1", "0");
        let fired = format!("{0} a#0 of {0}", NOW + 20 + DAY);
        scenario.run_until(NOW + 20 + DAY).assert_events(&["a accepted", &fired]);
    });
}

#[test]
fn a_cancel_forgets_no_key() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        register(&mut scenario, "k-1", "0");
        scenario.run_until(NOW + 10).take_events();
        write(&mut scenario, b"p", &[("orloj-delay", "1h"), ("orloj-target-topic", "out")]);
        scenario.run_until(NOW + 10).take_events();
        let _offset = scenario.fixture.cancel("a");
        scenario.run_until(NOW + 10).assert_events(&["a cancelled"]);
        register(&mut scenario, "k-1", "0");
        let kept = format!("a kept for {}", NOW + 10 + 3_600_000);
        scenario.run_until(NOW + 20).assert_events(&[&kept]);
    });
}

/// It has had as many executions as it may have.
#[test]
fn a_replacement_that_has_ended_at_once_is_remembered_for_its_key() {
    EngineScenario::with_and_without_restarts(|mut scenario| {
        scenario.recurring("a", false, r#"{"every": "PT1S"}"#);
        scenario.run_until(NOW + 10).take_events();
        let schedule = ("orloj-schedule", r#"{"every": "PT1S", "maxExecutions": 1}"#);
        let (count, key) = (("orloj-count", "keep"), ("orloj-idempotency-key", "k-1"));
        let headers = [schedule, count, key, ("orloj-target-topic", "out")];
        write(&mut scenario, b"p", &headers);
        let events = scenario.run_until(NOW + 20).take_events();
        assert_eq!(events, ["a accepted, replaces", "a ended after 1"]);
        write(&mut scenario, b"p", &headers);
        let events = scenario.run_until(NOW + 5_000).take_events();
        assert!(events.len() == 1 && events[0].starts_with("a kept"), "{events:?}");
    });
}

/// It is of use only if the trigger is remembered once it has settled.
#[test]
fn a_registration_with_a_key_is_retained_for_a_day() {
    const DAY: u64 = 86_400_000;
    let mut scenario = EngineScenario::new();
    register(&mut scenario, "k-1", "0");
    scenario.run_until(NOW + DAY - 1).take_events();
    register(&mut scenario, "k-1", "0");
    let kept = format!("a kept for {NOW}");
    scenario.run_until(NOW + DAY - 1).assert_events(&[&kept]);
    scenario.run_until(NOW + DAY).take_events();
    register(&mut scenario, "k-1", "0");
    let fired = format!("{} a#0 of {}", NOW + DAY + 1, NOW + DAY);
    scenario.run_until(NOW + DAY + 1).assert_events(&["a accepted", &fired]);
}
