//! Tests of the records that are applied for a takeover.
//!
//! Invariant: the store has no rows; what is written to it is counted.

use std::collections::BTreeSet;

use super::*;
use crate::engine::cursor::Cursor;
use crate::engine::local_checkpoint::LocalCheckpoint;
use crate::engine::partition_offsets::PartitionOffsets;
use crate::engine::prefetch::IndexRows;
use crate::engine::takeover::TakeoverRequest;
use crate::engine::tests::harness::registration_record;
use crate::environment::Clock as _;
use crate::model::ledger::{LedgerKey, LedgerValue};
use crate::model::names::Names;
use crate::model::timeline::TimelineKey;
use crate::test_environment::TestEnvironment;
use crate::test_environment::reader::TestRecord;
use crate::test_environment::store::TestStore;

const NOW: Timestamp = 5_000;
const N: Offset = 40;

fn ledger_record(key: &LedgerKey, value: Option<&LedgerValue>, offset: Offset) -> TestRecord {
    TestRecord {
        key: Some(key.to_bytes()),
        value: value.map(|value| Schemas::new().encode_ledger(value)),
        headers: vec![(STEP_HEADER.to_owned(), b"3".to_vec())],
        ..TestRecord::at("o.ledger", 0, offset)
    }
}

/// What a newer program has written.
fn newer(offset: Offset) -> TestRecord {
    let skip = LedgerValue::Skip;
    let mut record = ledger_record(&LedgerKey::Skip(1), Some(&skip), offset);
    record.value.as_mut().unwrap()[2] ^= 1; // the fingerprint of its schema
    record
}

/// A takeover that requests the ledger, with or without a store that is valid.
fn takeover(has_store: bool) -> Box<Takeover> {
    let cursor = Cursor { next_offset: N, ..Cursor::initial(10, 0) };
    let local = LocalCheckpoint {
        applied_until: 12,
        step: 0,
        ledger_position: 1,
        fired_through: TimelineKey::MIN,
    };
    let local = has_store.then(|| (local, BTreeSet::new()));
    let mut takeover = Takeover::new(0, &Names::new("o"), "me", 1, local);
    let offsets = |owner| PartitionOffsets {
        committed: Some((N, cursor.to_metadata(owner))),
        triggers_end: N,
        ledger_end: 8,
        ..PartitionOffsets::default()
    };
    takeover.on_offsets(offsets("earlier")).unwrap();
    takeover.on_barrier();
    takeover.on_offsets(offsets("me")).unwrap();
    Box::new(takeover)
}

/// The same when it has read the ledger.
fn takeover_of_triggers() -> Box<Takeover> {
    let mut takeover = takeover(false);
    let (key, value) = (LedgerKey::Barrier, Some(LedgerValue::Barrier { nonce: 1 }));
    let barrier = LedgerRecord { key, value, step: 1 };
    let _rows = takeover.on_ledger(vec![barrier], 8, &IndexRows::default()).unwrap();
    takeover
}

fn run(takeover: Box<Takeover>, store: &TestStore, work: RestoreWork) -> RestoreResult {
    let store = Arc::new(store.clone());
    let cluster = "here".to_owned();
    let request = RestoreRequest { partition: 0, takeover, store, cluster, now: NOW, work };
    request.run::<TestEnvironment>(&Schemas::new())
}

fn raw(records: impl IntoIterator<Item = TestRecord>) -> RawLedger {
    let mut raw = RawLedger::default();
    records.into_iter().for_each(|record| raw.push(&record));
    raw
}

#[test]
fn ledger_records_are_decoded_as_they_were_read_without_those_that_are_corrupt() {
    let skip = LedgerValue::Skip;
    let mut no_step = ledger_record(&LedgerKey::Skip(2), Some(&skip), 1);
    no_step.headers.clear();
    let records = [
        ledger_record(&LedgerKey::Skip(1), Some(&skip), 0),
        no_step,
        TestRecord { key: None, ..TestRecord::at("o.ledger", 0, 2) },
        ledger_record(&LedgerKey::Skip(3), None, 3),
        ledger_record(&LedgerKey::Barrier, Some(&LedgerValue::Barrier { nonce: 9 }), 4),
    ];
    let raw = raw(records);
    assert_eq!(raw.len(), 5);
    let record = |key, value| LedgerRecord { key, value, step: 3 };
    let expected = [
        record(LedgerKey::Skip(1), Some(LedgerValue::Skip)),
        record(LedgerKey::Skip(3), None),
        record(LedgerKey::Barrier, Some(LedgerValue::Barrier { nonce: 9 })),
    ];
    assert_eq!(raw.decode(0, &Schemas::new()).unwrap(), expected);
    let cleared = raw.cleared();
    assert_eq!((cleared.len(), cleared.bytes.len()), (0, 0));
}

