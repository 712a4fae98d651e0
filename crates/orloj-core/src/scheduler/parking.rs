//! The records of a partition that cannot be read now, and those of the same triggers that wait
//! behind them.
//!
//! Invariant: the records of a trigger are ingested in the order of their offsets, and other
//! triggers do not wait. Which records are parked follows from [`ParkedSchemas`] and the log. So a
//! record is released in the same step as the one that it waits behind, unless its own schema keeps
//! it parked; and a schema counts from its first record that no other one is released before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::codec::registration::ReadError;
use crate::engine::parked_schemas::ParkedSchemas;
use crate::environment::log::{LogRecord, RecordHeader};
use crate::model::definition::Header;
use crate::model::input::TriggerRecord;
use crate::model::text::Text;
use crate::model::{Offset, PartitionId, Timestamp};

/// How much may be parked in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkingLimits {
    /// Records.
    pub records_max: usize,
    /// The sum of their keys, values and headers, in bytes.
    pub bytes_max: usize,
}

/// The parked records of a partition.
#[derive(Debug, Default)]
pub(super) struct Parking {
    records: BTreeMap<Offset, RawTriggerRecord>,
    /// The offsets of each trigger's records.
    triggers: BTreeMap<Text, BTreeSet<Offset>>,
    schemas: ParkedSchemas,
    bytes: usize,
}

/// What a record says of itself without its schema.
#[derive(Clone, Debug)]
pub(super) struct RecordForm {
    /// The trigger that it is about.
    pub(super) id: Text,
    /// The writer schema that it names, if it must be looked up.
    pub(super) schema: Option<u32>,
}

/// A record as it was read.
#[derive(Debug)]
pub(super) struct RawTriggerRecord {
    form: RecordForm,
    partition: PartitionId,
    offset: Offset,
    timestamp: Timestamp,
    key: Option<Bytes>,
    value: Option<Bytes>,
    headers: Vec<Header>,
    /// When this process parked it, on the monotonic clock.
    parked_at: Duration,
}

/// What becomes of a parked record.
enum Look {
    /// It can be released, with these, which wait for nothing else.
    Readable(Vec<TriggerRecord>),
    /// It waits for an earlier one of its trigger alone.
    Behind,
    /// It cannot be read, or one of those cannot.
    Missing,
}

/// Records that are not parked any more.
#[derive(Debug)]
pub(super) struct Released {
    /// In the order of their offsets.
    pub(super) records: Vec<TriggerRecord>,
    /// Their triggers of which no other record is parked.
    pub(super) ids: Vec<Text>,
    /// What is still parked.
    pub(super) schemas: ParkedSchemas,
}

