//! How many retries of one trigger can be pending.

use super::fixture::{EngineFixture, NOW};
use crate::engine::index_row::{IdHash, IndexEntryKind};
use crate::engine::parked_schemas::ParkedSchemas;
use crate::engine::partition::{Input, ParkedRecord};
use crate::engine::prefetch::{Prefetched, TimelineRows};
use crate::engine::step::Emit;
use crate::model::Timestamp;
use crate::model::dead_letter::{Content, Origin};
use crate::model::entry::FireId;
use crate::model::input::{Request, SignalRecord, TriggerRecord};
use crate::model::limits::RETRIES_PENDING_MAX;
use crate::model::outcome::OutcomeKind;
use crate::model::signal::{RetryRequest, Signal};

const LIMIT: u32 = RETRIES_PENDING_MAX as u32;
/// When the retries are due; the first one a little sooner.
const DUE: Timestamp = NOW + 100_000;

/// A worker asks for a retry of this occurrence; returns what the owner emits.
fn retry(fixture: &mut EngineFixture, occurrence: u32, attempt: u32) -> Vec<Emit> {
    let id = FireId { trigger: "a".into(), generation: 0, occurrence, attempt, deferral: 0 };
    let offset = fixture.log.signals.len() as u64;
    let request = RetryRequest {
        id,
        due: if occurrence == 0 { DUE - 1 } else { DUE },
        scheduled: NOW,
        reason: "500".to_owned(),
        definition: super::harness::definition(true),
        history: None,
        report_end: true,
        priority: 127,
    };
    fixture.log.signals.push(SignalRecord { offset, signal: Ok(Signal::Retry(request)) });
    fixture.step().map(|step| step.emits).unwrap_or_default()
}

fn pending(fixture: &EngineFixture) -> usize {
    let w = fixture.owner.partition.cursor().fired_through;
    let entries = &fixture.owner.store.index[&IdHash::of("a")].entries;
    let is_pending = |kind, key| matches!(kind, IndexEntryKind::Retry { .. }) && key > w;
    entries.iter().filter(|entry| is_pending(entry.kind, entry.key)).count()
}

fn is_accepted(emits: &[Emit]) -> bool {
    matches!(emits, [Emit::Ledger { value: Some(_), .. }])
}

#[test]
fn a_retry_beyond_the_limit_is_a_dead_letter_and_a_failure() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    for occurrence in 0..LIMIT {
        assert!(is_accepted(&retry(&mut fixture, occurrence, 2)), "{occurrence}");
    }
    let emits = retry(&mut fixture, LIMIT, 2);
    assert_eq!(pending(&fixture), RETRIES_PENDING_MAX, "no more than the limit are pending");
    let [Emit::Outcome(outcome), Emit::DeadLetter(letter), Emit::Signal { signal, .. }] =
        &emits[..]
    else {
        panic!("not a dead letter and its notifications: {emits:?}")
    };
    let OutcomeKind::Failed { occurrence, attempt, reason, .. } = &outcome.kind else {
        panic!("{outcome:?}")
    };
    assert_eq!((*occurrence, *attempt), (LIMIT, 2));
    assert!(reason.contains("1000 retries"), "{reason}");
    let origin = Origin { topic: "o.signals".into(), partition: 0, offset: u64::from(LIMIT) };
    assert_eq!((&letter.origin, &letter.reason), (&origin, reason));
    let Content::Fire { fire, .. } = &letter.content else { panic!("{letter:?}") };
    assert_eq!((fire.id.occurrence, fire.id.attempt, fire.report_end), (LIMIT, 2, true));
    let Signal::CallbackEnded(ended) = &**signal else { panic!("{signal:?}") };
    assert_eq!((&ended.id, ended.ok), (&fire.id, false));

    let entries = fixture.index_entries("a");
    let refused = entries.iter().find(|entry| entry.is_retry_of(0, LIMIT)).unwrap();
    assert!(!refused.in_ledger, "{refused:?}");

    assert!(retry(&mut fixture, LIMIT, 2).is_empty(), "one attempt is one dead letter");
    assert!(is_accepted(&retry(&mut fixture, 5, 3)), "it takes the place of an earlier attempt");
    fixture.now = DUE - 1;
    fixture.run_until_idle();
    assert_eq!(pending(&fixture), RETRIES_PENDING_MAX - 1);
    assert!(is_accepted(&retry(&mut fixture, LIMIT + 1, 2)), "there is room again");
}

/// What is kept of a trigger whose retries are refused does not grow either.
#[test]
fn refused_retries_leave_no_growing_row_behind() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    for occurrence in 0..LIMIT + 100 {
        let _emits = retry(&mut fixture, occurrence, 2);
    }
    let entries = fixture.owner.store.index[&IdHash::of("a")].entries.len();
    assert!(entries <= RETRIES_PENDING_MAX + 10, "{entries} entries");
    let w = fixture.owner.partition.cursor().fired_through;
    let rows = fixture.owner.store.timeline.range(w.successor()..).count();
    assert!(rows <= RETRIES_PENDING_MAX, "{rows} rows");
}

/// A cancel was parked until its schema was known. A retry that is due by then is read before it,
/// in the same step.
#[test]
fn a_late_retry_does_not_fire_if_a_parked_cancel_is_decided_in_the_same_step() {
    let mut fixture = EngineFixture::with_callback_in_flight();
    fixture.now = 3_000;
    fixture.run_until_idle();
    let index = fixture.owner.store.index.clone();
    let stored = Prefetched { index: &index, rows: &TimelineRows::default() };
    let partition = &mut fixture.owner.partition;
    let (offset, timestamp, id) = (1, 1_021, "a".into());
    let schemas: ParkedSchemas = [(7, offset)].into_iter().collect();
    let parked = Input::Parked(ParkedRecord { offset, timestamp, id, schemas });
    partition.ingest(vec![parked], stored).unwrap();

    let id = FireId { trigger: "a".into(), generation: 0, occurrence: 0, attempt: 2, deferral: 0 };
    let request = RetryRequest {
        id,
        due: 1_030,
        scheduled: 1_020,
        reason: "500".to_owned(),
        definition: super::harness::definition(true),
        history: None,
        report_end: false,
        priority: 127,
    };
    let retry = SignalRecord { offset: 0, signal: Ok(Signal::Retry(request)) };
    partition.ingest(vec![Input::Signal(retry)], stored).unwrap();
    let request = Request::Cancel { id: "a".into(), caller: None };
    let cancel = TriggerRecord { offset, timestamp, ack: true.into(), request };
    let (ids, schemas) = (vec!["a".into()], ParkedSchemas::NONE);
    let released = vec![Input::Trigger(cancel), Input::Unparked { ids, schemas }];
    partition.ingest(released, stored).unwrap();
    let due = partition.take_due(100);
    partition.fire(due, &fixture.owner.catalog, &index).unwrap();
    let emits = partition.seal().unwrap().emits;

    let fires = emits.iter().filter(|emit| matches!(emit, Emit::ToWorker(_)));
    assert_eq!(fires.count(), 0, "it is cancelled: {emits:?}");
    let is_cancelled = |emit: &Emit| {
        let Emit::Outcome(outcome) = emit else { return false };
        outcome.kind == OutcomeKind::Cancelled { generation: 0 }
    };
    assert!(emits.iter().any(is_cancelled), "{emits:?}");
}