#[test]
fn a_takeover_is_refused_at_a_ledger_record_of_a_newer_program() {
    let skip = LedgerValue::Skip;
    let first = ledger_record(&LedgerKey::Skip(1), Some(&skip), 6);
    let error = raw([first.clone(), newer(7)]).decode(0, &Schemas::new());
    assert_eq!(error.unwrap_err(), TakeoverError::NewerLedger { offset: 7 });
    let work = RestoreWork::Ledger(raw([first, newer(7)]), 8);
    let store = TestStore::default();
    let result = run(takeover(false), &store, work);
    assert!(matches!(result.result, Err(RestoreError::Refused(_))));
    assert_eq!(result.spare_buffer.len(), 0);
    assert_eq!(store.contents().writes, []);
}

#[test]
fn rows_of_the_ledger_alone_are_no_state_to_resume_from() {
    for (has_store, writes_state) in [(false, false), (true, true)] {
        let store = TestStore::default();
        let skip = ledger_record(&LedgerKey::Skip(20), Some(&LedgerValue::Skip), 6);
        let result = run(takeover(has_store), &store, RestoreWork::Ledger(raw([skip]), 7));
        assert!(result.result.is_ok(), "{:?}", result.result);
        let contents = store.contents();
        assert_eq!(contents.writes.len(), 1);
        assert_eq!(contents.writes[0].1, writes_state);
        let caught_up_at = contents.state.as_ref().map(|state| state.caught_up_at);
        assert_eq!(caught_up_at, has_store.then_some(0), "it is being rebuilt");
    }
}

#[test]
fn a_batch_of_triggers_is_applied_as_far_as_its_last_record_and_the_last_one_to_the_end() {
    let cases = [(vec![12, 15], false, 16), (vec![12, 15], true, N), (vec![], false, N)];
    for (offsets, last, applied) in cases {
        let store = TestStore::default();
        let record = |offset: &Offset| registration_record("a", *offset, NOW + 9_000_000);
        let records = offsets.iter().map(record).collect();
        let work = RestoreWork::Triggers(LogBatch { records, covered_at: 77, last });
        let mut result = run(takeover_of_triggers(), &store, work);
        assert!(result.result.is_ok());
        let state = store.contents().state.clone().unwrap();
        assert_eq!((state.applied, state.caught_up_at), (applied, NOW), "{offsets:?}");
        assert_eq!(state.cluster_id, "here");
        let is_done = result.takeover.next_request() == TakeoverRequest::Nothing;
        assert_eq!(is_done, last);
        if is_done {
            assert_eq!(result.takeover.finish().last_timestamp, 77, "of what was covered");
        }
    }
}

#[test]
fn a_takeover_whose_store_fails_is_not_complete() {
    let store = TestStore::default();
    store.contents().fails = true;
    let batch = LogBatch { records: Vec::new(), covered_at: 0, last: true };
    let result = run(takeover_of_triggers(), &store, RestoreWork::Triggers(batch));
    assert!(matches!(result.result, Err(RestoreError::Store(_))));
    assert!(matches!(result.takeover.next_request(), TakeoverRequest::Triggers { .. }));
}

/// A pool that has three batches to apply.
fn pool(world: &TestEnvironment) -> RestorePool<TestEnvironment> {
    let mut pool = RestorePool::start(world, 1, Arc::new(Schemas::new()));
    for _ in 0..3 {
        let batch = LogBatch { records: Vec::new(), covered_at: 0, last: false };
        pool.submit(RestoreRequest {
            partition: 0,
            takeover: takeover_of_triggers(),
            store: Arc::new(TestStore::default()),
            cluster: "here".to_owned(),
            now: NOW,
            work: RestoreWork::Triggers(batch),
        });
    }
    pool
}

#[test]
fn a_result_that_arrives_while_the_loop_waits_is_returned_with_the_others() {
    for drains in [false, true] {
        let world = TestEnvironment::default();
        let mut pool = pool(&world);
        pool.wait_for_result(Duration::from_millis(1));
        assert_eq!(world.clock.monotonic(), Duration::ZERO, "there was one");
        let results = if drains { pool.drain() } else { pool.poll_results() };
        assert_eq!((results.len(), pool.poll_results().len()), (3, 0));
    }
}
