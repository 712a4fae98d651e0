//! Tests of reading: for how long a turn reads, what it passes on, and when a reader is paused,
//! resumed or started again.
//!
//! Invariant: the clock moves when a record is read, by what a test says, or when a test moves it.

use super::*;
use crate::engine::config::PartitionConfig;
use crate::engine::takeover::TakeoverError;
use crate::environment::log::LogReading;
use crate::scheduler::restore_pool::TRIGGERS_BATCH;
use crate::scheduler::test_partition::{
    active_at, active_with, partition_config, register, restore_of, restoring,
};
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::reader::{TestReader, TestRecord};
use crate::test_environment::store::TestStore;
use crate::test_environment::{NOW, TestEnvironment};

#[path = "ends/tests.rs"]
mod ends;

const TRIGGERS: &str = "o.triggers";
const SIGNALS: &str = "o.signals";
const LEDGER: &str = "o.ledger";

type Task = PartitionTask<TestStore>;

fn replaying(until: Offset) -> Task {
    restoring(TakeoverRequest::Triggers { from: 0, until })
}

fn task_of(scheduler: &mut Scheduler<TestEnvironment>) -> &mut Task {
    scheduler.tasks.get_mut(&0).unwrap()
}

/// How many records are left after a turn has read.
fn left(reader: &TestReader) -> usize {
    reader.reading().events.len()
}

/// An active partition that accepts no more records.
fn full(id: PartitionId) -> Task {
    let rules = PartitionConfig { records_per_step_max: 1, ..partition_config() };
    let mut task = active_with(id, rules);
    register(&mut task, 0, NOW + 10);
    assert!(task.is_full());
    task
}

fn calls(verb: &str, partitions: &[PartitionId]) -> (Vec<String>, Vec<String>) {
    let call = |topic: &str, id: &PartitionId| format!("{verb} {topic}[{id}]");
    let of = |id| [call(SIGNALS, id), call(LEDGER, id)];
    let triggers = partitions.iter().map(|id| call(TRIGGERS, id)).collect();
    (triggers, partitions.iter().flat_map(of).collect())
}

#[test]
fn a_full_partition_holds_up_the_others_for_a_time_and_then_is_paused_until_it_has_room() {
    let world = TestEnvironment::default();
    world.clock.advance(SECOND);
    let mut scheduler = world.scheduler_owning([full(0), full(1), active_at(2)]);
    let calls_since = || (world.triggers.calls(), world.signals_and_ledger.calls());
    assert!(scheduler.pause_full_partitions().unwrap(), "two are full");
    world.clock.advance(MS * 49);
    assert!(scheduler.pause_full_partitions().unwrap());
    assert_eq!(calls_since(), (vec![], vec![]));
    world.clock.advance(MS);
    assert!(!scheduler.pause_full_partitions().unwrap(), "the others are read");
    assert_eq!(calls_since(), calls("pause", &[0, 1]));
    world.clock.advance(MS * 49);
    assert!(!scheduler.pause_full_partitions().unwrap());
    assert_eq!(calls_since(), (vec![], vec![]));
    world.clock.advance(MS);
    assert!(!scheduler.pause_full_partitions().unwrap());
    assert_eq!(calls_since(), calls("pause", &[0, 1]), "a reader may have been started since");
    let _step = scheduler.tasks.get_mut(&1).unwrap().active().unwrap().seal_final();
    assert!(!scheduler.pause_full_partitions().unwrap());
    assert_eq!(calls_since(), calls("resume", &[1]));
    let task = &scheduler.tasks[&1];
    let read_at = SECOND + MS * 100;
    assert_eq!((task.is_paused, task.full_since, task.read_at), (false, None, read_at));
    assert!(!scheduler.pause_full_partitions().unwrap());
    assert_eq!(calls_since(), (vec![], vec![]), "once");
}

#[test]
fn a_partition_that_had_room_waits_from_the_beginning_when_it_is_full_again() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([full(0)]);
    assert!(scheduler.pause_full_partitions().unwrap());
    world.clock.advance(MS * 30);
    let full = std::mem::replace(task_of(&mut scheduler), active_at(0));
    assert!(!scheduler.pause_full_partitions().unwrap());
    let since = task_of(&mut scheduler).full_since;
    (*task_of(&mut scheduler), task_of(&mut scheduler).full_since) = (full, since);
    world.clock.advance(MS * 30);
    assert!(scheduler.pause_full_partitions().unwrap());
}

