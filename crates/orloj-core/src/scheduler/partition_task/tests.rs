//! Tests of a partition and of what its takeover reads.
//!
//! Invariant: nothing is registered in it.

use super::*;
use crate::engine::catalog::TopicCatalog;
use crate::engine::config::PartitionConfig;
use crate::engine::parked_schemas::ParkedSchemas;
use crate::engine::partition::{IndexRows, ParkedRecord};
use crate::model::input::{Request, Unreadable};
use crate::scheduler::test_partition::{
    active, active_with, all_read, partition_config, register, register_large, restore_of,
    restoring,
};
use crate::test_environment::reader::TestRecord;
use crate::test_environment::store::TestStore;

/// A record of the ledger.
fn record(offset: Offset, key: &[u8]) -> TestRecord {
    TestRecord { key: Some(key.to_vec()), ..TestRecord::at("o.ledger", 0, offset) }
}

#[test]
fn the_ledger_counts_as_written_by_us_up_to_the_end_known_at_the_seal_of_an_active_partition() {
    let mut task = active();
    task.on_ledger_end(7);
    assert_eq!(task.ledger_position, 0, "the next step is not committed");
    task.before_seal();
    assert_eq!(task.ledger_position, 7);
    task.on_ledger_end(5);
    task.before_seal();
    assert_eq!(task.ledger_position, 7, "another broker is behind");
    let mut task = restoring(TakeoverRequest::Ledger { from: 0 });
    task.on_ledger_end(7);
    task.before_seal();
    assert_eq!(task.ledger_position, 0);
}

#[test]
fn a_takeover_is_over_buffered_by_a_full_batch_while_another_one_is_applied() {
    for is_ledger in [true, false] {
        let mut task = restoring(TakeoverRequest::Ledger { from: 0 });
        let restore = restore_of(&mut task);
        let request = Request::Cancel { id: "a".into(), caller: None };
        let trigger = TriggerRecord { offset: 0, timestamp: 0, ack: false.into(), request };
        let batch = if is_ledger { LEDGER_BATCH } else { TRIGGERS_BATCH };
        let takeover = restore.takeover.take();
        for size in 0..batch {
            assert!(size < batch - 1 || !restore.is_over_buffered(), "it is not full");
            if is_ledger {
                restore.add_ledger_record(&record(0, b"m|a"), false);
            } else {
                restore.add_trigger(trigger.clone());
            }
        }
        assert!(task.is_over_buffered() && task.is_full());
        restore_of(&mut task).takeover = takeover;
        assert!(!task.is_over_buffered(), "it can be applied at once");
    }
    assert!(!active().is_over_buffered());
}

#[test]
fn of_the_ledger_a_takeover_keeps_what_it_has_requested() {
    let mirror = TakeoverRequest::Mirror { from: 0, until: 5 };
    let cursor = LedgerKey::CURSOR;
    for (request, key, offset, is_kept) in [
        (TakeoverRequest::Ledger { from: 0 }, &b"m|a"[..], 4, true),
        (mirror.clone(), cursor, 4, true),
        (mirror.clone(), cursor, 5, false), // of a later owner
        (mirror, b"m|a", 4, false),
        (TakeoverRequest::Offsets, cursor, 4, false),
    ] {
        let mut task = restoring(request);
        let restore = restore_of(&mut task);
        restore.add_ledger_record(&record(offset, key), false);
        assert_eq!((restore.ledger.len() == 1, restore.ledger_position), (is_kept, offset + 1));
    }
}

#[test]
fn our_barrier_counts_as_read_until_the_ledger_is_read_again() {
    let mut task = restoring(TakeoverRequest::Ledger { from: 0 });
    let restore = restore_of(&mut task);
    restore.add_ledger_record(&record(4, LedgerKey::BARRIER), true);
    restore.add_ledger_record(&record(5, b"m|a"), false);
    restore.add_ledger_record(&record(6, LedgerKey::BARRIER), true);
    assert!(restore.barrier_read);
    restore.restart_ledger(2);
    assert!(!restore.barrier_read);
    assert_eq!((restore.ledger.len(), restore.ledger_position), (0, 2));
}

#[test]
fn a_covered_record_is_skipped_and_its_timestamp_counts() {
    let mut task = restoring(TakeoverRequest::Triggers { from: 0, until: 9 });
    restore_of(&mut task).covered = OffsetBitmap::empty(0..9);
    restore_of(&mut task).covered.insert(4);
    assert!(!task.skip_covered(3, 50));
    assert!(task.skip_covered(4, 50) && task.skip_covered(4, 40));
    let restore = restore_of(&mut task);
    assert_eq!((restore.covered_at, restore.records_read), (50, 2));
    assert_eq!(task.next_trigger, 5);
    assert!(!active().skip_covered(4, 50));
}

