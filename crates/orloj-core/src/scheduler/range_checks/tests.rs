//! Tests of what is done where a reader is out of range.
//!
//! Invariant: the bounds of a log are what a test has set, and are answered in the next turn.

use super::*;
use crate::engine::takeover::TakeoverRequest;
use crate::scheduler::partition_task::PartitionTask;
use crate::scheduler::test_partition::{active, active_at, register, restore_of, restoring};
use crate::test_environment::TestEnvironment;
use crate::test_environment::clock::MS;
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::store::TestStore;
const TRIGGERS: &str = "o.triggers";
const SIGNALS: &str = "o.signals";
const LEDGER: &str = "o.ledger";

/// An active partition that is read at 5 in both logs.
fn read_until_5() -> PartitionTask<TestStore> {
    let mut task = active();
    (0..5).for_each(|offset| register(&mut task, offset, 1_000_000));
    task.next_signal = 5;
    task
}

/// The bounds of a log are requested, and answered.
fn check(scheduler: &mut Scheduler<TestEnvironment>, log: InputLog) {
    scheduler.check_range(0, log, 5);
    scheduler.poll_log_bounds().unwrap();
}

fn retry_at(scheduler: &Scheduler<TestEnvironment>, log: InputLog) -> Option<Duration> {
    match scheduler.range_checks.0.get(&(0, log))?.state {
        RangeCheckState::RetryAt(at) => Some(at),
        RangeCheckState::Requested(_) => None,
    }
}

#[test]
fn a_reader_that_is_out_of_range_may_mean_every_log_that_it_reads() {
    let mut scheduler = TestEnvironment::default().scheduler_owning([active_at(0)]);
    let _none = scheduler.tasks.insert(1, restoring(TakeoverRequest::Ledger { from: 3 }));
    let _none = scheduler.tasks.insert(2, restoring(TakeoverRequest::Offsets));
    scheduler.tasks.get_mut(&1).unwrap().id = 1;
    scheduler.on_out_of_range(LogReaderRole::SignalsAndLedger);
    let checked: Vec<_> = scheduler.range_checks.0.keys().copied().collect();
    assert_eq!(checked, [(0, InputLog::Signals), (1, InputLog::Ledger)]);
    scheduler.on_out_of_range(LogReaderRole::Triggers);
    assert!(scheduler.range_checks.is_open(0, InputLog::Triggers));
    scheduler.range_checks.forget(0);
    let checked: Vec<_> = scheduler.range_checks.0.keys().copied().collect();
    assert_eq!(checked, [(1, InputLog::Ledger)]);
}

#[test]
fn the_bounds_of_a_log_are_requested_once_for_a_position() {
    let mut scheduler = TestEnvironment::default().scheduler_owning([read_until_5()]);
    scheduler.check_range(0, InputLog::Triggers, 5);
    scheduler.check_range(0, InputLog::Triggers, 5);
    assert_eq!(scheduler.bounds_requests, 1);
    scheduler.check_range(0, InputLog::Triggers, 6);
    assert_eq!(scheduler.bounds_requests, 2, "it was read since");
    scheduler.check_range(0, InputLog::Signals, 6);
    assert_eq!(scheduler.bounds_requests, 3);
}

#[test]
fn a_log_whose_bounds_have_its_position_is_read_again_from_there() {
    let world = TestEnvironment::default();
    for (low, end) in [(5, 9), (0, 5)] {
        let mut scheduler = world.scheduler_owning([read_until_5()]);
        scheduler.tasks.get_mut(&0).unwrap().active().unwrap().on_end_offset(9, 0);
        for (log, topic) in [(InputLog::Triggers, TRIGGERS), (InputLog::Signals, SIGNALS)] {
            world.cluster.set(topic, 0, TestBounds::whole(low, end));
            check(&mut scheduler, log);
            assert!(!scheduler.range_checks.is_open(0, log));
        }
        assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 5"]);
        assert_eq!(world.signals_and_ledger.calls(), ["start o.signals[0] at 5"]);
        let partition = scheduler.tasks.get_mut(&0).unwrap().active().unwrap();
        assert!(!partition.has_unread_input(), "what was known of its end is not any more");
    }
}

