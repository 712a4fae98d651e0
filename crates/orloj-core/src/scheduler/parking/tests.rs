//! Tests of parked records.
//!
//! Invariant: what is released and what stays parked is compared with what a new owner would park.

use super::*;
use crate::engine::parked_schemas::PARKED_SCHEMAS_MAX;
use crate::model::input::Request;

const LIMITS: ParkingLimits = ParkingLimits { records_max: 3, bytes_max: 30 };
const NOW: Duration = Duration::from_secs(7);

fn form(id: &str, schema: Option<u32>) -> RecordForm {
    RecordForm { id: id.into(), schema }
}

fn record(id: &str, offset: Offset, schema: Option<u32>) -> RawTriggerRecord {
    let key = Some(Bytes::copy_from_slice(id.as_bytes()));
    let form = form(id, schema);
    RawTriggerRecord {
        form,
        partition: 0,
        offset,
        timestamp: 0,
        key,
        value: None,
        headers: vec![],
        parked_at: NOW,
    }
}

/// Parks what waits of these records; a schema that is new is missing.
fn parked(records: &[(&str, Offset, Option<u32>)]) -> Parking {
    let mut parking = Parking::default();
    for (id, offset, schema) in records {
        let raw = record(id, *offset, *schema);
        if !parking.must_wait(*offset, &raw.form) {
            assert!(parking.add_schema(schema.unwrap(), *offset));
        }
        parking.park(raw.form.clone(), &raw, NOW, || false);
    }
    parking
}

/// Reads records whose schemas are `known`.
fn release(parking: &mut Parking, known: &[u32], count_max: usize) -> Option<Released> {
    parking.release(
        count_max,
        || false,
        |raw| match raw.form.schema {
            Some(id) if !known.contains(&id) => Err(ReadError::RegistryUnavailable { id }),
            _ => {
                let request = Request::Cancel { id: raw.form.id.clone(), caller: None };
                Ok(TriggerRecord { offset: raw.offset, timestamp: 0, ack: false.into(), request })
            }
        },
    )
}

fn offsets(released: &Released) -> Vec<Offset> {
    released.records.iter().map(|record| record.offset).collect()
}

/// Which of these records a new owner would park.
fn parked_again(schemas: ParkedSchemas, records: &[(&str, Offset, Option<u32>)]) -> Vec<Offset> {
    let mut parking = Parking::restored(schemas);
    for (id, offset, schema) in records {
        let raw = record(id, *offset, *schema);
        if parking.must_wait(*offset, &raw.form) {
            parking.park(raw.form.clone(), &raw, NOW, || true);
        }
    }
    parking.records.keys().copied().collect()
}

#[test]
fn records_of_a_trigger_wait_behind_its_parked_one_and_others_do_not() {
    let mut parking = parked(&[("a", 10, Some(1)), ("a", 12, None)]);
    assert!(parking.must_wait(13, &form("a", None)), "it waits behind the first");
    assert!(parking.must_wait(13, &form("b", Some(1))), "its schema is missing");
    assert!(!parking.must_wait(13, &form("b", None)));
    assert!(!parking.must_wait(13, &form("b", Some(2))));
    assert!(release(&mut parking, &[2], 100).is_none());
    let released = release(&mut parking, &[1], 100).unwrap();
    assert_eq!(offsets(&released), [10, 12]);
    assert_eq!((released.ids, released.schemas), (vec!["a".into()], ParkedSchemas::NONE));
    assert!(parking.is_empty() && parking.bytes == 0);
}

#[test]
fn a_new_owner_parks_what_is_still_parked_after_any_release() {
    let records = [
        ("a", 10, Some(1)),
        ("b", 11, Some(1)),
        ("a", 12, None),
        ("c", 13, Some(2)),
        ("a", 14, Some(2)),
        ("b", 15, Some(1)),
        ("a", 16, None),
        ("c", 17, None),
    ];
    for known in [&[1][..], &[2], &[1, 2]] {
        for count_max in 1..9 {
            let mut parking = parked(&records);
            let mut last = Vec::new();
            while let Some(released) = release(&mut parking, known, count_max) {
                let left: Vec<_> = parking.records.keys().copied().collect();
                assert_eq!(parked_again(released.schemas, &records), left);
                last.extend(offsets(&released));
                if parking.is_empty() {
                    break;
                }
            }
            let of_a = |offset: &&Offset| [10, 12, 14, 16].contains(*offset);
            assert!(last.iter().filter(of_a).is_sorted(), "{last:?}");
            let expected = match known {
                [1] => vec![10, 11, 12, 15],
                [2] => vec![13, 17],
                _ => (10..18).collect(),
            };
            last.sort_unstable();
            assert_eq!(last, expected, "{known:?}, {count_max} at once");
        }
    }
}

