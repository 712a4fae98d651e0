//! Tests of what a partition knows of the ends of its logs.
//!
//! Invariant: the time is an argument.

use super::*;
use crate::engine::takeover::TakeoverError;
use crate::scheduler::test_partition::{active, restore_of, restoring};
use crate::test_environment::TestEnvironment;
use crate::test_environment::clock::SECOND;
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::store::TestStore;
const TRIGGERS: TakeoverRequest = TakeoverRequest::Triggers { from: 3, until: 9 };
const MIRROR: TakeoverRequest = TakeoverRequest::Mirror { from: 3, until: 9 };
const LEDGER: TakeoverRequest = TakeoverRequest::Ledger { from: 3 };
const LOGS: [InputLog; 3] = [InputLog::Triggers, InputLog::Signals, InputLog::Ledger];

#[test]
fn a_log_is_written_again_if_there_is_a_new_record_below_what_was_read() {
    let bounds = |end, first_new| LogBounds { low: 0, stable: end, end, first_new };
    for (end, first_new, is_written_again, is_whole) in [
        (10, None, false, true),
        (9, None, false, false),
        (10, Some(7), true, false),
        (10, Some(8), false, true), // what is read from the position on
        (10, Some(10), false, true),
        (6, Some(6), false, false), // the end: there is none
    ] {
        let bounds = bounds(end, first_new);
        let (position, read_until) = (if end == 9 { 10 } else { 8 }, 10);
        assert_eq!(bounds.is_written_again(position, read_until), is_written_again);
        assert_eq!(bounds.is_whole(position, read_until), is_whole, "{bounds:?}");
    }
    let bounds = bounds(10, Some(5));
    assert!(!bounds.is_written_again(8, 5), "it was not read before");
    assert!(bounds.is_written_again(8, 6));
}

#[test]
fn a_takeover_waits_for_its_reader_until_what_it_has_requested_is_read() {
    assert!(!active().is_waiting_for_reader());
    assert!(!restoring(TakeoverRequest::Offsets).is_waiting_for_reader());
    for request in [TRIGGERS, MIRROR, LEDGER] {
        let mut task = restoring(request.clone());
        assert!(task.is_waiting_for_reader(), "{request:?}");
        task.is_paused = true;
        assert!(!task.is_waiting_for_reader(), "{request:?}, paused");
        task.is_paused = false;
        let restore = restore_of(&mut task);
        (restore.triggers_complete, restore.barrier_read) = (true, true);
        restore.ledger_check = Some(1);
        assert!(!task.is_waiting_for_reader(), "{request:?}, read");
    }
}

#[test]
fn a_replay_ends_at_the_committed_offset() {
    assert_eq!(active().replay_until(), None);
    assert_eq!(restoring(LEDGER).replay_until(), None);
    assert_eq!(restoring(TRIGGERS).replay_until(), Some(9));
}

#[test]
fn a_log_has_a_position_while_it_is_read() {
    let positions = |mut task: PartitionTask<_>| {
        (task.next_trigger, task.next_signal) = (5, 6);
        LOGS.map(|log| task.position(log))
    };
    assert_eq!(positions(active()), [Some(5), Some(6), None]);
    assert_eq!(positions(restoring(TRIGGERS)), [Some(5), None, None]);
    assert_eq!(positions(restoring(MIRROR)), [None, None, Some(3)]);
    assert_eq!(positions(restoring(TakeoverRequest::Offsets)), [None; 3]);
    let mut task = restoring(LEDGER);
    restore_of(&mut task).ledger_position = 4;
    assert_eq!(positions(task), [None, None, Some(4)]);
    let mut task = active();
    task.state = PartitionState::Refused(TakeoverError::MetadataDropped);
    assert_eq!(positions(task), [None; 3]);
}

/// An active partition with a signal that is not read.
fn unread() -> PartitionTask<TestStore> {
    let mut task = active();
    task.next_signal = 5;
    task.signals_end = SignalsEnd { end: 6, read_until: 0, check: EndCheck::Idle, read_at: SECOND };
    task
}

#[test]
fn unread_signals_are_checked_after_a_silence() {
    let is_due = |task: &PartitionTask<_>, now| task.is_signals_check_due(now, SECOND);
    let task = unread();
    assert!(!is_due(&task, SECOND * 2 - Duration::from_millis(1)));
    assert!(is_due(&task, SECOND * 2));
    for (next, read_until) in [(6, 0), (5, 6)] {
        let mut task = unread();
        (task.next_signal, task.signals_end.read_until) = (next, read_until);
        assert!(!is_due(&task, SECOND * 9), "all is read");
    }
    for (check, due_from) in [
        (EndCheck::Requested(1), None),
        (EndCheck::Confirming { end: 6, until: SECOND * 3 }, Some(SECOND * 3)),
        (EndCheck::RetryAt(SECOND * 4), Some(SECOND * 4)),
    ] {
        let mut task = unread();
        task.signals_end.check = check;
        let first = (1..9).map(|n| SECOND * n).find(|now| is_due(&task, *now));
        assert_eq!(first, due_from, "{check:?}");
    }
}