#[test]
fn an_idle_partition_spills_when_the_ledger_has_grown_by_more_than_a_restart_may_read_again() {
    for (end, spills) in [(LEDGER_SLACK + 7, false), (LEDGER_SLACK + 8, true)] {
        let mut task = active();
        task.ledger_position = 7;
        let _behind = task.active().unwrap().observe_clock(1_000_000);
        task.on_ledger_end(end);
        assert_eq!(task.ledger_end, end);
        assert_eq!(task.is_ready_to_commit(), spills, "it ends at {end}");
    }
}

#[test]
fn a_takeover_is_ready_to_commit_when_it_has_requested_its_barrier() {
    let mut task = restoring(TakeoverRequest::Offsets);
    let offsets = crate::engine::partition_offsets::PartitionOffsets::default();
    let takeover = restore_of(&mut task).takeover.as_mut().unwrap();
    takeover.on_offsets(offsets).unwrap();
    assert!(matches!(takeover.next_request(), TakeoverRequest::Barrier { .. }));
    assert!(task.is_ready_to_commit());
    let _in_the_pool = restore_of(&mut task).takeover.take();
    assert!(!task.is_ready_to_commit());
}

#[test]
fn only_an_active_partition_says_until_where_triggers_are_read() {
    let mut task = active();
    register(&mut task, 4, 1_000_000);
    assert_eq!(task.triggers_read_until(), 5);
    assert_eq!(restoring(TakeoverRequest::Offsets).triggers_read_until(), 0);
}

#[test]
fn a_partition_is_full_when_its_step_is() {
    let rules = PartitionConfig { records_per_step_max: 2, ..partition_config() };
    let mut task = active_with(0, rules);
    register(&mut task, 0, 1_000_000);
    assert!(!task.is_full());
    register(&mut task, 1, 1_000_000);
    assert!(task.is_full());
    assert!(!restoring(TakeoverRequest::Offsets).is_full());
}

#[test]
fn a_partition_is_full_when_its_step_has_so_many_bytes() {
    let rules = PartitionConfig { bytes_per_step_max: 300_000, ..partition_config() };
    for (due, is_late) in [(1_000_000, false), (500, true)] {
        let mut task = active_with(0, rules.clone());
        if is_late {
            let partition = task.active().unwrap();
            let _behind = partition.observe_clock(900);
            partition.on_end_offset(0, 900);
            task.load(|| false).unwrap();
            let partition = task.active().unwrap();
            let due = partition.take_due(1);
            partition.fire(due, &TopicCatalog::default(), &IndexRows::default()).unwrap();
        }
        register_large(&mut task, (0, due), 100_000);
        assert!(!task.is_full(), "due at {due}");
        register_large(&mut task, (1, due), 100_000);
        assert!(task.is_full(), "due at {due}");
    }
}

/// Otherwise nothing would fire while much is written.
#[test]
fn what_is_due_fits_in_a_step_that_is_full_of_what_was_written() {
    let rules = PartitionConfig { bytes_per_step_max: 300_000, ..partition_config() };
    let mut task = active_with(0, rules);
    let _behind = task.active().unwrap().observe_clock(900);
    register(&mut task, 0, 950);
    for offset in 1.. {
        if task.is_full() {
            break;
        }
        register_large(&mut task, (offset, 1_000_000), 100_000);
    }
    let _behind = task.active().unwrap().observe_clock(1_000);
    all_read(&mut task, 1_000);
    task.load(|| false).unwrap();
    let partition = task.active().unwrap();
    assert_eq!(partition.next_wakeup(), Some(950));
    let due = partition.take_due(10);
    partition.fire(due, &TopicCatalog::default(), &IndexRows::default()).unwrap();
    assert!(partition.next_wakeup() > Some(950), "it is taken");
}

/// A record of 100,000 bytes that cannot be executed.
fn unreadable(offset: Offset) -> TriggerRecord {
    let unreadable = Unreadable {
        id: None,
        reason: "why".to_owned(),
        may_become_readable: false,
        key: None,
        value: Some(vec![7; 100_000].into()),
        headers: Vec::new(),
    };
    let request = Request::Unreadable(Box::new(unreadable));
    TriggerRecord { offset, timestamp: 0, ack: false.into(), request }
}

