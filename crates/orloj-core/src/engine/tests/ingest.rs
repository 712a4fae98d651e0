//! Ingest: how far the log is read, parked records, and what goes to the ledger because of how it
//! was read.
//!
//! Invariant: a record is ingested once; one below N only if it was parked.

use super::fixture::EngineFixture;
use super::harness::registration_record;
use crate::engine::parked_schemas::ParkedSchemas;
use crate::engine::partition::{IndexRows, Input, ParkedRecord};
use crate::engine::prefetch::{Prefetched, TimelineRows};
use crate::engine::step::{Emit, PartitionStep};
use crate::model::Offset;
use crate::model::input::{Request, TriggerRecord};

fn ingest(fixture: &mut EngineFixture, inputs: Vec<Input>) {
    let (index, rows) = (&IndexRows::default(), &TimelineRows::default());
    fixture.owner.partition.ingest(inputs, Prefetched { index, rows }).unwrap();
}

fn parked(id: &str, offset: Offset) -> Input {
    let schemas: ParkedSchemas = [(7, offset)].into_iter().collect();
    Input::Parked(ParkedRecord { offset, timestamp: 0, id: id.into(), schemas })
}

fn seal(fixture: &mut EngineFixture) -> PartitionStep {
    let partition = &mut fixture.owner.partition;
    let due = partition.take_due(100);
    partition.fire(due, &fixture.owner.catalog, &IndexRows::default()).unwrap();
    partition.seal().expect("there is something to commit")
}

#[test]
fn a_record_after_offsets_without_records_is_ingested() {
    let mut fixture = EngineFixture::new();
    ingest(&mut fixture, vec![Input::Trigger(registration_record("a", 5, 1_020))]);
    let step = seal(&mut fixture);
    assert_eq!((step.cursor.next_offset, step.ingested), (6, 1));
    let waits = fixture.owner.partition.next_wakeup();
    assert_eq!(waits, Some(1_020));
}

#[test]
#[should_panic(expected = "the record at 4 was ingested before")]
fn a_record_below_n_that_is_not_parked_is_not_ingested() {
    let mut fixture = EngineFixture::new();
    ingest(&mut fixture, vec![Input::Trigger(registration_record("a", 5, 1_020))]);
    ingest(&mut fixture, vec![Input::Trigger(registration_record("a", 4, 1_020))]);
}

#[test]
#[should_panic(expected = "withdrawals are sent in the step of the cancel")]
fn a_step_is_not_closed_before_the_withdrawals_of_its_cancels_are_sent() {
    let mut fixture = EngineFixture::new();
    let request = Request::Cancel { id: "a".into(), caller: None };
    let cancel = TriggerRecord { request, ..registration_record("a", 0, 0) };
    ingest(&mut fixture, vec![Input::Trigger(cancel)]);
    let _step = fixture.owner.partition.seal();
}

#[test]
#[should_panic(expected = "late entries fire in the step that ingested them")]
fn a_step_is_not_closed_before_its_late_entries_fire() {
    let mut fixture = EngineFixture::new();
    ingest(&mut fixture, vec![Input::Trigger(registration_record("a", 0, 900))]);
    let _step = fixture.owner.partition.seal();
}

#[test]
fn a_parked_record_is_read_and_holds_its_trigger() {
    let mut fixture = EngineFixture::new();
    fixture.register("a", 1_020);
    fixture.run_until_idle();
    ingest(&mut fixture, vec![parked("a", 1)]);
    let step = seal(&mut fixture);
    assert_eq!((step.cursor.next_offset, step.ingested), (2, 1));
    assert_eq!(step.cursor.parked.first_offset(), Some(1));
    let _behind = fixture.owner.partition.observe_clock(1_020);
    fixture.owner.partition.on_end_offset(2, 1_020);
    let step = seal(&mut fixture);
    assert!(!step.emits.iter().any(|emit| matches!(emit, Emit::ToTopic(_))), "{step:?}");
    assert_eq!(step.cursor.fired_through.due, 1_020);
}

#[test]
fn a_registration_is_in_the_ledger_if_it_was_parked_or_says_so_however_soon_it_is_due() {
    for (says_so, was_parked) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut fixture = EngineFixture::new();
        let mut record = registration_record("a", 0, 1_020);
        let Request::Register(new) = &mut record.request else { panic!("a registration") };
        new.in_ledger = says_so;
        let mut inputs = vec![Input::Trigger(record)];
        if was_parked {
            inputs.insert(0, parked("a", 0));
            let (ids, schemas) = (vec!["a".into()], ParkedSchemas::NONE);
            inputs.push(Input::Unparked { ids, schemas });
        }
        ingest(&mut fixture, inputs);
        let step = seal(&mut fixture);
        let entry = |emit: &Emit| {
            let Emit::Ledger { key, value: Some(_) } = emit else { return false };
            key.trigger().is_some()
        };
        let is_in_ledger = step.emits.iter().any(entry);
        assert_eq!(is_in_ledger, says_so || was_parked, "{says_so}, {was_parked}");
    }
}