#[test]
fn no_record_of_triggers_is_read_while_a_partition_is_full_and_not_paused() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([full(0), active_at(1)]);
    world.triggers.returns([TestRecord::at(TRIGGERS, 1, 0)]);
    scheduler.read_inputs(MS * 10, Duration::ZERO).unwrap();
    assert_eq!((left(&world.triggers), world.clock.monotonic()), (1, MS), "it waits for 1 ms");
    world.clock.advance(MS * 50);
    scheduler.read_inputs(MS * 10, Duration::ZERO).unwrap();
    assert_eq!((left(&world.triggers), scheduler.tasks[&1].next_trigger), (0, 1));
}

#[test]
fn the_loop_waits_for_the_first_record_alone() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    world.triggers.returns([0, 1].map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
    scheduler.read_inputs(MS * 7, Duration::ZERO).unwrap();
    assert_eq!(world.triggers.reading().waits, [MS * 7, Duration::ZERO, Duration::ZERO]);
    world.triggers.reading().waits.clear();
    world.signals_and_ledger.returns([TestRecord::at(SIGNALS, 0, 0)]);
    scheduler.read_inputs(MS * 7, Duration::ZERO).unwrap();
    assert_eq!(world.triggers.reading().waits, [Duration::ZERO], "there was a signal");
}

#[test]
fn a_turn_reads_triggers_for_its_time_from_the_first_record_or_signal_on() {
    for (takes, with_signal, read) in [(MS, false, 51), (MS * 24, false, 4), (MS * 25, true, 1)] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([active_at(0)]);
        world.triggers.reading().takes = takes;
        world.signals_and_ledger.reading().takes = takes;
        let signal = with_signal.then(|| TestRecord::at(SIGNALS, 0, 0));
        world.signals_and_ledger.returns(signal);
        world.triggers.returns((0..100).map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
        scheduler.read_inputs(MS, Duration::ZERO).unwrap();
        assert_eq!(100 - left(&world.triggers), read, "each takes {takes:?}");
        assert_eq!(scheduler.tasks[&0].next_trigger, read as Offset);
    }
}

#[test]
fn a_turn_reads_so_many_records_of_triggers_at_most() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    scheduler.config.records_per_step_max = 3;
    world.triggers.returns((0..5).map(|offset| TestRecord::at(TRIGGERS, 0, offset)));
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    assert_eq!((left(&world.triggers), scheduler.tasks[&0].next_trigger), (2, 3));
}

#[test]
fn a_turn_reads_records_of_so_many_bytes_at_most_of_each_kind_of_log() {
    for (bytes_max, read) in [(1, 1), (100_000, 1), (100_002, 2), (usize::MAX, 5)] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([active_at(0)]);
        scheduler.config.partition.bytes_per_step_max = bytes_max;
        for (reader, topic) in [(&world.triggers, TRIGGERS), (&world.signals_and_ledger, SIGNALS)] {
            let value = Some(vec![7; 100_000]);
            let record =
                |offset| TestRecord { value: value.clone(), ..TestRecord::at(topic, 0, offset) };
            reader.returns((0..5).map(record));
        }
        scheduler.read_inputs(MS, Duration::ZERO).unwrap();
        assert_eq!(5 - left(&world.triggers), read, "at most {bytes_max}");
        assert_eq!(5 - left(&world.signals_and_ledger), read, "at most {bytes_max}");
    }
}

#[test]
fn signals_and_the_ledger_are_read_for_half_of_the_time() {
    for (takes, read) in [(MS * 12, 3), (MS * 13, 2), (MS * 25, 2), (MS * 26, 1)] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([active_at(0)]);
        world.signals_and_ledger.reading().takes = takes;
        let records = (0..5).map(|offset| TestRecord::at(SIGNALS, 0, offset));
        world.signals_and_ledger.returns(records);
        let began = world.clock.monotonic();
        let has_read = scheduler.read_signals_and_ledger(&mut BTreeMap::new(), began).unwrap();
        assert!(has_read);
        assert_eq!(5 - left(&world.signals_and_ledger), read, "each takes {takes:?}");
    }
}

