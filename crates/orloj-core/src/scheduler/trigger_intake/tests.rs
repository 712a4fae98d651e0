//! Tests of when parked records are looked at again, and of records that the ledger covers.
//!
//! Invariant: the registry has no schema, and is away until a test says that it answers.

use super::*;
use crate::engine::config::PartitionConfig;
use crate::engine::offset_bitmap::OffsetBitmap;
use crate::model::partitioner::Partitioner;
use crate::scheduler::config::SchedulerConfig;
use crate::scheduler::test_partition::{
    active_at, active_with, partition_config, register, restore_of, restoring,
};
use crate::scheduler::test_reader::TestRecord;
use crate::scheduler::test_store::TestStore;
use crate::scheduler::test_world::{TestWorld, config};

const MS: Duration = Duration::from_millis(1);
const RETRY: Duration = Duration::from_millis(20);

/// A record of the trigger `a` whose schema is missing.
fn avro(id: PartitionId, offset: Offset) -> TestRecord {
    let value = Some(vec![0, 0, 0, 0, 7, 1]);
    TestRecord { value, ..TestRecord::at("o.triggers", id, offset) }
}

/// A partition in which such a record is parked.
fn parked(world: &TestWorld, task: PartitionTask<TestStore>) -> Scheduler<TestWorld> {
    let rules = PartitionConfig { partitioner: Partitioner::Any, ..partition_config() };
    let mut scheduler = world.scheduler_with(SchedulerConfig { partition: rules, ..config() });
    park(&mut scheduler, task);
    scheduler
}

fn park(scheduler: &mut Scheduler<TestWorld>, mut task: PartitionTask<TestStore>) {
    let limits = (scheduler.config.parking, scheduler.clock.monotonic());
    let record = avro(task.id, task.next_trigger);
    let input = take_trigger(&mut task, &scheduler.decoder, &record, limits).unwrap();
    task.ingest(input.into_iter().collect()).unwrap();
    assert_eq!(task.parking.len(), 1);
    let _none = scheduler.tasks.insert(task.id, task);
}

fn left(scheduler: &Scheduler<TestWorld>) -> usize {
    scheduler.tasks.values().map(|task| task.parking.len()).sum()
}

#[test]
fn parked_records_are_looked_at_again_after_a_time_and_ingested_once_their_schemas_are_known() {
    let world = TestWorld::default();
    world.clock.advance(MS * 100);
    let mut scheduler = parked(&world, active_at(0));
    scheduler.release_parked(Duration::ZERO).unwrap();
    assert_eq!((left(&scheduler), scheduler.tasks[&0].release_at), (1, MS * 120));
    world.schemas.answers().is_back = true;
    world.clock.advance(RETRY - MS);
    scheduler.release_parked(Duration::ZERO).unwrap();
    assert_eq!(left(&scheduler), 1);
    world.clock.advance(MS);
    scheduler.release_parked(Duration::ZERO).unwrap();
    assert_eq!((left(&scheduler), scheduler.tasks[&0].release_at), (0, MS * 140));
    let partition = scheduler.tasks.get_mut(&0).unwrap().active().unwrap();
    assert!(partition.cursor().parked.is_empty(), "it is decided");
    assert!(partition.drafted_records() > 0, "there is a dead letter");
}

#[test]
fn all_parked_records_are_released_in_one_turn_if_there_is_time() {
    let world = TestWorld::default();
    let mut scheduler = parked(&world, active_at(0));
    let limits = (scheduler.config.parking, Duration::ZERO);
    let task = scheduler.tasks.get_mut(&0).unwrap();
    for (offset, id) in [(1, b"b"), (2, b"c")] {
        let record = TestRecord { key: Some(id.to_vec()), ..avro(0, offset) };
        let input = take_trigger(task, &scheduler.decoder, &record, limits).unwrap();
        task.ingest(input.into_iter().collect()).unwrap();
    }
    assert_eq!(left(&scheduler), 3);
    world.schemas.answers().is_back = true;
    scheduler.release_parked(Duration::ZERO).unwrap();
    assert_eq!(left(&scheduler), 0);
}

#[test]
fn a_schema_that_is_known_is_not_missing_because_a_record_waits_behind_another() {
    for (is_back, missing) in [(true, vec![7]), (false, vec![7, 8])] {
        let world = TestWorld::default();
        let mut scheduler = parked(&world, active_at(0));
        world.schemas.answers().is_back = is_back;
        let limits = (scheduler.config.parking, Duration::ZERO);
        let behind = TestRecord { value: Some(vec![0, 0, 0, 0, 8, 1]), ..avro(0, 1) };
        let task = scheduler.tasks.get_mut(&0).unwrap();
        let _parked = take_trigger(task, &scheduler.decoder, &behind, limits).unwrap();
        let schemas: Vec<_> = task.parking.schemas().iter().map(|(schema, _)| schema).collect();
        assert_eq!((task.parking.len(), schemas), (2, missing));
    }
}

#[test]
fn parked_records_wait_while_their_partition_is_full_or_not_active() {
    let world = TestWorld::default();
    let rules = PartitionConfig { records_per_step_max: 2, ..partition_config() };
    let mut scheduler = parked(&world, active_with(0, rules));
    world.schemas.answers().is_back = true;
    register(scheduler.tasks.get_mut(&0).unwrap(), 1, 1_000);
    scheduler.release_parked(Duration::ZERO).unwrap();
    assert_eq!((left(&scheduler), scheduler.tasks[&0].release_at), (1, Duration::ZERO));
    world.schemas.answers().is_back = false;
    let mut scheduler = parked(&world, active_at(0));
    world.schemas.answers().is_back = true;
    scheduler.tasks.get_mut(&0).unwrap().state = PartitionState::StoreFailed;
    scheduler.release_parked(Duration::ZERO).unwrap();
    assert_eq!(left(&scheduler), 1);
}

