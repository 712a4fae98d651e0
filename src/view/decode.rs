//! From bytes to the records that the view applies, with the codecs of the topics' owners.
//!
//! Invariant: a registration is decoded by the same code as the owner uses, so that the view and
//! the owner take the same records for registrations.

use std::time::Instant;

use tokio::runtime::Runtime;

use super::ViewError;
use super::projector::RecordPosition;
use super::schema_use::SchemaUse;
use super::source::ViewSource;
use crate::clock;
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::registration::{RawRecord, ReadContext, read_trigger};
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::Settings;
use crate::kafka::record::ConsumerRecord;
use crate::kafka::schema_cache::SchemaCache;
use crate::model::dead_letter::DeadLetter;
use crate::model::input::{Request, TriggerRecord};
use crate::model::ledger::LedgerRecord;
use crate::model::outcome::Outcome;
use crate::model::partitioner::Partitioner;

/// A decoded record.
#[derive(Debug)]
pub(super) enum DecodedRecord {
    /// With the schema of a registry that it names.
    Trigger(Box<TriggerRecord>, Option<SchemaUse>),
    Ledger(RecordPosition, Box<LedgerRecord>),
    Outcome(Box<Outcome>),
    DeadLetter(Box<DeadLetter>),
}

/// What decoding needs.
pub(super) struct Decoder {
    partitioner: Partitioner,
    partitions: i32,
    schemas: Schemas,
    writer_schemas: SchemaCache,
    /// When it was made: look-ups count the time from then on.
    started: Instant,
    /// Where requests to the registry run.
    _runtime: Option<Runtime>,
}

impl Decoder {
    pub(super) fn new(settings: &Settings) -> Result<Self, ViewError> {
        let (writers, runtime) = SchemaCache::open(&settings.triggers)
            .map_err(|error| ViewError::Unavailable(format!("the schema registry: {error}")))?;
        Ok(Self {
            partitioner: settings.triggers.partitioner,
            partitions: settings.topics.partitions.get().into(),
            schemas: Schemas::new(),
            writer_schemas: writers,
            started: clock::monotonic(),
            _runtime: runtime,
        })
    }

    /// Decodes a record of a topic. `None` if Orloj did not write it; [`ViewError::Unavailable`] if
    /// it cannot be decoded at the moment.
    pub(super) fn decode(
        &self,
        source: ViewSource,
        record: &ConsumerRecord<'_>,
    ) -> Result<Option<DecodedRecord>, ViewError> {
        let value = record.value();
        let read = match source {
            ViewSource::Triggers => {
                let (trigger, named) = self.decode_trigger(record)?;
                return Ok(Some(DecodedRecord::Trigger(Box::new(trigger), named)));
            }
            ViewSource::Ledger => {
                let (key, step) = (record.key().unwrap_or_default(), record.header(STEP_HEADER));
                let ledger = self.schemas.decode_ledger(key, value, step);
                ledger.map(|ledger| DecodedRecord::Ledger(position_of(record), Box::new(ledger)))
            }
            ViewSource::Outcomes => {
                let outcome = self.schemas.decode_outcome(value.unwrap_or_default());
                outcome.map(|outcome| DecodedRecord::Outcome(Box::new(outcome)))
            }
            ViewSource::DeadLetters => {
                let letter = self.schemas.decode_dead_letter(value.unwrap_or_default());
                letter.map(|letter| DecodedRecord::DeadLetter(Box::new(letter)))
            }
        };
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error @ CodecError::Newer { .. }) => Err(ViewError::NewerFormat(error.to_string())),
            Err(error @ CodecError::Corrupt { .. }) => {
                let (topic, partition, offset) = record.position();
                tracing::warn!(topic, partition, offset, %error, "unreadable record skipped");
                Ok(None)
            }
        }
    }

    fn decode_trigger(
        &self,
        record: &ConsumerRecord<'_>,
    ) -> Result<(TriggerRecord, Option<SchemaUse>), ViewError> {
        let writers = self.writer_schemas.at(clock::monotonic() - self.started);
        let context = ReadContext {
            partitioner: self.partitioner,
            partitions: self.partitions,
            schemas: &self.schemas,
            writers: &writers,
        };
        let headers = record.headers().collect();
        let RecordPosition { partition, offset, timestamp } = position_of(record);
        let (key, value) = (record.key(), record.value());
        let raw = RawRecord { partition, offset, timestamp, key, value, headers };
        let trigger = read_trigger(&raw, &context)
            .map_err(|error| ViewError::Unavailable(error.to_string()))?;
        // One that is forwarded needs no schema here.
        let is_forwarded = matches!(trigger.request, Request::Forward(_));
        let named = SchemaUse::of(&raw).filter(|_| !is_forwarded);
        Ok((trigger, named))
    }
}

fn position_of(record: &ConsumerRecord<'_>) -> RecordPosition {
    RecordPosition {
        partition: record.partition(),
        offset: record.offset(),
        timestamp: record.timestamp(),
    }
}