#[test]
fn no_ledger_is_read_while_the_next_batch_of_a_takeover_is_full_unless_that_is_paused() {
    for (is_paused, is_read) in [(false, false), (true, true)] {
        let world = TestEnvironment::default();
        let mut over_buffered = replaying(9);
        over_buffered.is_paused = is_paused;
        let restore = restore_of(&mut over_buffered);
        let _in_the_pool = restore.takeover.take();
        let request = crate::model::input::Request::Cancel { id: "a".into(), caller: None };
        let record = crate::model::input::TriggerRecord {
            offset: 0,
            timestamp: 0,
            ack: false.into(),
            request,
        };
        vec![record; TRIGGERS_BATCH].into_iter().for_each(|it| restore.add_trigger(it));
        let mut scheduler = world.scheduler_owning([over_buffered, active_at(1)]);
        world.signals_and_ledger.returns([TestRecord::at(SIGNALS, 1, 0)]);
        let mut inputs = BTreeMap::new();
        let has_read = scheduler.read_signals_and_ledger(&mut inputs, Duration::ZERO).unwrap();
        assert_eq!((has_read, inputs.contains_key(&1)), (is_read, is_read));
    }
}

#[test]
fn a_signal_is_passed_on_once_and_only_to_an_active_partition() {
    let world = TestEnvironment::default();
    world.clock.advance(SECOND);
    let mut scheduler = world.scheduler_owning([active_at(1), replaying(9)]);
    scheduler.tasks.get_mut(&1).unwrap().next_signal = 4;
    scheduler.tasks.get_mut(&1).unwrap().signals_end.check = EndCheck::Requested(3);
    let signal = |id, offset| TestRecord::at(SIGNALS, id, offset);
    world.signals_and_ledger.returns([signal(1, 3), signal(1, 4), signal(0, 5), signal(1, 6)]);
    let mut inputs = BTreeMap::new();
    let _read = scheduler.read_signals_and_ledger(&mut inputs, SECOND).unwrap();
    let offset = |input: &Input| match input {
        Input::Signal(record) => record.offset,
        other => panic!("{other:?}"),
    };
    let offsets: Vec<_> = inputs[&1].iter().map(offset).collect();
    assert_eq!((inputs.len(), offsets), (1, vec![4, 6]));
    let task = &scheduler.tasks[&1];
    assert_eq!((task.next_signal, task.signals_end.read_at), (7, SECOND));
    assert_eq!(task.signals_end.check, EndCheck::Idle);
    assert_eq!(scheduler.tasks[&0].next_signal, 0);
}

#[test]
fn a_record_of_the_ledger_is_read_for_a_takeover() {
    let world = TestEnvironment::default();
    world.clock.advance(SECOND);
    let request = TakeoverRequest::Ledger { from: 0 };
    let mut scheduler = world.scheduler_owning([restoring(request), active_at(1)]);
    let record = |id| TestRecord::at(LEDGER, id, 7);
    world.signals_and_ledger.returns([record(0), record(1)]);
    let _read = scheduler.read_signals_and_ledger(&mut BTreeMap::new(), SECOND).unwrap();
    let task = task_of(&mut scheduler);
    assert_eq!((task.ledger_position, task.read_at), (8, SECOND));
    assert_eq!(restore_of(task).ledger.len(), 1);
    assert_eq!(scheduler.tasks[&1].ledger_position, 0, "an active one writes it");
}

#[test]
fn a_reader_that_fails_ends_the_reading_of_this_turn() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    for reader in [&world.triggers, &world.signals_and_ledger] {
        reader.reading().fails = true;
        reader.returns([TestRecord::at(SIGNALS, 0, 0)]);
    }
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    assert_eq!((left(&world.triggers), left(&world.signals_and_ledger)), (1, 1));
}

#[test]
fn a_record_that_was_read_before_or_of_no_partition_of_ours_is_passed_over() {
    let world = TestEnvironment::default();
    world.clock.advance(SECOND);
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    task_of(&mut scheduler).next_trigger = 5;
    let record = |id, offset| TestRecord::at(TRIGGERS, id, offset);
    world.triggers.returns([record(9, 0), record(0, 4)]);
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    let task = task_of(&mut scheduler);
    assert_eq!((task.next_trigger, task.read_at), (5, Duration::ZERO));
    assert!(task.has_fetched);
    world.triggers.returns([record(0, 5)]);
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    let task = task_of(&mut scheduler);
    assert_eq!((task.next_trigger, task.read_at), (6, SECOND));
    assert_eq!(task.active().unwrap().triggers_read_until(), 6);
}