#[test]
fn the_partition_that_waits_for_longest_is_looked_at_first_until_the_time_of_a_turn_is_over() {
    let world = TestWorld::default();
    let mut scheduler = parked(&world, active_at(0));
    park(&mut scheduler, active_at(1));
    world.clock.advance(MS * 100);
    let release_at =
        |scheduler: &Scheduler<TestWorld>| [0, 1].map(|id| scheduler.tasks[&id].release_at);
    scheduler.tasks.get_mut(&0).unwrap().release_at = MS * 9;
    scheduler.tasks.get_mut(&1).unwrap().release_at = MS * 8;
    world.clock.set_between_looks(MS * 20);
    scheduler.release_parked(Duration::ZERO).unwrap();
    let after = release_at(&scheduler);
    assert!(after[0] == MS * 9 && after[1] > MS * 100, "{after:?}");
    world.clock.set_between_looks(Duration::ZERO);
    scheduler.release_parked(Duration::ZERO).unwrap();
    assert!(release_at(&scheduler)[0] > MS * 100, "there is time for it in the next one");
}

#[test]
fn a_partition_whose_store_fails_when_parked_records_are_ingested_is_rebuilt() {
    let world = TestWorld::default();
    let mut scheduler = parked(&world, active_at(0));
    world.schemas.answers().is_back = true;
    scheduler.tasks[&0].store.contents().fails = true;
    scheduler.release_parked(Duration::ZERO).unwrap();
    assert!(matches!(scheduler.tasks[&0].state, PartitionState::StoreFailed));
}

/// A takeover that replays below 9, of which the record 4 is covered by the ledger.
fn replaying() -> PartitionTask<TestStore> {
    let mut task = restoring(TakeoverRequest::Triggers { from: 0, until: 9 });
    let restore = restore_of(&mut task);
    restore.covered = OffsetBitmap::empty(0..9);
    restore.covered.insert(4);
    restore.registry_from = 100;
    task
}

#[test]
fn a_record_that_the_ledger_covers_is_not_replayed() {
    let scheduler = TestWorld::default().scheduler();
    let limits = (scheduler.config.parking, Duration::ZERO);
    let mut task = replaying();
    for offset in [3, 4, 5] {
        let record = TestRecord::at("o.triggers", 0, offset);
        task.end_check = EndCheck::RetryAt(MS);
        let input = take_trigger(&mut task, &scheduler.decoder, &record, limits).unwrap();
        assert_eq!((input, task.next_trigger), (None, offset + 1));
        if offset != 4 {
            assert_eq!(task.end_check, EndCheck::Idle, "there may be more");
        }
    }
    let restore = restore_of(&mut task);
    let replayed: Vec<_> = restore.triggers.iter().map(|record| record.offset).collect();
    assert_eq!((replayed, restore.records_read), (vec![3, 5], 1));
}

#[test]
fn a_parked_record_waits_although_the_ledger_covers_it_and_others_are_skipped() {
    let scheduler = TestWorld::default().scheduler();
    let limits = (scheduler.config.parking, Duration::ZERO);
    let take = |task: &mut PartitionTask<TestStore>, record: &TestRecord| {
        let input = take_trigger(task, &scheduler.decoder, record, limits).unwrap();
        assert_eq!(input, None, "the takeover is not complete");
    };
    let mut task = replaying();
    assert!(task.parking.add_schema(7, 3));
    take(&mut task, &avro(0, 3));
    take(&mut task, &avro(0, 4));
    assert_eq!(task.parking.len(), 2);
    assert_eq!(restore_of(&mut task).records_read, 2, "they are not replayed now");
    let mut task = replaying();
    assert!(task.parking.add_schema(7, 3));
    take(&mut task, &avro(0, 3));
    let other = TestRecord { key: Some(b"b".to_vec()), ..TestRecord::at("o.triggers", 0, 4) };
    take(&mut task, &other);
    assert_eq!((task.parking.len(), restore_of(&mut task).triggers.len()), (1, 0));
}

#[test]
fn a_record_is_taken_by_a_partition_that_is_active_or_reads_triggers() {
    let scheduler = TestWorld::default().scheduler();
    let limits = (scheduler.config.parking, Duration::ZERO);
    let record = TestRecord::at("o.triggers", 0, 9);
    let taken = |mut task: PartitionTask<TestStore>| {
        let input = take_trigger(&mut task, &scheduler.decoder, &record, limits).unwrap();
        (input.is_some(), task.next_trigger == 10)
    };
    assert_eq!(taken(active_at(0)), (true, true));
    let mut task = replaying();
    assert_eq!(taken_live(&scheduler, &mut task, &record), (1, true), "it is not below N");
    let mut task = restoring(TakeoverRequest::Nothing);
    assert_eq!(taken_live(&scheduler, &mut task, &record), (1, true));
    assert_eq!(taken(restoring(TakeoverRequest::Ledger { from: 0 })), (false, false));
    let mut failed = active_at(0);
    failed.state = PartitionState::StoreFailed;
    assert_eq!(taken(failed), (false, false));
}

/// How many live records a takeover has then, and whether all below N is read.
fn taken_live(
    scheduler: &Scheduler<TestWorld>,
    task: &mut PartitionTask<TestStore>,
    record: &TestRecord,
) -> (usize, bool) {
    let limits = (scheduler.config.parking, Duration::ZERO);
    let input = take_trigger(task, &scheduler.decoder, record, limits).unwrap();
    assert_eq!(input, None, "the takeover is not complete");
    let restore = restore_of(task);
    (restore.live_inputs.len(), restore.triggers_complete)
}
