//! Tests of what is done and said while triggers cannot be read.
//!
//! Invariant: the clock moves when a test moves it, and a job is done in the next turn.

use super::*;
use crate::environment::log::LogEvent;
use crate::read_recovery::FAILURE_MAX;
use crate::scheduler::test_partition::active_at;
use crate::test_environment::TestEnvironment;
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::reader::TestRecord;

const TRIGGERS: &str = "o.triggers";

/// From an error until a partition is read again.
const FIRST_PAUSE: Duration = SECOND;
const NOT_READY: &str = "not ready: triggers cannot be read: the broker is away";

fn turn(scheduler: &mut Scheduler<TestEnvironment>) {
    scheduler.read_inputs(Duration::ZERO, Duration::ZERO).unwrap();
}

/// A scheduler with two partitions, whose reader of triggers has failed now. A broker says where
/// they end.
fn failed(world: &TestEnvironment) -> Scheduler<TestEnvironment> {
    let mut scheduler = world.scheduler_owning([active_at(0), active_at(1)]);
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 0));
    turn(&mut scheduler);
    world.triggers.reading().fails = true;
    turn(&mut scheduler);
    turn(&mut scheduler);
    assert_eq!(world.triggers.calls(), [""; 0], "nothing is read again at once");
    scheduler
}

#[test]
fn a_process_is_not_ready_while_triggers_of_a_partition_cannot_be_read_and_ready_after() {
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world);
    world.triggers.returns([TestRecord::at(TRIGGERS, 1, 0)]);
    world.clock.advance(FAILURE_MAX - MS);
    turn(&mut scheduler);
    assert_eq!(world.reporter.readiness("triggers"), None, "a leader may be elected");
    world.clock.advance(MS);
    turn(&mut scheduler);
    assert_eq!(world.reporter.readiness("triggers").as_deref(), Some(NOT_READY));
    turn(&mut scheduler);
    assert_eq!(world.reporter.readiness("triggers"), None, "it was said");
    world.triggers.reading().events.push_back(LogEvent::End(0));
    turn(&mut scheduler);
    assert_eq!(world.reporter.readiness("triggers").as_deref(), Some("ready"));
}

#[test]
fn a_partition_that_has_returned_nothing_since_an_error_is_read_again_where_it_was() {
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world);
    scheduler.tasks.get_mut(&0).unwrap().next_trigger = 5;
    world.triggers.returns([TestRecord::at(TRIGGERS, 1, 0)]);
    world.clock.advance(FIRST_PAUSE - MS);
    turn(&mut scheduler);
    assert_eq!(world.triggers.calls(), [""; 0]);
    let task = scheduler.tasks.get_mut(&0).unwrap();
    (task.has_fetched, task.read_at) = (true, world.clock.monotonic());
    let read_at = task.read_at;
    world.clock.advance(MS);
    turn(&mut scheduler);
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 5"]);
    let task = &scheduler.tasks[&0];
    assert_eq!((task.has_fetched, task.read_at), (true, read_at), "what is known stays");
    turn(&mut scheduler);
    assert_eq!(world.triggers.calls(), [""; 0], "what is fetched has time to arrive");
}

#[test]
fn a_partition_that_is_paused_or_checked_is_not_read_again_because_of_an_error() {
    type Change = fn(&mut Scheduler<TestEnvironment>);
    let changes: [Change; 4] = [
        |scheduler| scheduler.tasks.get_mut(&0).unwrap().is_paused = true,
        |scheduler| scheduler.tasks.get_mut(&0).unwrap().end_check = EndCheck::Requested(9),
        |scheduler| scheduler.check_range(0, InputLog::Triggers, 0),
        |scheduler| scheduler.truncated_logs.on_seen(0, TRIGGERS, (0, 1), 0),
    ];
    for change in changes {
        let world = TestEnvironment::default();
        let mut scheduler = failed(&world);
        change(&mut scheduler);
        world.clock.advance(FIRST_PAUSE);
        for id in scheduler.triggers_reading.recovery.next_reads(world.clock.monotonic()) {
            scheduler.read_triggers_again(id).unwrap();
        }
        assert_eq!(world.triggers.calls(), ["start o.triggers[1] at 0"]);
    }
}

#[test]
fn a_process_that_owns_nothing_is_not_ready_after_an_error_until_a_broker_answers() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler();
    world.triggers.reading().fails = true;
    turn(&mut scheduler);
    world.clock.advance(FAILURE_MAX);
    turn(&mut scheduler);
    let reason = "not ready: triggers cannot be read: no broker says where triggers end";
    assert_eq!(world.reporter.readiness("triggers").as_deref(), Some(reason));
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 0));
    for _ in 0..3 {
        world.clock.advance(SECOND);
        turn(&mut scheduler);
    }
    assert_eq!(world.reporter.readiness("triggers").as_deref(), Some("ready"));
}

#[test]
fn what_is_released_need_not_be_read() {
    let world = TestEnvironment::default();
    let mut scheduler = failed(&world);
    world.clock.advance(FAILURE_MAX);
    turn(&mut scheduler);
    assert_eq!(world.reporter.readiness("triggers").as_deref(), Some(NOT_READY));
    scheduler.release(&[0, 1]).unwrap();
    turn(&mut scheduler);
    assert_eq!(world.reporter.readiness("triggers").as_deref(), Some("ready"));
}