/// A record whose schema is missing.
fn avro(offset: Offset) -> TestRecord {
    TestRecord { value: Some(vec![0, 0, 0, 0, 7, 1]), ..TestRecord::at(TRIGGERS, 0, offset) }
}

#[test]
fn reading_pauses_before_a_record_that_cannot_be_parked_and_goes_on_there() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    scheduler.config.parking.records_max = 0;
    task_of(&mut scheduler).end_check = EndCheck::RetryAt(SECOND);
    world.triggers.returns([avro(0), TestRecord::at(TRIGGERS, 0, 1)]);
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    let task = task_of(&mut scheduler);
    assert_eq!((task.next_trigger, task.end_check), (0, EndCheck::Idle));
    assert!(task.pause.is_on());
    assert_eq!(world.triggers.calls(), ["stop o.triggers[0]"]);
    let pause = scheduler.config.timing.parked_retry;
    world.clock.advance(pause - MS);
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    assert_eq!(world.triggers.calls(), [""; 0]);
    world.clock.advance(MS);
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 0"]);
}

/// An active partition in which the end offset 5 is known, and 3 records are read.
fn unread() -> Task {
    let mut task = read_until_3();
    task.active().unwrap().on_end_offset(5, NOW);
    task
}

fn confirming(end: Offset) -> EndCheck {
    EndCheck::Confirming { end, until: SECOND }
}

#[test]
fn the_end_of_triggers_counts_for_an_active_partition_once_it_is_confirmed() {
    for (check, position, after, read_until) in [
        (EndCheck::Idle, Some(5), EndCheck::Idle, 3),
        (EndCheck::Requested(1), Some(5), EndCheck::Requested(1), 3),
        (confirming(5), Some(5), EndCheck::Idle, 5),
        (confirming(5), Some(4), EndCheck::RetryAt(MS * 200), 3),
        (confirming(5), None, EndCheck::RetryAt(MS * 200), 3),
        (confirming(3), None, EndCheck::Idle, 3),
    ] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([unread()]);
        world.triggers.reading().position = position;
        task_of(&mut scheduler).end_check = check;
        scheduler.on_triggers_end_reached(0).unwrap();
        let task = task_of(&mut scheduler);
        assert_eq!(task.end_check, after, "{check:?} at {position:?}");
        assert_eq!(task.active().unwrap().triggers_read_until(), read_until, "{check:?}");
    }
}

#[test]
fn the_end_of_triggers_completes_a_replay_if_all_below_the_committed_offset_is_passed() {
    let requested = EndCheck::Requested(1);
    for (next, position, check, after, is_complete) in [
        (9, None, EndCheck::RetryAt(MS), EndCheck::Idle, true),
        (3, Some(9), requested, EndCheck::Idle, true),
        (3, Some(8), EndCheck::Idle, requested, false),
        (3, Some(8), confirming(9), EndCheck::RetryAt(MS * 200), false),
        (3, None, EndCheck::RetryAt(MS), EndCheck::RetryAt(MS), false),
        (3, None, requested, requested, false),
    ] {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([replaying(9)]);
        world.triggers.reading().position = position;
        let task = task_of(&mut scheduler);
        (task.next_trigger, task.end_check) = (next, check);
        scheduler.on_triggers_end_reached(0).unwrap();
        let task = task_of(&mut scheduler);
        assert_eq!(task.end_check, after, "{check:?} at {position:?}");
        assert_eq!(restore_of(task).triggers_complete, is_complete);
    }
}

#[test]
fn the_end_of_triggers_means_nothing_while_reading_is_paused_before_a_record() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([replaying(9)]);
    let timing = scheduler.config.timing;
    let task = task_of(&mut scheduler);
    task.next_trigger = 9;
    task.pause.begin(&world.clock, &timing);
    scheduler.on_triggers_end_reached(0).unwrap();
    assert!(!restore_of(task_of(&mut scheduler)).triggers_complete);
}

