//! Tests of what a partition knows of the ends of its logs.
//!
//! Invariant: the time is an argument.

use super::*;
use crate::engine::takeover::TakeoverError;
use crate::scheduler::test_partition::{active, restore_of, restoring};

const SECOND: Duration = Duration::from_secs(1);
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
fn unread() -> PartitionTask<crate::scheduler::test_store::NoStore> {
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