#[test]
fn bounds_that_are_not_known_are_requested_again_after_a_time() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([read_until_5()]);
    check(&mut scheduler, InputLog::Triggers);
    let retry = scheduler.config.timing.end_retry;
    assert_eq!(retry_at(&scheduler, InputLog::Triggers), Some(retry));
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 9));
    world.clock.advance(retry - MS);
    scheduler.poll_log_bounds().unwrap();
    assert_eq!(scheduler.bounds_requests, 1);
    world.clock.advance(MS);
    scheduler.poll_log_bounds().unwrap();
    assert_eq!(scheduler.bounds_requests, 2);
    scheduler.poll_log_bounds().unwrap();
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 5"]);
}

#[test]
fn what_was_deleted_before_it_was_read_is_lost_and_reading_goes_on_behind_it() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([read_until_5()]);
    for topic in [TRIGGERS, SIGNALS] {
        world.cluster.set(topic, 0, TestBounds::whole(7, 9));
    }
    scheduler.tasks.get_mut(&0).unwrap().end_check = EndCheck::RetryAt(MS);
    check(&mut scheduler, InputLog::Triggers);
    check(&mut scheduler, InputLog::Signals);
    assert_eq!(world.reporter.reported().lost, [2, 2]);
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 7"]);
    assert_eq!(world.signals_and_ledger.calls(), ["start o.signals[0] at 7"]);
    let task = scheduler.tasks.get_mut(&0).unwrap();
    assert_eq!((task.next_trigger, task.next_signal, task.end_check), (7, 7, EndCheck::Idle));
    let partition = task.active().unwrap();
    assert_eq!(partition.triggers_read_until(), 7);
    let cursor = partition.cursor();
    assert_eq!((cursor.next_offset, cursor.next_signal_offset), (7, 7));
}

#[test]
fn a_takeover_starts_again_if_what_it_reads_was_deleted() {
    let world = TestEnvironment::default();
    world.cluster.set(LEDGER, 0, TestBounds::whole(7, 9));
    let mut scheduler = world.scheduler_owning([restoring(TakeoverRequest::Ledger { from: 5 })]);
    check(&mut scheduler, InputLog::Ledger);
    assert!(scheduler.tasks[&0].must_start_again);
    assert_eq!(world.reporter.reported().lost, [0; 0], "the takeover compares the bounds");
}

#[test]
fn a_log_that_seems_to_be_shorter_is_not_read_before_it_is_looked_at_again() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([read_until_5()]);
    let timing = scheduler.config.timing;
    for (log, topic) in [(InputLog::Triggers, TRIGGERS), (InputLog::Signals, SIGNALS)] {
        world.cluster.set(topic, 0, TestBounds::whole(0, 4));
        check(&mut scheduler, log);
        assert_eq!(retry_at(&scheduler, log), Some(timing.clock_skew + timing.end_retry));
        let short = scheduler.truncated_logs.get(0, topic).unwrap();
        assert_eq!((short.end, short.offset), (4, 5));
    }
    assert_eq!(world.triggers.calls(), ["stop o.triggers[0]"]);
    assert_eq!(world.signals_and_ledger.calls(), ["stop o.signals[0]"]);
    assert!(!scheduler.tasks[&0].must_start_again);
    // It is still shorter then.
    world.clock.advance(timing.clock_skew + timing.end_retry);
    scheduler.poll_log_bounds().unwrap();
    scheduler.poll_log_bounds().unwrap();
    assert!(scheduler.tasks[&0].must_start_again, "triggers are compared with what is committed");
    assert!(!scheduler.range_checks.is_open(0, InputLog::Triggers));
    let now = timing.clock_skew + timing.end_retry;
    let later = Some(now + timing.truncated_retry);
    assert_eq!(retry_at(&scheduler, InputLog::Signals), later, "what was handled is not again");
}

