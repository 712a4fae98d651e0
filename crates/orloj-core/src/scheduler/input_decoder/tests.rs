//! Tests of decoding what is read.
//!
//! Invariant: no registry is needed for it.

use super::*;
use crate::model::signal::{CallbackEnded, Signal};
use crate::test_environment::cluster::TestSchemas;
use crate::test_environment::reader::TestRecord;

fn decoder(schemas: &TestSchemas) -> InputDecoder<TestSchemas> {
    let (names, ours) = (Names::new("o"), Arc::new(Schemas::new()));
    InputDecoder::new(&names, Partitioner::Murmur2, 2, ours, schemas.clone())
}

#[test]
fn a_signal_that_cannot_be_read_is_kept_as_it_is() {
    let decoder = decoder(&TestSchemas::default());
    let id = crate::model::fire_id::FireId {
        trigger: "a".into(),
        generation: 5,
        occurrence: 2,
        attempt: 1,
        deferral: 0,
    };
    let signal = Signal::CallbackEnded(CallbackEnded { id, ok: true });
    let value = Some(Schemas::new().encode_signal(&signal));
    let record = TestRecord { value, ..TestRecord::at("o.signals", 0, 4) };
    let read = decoder.decode_signal(&record);
    assert_eq!((read.offset, read.signal), (4, Ok(signal)));
    let headers = vec![("trace".to_owned(), b"1".to_vec())];
    let record = TestRecord { value: Some(b"?".to_vec()), headers, ..record };
    let unreadable = decoder.decode_signal(&record).signal.unwrap_err();
    assert!(!unreadable.reason.is_empty() && !unreadable.may_become_readable);
    assert_eq!(unreadable.key.as_deref(), Some(&b"a"[..]));
    assert_eq!(unreadable.value.as_deref(), Some(&b"?"[..]));
    assert_eq!(unreadable.headers.len(), 1);
    assert_eq!(unreadable.headers[0].name.as_str(), "trace");
    assert_eq!(unreadable.headers[0].value.as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_barrier_is_ours_if_it_has_our_nonce() {
    let decoder = decoder(&TestSchemas::default());
    let value = Some(Schemas::new().encode_ledger(&LedgerValue::Barrier { nonce: 7 }));
    let headers = vec![(STEP_HEADER.to_owned(), b"3".to_vec())];
    let key = Some(LedgerKey::BARRIER.to_vec());
    let barrier = TestRecord { key, value, headers, ..TestRecord::at("o.ledger", 0, 4) };
    assert!(decoder.is_barrier(&barrier, 7));
    assert!(!decoder.is_barrier(&barrier, 8), "that of another takeover");
    let other = TestRecord { key: Some(b"m|a".to_vec()), ..barrier.clone() };
    assert!(!decoder.is_barrier(&other, 7));
    assert!(!decoder.is_barrier(&TestRecord { value: None, ..barrier }, 7));
}

#[test]
fn what_the_registry_answers_is_passed_on() {
    let schemas = TestSchemas::default();
    let decoder = decoder(&schemas);
    let (refusal, denies) = (decoder.registry_refusal(Duration::ZERO), |schema| {
        decoder.registry_denies(schema, Duration::ZERO)
    });
    assert_eq!((refusal, denies(7)), (None, false));
    schemas.answers().refusal = Some("it answers 403".to_owned());
    schemas.answers().denied = vec![7];
    assert_eq!(decoder.registry_refusal(Duration::ZERO).unwrap(), "it answers 403");
    assert_eq!((denies(7), denies(8)), (true, false));
}

#[test]
fn a_record_is_in_a_wrong_partition_by_the_partitioner_that_is_set() {
    let decoder = decoder(&TestSchemas::default());
    let is_misplaced =
        |partition| decoder.is_misplaced(&TestRecord::at("o.triggers", partition, 0), &"a".into());
    let of_a = Partitioner::Murmur2.partition(b"a", 2).unwrap();
    assert!(!is_misplaced(of_a) && is_misplaced(1 - of_a));
}

#[test]
fn a_record_says_of_itself_which_trigger_it_is_about_and_which_schema_it_needs() {
    let value = Some(vec![0, 0, 0, 1, 7, 1]);
    let record = TestRecord { value, ..TestRecord::at("o.triggers", 0, 4) };
    let form = record_form(&record).expect("it is about one trigger");
    assert_eq!((form.id.as_str(), form.schema), ("a", Some(263)));
    let cancel = record_form(&TestRecord::at("o.triggers", 0, 4)).unwrap();
    assert_eq!((cancel.id.as_str(), cancel.schema), ("a", None));
    assert!(record_form(&TestRecord { key: None, ..record }).is_none());
}
