//! Tests of what a takeover reads ahead: so many bytes, of each log, and no more.
//!
//! Invariant: a turn reads two records, and a batch has four.

use super::*;

/// A record of 100,000 bytes that cannot be read.
fn large(topic: &str, offset: Offset) -> TestRecord {
    TestRecord { value: Some(vec![7; 100_000]), ..TestRecord::at(topic, 0, offset) }
}

#[test]
fn a_replay_applies_records_of_so_many_bytes_at_once_and_reads_no_more_ahead() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (20, 20));
    scheduler.config.partition.bytes_per_step_max = 150_000;
    until_triggers(&world, &mut scheduler);
    world.hold("restorer");
    world.triggers.returns((0..21).map(|offset| large(TRIGGERS, offset)));
    (0..20).for_each(|_| scheduler.poll_once().unwrap());
    let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
    // Twice the bytes of a step are a batch, and a turn reads two records.
    assert_eq!((restore.records_read, restore.triggers.len()), (2 + 4, 4));
    assert!(restore.takeover.is_none(), "the first batch is being applied");
    world.let_go("restorer");
    world.clock.advance(MS * 60);
    (0..20).for_each(|_| scheduler.poll_once().unwrap());
    let task = scheduler.tasks.get_mut(&0).unwrap();
    assert_eq!(task.next_trigger, 21);
    assert!(task.active().is_some(), "it is complete");
}

#[test]
fn a_takeover_applies_ledger_records_of_so_many_bytes_at_once_and_reads_no_more_ahead() {
    let world = TestEnvironment::default();
    let mut scheduler = scheduler(&world, (3, 20));
    scheduler.config.partition.bytes_per_step_max = 150_000;
    until_ledger(&world, &mut scheduler);
    world.hold("restorer");
    world.signals_and_ledger.returns((0..20).map(|offset| large("o.ledger", offset)));
    (0..20).for_each(|_| scheduler.poll_once().unwrap());
    let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
    assert_eq!((restore.records_read, restore.ledger.len()), (4, 4));
    assert!(restore.takeover.is_none(), "the first batch is being applied");
}

#[test]
fn what_is_new_is_read_ahead_of_a_replay_up_to_the_limits_of_a_step_and_ingested_in_steps() {
    for (records_max, read_ahead) in [(1_000, 2), (1, 1)] {
        let world = TestEnvironment::default();
        let mut scheduler = scheduler(&world, (3, 13));
        scheduler.config.partition.bytes_per_step_max = 150_000;
        scheduler.config.partition.records_per_step_max = records_max;
        scheduler.config.records_per_step_max = records_max.min(500);
        until_triggers(&world, &mut scheduler);
        world.hold("restorer");
        world.triggers.returns((0..3).map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
        world.triggers.returns((3..13).map(|offset| large(TRIGGERS, offset)));
        (0..20).for_each(|_| scheduler.poll_once().unwrap());
        let restore = restore_of(scheduler.tasks.get_mut(&0).unwrap());
        assert!(restore.triggers_complete && restore.takeover.is_none());
        assert_eq!(restore.live_inputs.len(), read_ahead);
        world.hold("committer");
        world.let_go("restorer");
        world.clock.advance(MS * 60);
        (0..10).for_each(|_| scheduler.poll_once().unwrap());
        let partition = scheduler.tasks.get_mut(&0).unwrap().active().expect("it is active");
        let ingested = partition.cursor().next_offset - 3;
        // One large record fills the half of a step that is not for what is due.
        assert_eq!(ingested, 2, "a step is being committed, one is open");
        world.let_go("committer");
        for _ in 0..40 {
            world.clock.advance(MS * 60);
            scheduler.poll_once().unwrap();
        }
        let partition = scheduler.tasks.get_mut(&0).unwrap().active().expect("it is active");
        assert_eq!(partition.cursor().next_offset, 13, "all is read");
    }
}