#[test]
fn signals_are_not_checked_while_they_are_not_read() {
    let mut paused = unread();
    paused.is_paused = true;
    let mut not_active = restoring(TRIGGERS);
    not_active.signals_end = unread().signals_end;
    for task in [paused, not_active] {
        assert!(!task.is_signals_check_due(SECOND * 9, SECOND));
    }
}

#[test]
fn signals_are_read_if_the_end_is_reached_again_without_a_record() {
    let mut task = unread();
    task.on_signals_end_reached();
    assert_eq!(task.signals_end.read_until, 0, "it is not confirmed");
    let confirming = EndCheck::Confirming { end: 6, until: SECOND * 3 };
    task.signals_end.check = confirming;
    task.on_signals_end_reached();
    assert_eq!((task.signals_end.check, task.signals_end.read_until), (EndCheck::Idle, 6));
    let mut task = unread();
    task.signals_end.check = confirming;
    task.signals_end.on_record(SECOND * 2);
    task.on_signals_end_reached();
    let SignalsEnd { read_until, read_at, .. } = task.signals_end;
    assert_eq!((read_until, read_at), (0, SECOND * 2), "a record was read");
}

#[test]
fn the_end_of_triggers_is_read_again_if_no_transaction_is_open_below_it() {
    let bounds = |stable, end| Some(TestBounds { stable, ..TestBounds::whole(0, end) });
    let confirming = |end| EndCheck::Confirming { end, until: SECOND * 10 };
    let retry = EndCheck::RetryAt(Duration::from_millis(200));
    for (task, bounds, check) in [
        (active(), bounds(6, 6), confirming(6)),
        (active(), bounds(5, 6), retry),
        (active(), None, retry),
        (restoring(TRIGGERS), bounds(9, 20), confirming(20)), // a replay needs no more
        (restoring(TRIGGERS), bounds(8, 20), retry),
    ] {
        let world = TestEnvironment::default();
        if let Some(bounds) = bounds {
            world.cluster.set("o.triggers", 0, bounds);
        }
        let mut scheduler = world.scheduler_owning([task]);
        scheduler.confirm_end(0, InputLog::Triggers);
        assert_eq!(scheduler.tasks[&0].end_check, EndCheck::Requested(1));
        scheduler.poll_log_bounds().unwrap();
        assert_eq!(scheduler.tasks[&0].end_check, check);
        let starts = usize::from(check != retry);
        assert_eq!(world.triggers.calls(), vec!["start o.triggers[0] at 0"; starts]);
    }
}

#[test]
fn bounds_count_only_if_nothing_was_read_or_started_since_they_were_requested() {
    let world = TestEnvironment::default();
    world.cluster.set("o.triggers", 0, TestBounds::whole(0, 6));
    let mut scheduler = world.scheduler_owning([active()]);
    scheduler.confirm_end(0, InputLog::Triggers);
    scheduler.tasks.get_mut(&0).unwrap().end_check = EndCheck::Idle;
    scheduler.poll_log_bounds().unwrap();
    assert_eq!(scheduler.tasks[&0].end_check, EndCheck::Idle);
    scheduler.tasks.get_mut(&0).unwrap().end_check = EndCheck::Requested(1);
    scheduler.confirm_end(0, InputLog::Triggers);
    assert_eq!(scheduler.tasks[&0].end_check, EndCheck::Requested(2), "each has its number");
}

#[test]
fn unread_signals_are_read_again_from_their_position() {
    let world = TestEnvironment::default();
    world.cluster.set("o.signals", 0, TestBounds::whole(0, 6));
    world.clock.advance(SECOND * 11);
    let mut scheduler = world.scheduler_owning([unread()]);
    scheduler.poll_log_bounds().unwrap();
    let task = &scheduler.tasks[&0];
    assert_eq!((task.signals_end.check, task.end_check), (EndCheck::Requested(1), EndCheck::Idle));
    scheduler.poll_log_bounds().unwrap();
    assert_eq!(world.signals_and_ledger.calls(), ["start o.signals[0] at 5"]);
    scheduler.on_signals_or_ledger_end_reached(0);
    assert_eq!(scheduler.tasks[&0].signals_end.read_until, 6);
}

