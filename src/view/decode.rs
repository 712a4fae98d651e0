//! From bytes to what is folded, with the codecs of those who own the topics.
//!
//! Law: a registration is judged by the owners' own reading, so that the view and the owner take
//! the same records for registrations.

use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use tokio::runtime::Runtime;

use super::ViewError;
use super::fold::Written;
use super::follow::Source;
use crate::codec::ledger_key::STEP;
use crate::codec::registration::{RawRecord, ReadContext, read_trigger};
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::Settings;
use crate::kafka::reader::Reader;
use crate::kafka::schemas::SchemaCache;
use crate::model::Timestamp;
use crate::model::dead_letter::DeadLetter;
use crate::model::input::TriggerRecord;
use crate::model::ledger::LedgerRecord;
use crate::model::outcome::Outcome;
use crate::model::partitioner::Partitioner;

/// A record, read.
#[derive(Debug)]
pub(super) enum Folded {
    Trigger(Box<TriggerRecord>),
    Ledger(Written, Box<LedgerRecord>),
    Outcome(Box<Outcome>),
    Letter(Box<DeadLetter>),
}

/// What reading needs.
pub(super) struct Decoder {
    partitioner: Partitioner,
    partitions: i32,
    schemas: Schemas,
    writers: SchemaCache,
    /// Where requests to the registry run.
    _runtime: Option<Runtime>,
}

impl Decoder {
    pub(super) fn new(settings: &Settings) -> Result<Self, ViewError> {
        let (writers, runtime) = SchemaCache::open(&settings.triggers)
            .map_err(|error| ViewError::Away(format!("the schema registry: {error}")))?;
        Ok(Self {
            partitioner: settings.triggers.partitioner,
            partitions: settings.topics.partitions.get().into(),
            schemas: Schemas::new(),
            writers,
            _runtime: runtime,
        })
    }

    /// Reads a record of a topic at `now` (ms since the epoch). Nothing, if nobody of us wrote it;
    /// [`ViewError::Away`], if it cannot be judged just now.
    pub(super) fn read(
        &self,
        source: Source,
        message: &BorrowedMessage<'_>,
        now: Timestamp,
    ) -> Result<Option<Folded>, ViewError> {
        let value = message.payload();
        let read = match source {
            Source::Triggers => {
                return self.trigger(message, now).map(|t| Some(Folded::Trigger(Box::new(t))));
            }
            Source::Ledger => {
                let step = message.headers().and_then(|headers| {
                    headers.iter().find(|header| header.key == STEP).and_then(|header| header.value)
                });
                let key = message.key().unwrap_or_default();
                let record = self.schemas.decode_ledger(key, value, step);
                record.map(|record| Folded::Ledger(written(message), Box::new(record)))
            }
            Source::Outcomes => {
                let outcome = self.schemas.decode_outcome(value.unwrap_or_default());
                outcome.map(|outcome| Folded::Outcome(Box::new(outcome)))
            }
            Source::DeadLetters => {
                let letter = self.schemas.decode_dead_letter(value.unwrap_or_default());
                letter.map(|letter| Folded::Letter(Box::new(letter)))
            }
        };
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error @ CodecError::Newer { .. }) => Err(ViewError::Newer(error.to_string())),
            Err(error @ CodecError::Corrupt { .. }) => {
                let (topic, partition, offset) = Reader::place(message);
                tracing::warn!(topic, partition, offset, %error, "passed over");
                Ok(None)
            }
        }
    }

    fn trigger(
        &self,
        message: &BorrowedMessage<'_>,
        now: Timestamp,
    ) -> Result<TriggerRecord, ViewError> {
        let writers = self.writers.at(now);
        let context = ReadContext {
            partitioner: self.partitioner,
            partitions: self.partitions,
            schemas: &self.schemas,
            writers: &writers,
        };
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers.iter().map(|header| (header.key, header.value)).collect()
        });
        let Written { partition, offset, timestamp } = written(message);
        let (key, value) = (message.key(), message.payload());
        let raw = RawRecord { partition, offset, timestamp, key, value, headers };
        read_trigger(&raw, &context).map_err(|error| ViewError::Away(error.to_string()))
    }
}

fn written(message: &BorrowedMessage<'_>) -> Written {
    let (_, partition, offset) = Reader::place(message);
    let timestamp = message.timestamp().to_millis().unwrap_or(0);
    Written { partition, offset, timestamp: Timestamp::try_from(timestamp).unwrap_or(0) }
}