#[test]
fn a_record_behind_another_of_its_trigger_is_released_with_it_or_not_at_all() {
    // Its schema was known to the owner that parked it, and is not known to this one.
    let records = [("a", 10, Some(1)), ("a", 12, Some(2)), ("b", 13, Some(1))];
    let mut parking = Parking::restored([(1, 10)].into_iter().collect());
    for (id, offset, schema) in records {
        parking.park(form(id, schema), &record(id, offset, schema), NOW, || true);
    }
    assert!(release(&mut parking, &[1], 100).is_none());
    assert_eq!(parked_again(parking.schemas(), &records), [10, 12, 13]);
    assert_eq!(offsets(&release(&mut parking, &[1, 2], 100).unwrap()), [10, 12, 13]);
}

#[test]
fn a_record_that_waits_for_another_one_of_its_trigger_holds_up_no_schema() {
    let records = [("x", 7, Some(1)), ("b", 8, Some(2)), ("b", 20, Some(1)), ("c", 21, Some(1))];
    let mut parking = parked(&records);
    let released = release(&mut parking, &[1], 100).unwrap();
    assert_eq!(offsets(&released), [7, 21]);
    assert_eq!(parked_again(released.schemas, &records), [8, 20]);
    assert!(!parking.must_wait(30, &form("c", Some(1))), "it can be read");
    assert!(release(&mut parking, &[1], 100).is_none());
    assert_eq!(offsets(&release(&mut parking, &[1, 2], 100).unwrap()), [8, 20]);
}

#[test]
fn a_schema_that_is_missing_behind_a_parked_record_holds_up_its_own_records_alone() {
    let records = [("a", 10, Some(1)), ("a", 12, Some(2)), ("b", 13, Some(1))];
    let mut parking = parked(&records);
    let released = release(&mut parking, &[1], 100).unwrap();
    assert_eq!(offsets(&released), [10, 13]);
    assert_eq!(parked_again(released.schemas, &records), [12]);
    assert_eq!(offsets(&release(&mut parking, &[1, 2], 100).unwrap()), [12]);
}

#[test]
fn records_that_wait_behind_another_one_are_not_read_again_and_again() {
    let chain = (10..500).map(|offset| ("a", offset, Some(1)));
    let first = [("x", 8, Some(1)), ("a", 9, Some(2))];
    let mut parking = parked(&first.into_iter().chain(chain).collect::<Vec<_>>());
    assert_eq!(offsets(&release(&mut parking, &[1], 100).unwrap()), [8]);
    let reads = std::cell::Cell::new(0);
    for _ in 0..10 {
        let released = parking.release(
            100,
            || false,
            |raw| {
                reads.set(reads.get() + 1);
                let id = raw.form.schema.unwrap();
                if id == 2 {
                    return Err(ReadError::RegistryUnavailable { id });
                }
                let request = Request::Cancel { id: raw.form.id.clone(), caller: None };
                Ok(TriggerRecord { offset: raw.offset, timestamp: 0, ack: false.into(), request })
            },
        );
        assert!(released.is_none());
    }
    assert!(reads.get() <= 20, "{} reads in ten looks", reads.get());
}

#[test]
fn no_schema_is_asked_for_that_has_no_slot() {
    let mut parking = Parking::default();
    for schema in 0..PARKED_SCHEMAS_MAX as u32 {
        assert!(parking.add_schema(schema, 10));
        parking.park(form("a", Some(schema)), &record("a", 10, Some(schema)), NOW, || false);
    }
    let asked = std::cell::Cell::new(0);
    for offset in 11..20 {
        let record = record("a", offset, Some(1_000));
        parking.park(form("a", Some(1_000)), &record, NOW, || {
            asked.set(asked.get() + 1);
            false
        });
    }
    assert_eq!(asked.get(), 0, "the answer changes nothing");
}

#[test]
fn a_release_that_takes_long_is_continued_later() {
    let ids: Vec<_> = (0..300).map(|n| format!("t{n}")).collect();
    let id_at = |offset: Offset| ids[offset as usize % ids.len()].as_str();
    let records: Vec<_> = (10..900).map(|offset| (id_at(offset), offset, Some(1))).collect();
    let mut parking = parked(&records);
    let mut last = Vec::new();
    while !parking.is_empty() {
        let reads = std::cell::Cell::new(0);
        let released = parking.release(
            10_000,
            || reads.get() >= 20,
            |raw| {
                reads.set(reads.get() + 1);
                let request = Request::Cancel { id: raw.form.id.clone(), caller: None };
                Ok(TriggerRecord { offset: raw.offset, timestamp: 0, ack: false.into(), request })
            },
        );
        assert!(reads.get() <= 30, "{} reads of a turn", reads.get());
        let released = released.expect("some are released each time");
        let left: Vec<_> = parking.records.keys().copied().collect();
        assert_eq!(parked_again(released.schemas, &records), left);
        last.extend(offsets(&released));
    }
    last.sort_unstable();
    assert!(last.into_iter().eq(10..900));
}

