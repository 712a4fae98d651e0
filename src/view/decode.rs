//! From bytes to the records that the view applies, with the codecs of the topics' owners.
//!
//! Invariant: a registration is decoded by the same code as the owner uses, so that the view and
//! the owner take the same records for registrations.

use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use tokio::runtime::Runtime;

use super::ViewError;
use super::projector::RecordPosition;
use super::source::ViewSource;
use crate::codec::ledger_key::STEP_HEADER;
use crate::codec::registration::{RawRecord, ReadContext, read_trigger};
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::Settings;
use crate::kafka::reader::LogReader;
use crate::kafka::schema_cache::SchemaCache;
use crate::model::Timestamp;
use crate::model::dead_letter::DeadLetter;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::outcome::Outcome;
use crate::model::partitioner::Partitioner;

/// A decoded record.
#[derive(Debug)]
pub(super) enum DecodedRecord {
    Trigger(Box<TriggerRecord>),
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
            _runtime: runtime,
        })
    }

    /// Decodes a record of a topic at `now` (ms since the epoch). `None` if Orloj did not write it;
    /// [`ViewError::Unavailable`] if it cannot be decoded at the moment.
    pub(super) fn decode(
        &self,
        source: ViewSource,
        message: &BorrowedMessage<'_>,
        now: Timestamp,
    ) -> Result<Option<DecodedRecord>, ViewError> {
        let value = message.payload();
        let read = match source {
            ViewSource::Triggers => {
                return self
                    .decode_trigger(message, now)
                    .map(|t| Some(DecodedRecord::Trigger(Box::new(t))));
            }
            ViewSource::Ledger => {
                let step = message.headers().and_then(|headers| {
                    headers
                        .iter()
                        .find(|header| header.key == STEP_HEADER)
                        .and_then(|header| header.value)
                });
                let key = message.key().unwrap_or_default();
                let record = self.schemas.decode_ledger(key, value, step);
                record.map(|record| DecodedRecord::Ledger(position_of(message), Box::new(record)))
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
                let (topic, partition, offset) = LogReader::position(message);
                tracing::warn!(topic, partition, offset, %error, "unreadable record skipped");
                Ok(None)
            }
        }
    }

    fn decode_trigger(
        &self,
        message: &BorrowedMessage<'_>,
        now: Timestamp,
    ) -> Result<TriggerRecord, ViewError> {
        let writers = self.writer_schemas.at(now);
        let context = ReadContext {
            partitioner: self.partitioner,
            partitions: self.partitions,
            schemas: &self.schemas,
            writers: &writers,
        };
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers.iter().map(|header| (header.key, header.value)).collect()
        });
        let RecordPosition { partition, offset, timestamp } = position_of(message);
        let (key, value) = (message.key(), message.payload());
        let raw = RawRecord { partition, offset, timestamp, key, value, headers };
        read_trigger(&raw, &context).map_err(|error| ViewError::Unavailable(error.to_string()))
    }
}

fn position_of(message: &BorrowedMessage<'_>) -> RecordPosition {
    let (_, partition, offset) = LogReader::position(message);
    let timestamp = message.timestamp().to_millis().unwrap_or(0);
    RecordPosition { partition, offset, timestamp: Timestamp::try_from(timestamp).unwrap_or(0) }
}