#[test]
fn the_ledger_is_searched_for_a_mirror_to_an_end_below_which_no_transaction_is_open() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([restoring(MIRROR)]);
    let open = TestBounds { stable: 8, ..TestBounds::whole(0, 9) };
    let bounds = [None, Some(open), Some(TestBounds::whole(0, 9))];
    for (number, bounds) in (1..).zip(bounds) {
        scheduler.on_signals_or_ledger_end_reached(0);
        scheduler.on_signals_or_ledger_end_reached(0);
        let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
        assert_eq!((restore.ledger_check, restore.ledger_position), (Some(number), 0));
        if let Some(bounds) = bounds {
            world.cluster.set("o.ledger", 0, bounds);
        }
        scheduler.poll_log_bounds().unwrap();
        let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
        assert_eq!((restore.ledger_check, restore.ledger_is_stable), (None, number == 3));
        assert_eq!(world.signals_and_ledger.calls(), ["start o.ledger[0] at 3"]);
    }
    scheduler.on_signals_or_ledger_end_reached(0);
    assert_eq!(restore_of(scheduler.tasks.get_mut(&0).unwrap()).ledger_position, 9);
    let mut ledger = restoring(LEDGER);
    restore_of(&mut ledger).ledger_check = Some(4);
    *scheduler.tasks.get_mut(&0).unwrap() = ledger;
    scheduler.on_signals_or_ledger_end_reached(0);
    scheduler.poll_log_bounds().unwrap();
    assert_eq!(world.signals_and_ledger.calls(), [""; 0], "the barrier ends it");
}

#[test]
fn bounds_for_an_earlier_search_of_a_mirror_are_not_used() {
    let world = TestEnvironment::default();
    world.cluster.set("o.ledger", 0, TestBounds::whole(0, 9));
    let mut scheduler = world.scheduler_owning([restoring(MIRROR)]);
    scheduler.on_signals_or_ledger_end_reached(0);
    restore_of(scheduler.tasks.get_mut(&0).unwrap()).ledger_check = Some(7);
    scheduler.poll_log_bounds().unwrap();
    let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
    assert_eq!((restore.ledger_check, restore.ledger_is_stable), (Some(7), false));
    assert_eq!(world.signals_and_ledger.calls(), [""; 0]);
}

#[test]
fn a_log_that_seemed_to_be_shorter_is_checked_before_it_is_read_again() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active()]);
    scheduler.truncated_logs.on_seen(0, "o.signals", (3, 5), 0);
    scheduler.start_log(0, InputLog::Signals).unwrap();
    scheduler.start_log(0, InputLog::Triggers).unwrap();
    assert!(scheduler.range_checks.is_open(0, InputLog::Signals));
    assert_eq!(world.signals_and_ledger.calls(), [""; 0]);
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 0"]);
}

#[test]
fn a_partition_that_is_not_read_any_more_has_no_open_checks() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([unread()]);
    scheduler.confirm_end(0, InputLog::Triggers);
    scheduler.confirm_end(0, InputLog::Signals);
    scheduler.check_range(0, InputLog::Signals, 5);
    scheduler.truncated_logs.on_seen(0, "o.ledger", (3, 5), 0);
    scheduler.truncated_logs.on_seen(0, "o.triggers", (3, 5), 0);
    let timing = scheduler.config.timing;
    scheduler.tasks.get_mut(&0).unwrap().pause.begin(&world.clock, &timing);
    scheduler.stop_reading(0).unwrap();
    let task = &scheduler.tasks[&0];
    assert_eq!((task.end_check, task.signals_end.check), (EndCheck::Idle, EndCheck::Idle));
    assert!(!task.pause.is_on() && !scheduler.range_checks.is_open(0, InputLog::Signals));
    assert_eq!(world.triggers.calls(), ["stop o.triggers[0]"]);
    assert_eq!(world.signals_and_ledger.calls(), ["stop o.signals[0]", "stop o.ledger[0]"]);
    let short: Vec<_> = scheduler.truncated_logs.of(0).into_iter().map(|it| it.topic).collect();
    assert_eq!(short, ["o.triggers"], "what is committed of the ledger is read again");
}

#[test]
fn a_silent_reader_of_a_takeover_is_started_again_and_that_of_an_active_partition_is_not() {
    for (task, triggers, ledger) in [
        (restoring(TRIGGERS), vec!["start o.triggers[0] at 0"], vec![]),
        (restoring(LEDGER), vec![], vec!["start o.ledger[0] at 3"]),
        (active(), vec![], vec![]),
    ] {
        let world = TestEnvironment::default();
        world.clock.advance(SECOND);
        let mut scheduler = world.scheduler_owning([task]);
        scheduler.tasks.get_mut(&0).unwrap().has_fetched = true;
        scheduler.restart_reader(0, SECOND).unwrap();
        assert_eq!(scheduler.tasks[&0].read_at, SECOND);
        assert_eq!(scheduler.tasks[&0].has_fetched, triggers.is_empty());
        assert_eq!(world.triggers.calls(), triggers);
        assert_eq!(world.signals_and_ledger.calls(), ledger);
    }
}

#[test]
fn offsets_that_were_deleted_before_they_were_read_are_counted() {
    let world = TestEnvironment::default();
    world.scheduler_owning([active()]).report_lost(0, "o.triggers", 5, 12);
    assert_eq!(world.reporter.reported().lost, [7]);
}