#[test]
fn a_schema_is_missing_for_as_long_as_its_first_record_is_parked_here() {
    let mut parking = Parking::restored([(1, 10)].into_iter().collect());
    assert_eq!(parking.parked_since().next(), None, "its record is not read again yet");
    let seconds = Duration::from_secs;
    let records = [("a", 10, Some(1)), ("b", 11, Some(2)), ("c", 12, Some(1))];
    for ((id, offset, schema), at) in records.into_iter().zip(1..) {
        let raw = record(id, offset, schema);
        if !parking.must_wait(offset, &raw.form) {
            assert!(parking.add_schema(schema.unwrap(), offset));
        }
        parking.park(raw.form.clone(), &raw, seconds(at), || false);
    }
    let since: Vec<_> = parking.parked_since().collect();
    assert_eq!(since, [(1, seconds(1)), (2, seconds(2))]);
    let _released = release(&mut parking, &[1], 1).unwrap();
    let since: BTreeSet<_> = parking.parked_since().collect();
    assert_eq!(since, [(1, seconds(3)), (2, seconds(2))].into_iter().collect());
}

#[test]
fn parking_is_bounded_and_forgets_what_will_be_read_again() {
    let mut parking = parked(&[("a", 10, Some(1)), ("a", 12, None)]);
    assert!(parking.has_room(LIMITS));
    assert!(!parking.has_room(ParkingLimits { bytes_max: 2, ..LIMITS }));
    parking.park(form("b", Some(1)), &record("b", 14, Some(1)), NOW, || true);
    assert!(!parking.has_room(LIMITS));
    parking.truncate(12);
    assert!(parking.has_room(LIMITS) && !parking.must_wait(14, &form("b", None)));
    assert_eq!(parking.schemas().first_offset(), Some(10));
}

#[test]
fn a_parked_record_is_read_as_it_was() {
    let header = |name: &str, value: Option<&'static [u8]>| Header {
        name: name.into(),
        value: value.map(Bytes::from_static),
    };
    let raw = RawTriggerRecord {
        timestamp: 77,
        value: Some(Bytes::from_static(b"value")),
        headers: vec![header("trace", Some(b"1234")), header("empty", None)],
        ..record("ab", 10, Some(1))
    };
    let mut parking = Parking::default();
    parking.park(raw.form.clone(), &raw, NOW, || false);
    assert_eq!(parking.bytes, "ab".len() + "value".len() + "trace1234".len() + "empty".len());
    let released = parking.release(
        1,
        || false,
        |parked| {
            assert_eq!((parked.offset(), parked.partition(), parked.timestamp()), (10, 0, 77));
            assert_eq!((parked.key(), parked.value()), (raw.key(), raw.value()));
            assert!(parked.headers().eq(raw.headers()));
            let request = Request::Cancel { id: "ab".into(), caller: None };
            Ok(TriggerRecord { offset: 10, timestamp: 77, ack: false.into(), request })
        },
    );
    assert_eq!((offsets(&released.unwrap()), parking.bytes), (vec![10], 0));
}

#[test]
fn what_an_earlier_owner_has_parked_counts_before_it_is_read_again() {
    assert!(Parking::default().is_empty());
    assert!(!Parking::restored([(1, 10)].into_iter().collect()).is_empty());
    let mut parking = parked(&[("a", 10, Some(1)), ("b", 11, Some(1))]);
    let _first = release(&mut parking, &[1], 1).unwrap();
    assert!(!parking.is_empty());
}

#[test]
fn a_release_without_time_looks_at_one_record_and_says_nothing_if_nothing_changes() {
    let known = |known: u32| {
        move |raw: &RawTriggerRecord| {
            let id = raw.form.schema.unwrap();
            let request = Request::Cancel { id: raw.form.id.clone(), caller: None };
            let record =
                TriggerRecord { offset: raw.offset, timestamp: 0, ack: false.into(), request };
            if id == known { Ok(record) } else { Err(ReadError::RegistryUnavailable { id }) }
        }
    };
    let records = [("a", 10, Some(1)), ("b", 11, Some(2)), ("c", 12, Some(1))];
    let mut parking = parked(&records);
    assert!(parking.release(100, || true, known(2)).is_none(), "the first look is at schema 1");
    assert_eq!(offsets(&parking.release(100, || true, known(1)).unwrap()), [10]);
    assert_eq!(parked_again(parking.schemas(), &records), [11, 12]);
}

#[test]
fn a_record_does_not_wait_for_the_schema_of_a_later_one_of_its_trigger() {
    let mut parking = parked(&[("x", 7, Some(1)), ("b", 8, Some(2)), ("b", 20, Some(3))]);
    assert_eq!(offsets(&release(&mut parking, &[1], 100).unwrap()), [7]);
    assert_eq!(offsets(&release(&mut parking, &[1, 2], 100).unwrap()), [8]);
    assert_eq!(offsets(&release(&mut parking, &[1, 2, 3], 100).unwrap()), [20]);
}

#[test]
fn a_schema_counts_from_its_next_record_if_its_first_one_is_deleted_before_a_new_owner_reads_it() {
    let mut parking = Parking::restored([(1, 5)].into_iter().collect());
    parking.park(form("a", Some(1)), &record("a", 10, Some(1)), NOW, || false);
    let released = release(&mut parking, &[], 100).expect("it is in the cursor");
    assert_eq!(offsets(&released), [0; 0]);
    assert_eq!(released.schemas.iter().collect::<Vec<_>>(), [(1, 10)]);
    assert!(release(&mut parking, &[], 100).is_none(), "once");
}
