//! Tests of a pass over a followed partition.
//!
//! Invariant: the readers return what a test has set, in the order of the calls.

use super::*;
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::schemas::Schemas;
use crate::engine::cursor::Cursor;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::partitioner::Partitioner;
use crate::test_environment::TestEnvironment;
use crate::test_environment::clock::MS;
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::reader::{TestReader, TestRecord};
use crate::test_environment::store::TestStore;
const TRIGGERS: &str = "o.triggers";
const LEDGER: &str = "o.ledger";
/// How long a pass waits for records.
const TIMEOUT: Duration = Duration::from_secs(10);

fn reader(world: &TestEnvironment) -> StandbyReader<TestEnvironment> {
    let (names, schemas) = (Names::new("o"), Arc::new(Schemas::new()));
    let (partitioner, registry) = (Partitioner::Murmur2, world.schemas.clone());
    world.clock.advance(TIMEOUT);
    StandbyReader {
        clock: world.clock.clone(),
        ledger: world.signals_and_ledger.clone(),
        triggers: world.triggers.clone(),
        cluster: world.cluster.clone(),
        decoder: InputDecoder::new(&names, partitioner, 1, schemas, registry),
        names,
        timeout: TIMEOUT,
        batch: 3,
        batch_bytes_max: usize::MAX,
    }
}

/// A pass over a ledger that ended at `ledger_end` and `triggers` below `n`, from the beginning.
fn pass(world: &TestEnvironment, ledger_end: Offset, n: Offset) -> RunningPass<TestStore> {
    let cursor = Cursor { next_offset: n, step: 3, registry_from: n, ..Cursor::initial(0, 0) };
    let pass = CatchUpPass::begin(None, cursor, ledger_end);
    let began = (world.clock.monotonic(), 0);
    RunningPass::new(0, Arc::new(TestStore::default()), pass, began, 0)
}

fn skip_mark(offset: Offset, step: &str) -> TestRecord {
    TestRecord {
        key: Some(LedgerKey::Skip(offset).to_bytes()),
        value: Some(Schemas::new().encode_ledger(&LedgerValue::Skip)),
        headers: vec![(STEP_HEADER.to_owned(), step.as_bytes().to_vec())],
        ..TestRecord::at(LEDGER, 0, offset)
    }
}

fn trigger(offset: Offset) -> TestRecord {
    TestRecord::at(TRIGGERS, 0, offset)
}

/// The reader is at the end of the partition.
fn ends(reader: &TestReader) {
    reader.reading().events.push_back(LogEvent::End(0));
}

#[test]
fn a_pass_reads_the_ledger_and_then_the_triggers_and_is_complete() {
    let world = TestEnvironment::default();
    world.cluster.set(LEDGER, 0, TestBounds::whole(0, 4));
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 9));
    let reader = reader(&world);
    let mut running = pass(&world, 4, 2);
    world.signals_and_ledger.returns([skip_mark(0, "1"), skip_mark(1, "2")]);
    ends(&world.signals_and_ledger);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!(world.signals_and_ledger.calls(), ["start o.ledger[0] at 0"]);
    assert_eq!(running.store.contents().writes.len(), 1, "the marks are applied");
    world.triggers.returns([trigger(0), trigger(1), trigger(2)]);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 0"]);
    assert_eq!(world.triggers.reading().events.len(), 1, "what is not below N is not read");
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Complete);
    assert_eq!(world.triggers.reading().waits, [POLL, Duration::ZERO]);
    reader.stop(0);
    assert_eq!(world.triggers.calls(), ["stop o.triggers[0]"]);
    assert_eq!(world.signals_and_ledger.calls(), ["stop o.ledger[0]"]);
}

#[test]
fn a_batch_is_applied_when_it_is_full_and_the_rest_at_the_end() {
    let world = TestEnvironment::default();
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 9));
    let reader = reader(&world);
    let mut running = pass(&world, 0, 8);
    world.triggers.returns([trigger(0), trigger(1)]);
    let writes = |running: &RunningPass<TestStore>| running.store.contents().writes.len();
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!((writes(&running), running.trigger_records.len()), (0, 2));
    world.triggers.returns([trigger(2), trigger(3), trigger(4)]);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!((writes(&running), running.triggers.next), (1, 3));
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!((writes(&running), running.trigger_records.len()), (1, 2));
    ends(&world.triggers);
    let _progress = reader.read(&mut running).unwrap();
    assert_eq!((writes(&running), running.trigger_records.len()), (2, 0));
    assert_eq!(world.triggers.calls(), ["start o.triggers[0] at 0"], "once");
}

/// A ledger of large records would take up the memory of ten thousand of them.
#[test]
fn a_batch_is_full_when_it_has_so_many_bytes() {
    let world = TestEnvironment::default();
    world.cluster.set(LEDGER, 0, TestBounds::whole(0, 9));
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 9));
    let batch_bytes_max = 2 * bytes_of(&skip_mark(0, "1"));
    let reader = StandbyReader { batch_bytes_max, ..reader(&world) };
    let writes = |running: &RunningPass<TestStore>| running.store.contents().writes.len();
    let mut running = pass(&world, 9, 0);
    world.signals_and_ledger.returns([0, 1, 2].map(|offset| skip_mark(offset, "1")));
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!((writes(&running), running.ledger.next), (1, 2));
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!((writes(&running), running.ledger_records.len()), (1, 1), "a new batch");
    let mut running = pass(&world, 0, 8);
    world.triggers.returns([trigger(0), trigger(1)]);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!((writes(&running), running.triggers.next), (1, 1));
}