#[test]
fn what_does_not_fit_in_a_step_any_more_is_ingested_in_the_next_ones_in_its_order() {
    let rules = [
        PartitionConfig { bytes_per_step_max: 300_000, ..partition_config() },
        PartitionConfig { records_per_step_max: 2, ..partition_config() },
    ];
    for rules in rules {
        let mut task = active_with(0, rules);
        task.ingest((0..4).map(unreadable).map(Input::Trigger).collect()).unwrap();
        let next_offset = |task: &mut PartitionTask<TestStore>| {
            let is_full = task.is_full();
            let partition = task.active().unwrap();
            let _step = partition.seal().expect("a step");
            (partition.cursor().next_offset, is_full)
        };
        assert_eq!(next_offset(&mut task), (2, true));
        assert!(task.is_full(), "what was read before comes first");
        task.ingest(vec![Input::Trigger(unreadable(4)), Input::TriggersEnd(7)]).unwrap();
        assert_eq!(task.triggers_read_until(), 4, "the end is after the last one");
        assert_eq!(next_offset(&mut task), (4, true));
        task.ingest(Vec::new()).unwrap();
        assert_eq!(task.triggers_read_until(), 7);
        assert_eq!(next_offset(&mut task), (5, false));
    }
}

#[test]
fn what_is_due_is_read_without_waiting_for_a_flush_that_began_before_the_last_inputs() {
    let mut task = active_with(0, partition_config());
    for batches in 1..=3 {
        task.ingest(vec![Input::Trigger(unreadable(batches - 1))]).unwrap();
        assert_eq!(task.store.contents().refreshes, usize::try_from(batches).unwrap());
    }
}

#[test]
fn records_that_are_released_from_parking_are_ingested_in_one_step_although_it_is_full() {
    let rules = PartitionConfig { bytes_per_step_max: 300_000, ..partition_config() };
    let mut task = active_with(0, rules);
    let parked = |offset| {
        let schemas = [(7, 0)].into_iter().collect();
        Input::Parked(ParkedRecord { offset, timestamp: 0, id: "a".into(), schemas })
    };
    task.ingest((0..4).map(parked).collect()).unwrap();
    let released = (0..4).map(|offset| Input::Trigger(unreadable(offset)));
    let unparked = Input::Unparked { ids: vec!["a".into()], schemas: ParkedSchemas::default() };
    task.ingest(released.chain([unparked, Input::TriggersEnd(9)]).collect()).unwrap();
    let partition = task.active().unwrap();
    assert_eq!(partition.cursor().parked, ParkedSchemas::default());
    assert_eq!((partition.drafted_records(), partition.triggers_read_until()), (4, 4));
    assert!(task.has_waiting_inputs(), "the rest is not released");
}

#[test]
fn the_timer_wheel_is_loaded_as_far_as_there_is_time() {
    for (is_late, count, is_loaded) in [(false, 3, true), (true, 1, false)] {
        let mut task = active();
        task.store.contents().scan_ms = Some(400_000);
        let _behind = task.active().unwrap().observe_clock(1_000_000);
        let looks = std::cell::Cell::new(0);
        task.load(|| {
            looks.set(looks.get() + 1);
            is_late
        })
        .unwrap();
        assert_eq!(looks.get(), count);
        assert_eq!(task.active().unwrap().load_request().is_none(), is_loaded);
    }
    let mut task = restoring(TakeoverRequest::Offsets);
    task.load(|| panic!("it has no wheel")).unwrap();
}

#[test]
fn a_replay_without_records_is_complete_at_once() {
    for (from, until, is_complete) in [(3, 9, false), (9, 9, true), (9, 3, true)] {
        let mut task = restoring(TakeoverRequest::Triggers { from, until });
        let _in_the_pool = restore_of(&mut task).takeover.take();
        task.start_replay(from, until);
        assert_eq!(task.next_trigger, from);
        assert_eq!(restore_of(&mut task).triggers_complete, is_complete);
    }
}

#[test]
fn a_takeover_that_is_dropped_ends_what_it_has_asked_for() {
    let mut task = restoring(TakeoverRequest::Offsets);
    let cancelled = Arc::clone(&restore_of(&mut task).cancelled);
    assert!(!cancelled.load(Ordering::SeqCst));
    drop(task);
    assert!(cancelled.load(Ordering::SeqCst));
}

#[test]
fn the_inputs_have_the_names_of_their_topics() {
    let names = Names::new("o");
    let topics = [InputLog::Triggers, InputLog::Signals, InputLog::Ledger];
    let topics = topics.map(|log| log.topic(&names));
    assert_eq!(topics, ["o.triggers", "o.signals", "o.ledger"]);
}
