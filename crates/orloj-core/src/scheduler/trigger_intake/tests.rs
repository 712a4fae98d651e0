//! Tests of what becomes of a record of `triggers` that is read, and of when parked ones are looked
//! at again.
//!
//! Invariant: the registry has no schema, and is away until a test says that it answers.

use std::sync::Arc;

use super::*;
use crate::codec::schemas::Schemas;
use crate::engine::config::PartitionConfig;
use crate::engine::cursor::Cursor;
use crate::engine::offset_bitmap::OffsetBitmap;
use crate::engine::parked_schemas::{PARKED_SCHEMAS_MAX, ParkedSchemas};
use crate::engine::partition_offsets::PartitionOffsets;
use crate::engine::prefetch::IndexRows;
use crate::engine::takeover::Takeover;
use crate::model::input::Request;
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::names::Names;
use crate::model::partitioner::Partitioner;
use crate::scheduler::config::ReadAheadLimits;
use crate::scheduler::config::SchedulerConfig;
use crate::scheduler::test_partition::{
    active_at, active_with, partition_config, register, restore_of, restoring,
};
use crate::scheduler::test_scheduler::config;
use crate::test_environment::TestEnvironment;
use crate::test_environment::clock::MS;
use crate::test_environment::cluster::TestSchemas;
use crate::test_environment::reader::TestRecord;
use crate::test_environment::store::TestStore;

const LIMITS: ParkingLimits = ParkingLimits { records_max: 100, bytes_max: 10_000 };
const N: Offset = 40;
/// Names the schema 7.
const AVRO: Option<&[u8]> = Some(&[0, 0, 0, 0, 7, 1]);

const RETRY: Duration = Duration::from_millis(20);

/// A record of the first partition.
fn record(offset: Offset, key: &[u8], value: Option<&[u8]>) -> TestRecord {
    let (key, value) = (Some(key.to_vec()), value.map(<[u8]>::to_vec));
    TestRecord { key, value, ..TestRecord::at("o.triggers", 0, offset) }
}

/// A record of the trigger `a` whose schema is missing.
fn avro(partition: PartitionId, offset: Offset) -> TestRecord {
    TestRecord { partition, ..record(offset, b"a", AVRO) }
}

/// A partition in which such a record is parked.
fn parked(world: &TestEnvironment, task: PartitionTask<TestStore>) -> Scheduler<TestEnvironment> {
    let rules = PartitionConfig { partitioner: Partitioner::Any, ..partition_config() };
    let mut scheduler = world.scheduler_with(SchedulerConfig { partition: rules, ..config() });
    park(&mut scheduler, task);
    scheduler
}

fn park(scheduler: &mut Scheduler<TestEnvironment>, mut task: PartitionTask<TestStore>) {
    let limits = (scheduler.config.parking, scheduler.clock.monotonic());
    let record = avro(task.id, task.next_trigger);
    let input = take_trigger(&mut task, &scheduler.decoder, &record, limits).unwrap();
    task.ingest(input.into_iter().collect()).unwrap();
    assert_eq!(task.parking.len(), 1);
    let _none = scheduler.tasks.insert(task.id, task);
}

fn left(scheduler: &Scheduler<TestEnvironment>) -> usize {
    scheduler.tasks.values().map(|task| task.parking.len()).sum()
}

#[test]
fn parked_records_are_looked_at_again_after_a_time_and_ingested_once_their_schemas_are_known() {
    let world = TestEnvironment::default();
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
    let world = TestEnvironment::default();
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
        let world = TestEnvironment::default();
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
    let world = TestEnvironment::default();
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
    let world = TestEnvironment::default();
    let mut scheduler = parked(&world, active_at(0));
    park(&mut scheduler, active_at(1));
    world.clock.advance(MS * 100);
    let release_at =
        |scheduler: &Scheduler<TestEnvironment>| [0, 1].map(|id| scheduler.tasks[&id].release_at);
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
    let world = TestEnvironment::default();
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
    let scheduler = TestEnvironment::default().scheduler();
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
    let scheduler = TestEnvironment::default().scheduler();
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
    let scheduler = TestEnvironment::default().scheduler();
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
    scheduler: &Scheduler<TestEnvironment>,
    task: &mut PartitionTask<TestStore>,
    record: &TestRecord,
) -> (usize, bool) {
    let limits = (scheduler.config.parking, Duration::ZERO);
    let input = take_trigger(task, &scheduler.decoder, record, limits).unwrap();
    assert_eq!(input, None, "the takeover is not complete");
    let restore = restore_of(task);
    (restore.live_inputs.len(), restore.triggers_complete)
}