impl Parking {
    /// What an earlier owner has parked; its records are read again.
    pub(super) fn restored(schemas: ParkedSchemas) -> Self {
        Self { schemas, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.schemas.is_empty()
    }

    pub(super) fn schemas(&self) -> ParkedSchemas {
        self.schemas
    }

    /// How many records are parked.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// The schemas that are missing, each with the time at which this process parked its first
    /// record (monotonic clock).
    pub(super) fn parked_since(&self) -> impl Iterator<Item = (u32, Duration)> {
        let parked_at = |first| self.records.get(&first).map(|record| record.parked_at);
        self.schemas.iter().filter_map(move |(schema, first)| Some((schema, parked_at(first)?)))
    }

    /// The triggers of which a record is parked.
    pub(super) fn triggers(&self) -> impl Iterator<Item = &Text> {
        self.triggers.keys()
    }

    /// Whether the record at `offset` must wait, although it may be readable.
    pub(super) fn must_wait(&self, offset: Offset, form: &RecordForm) -> bool {
        self.waits_for_schema(offset, form) || self.has_trigger(&form.id)
    }

    /// Whether a record of this trigger is parked.
    pub(super) fn has_trigger(&self, id: &Text) -> bool {
        self.triggers.contains_key(id)
    }

    /// Whether another record fits.
    pub(super) fn has_room(&self, limits: ParkingLimits) -> bool {
        self.records.len() < limits.records_max && self.bytes < limits.bytes_max
    }

    /// From `offset` on records with `schema` are parked. Returns false if too many schemas are
    /// missing already.
    pub(super) fn add_schema(&mut self, schema: u32, offset: Offset) -> bool {
        self.schemas.insert(schema, offset)
    }

    /// Parks a record, which must wait, at `now` on the monotonic clock. Later records of its
    /// schema wait too, if that is missing.
    pub(super) fn park(
        &mut self,
        form: RecordForm,
        record: &impl LogRecord,
        now: Duration,
        is_readable: impl FnOnce() -> bool,
    ) {
        let record = RawTriggerRecord::copy(form, record, now);
        if let Some(schema) = record.form.schema
            && self.schemas.first_of(schema).is_none()
            && self.schemas.has_room()
            && !is_readable()
        {
            // Without room it is not asked for: those behind are released when this one can be
            // read.
            let _has_room = self.add_schema(schema, record.offset);
        }
        self.bytes += record.bytes();
        let of_trigger = self.triggers.entry(record.form.id.clone()).or_default();
        let _new = of_trigger.insert(record.offset);
        let _none = self.records.insert(record.offset, record);
    }

    /// Forgets the records from `until` on: they will be read again.
    pub(super) fn truncate(&mut self, until: Offset) {
        let offsets: Vec<_> = self.records.range(until..).map(|(offset, _)| *offset).collect();
        for offset in offsets {
            let _none_left = self.remove(offset);
        }
        self.schemas = self.schemas.below(until);
    }

    /// Takes the records that can be read now, about `count_max` of them, until `is_late`: the
    /// others stay parked until it is called again. `read` reads one.
    pub(super) fn release(
        &mut self,
        count_max: usize,
        is_late: impl Fn() -> bool,
        read: impl Fn(&RawTriggerRecord) -> Result<TriggerRecord, ReadError>,
    ) -> Option<Released> {
        let is_missing = |(_, first): (u32, Offset)| {
            // Retention may have deleted the record.
            let record = self.records.get(&first);
            record.is_some_and(|record| matches!(self.look(record, &read), Look::Missing))
        };
        if self.schemas.iter().all(is_missing) {
            return None; // nearly always: look no further
        }
        let (mut records, mut ids) = (Vec::new(), Vec::new());
        let (mut schemas, mut looks) = (ParkedSchemas::NONE, 0_u32);
        let offsets: Vec<_> = self.records.keys().copied().collect();
        for offset in offsets {
            // It may have been released with the one that it waited behind.
            let Some(record) = self.records.get(&offset) else { continue };
            let schema = record.form.schema.filter(|_| self.waits_for_schema(offset, &record.form));
            let Some(schema) = schema.filter(|id| schemas.first_of(*id).is_none()) else {
                continue;
            };
            // At least one is looked at each time.
            let is_full = records.len() >= count_max || looks > 0 && is_late();
            let look = if is_full { Look::Missing } else { self.look(record, &read) };
            looks += 1;
            match look {
                Look::Readable(readable) => {
                    ids.extend(readable.iter().filter_map(|record| self.remove(record.offset)));
                    records.extend(readable);
                }
                Look::Behind => {}
                Look::Missing => {
                    let _has_room = schemas.insert(schema, offset);
                }
            }
        }
        records.sort_unstable_by_key(|record| record.offset);
        let first = |(schema, _): (u32, Offset)| Some((schema, schemas.first_of(schema)?));
        let schemas = self.schemas.iter().filter_map(first).collect();
        let before = std::mem::replace(&mut self.schemas, schemas);
        let has_changed = !records.is_empty() || schemas != before;
        has_changed.then_some(Released { records, ids, schemas })
    }

    /// What becomes of a record, if those before it stay parked.
    fn look(
        &self,
        record: &RawTriggerRecord,
        read: impl Fn(&RawTriggerRecord) -> Result<TriggerRecord, ReadError>,
    ) -> Look {
        let of_trigger = self.triggers.get(&record.form.id).into_iter().flatten();
        let mut of_trigger = of_trigger.filter_map(|offset| self.records.get(offset)).peekable();
        if of_trigger.peek().is_some_and(|first| first.offset < record.offset) {
            return if read(record).is_ok() { Look::Behind } else { Look::Missing };
        }
        let is_released = |other: &&RawTriggerRecord| {
            other.offset == record.offset || !self.waits_for_schema(other.offset, &other.form)
        };
        let readable: Result<_, _> = of_trigger.take_while(is_released).map(read).collect();
        readable.map_or(Look::Missing, Look::Readable)
    }

    /// Removes a record. Returns its trigger, if no other record of that is parked.
    fn remove(&mut self, offset: Offset) -> Option<Text> {
        let record = self.records.remove(&offset)?;
        self.bytes -= record.bytes();
        let RawTriggerRecord { form, .. } = record;
        let of_trigger = self.triggers.get_mut(&form.id)?;
        let _was_there = of_trigger.remove(&offset);
        if !of_trigger.is_empty() {
            return None;
        }
        let _none_left = self.triggers.remove(&form.id);
        Some(form.id)
    }

    fn waits_for_schema(&self, offset: Offset, form: &RecordForm) -> bool {
        let first = form.schema.and_then(|schema| self.schemas.first_of(schema));
        first.is_some_and(|first| first <= offset)
    }
}

impl RawTriggerRecord {
    fn copy(form: RecordForm, record: &impl LogRecord, parked_at: Duration) -> Self {
        let headers = record.headers().map(|(name, value)| Header {
            name: name.into(),
            value: value.map(Bytes::copy_from_slice),
        });
        Self {
            form,
            partition: record.partition(),
            offset: record.offset(),
            timestamp: record.timestamp(),
            key: record.key().map(Bytes::copy_from_slice),
            value: record.value().map(Bytes::copy_from_slice),
            headers: headers.collect(),
            parked_at,
        }
    }

    fn bytes(&self) -> usize {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let header = |header: &Header| header.name.as_str().len() + length(&header.value);
        length(&self.key) + length(&self.value) + self.headers.iter().map(header).sum::<usize>()
    }
}

impl LogRecord for RawTriggerRecord {
    fn position(&self) -> (&str, PartitionId, Offset) {
        ("", self.partition, self.offset)
    }

    fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    fn key(&self) -> Option<&[u8]> {
        self.key.as_deref()
    }

    fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    fn headers(&self) -> impl Iterator<Item = RecordHeader<'_>> {
        self.headers.iter().map(|header| (header.name.as_str(), header.value.as_deref()))
    }
}

#[cfg(test)]
mod tests {
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
                    Ok(TriggerRecord { offset: raw.offset, timestamp: 0, ack: false, request })
                }
            },
        )
    }

    fn offsets(released: &Released) -> Vec<Offset> {
        released.records.iter().map(|record| record.offset).collect()
    }

    /// Which of these records a new owner would park.
    fn parked_again(
        schemas: ParkedSchemas,
        records: &[(&str, Offset, Option<u32>)],
    ) -> Vec<Offset> {
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
        let records =
            [("x", 7, Some(1)), ("b", 8, Some(2)), ("b", 20, Some(1)), ("c", 21, Some(1))];
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
                    Ok(TriggerRecord { offset: raw.offset, timestamp: 0, ack: false, request })
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
                    Ok(TriggerRecord { offset: raw.offset, timestamp: 0, ack: false, request })
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
}