#[test]
fn an_end_that_is_not_reached_is_checked_after_a_time_without_a_record() {
    let is_requested = |change: &dyn Fn(&mut Task, &TestEnvironment), at: Duration| {
        let world = TestEnvironment::default();
        let mut scheduler = world.scheduler_owning([unread()]);
        task_of(&mut scheduler).read_at = SECOND;
        change(task_of(&mut scheduler), &world);
        world.clock.advance(at);
        scheduler.run_due_checks().unwrap();
        matches!(scheduler.tasks[&0].end_check, EndCheck::Requested(1))
    };
    let stall = SECOND + MS * 300;
    assert!(!is_requested(&|_, _| (), stall - MS));
    assert!(is_requested(&|_, _| (), stall));
    assert!(!is_requested(&|task, _| task.is_paused = true, stall));
    let active = |has_fetched| Task { has_fetched, read_at: SECOND, ..active_at(0) };
    assert!(!is_requested(&|task, _| *task = active(true), stall), "all is read");
    let silence = SECOND * 11;
    assert!(is_requested(&|task, _| *task = active(false), silence), "its length is unknown");
    assert!(!is_requested(&|task, _| *task = active(false), silence - MS));
    assert!(!is_requested(&|task, _| *task = replaying(9), stall));
    let timing = crate::scheduler::config::SchedulerTiming::default();
    assert!(!is_requested(&|task, world| task.pause.begin(&world.clock, &timing), stall));
    for check in [confirming(5), EndCheck::RetryAt(SECOND)] {
        assert!(!is_requested(&|task, _| task.end_check = check, SECOND - MS), "{check:?}");
        assert!(is_requested(&|task, _| task.end_check = check, SECOND), "{check:?}");
    }
    assert!(!is_requested(&|task, _| task.end_check = EndCheck::Requested(9), SECOND * 99));
}

#[test]
fn the_reader_of_a_takeover_is_started_again_after_a_silence() {
    let world = TestEnvironment::default();
    world.clock.advance(SECOND);
    let mut scheduler = world.scheduler_owning([replaying(9)]);
    let silence = scheduler.config.timing.silence_max;
    task_of(&mut scheduler).read_at = SECOND;
    world.clock.advance(silence - MS);
    scheduler.run_due_checks().unwrap();
    assert_eq!(world.triggers.calls(), [""; 0]);
    world.clock.advance(MS);
    scheduler.run_due_checks().unwrap();
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 0"]);
    scheduler.run_due_checks().unwrap();
    assert_eq!(world.triggers.calls(), [""; 0], "it has just been started");
    restore_of(task_of(&mut scheduler)).triggers_complete = true;
    world.clock.advance(silence);
    scheduler.run_due_checks().unwrap();
    assert_eq!(world.triggers.calls(), [""; 0], "it waits for no record");
}

#[test]
fn records_are_decided_by_the_clock_at_which_they_are_ingested() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    scheduler.ingest([(0, Vec::new()), (9, Vec::new())].into_iter().collect()).unwrap();
    let partition = task_of(&mut scheduler).active().unwrap();
    partition.on_end_offset(0, NOW + 5_000);
    assert_eq!(partition.watermark(), NOW);
}

#[test]
fn a_partition_whose_store_fails_while_it_ingests_is_rebuilt() {
    let world = TestEnvironment::default();
    let mut scheduler = world.scheduler_owning([active_at(0)]);
    scheduler.tasks[&0].store.contents().fails = true;
    world.triggers.returns([TestRecord::at(TRIGGERS, 0, 0)]);
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::StoreFailed));
}

#[test]
fn a_refused_partition_reads_nothing() {
    let world = TestEnvironment::default();
    let mut task = active_at(0);
    task.state = PartitionState::Refused(TakeoverError::MetadataDropped);
    let mut scheduler = world.scheduler_owning([task]);
    world.triggers.returns([TestRecord::at(TRIGGERS, 0, 0)]);
    world.triggers.reading().events.push_back(LogEvent::End(0));
    scheduler.read_inputs(MS, Duration::ZERO).unwrap();
    assert_eq!(scheduler.tasks[&0].next_trigger, 0);
    assert_eq!(world.triggers.position(TRIGGERS, 0), Ok(None));
}

/// An active partition that has read 3 records and knows of no end.
fn read_until_3() -> Task {
    let mut task = active_at(0);
    (0..3).for_each(|offset| register(&mut task, offset, NOW + 10_000));
    task
}