/// Of two partitions; records are in the first one.
fn decoder(partitioner: Partitioner) -> InputDecoder<TestSchemas> {
    InputDecoder::new(
        &Names::new("o"),
        partitioner,
        2,
        Arc::new(Schemas::new()),
        TestSchemas::default(),
    )
}

/// A key of the first partition, and one of the other.
fn keys() -> (&'static [u8], &'static [u8]) {
    let keys: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let of = |partition| {
        let is = |key: &&&[u8]| Partitioner::Murmur2.partition(key, 2) == Some(partition);
        *keys.iter().find(is).expect("keys of both partitions")
    };
    (of(0), of(1))
}

/// A new owner of a partition in which records are parked from 10 on, and one has a mark. It
/// reads `triggers` from there on.
fn new_owner(parked: ParkedSchemas, mark: Option<Offset>) -> PartitionTask<TestStore> {
    let cursor = Cursor { next_offset: N, parked, ..Cursor::initial(10, 0) };
    let offsets = |owner| PartitionOffsets {
        committed: Some((N, cursor.to_metadata(owner))),
        triggers_end: N,
        ledger_end: 2,
        ..PartitionOffsets::default()
    };
    let mut takeover = Takeover::new(0, &Names::new("o"), "me", 1, None);
    takeover.on_offsets(offsets("earlier")).unwrap();
    takeover.on_barrier();
    takeover.on_offsets(offsets("me")).unwrap();
    let mark = mark.map(|offset| (LedgerKey::Skip(offset), LedgerValue::Skip));
    let barrier = (LedgerKey::Barrier, LedgerValue::Barrier { nonce: 1 });
    let record = |(key, value)| LedgerRecord { key, value: Some(value), step: 1 };
    let records = mark.into_iter().chain([barrier]).map(record).collect();
    let _rows = takeover.on_ledger(records, 2, &IndexRows::default()).unwrap();
    let request = takeover.next_request();
    assert_eq!(request, TakeoverRequest::Triggers { from: 10, until: N });
    let mut task =
        PartitionTask::new(0, Arc::default(), takeover, ReadAheadLimits::NONE, Duration::ZERO);
    let PartitionState::Restoring(restoring) = &mut task.state else { panic!("it restores") };
    restoring.requested = Some(request);
    task.start_replay(10, N);
    task
}

/// Takes a record. Returns what is ingested, if it is new, and whether it is parked.
fn take(
    task: &mut PartitionTask<TestStore>,
    partitioner: Partitioner,
    record: &TestRecord,
) -> (Option<Request>, bool) {
    let before = task.parking.len();
    let ingested =
        take_trigger(task, &decoder(partitioner), record, (LIMITS, Duration::ZERO)).unwrap();
    assert_eq!(ingested, None, "the takeover is not complete");
    let PartitionState::Restoring(restoring) = &mut task.state else { panic!("it restores") };
    let live = restoring.live_inputs.pop().map(|input| match input {
        Input::Trigger(record) => Some(record.request),
        _ => None,
    });
    (live.flatten(), task.parking.len() > before)
}

fn parked_from_10() -> ParkedSchemas {
    [(7, 10)].into_iter().collect()
}

#[test]
fn a_record_in_a_wrong_partition_does_not_wait_for_a_schema() {
    let (here, other) = keys();
    let mut task = new_owner(parked_from_10(), None);
    let first = record(10, here, AVRO);
    assert_eq!(take(&mut task, Partitioner::Murmur2, &first), (None, true));
    let wrong = record(N, other, AVRO);
    let (request, is_parked) = take(&mut task, Partitioner::Murmur2, &wrong);
    assert!(matches!(request, Some(Request::Forward(_))) && !is_parked, "{request:?}");
    let waits = record(N + 1, other, AVRO);
    assert_eq!(take(&mut task, Partitioner::Any, &waits), (None, true));
    let behind = record(N + 2, other, None);
    let taken = take(&mut task, Partitioner::Murmur2, &behind);
    assert_eq!(taken, (None, true), "the order of a trigger's records is kept");
}

#[test]
fn a_record_that_was_forwarded_is_not_parked_by_a_new_owner() {
    let (_, other) = keys();
    let wrong = record(20, other, AVRO);
    let mut task = new_owner(parked_from_10(), Some(20));
    assert_eq!(take(&mut task, Partitioner::Murmur2, &wrong), (None, false));
    let mut task = new_owner(parked_from_10(), Some(21));
    assert_eq!(take(&mut task, Partitioner::Murmur2, &wrong), (None, true), "another setting");
}

