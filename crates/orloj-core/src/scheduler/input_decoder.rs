//! Decodes the records of `triggers`, `signals` and the ledger.
//!
//! Invariant: the bytes of a record decide what it is read as, and the schema that they name.

use std::sync::Arc;
use std::time::Duration;

use super::parking::RecordForm;
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::registration::{self, RawRecord, ReadContext, ReadError, WriterSchemas};
use crate::codec::schemas::{CodecError, Schemas};
use crate::environment::SchemaSource;
use crate::environment::log::LogRecord;
use crate::model::Offset;
use crate::model::definition::Header;
use crate::model::input::{SignalRecord, TriggerRecord, Unreadable};
use crate::model::ledger::{LedgerKey, LedgerRecord, LedgerValue};
use crate::model::names::Names;
use crate::model::partitioner::Partitioner;
use crate::model::text::Text;

/// Decodes input records.
#[derive(Debug)]
pub struct InputDecoder<S> {
    pub(super) triggers: String,
    pub(super) signals: String,
    partitioner: Partitioner,
    partitions: i32,
    schemas: Arc<Schemas>,
    writer_schemas: S,
}

impl<S: SchemaSource> InputDecoder<S> {
    /// Of topics with `partitions` partitions.
    pub fn new(
        names: &Names,
        partitioner: Partitioner,
        partitions: i32,
        schemas: Arc<Schemas>,
        writer_schemas: S,
    ) -> Self {
        Self {
            triggers: names.triggers(),
            signals: names.signals(),
            partitioner,
            partitions,
            schemas,
            writer_schemas,
        }
    }

    /// Reads a record of `triggers` at `now` on the monotonic clock. An error means that it cannot
    /// be read now.
    pub fn decode_trigger(
        &self,
        record: &impl LogRecord,
        now: Duration,
    ) -> Result<TriggerRecord, ReadError> {
        let writers = self.writer_schemas.at(now);
        registration::read_trigger(&raw_record(record), &self.context(&writers))
    }

    /// Reads a record of `triggers` below N again, at `now` on the monotonic clock. `registry_from`
    /// is the cursor's.
    pub fn decode_replayed(
        &self,
        record: &impl LogRecord,
        now: Duration,
        registry_from: Offset,
    ) -> Result<TriggerRecord, ReadError> {
        let writers = self.writer_schemas.at(now);
        let context = self.context(&writers);
        registration::read_replayed(&raw_record(record), &context, registry_from)
    }

    /// Whether a record of this trigger is in a wrong partition.
    pub(super) fn is_misplaced(&self, record: &impl LogRecord, id: &Text) -> bool {
        let writers = self.writer_schemas.at(Duration::ZERO); // not used
        registration::is_misplaced(&raw_record(record), id, &self.context(&writers))
    }

    /// Why the registry refuses to answer at `now` on the monotonic clock, if it does.
    pub(super) fn registry_refusal(&self, now: Duration) -> Option<String> {
        self.writer_schemas.refusal(now)
    }

    /// Whether the registry refuses to give this schema.
    pub(super) fn registry_denies(&self, schema: u32, now: Duration) -> bool {
        self.writer_schemas.denies(schema, now)
    }

    fn context<'a>(&'a self, writers: &'a impl WriterSchemas) -> ReadContext<'a> {
        let Self { partitioner, partitions, ref schemas, .. } = *self;
        ReadContext { partitioner, partitions, schemas, writers }
    }

    pub(super) fn decode_signal(&self, record: &impl LogRecord) -> SignalRecord {
        let decoded = self.schemas.decode_signal(record.value().unwrap_or_default());
        let signal = decoded.map_err(|error| Box::new(unreadable(record, &error.to_string())));
        SignalRecord { offset: record.offset(), signal }
    }

    /// The codec of Orloj's own topics.
    pub(super) fn schemas(&self) -> &Schemas {
        &self.schemas
    }

    /// Whether this record is the barrier with that nonce.
    pub(super) fn is_barrier(&self, record: &impl LogRecord, nonce: u64) -> bool {
        let key = record.key().unwrap_or_default();
        let value = || self.decode_ledger(record).ok()?.value;
        LedgerKey::BARRIER == key && value() == Some(LedgerValue::Barrier { nonce })
    }

    /// Reads a record of the ledger.
    pub fn decode_ledger(&self, record: &impl LogRecord) -> Result<LedgerRecord, CodecError> {
        let key = record.key().unwrap_or_default();
        self.schemas.decode_ledger(key, record.value(), record.header(STEP_HEADER))
    }
}

/// What a record of `triggers` says of itself; `None` if it can change no trigger, or many. It
/// depends on its bytes alone: what an earlier owner has parked is parked under any settings.
pub(super) fn record_form(record: &impl LogRecord) -> Option<RecordForm> {
    let raw = raw_record(record);
    let id = registration::trigger_named(&raw)?;
    Some(RecordForm { id, schema: registration::writer_schema(&raw) })
}

fn unreadable(record: &impl LogRecord, reason: &str) -> Unreadable {
    let headers = record.headers().map(|(name, value)| Header {
        name: name.into(),
        value: value.map(bytes::Bytes::copy_from_slice),
    });
    Unreadable {
        id: None,
        reason: reason.to_owned(),
        may_become_readable: false,
        key: record.key().map(bytes::Bytes::copy_from_slice),
        value: record.value().map(bytes::Bytes::copy_from_slice),
        headers: headers.collect(),
    }
}

fn raw_record<R: LogRecord>(record: &R) -> RawRecord<'_> {
    RawRecord {
        partition: record.partition(),
        offset: record.offset(),
        timestamp: record.timestamp(),
        key: record.key(),
        value: record.value(),
        headers: record.headers().collect(),
    }
}

#[cfg(test)]
#[path = "input_decoder/tests.rs"]
mod tests;
