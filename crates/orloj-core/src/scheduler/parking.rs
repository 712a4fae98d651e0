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

    /// Their bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
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
#[path = "parking/tests.rs"]
mod tests;