#[test]
fn a_log_that_is_not_shorter_any_more_is_read_again() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([read_until_5()]);
    world.cluster.set(SIGNALS, 0, TestBounds::whole(0, 4));
    check(&mut scheduler, InputLog::Signals);
    let _calls = world.signals_and_ledger.calls();
    world.cluster.set(SIGNALS, 0, TestBounds::whole(0, 5));
    world.clock.advance(retry_at(&scheduler, InputLog::Signals).unwrap());
    scheduler.poll_log_bounds().unwrap();
    scheduler.poll_log_bounds().unwrap();
    assert_eq!(world.signals_and_ledger.calls(), ["start o.signals[0] at 5"]);
    assert_eq!(scheduler.truncated_logs.get(0, SIGNALS), None);
}

#[test]
fn a_log_that_was_written_again_below_what_is_read_is_taken_over_again() {
    let world = TestEnvironment::default();
    for (first_new, starts_again) in [(4, true), (5, false), (9, false)] {
        let mut scheduler = world.scheduler_owning([read_until_5()]);
        scheduler.truncated_logs.on_seen(0, SIGNALS, (4, 5), 0);
        let bounds = TestBounds { first_new, ..TestBounds::whole(0, 9) };
        world.cluster.set(SIGNALS, 0, bounds);
        check(&mut scheduler, InputLog::Signals);
        assert_eq!(scheduler.tasks[&0].must_start_again, starts_again, "{first_new}");
        assert_eq!(scheduler.truncated_logs.get(0, SIGNALS).is_some(), starts_again);
    }
}

#[test]
fn an_answer_for_a_log_that_was_read_since_settles_only_whether_it_was_shorter() {
    for (read_at, bounds, is_short, is_open) in [
        (Some(6), Some(TestBounds::whole(0, 9)), false, false),
        (Some(6), Some(TestBounds::whole(0, 4)), true, true),
        (Some(6), None, true, true),
        (None, Some(TestBounds::whole(0, 9)), true, false),
    ] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([read_until_5()]);
        scheduler.truncated_logs.on_seen(0, SIGNALS, (4, 5), 0);
        if let Some(bounds) = bounds {
            world.cluster.set(SIGNALS, 0, bounds);
        }
        scheduler.check_range(0, InputLog::Signals, 5);
        match read_at {
            Some(next) => scheduler.tasks.get_mut(&0).unwrap().next_signal = next,
            None => scheduler.tasks.get_mut(&0).unwrap().state = PartitionState::StoreFailed,
        }
        scheduler.poll_log_bounds().unwrap();
        assert_eq!(scheduler.truncated_logs.get(0, SIGNALS).is_some(), is_short, "{bounds:?}");
        assert_eq!(scheduler.range_checks.is_open(0, InputLog::Signals), is_open);
        let calls = world.signals_and_ledger.calls();
        assert!(!calls.iter().any(|call| call.starts_with("start")), "{calls:?}");
    }
}

#[test]
fn an_answer_to_an_earlier_request_is_not_used() {
    let world = TestEnvironment::default();
    world.cluster.set(SIGNALS, 0, TestBounds::whole(0, 4));
    let mut scheduler = world.scheduler_owning([read_until_5()]);
    scheduler.check_range(0, InputLog::Signals, 4);
    let state = RangeCheckState::Requested(7);
    let check = RangeCheck { position: 5, state, was_short: false };
    let _before = scheduler.range_checks.0.insert((0, InputLog::Signals), check);
    scheduler.poll_log_bounds().unwrap();
    assert_eq!(scheduler.range_checks.0[&(0, InputLog::Signals)].state, state);
    assert_eq!(scheduler.truncated_logs.get(0, SIGNALS), None);
}

#[test]
fn a_takeover_that_starts_again_is_due_when_no_transaction_is_open() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([read_until_5()]);
    scheduler.take_over_again(0, SIGNALS, 5, 4);
    scheduler.start_takeovers_again().unwrap();
    scheduler.take_awaited_stores().unwrap();
    assert!(restore_of(scheduler.tasks.get_mut(&0).unwrap()).takeover.is_some());
}