#[test]
fn the_end_of_the_ledger_counts_if_no_transaction_was_open_below_it() {
    for (stable, is_read) in [(3, false), (4, true)] {
        let world = TestEnvironment::default();
        let bounds = TestBounds { stable, ..TestBounds::whole(0, 4) };
        world.cluster.set(LEDGER, 0, bounds);
        let reader = reader(&world);
        let mut running = pass(&world, 4, 0);
        ends(&world.signals_and_ledger);
        let progress = reader.read(&mut running).unwrap();
        let expected = if is_read { PassProgress::Reading } else { PassProgress::Waiting };
        assert_eq!((progress, running.ledger.is_read()), (expected, is_read));
        assert_eq!(running.stable, None, "it is started again");
    }
}

#[test]
fn a_topic_is_read_when_its_last_record_is_although_its_end_is_not_reached() {
    let world = TestEnvironment::default();
    world.cluster.set(LEDGER, 0, TestBounds::whole(0, 2));
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 9));
    let reader = reader(&world);
    let mut running = pass(&world, 2, 2);
    world.signals_and_ledger.returns([skip_mark(0, "1"), skip_mark(1, "2")]);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert!(running.ledger.is_read());
    // The record at 1 is not there any more.
    world.triggers.returns([trigger(0), trigger(2)]);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert_eq!(running.triggers.next, 3, "what is not below N is passed over");
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Complete);
    assert_eq!(running.store.contents().writes.len(), 2);
}

#[test]
fn the_ledger_is_read_once_a_record_of_a_later_step_was() {
    let world = TestEnvironment::default();
    world.cluster.set(LEDGER, 0, TestBounds::whole(0, 9));
    let reader = reader(&world);
    let mut running = pass(&world, 9, 0);
    world.signals_and_ledger.returns([skip_mark(0, "3"), skip_mark(1, "4"), skip_mark(2, "4")]);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    assert!(!running.ledger.is_read() && running.stable.is_none());
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Complete);
}

#[test]
fn the_end_of_triggers_counts_as_far_as_the_reader_has_come() {
    for (position, next, progress) in [
        (Some(2), 2, PassProgress::Reading),
        (Some(1), 1, PassProgress::Waiting),
        (None, 0, PassProgress::Waiting),
    ] {
        let world = TestEnvironment::default();
        world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 9));
        let reader = reader(&world);
        let mut running = pass(&world, 0, 2);
        world.triggers.reading().position = position;
        ends(&world.triggers);
        assert_eq!(reader.read(&mut running).unwrap(), progress, "{position:?}");
        assert_eq!(running.triggers.next, next);
        world.triggers.reading().position = Some(0);
        ends(&world.triggers);
        let _progress = reader.read(&mut running).unwrap();
        assert_eq!(running.triggers.next, next, "it does not go back");
    }
}

#[test]
fn a_pass_ends_if_no_record_arrives_for_long() {
    let world = TestEnvironment::default();
    let reader = reader(&world);
    let mut running = pass(&world, 0, 8);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Waiting, "no answer");
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 9));
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading, "the reader has waited");
    world.clock.advance(TIMEOUT - MS);
    world.triggers.returns([trigger(0)]);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    world.clock.advance(TIMEOUT - MS);
    assert_eq!(reader.read(&mut running).unwrap(), PassProgress::Reading);
    world.clock.advance(MS);
    let ended = reader.read(&mut running);
    assert!(matches!(ended, Err(PassError::NotReady(_))), "{ended:?}");
}

#[test]
fn a_pass_ends_if_its_position_does_not_exist_or_a_record_cannot_be_read() {
    let world = TestEnvironment::default();
    world.cluster.set(TRIGGERS, 0, TestBounds::whole(0, 9));
    world.cluster.set(LEDGER, 0, TestBounds::whole(0, 9));
    let reader = reader(&world);
    world.triggers.reading().events.push_back(LogEvent::OutOfRange);
    let ended = reader.read(&mut pass(&world, 0, 8));
    assert!(matches!(ended, Err(PassError::NotReady(_))), "{ended:?}");
    world.signals_and_ledger.returns([TestRecord::at(LEDGER, 0, 0)]);
    let ended = reader.read(&mut pass(&world, 4, 8));
    assert!(matches!(ended, Err(PassError::Ledger(_))), "{ended:?}");
    let avro = TestRecord { value: Some(vec![0, 0, 0, 0, 7, 1]), ..trigger(0) };
    world.triggers.returns([avro]);
    let ended = reader.read(&mut pass(&world, 0, 8));
    assert!(matches!(ended, Err(PassError::Triggers(_))), "{ended:?}");
    world.triggers.reading().fails = true;
    assert_eq!(reader.read(&mut pass(&world, 0, 8)).unwrap(), PassProgress::Reading);
}

#[test]
fn a_pass_reads_no_record_of_the_ledger_that_is_not_there_any_more() {
    let cursor = Cursor { next_offset: 8, step: 3, ..Cursor::initial(0, 0) };
    let pass = CatchUpPass::begin(None, cursor, 9);
    let running = RunningPass::new(0, Arc::new(()), pass, (MS, 0), 5);
    assert_eq!((running.ledger.next, running.ledger.until), (5, 9));
    assert_eq!((running.triggers.next, running.triggers.until), (0, 8));
}
