//! Tests of the ends of logs that the loop applies.
//!
//! Invariant: an end counts only if nothing that is known contradicts it.

use super::*;

/// The ends of the logs of partition 0 are asked for, and applied.
fn apply_ends(world: &TestEnvironment, scheduler: &mut Scheduler<TestEnvironment>, end: Offset) {
    for topic in [TRIGGERS, SIGNALS, LEDGER] {
        world.cluster.set(topic, 0, TestBounds::whole(0, end));
    }
    scheduler.end_offsets.watch([0].into_iter());
    world.clock.advance(SECOND * 20);
    // The leaders are asked for, then the ends.
    (0..3).for_each(|_| scheduler.apply_end_offsets());
}

#[test]
fn the_ends_of_the_logs_of_a_partition_are_applied_unless_the_leader_has_said_more() {
    for (fetched_end, has_fetched, counts) in [
        (Some(4), true, true),
        (Some(5), true, false),
        (None, true, false),
        (Some(4), false, false), // from before reading was started
    ] {
        let world = TestEnvironment::default();
        world.triggers.reading().fetched_end = fetched_end;
        let mut scheduler = world.scheduler_owning([active_at(0)]);
        task_of(&mut scheduler).has_fetched = has_fetched;
        apply_ends(&world, &mut scheduler, 4);
        let task = task_of(&mut scheduler);
        assert_eq!(task.active().unwrap().has_unread_input(), counts, "{fetched_end:?}");
        assert_eq!((task.signals_end.end, task.ledger_end), (4, 4));
        assert!(!scheduler.range_checks.is_open(0, InputLog::Triggers));
    }
}

#[test]
fn an_end_below_what_is_read_or_below_an_earlier_end_proves_nothing_and_the_log_is_looked_at() {
    for (task, end, is_checked, short) in [
        (read_until_3(), 2, true, Some((2, 3))),
        (read_until_3(), 3, false, None),
        (read_until_3(), 4, false, None),
        (unread(), 2, true, Some((2, 3))),
        (unread(), 3, true, None),
        (unread(), 4, true, None),
        (unread(), 5, false, None),
    ] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([task]);
        apply_ends(&world, &mut scheduler, end);
        let is_open = scheduler.range_checks.is_open(0, InputLog::Triggers);
        assert_eq!(is_open, is_checked, "it ends at {end}");
        let of_triggers = scheduler.truncated_logs.get(0, TRIGGERS);
        assert_eq!(of_triggers.map(|seen| (seen.end, seen.offset)), short, "it ends at {end}");
    }
}

#[test]
fn no_end_proves_anything_while_it_is_not_settled_whether_the_log_is_shorter() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    scheduler.truncated_logs.on_seen(0, TRIGGERS, (0, 1), NOW);
    apply_ends(&world, &mut scheduler, 4);
    assert!(scheduler.range_checks.is_open(0, InputLog::Triggers));
    assert!(!task_of(&mut scheduler).active().unwrap().has_unread_input());
}

#[test]
fn an_end_counts_only_after_the_reader_has_fetched_and_is_requested_again_after_a_short_pause() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([read_until_3()]);
    world.triggers.reading().fetched_end = Some(4);
    apply_ends(&world, &mut scheduler, 4);
    scheduler.on_triggers_end_reached(0).unwrap(); // it has fetched
    for (passes, counts) in [(9, false), (1, true)] {
        world.clock.advance(MS * passes);
        scheduler.apply_end_offsets(); // requests it, although its interval is not over
        scheduler.apply_end_offsets();
        let has_counted = task_of(&mut scheduler).active().unwrap().has_unread_input();
        assert_eq!(has_counted, counts, "after {passes} ms more");
    }
}
