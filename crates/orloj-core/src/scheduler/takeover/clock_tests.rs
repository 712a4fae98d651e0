//! Tests of a takeover whose clock is behind what an earlier owner has fired.
//!
//! Invariant: the partition is active when the clock has reached that, and not before.

use super::*;

/// Partition 0 is taken over, and the clock is 50 ms behind what has fired.
fn waiting_for_clock(world: &TestEnvironment) -> Scheduler<TestEnvironment> {
    let mut scheduler = scheduler(world, (3, 10));
    let fired_through = TimelineKey::last_at(world.clock.now_ms() + 50);
    let cursor = Cursor { next_offset: 3, fired_through, ..Cursor::initial(0, 0) };
    world.member.membership().committed = Some((3, cursor.to_metadata("earlier")));
    until_triggers(world, &mut scheduler);
    world.triggers.returns((0..3).map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
    world.triggers.returns([avro(3)]);
    (0..4).for_each(|_| scheduler.poll_once().unwrap());
    assert_eq!(scheduler.partitions_waiting_for_clock(), 1);
    scheduler
}

#[test]
fn a_partition_whose_clock_is_behind_waits_and_reads_again_from_what_is_decided() {
    let world = TestEnvironment::default();
    let scheduler = &mut waiting_for_clock(&world);
    let task = &scheduler.tasks[&0];
    assert_eq!((task.next_trigger, task.parking.len()), (3, 0), "it is read again");
    assert_eq!(world.triggers.calls().last().unwrap(), "stop o.triggers[0]");
    let readiness = world.reporter.readiness("partitions").unwrap();
    assert_eq!(readiness, "not ready: 0 of 1 partitions active");
    world.clock.advance(MS * 49);
    scheduler.resume_waiting().unwrap();
    assert_eq!(scheduler.partitions_waiting_for_clock(), 1);
    assert_eq!(world.reporter.readiness("partitions"), None);
    let _calls = world.signals_and_ledger.calls();
    world.clock.advance(MS);
    scheduler.resume_waiting().unwrap();
    assert!(scheduler.tasks.get_mut(&0).unwrap().active().is_some());
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 3"]);
    assert_eq!(world.signals_and_ledger.calls(), ["start o.signals[0] at 0"]);
    assert_eq!(world.reporter.readiness("partitions").unwrap(), "ready");
}

/// What was read until then is not known when it is requested.
#[test]
fn an_end_that_was_requested_while_a_partition_waited_for_the_clock_says_nothing() {
    let world = TestEnvironment::default();
    let mut scheduler = waiting_for_clock(&world);
    world.hold("end-offsets");
    scheduler.end_offsets.ask_again(0);
    scheduler.poll_once().unwrap();
    world.clock.advance(MS * 50);
    scheduler.resume_waiting().unwrap();
    world.let_go("end-offsets");
    (0..4).for_each(|_| scheduler.poll_once().unwrap());
    let partition = scheduler.tasks.get_mut(&0).unwrap().active().expect("it is resumed");
    assert!(!partition.has_unread_input(), "it is not known how long the log is");
}