#[test]
fn a_record_that_was_parked_is_forwarded_once_if_another_partitioner_is_set() {
    let (_, other) = keys();
    let record = |offset, value| record(offset, other, value);
    let mut task = new_owner(parked_from_10(), None);
    let head = record(10, AVRO);
    assert_eq!(take(&mut task, Partitioner::Any, &head), (None, true));
    assert_eq!(take(&mut task, Partitioner::Any, &record(11, None)), (None, true));
    // Another one takes over.
    let mut task = new_owner(task.parking.schemas(), None);
    assert_eq!(take(&mut task, Partitioner::Murmur2, &head), (None, true));
    assert_eq!(take(&mut task, Partitioner::Murmur2, &record(11, None)), (None, true));
    let decoder = decoder(Partitioner::Murmur2);
    let read = |record: &_| decoder.decode_trigger(record, Duration::ZERO);
    let released = task.parking.release(100, || false, read).expect("it needs no schema here");
    let forwarded: Vec<_> = released.records.iter().map(|record| record.offset).collect();
    assert_eq!(forwarded, [10, 11]);
    let is_forward = |record: &_| {
        let crate::model::input::TriggerRecord { request, .. } = record;
        matches!(request, Request::Forward(_))
    };
    assert!(released.records.iter().all(is_forward));
    let read = |record: &_| decoder.decode_trigger(record, Duration::ZERO);
    assert!(task.parking.release(100, || false, read).is_none(), "once");
    // And the next owner does not forward it again.
    let mut task = new_owner(released.schemas, Some(10));
    assert_eq!(take(&mut task, Partitioner::Murmur2, &head), (None, false));
}

/// The same of the schema 8.
const AVRO_8: Option<&[u8]> = Some(&[0, 0, 0, 0, 8, 1]);

fn new_schemas(task: &PartitionTask<TestStore>) -> Vec<(u32, Offset)> {
    task.parking.schemas().iter().collect()
}

#[test]
fn a_schema_that_is_missing_behind_a_parked_record_counts_from_n_on_and_not_below() {
    let (key, _) = keys();
    let record = |offset, value| record(offset, key, value);
    let mut task = new_owner(parked_from_10(), None);
    for (offset, value) in [(10, AVRO), (11, AVRO_8)] {
        let taken = take(&mut task, Partitioner::Murmur2, &record(offset, value));
        assert_eq!(taken, (None, true));
    }
    assert_eq!(new_schemas(&task), [(7, 10)], "the cursor says what is missing below N");
    let taken = take(&mut task, Partitioner::Murmur2, &record(N, AVRO_8));
    assert_eq!((taken, new_schemas(&task)), ((None, true), vec![(7, 10), (8, N)]));
}

#[test]
fn a_new_record_whose_schema_is_missing_is_parked_if_there_is_room() {
    let (key, _) = keys();
    let first = record(N, key, AVRO);
    let mut task = new_owner(ParkedSchemas::NONE, None);
    let none = ParkingLimits { records_max: 0, ..LIMITS };
    let limits = (none, Duration::ZERO);
    let taken = take_trigger(&mut task, &decoder(Partitioner::Any), &first, limits);
    assert!(matches!(taken, Err(NotTaken::NoRoom)), "{taken:?}");
    assert_eq!(task.next_trigger, 10, "it is read again");
    let PartitionState::Restoring(restoring) = &task.state else { panic!("it restores") };
    assert!(restoring.triggers_complete, "all below N is read");
    assert_eq!(take(&mut task, Partitioner::Any, &first), (None, true));
    assert_eq!((task.next_trigger, new_schemas(&task)), (N + 1, vec![(7, N)]));
    let behind = record(N + 1, key, None);
    let taken = take_trigger(&mut task, &decoder(Partitioner::Any), &behind, limits);
    assert!(matches!(taken, Err(NotTaken::NoRoom)), "{taken:?}");
}

#[test]
fn no_more_schemas_are_missing_at_a_time_than_the_cursor_has_room_for() {
    let (key, other) = keys();
    let missing = (100..).zip(0..PARKED_SCHEMAS_MAX as Offset);
    let mut task = new_owner(missing.map(|(schema, n)| (schema, 10 + n)).collect(), None);
    let first = record(N, key, AVRO);
    let limits = (LIMITS, Duration::ZERO);
    let taken = take_trigger(&mut task, &decoder(Partitioner::Any), &first, limits);
    assert!(matches!(taken, Err(NotTaken::NoRoom)), "{taken:?}");
    let readable = record(N, other, None);
    let (request, is_parked) = take(&mut task, Partitioner::Any, &readable);
    assert!(request.is_some() && !is_parked, "{request:?}");
}
