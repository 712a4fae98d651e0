//! A record of `triggers`, read in any of its three forms.
//!
//! Invariant: a record is read from its bytes alone, so that a replay reads it the same; the one
//! thing that is not in the bytes, an Avro schema looked up by id, is marked `may_become_readable`
//! where unknown and stops the reading where it cannot be looked up now.
//!
//! ```text
//!  a batch? ─► one record a registration
//!  key ─► id ─► right partition? ─┬─► null value: cancel
//!                                 ├─► headers say when or where: payload ───┐
//!                                 ├─► 0x00 id, 0xC3 0x01 fingerprint: Avro ─┼─► Draft ─► rules
//!                                 └─► else: JSON ───────────────────────────┘
//! ```

use std::sync::Arc;

use apache_avro::Schema;
use bytes::Bytes;

use super::batch::{self, BATCH};
use super::draft::RegistrationDraft;
use super::schemas::Schemas;
use super::text_field::{self, Reason, refused};
use super::{avro_form, headers_form, json_form, lifecycle_fields};
use crate::model::definition::Header;
use crate::model::input::{Forward, Request, TriggerRecord, Unreadable};
use crate::model::limits::PAYLOAD_BYTES_MAX;
use crate::model::partitioner::Partitioner;
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;
use crate::model::{Offset, PartitionId, Timestamp};

/// Asks for an outcome record when it is `true`.
pub const ACK: &str = "orloj-ack";
/// On a record that was moved to its right partition: its first broker timestamp, in ms since
/// the epoch.
pub const FORWARDED: &str = "orloj-forwarded";
/// The caller that a record was written for: the gateway vouches for it.
pub const CALLER: &str = "orloj-caller";
/// Which generation a registration replaces: if another one is pending, or none, it is ignored.
pub const IF_GENERATION: &str = "orloj-if-generation";
/// A command, on a record with an empty value.
pub const COMMAND: &str = "orloj-command";

/// A header of a fetched record; `None` is Kafka's null.
pub type RawHeader<'a> = (&'a str, Option<&'a [u8]>);

/// A fetched record, still in the client's buffers.
#[derive(Clone, Debug)]
pub struct RawRecord<'a> {
    /// The partition it was fetched from.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// The broker's timestamp, in ms since the epoch.
    pub timestamp: Timestamp,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
    /// Its headers, in order.
    pub headers: Vec<RawHeader<'a>>,
}

/// What reading needs besides the record.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    /// The hash that says which partition is right.
    pub partitioner: Partitioner,
    /// How many partitions `triggers` has.
    pub partitions: i32,
    /// Our own schemas.
    pub schemas: &'a Schemas,
    /// Users' own schemas.
    pub writers: &'a dyn WriterSchemas,
}

impl std::fmt::Debug for ReadContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadContext").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}

/// The source of the schemas that producers registered.
pub trait WriterSchemas {
    /// The schema registered under `id`. Never waits.
    fn by_id(&self, id: u32) -> SchemaLookup;
}

/// The result of a look-up.
#[derive(Clone, Debug)]
pub enum SchemaLookup {
    /// This is it.
    Known(Arc<Schema>),
    /// It is not registered.
    Unknown,
    /// It cannot be fetched now: pause, and read the record again later.
    Unreachable,
}

/// Why a record cannot be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Pause the ingest of this partition and read the record again later; fires go on.
    #[error("the schema registry does not say now what schema id {id} is")]
    RegistryUnavailable {
        /// The id that was asked for.
        id: u32,
    },
}

/// Why a registration cannot be taken.
#[derive(Debug)]
pub(super) enum RegistrationError {
    /// Its bytes are wrong, and always will be.
    Permanent(Reason),
    /// It may become readable later.
    MayBecomeReadable(Reason),
    /// It cannot be read now.
    NotReadableNow(ReadError),
}

impl From<Reason> for RegistrationError {
    fn from(reason: Reason) -> Self {
        Self::Permanent(reason)
    }
}

/// Reads a record of `triggers`.
pub fn read_trigger(
    raw: &RawRecord<'_>,
    context: &ReadContext<'_>,
) -> Result<TriggerRecord, ReadError> {
    let mut record = TriggerRecord {
        offset: raw.offset,
        timestamp: raw.timestamp,
        ack: header(raw, ACK) == Some(Some(b"true")),
        request: Request::Cancel { id: Text::default(), caller: None },
    };
    if header(raw, BATCH) == Some(Some(b"true")) {
        record.request =
            batch::read(raw, context).unwrap_or_else(|reason| unreadable(raw, None, reason, false));
        return Ok(record);
    }
    record.request = match text_field::id(raw.key) {
        Err(reason) => unreadable(raw, None, reason, false),
        Ok(id) => match request(raw, &id, &mut record.timestamp, context) {
            Ok(request) => request,
            Err(RegistrationError::Permanent(reason)) => unreadable(raw, Some(id), reason, false),
            Err(RegistrationError::MayBecomeReadable(reason)) => {
                unreadable(raw, Some(id), reason, true)
            }
            Err(RegistrationError::NotReadableNow(error)) => return Err(error),
        },
    };
    Ok(record)
}

/// Reads the field `retry` of an envelope, for who takes registrations in a form of its own.
pub fn retry_policy(json: &str) -> Result<Option<Box<RetryPolicy>>, Reason> {
    let mut draft = RegistrationDraft::new();
    json_form::read_retry(json, &mut draft)?;
    draft.retry_policy()
}

fn request(
    raw: &RawRecord<'_>,
    id: &Text,
    timestamp: &mut Timestamp,
    context: &ReadContext<'_>,
) -> Result<Request, RegistrationError> {
    if let Some(first) = header(raw, FORWARDED) {
        *timestamp = forwarded_at(first)?;
    } else if let Some(forward) = forward(raw, id, context) {
        return Ok(forward);
    }
    let Some(value) = raw.value else {
        return Ok(Request::Cancel { id: id.clone(), caller: caller(raw)? });
    };
    if let Some(command) = header(raw, COMMAND) {
        let text = text_field::utf8(COMMAND, command.unwrap_or_default())?;
        let command = lifecycle_fields::command(COMMAND, text)?;
        if !value.is_empty() {
            let way_out = "a command has an empty value; to register, leave the header out";
            return Err(refused(COMMAND, text, way_out).into());
        }
        return Ok(Request::Command { id: id.clone(), command, caller: caller(raw)? });
    }
    let mut draft = headers_form::read(&raw.headers)?;
    if !draft.has_instructions() {
        draft.id = Some(id.clone()); // an envelope may repeat it
    }
    read_value(value, &mut draft, context)?;
    Ok(Request::Register(draft.into_registration(id.clone(), *timestamp)?))
}

/// The caller that a cancel or a command was written for.
fn caller(raw: &RawRecord<'_>) -> Result<Option<Text>, Reason> {
    let Some(value) = header(raw, CALLER) else { return Ok(None) };
    text_field::caller(CALLER, text_field::utf8(CALLER, value.unwrap_or_default())?).map(Some)
}

/// The headers are checked first: a payload sent verbatim may begin with any byte.
fn read_value(
    value: &[u8],
    draft: &mut RegistrationDraft,
    context: &ReadContext<'_>,
) -> Result<(), RegistrationError> {
    if draft.has_instructions() {
        draft.payload = Some(Bytes::copy_from_slice(value));
        return Ok(());
    }
    match value {
        [] => Err(RegistrationError::Permanent(
            "the value is empty and no header says when or where to: send a null value to \
             cancel, or headers (orloj-fire-at, orloj-target-topic) to register"
                .to_owned(),
        )),
        [0x00, ..] | [0xC3, 0x01, ..] => avro_form::read(value, draft, context),
        _ => Ok(json_form::read(value, draft)?),
    }
}

fn forward(raw: &RawRecord<'_>, id: &Text, context: &ReadContext<'_>) -> Option<Request> {
    let partition = context.partitioner.partition(id.bytes(), context.partitions)?;
    if partition == raw.partition {
        return None;
    }
    let mut headers = copy_headers(raw);
    let first = Bytes::from(raw.timestamp.to_string());
    headers.push(Header { name: FORWARDED.into(), value: Some(first) });
    let value = raw.value.map(Bytes::copy_from_slice);
    Some(Request::Forward(Box::new(Forward { partition, key: id.bytes().clone(), value, headers })))
}

fn forwarded_at(value: Option<&[u8]>) -> Result<Timestamp, Reason> {
    let text = text_field::utf8(FORWARDED, value.unwrap_or_default())?;
    text.parse().map_err(|_| refused(FORWARDED, text, "only Orloj writes it; leave it out"))
}

fn unreadable(
    raw: &RawRecord<'_>,
    id: Option<Text>,
    reason: Reason,
    may_become_readable: bool,
) -> Request {
    let value = raw.value.map(|value| &value[..value.len().min(PAYLOAD_BYTES_MAX)]);
    Request::Unreadable(Box::new(Unreadable {
        id,
        reason,
        may_become_readable,
        key: raw.key.map(Bytes::copy_from_slice),
        value: value.map(Bytes::copy_from_slice),
        headers: copy_headers(raw),
    }))
}

fn copy_headers(raw: &RawRecord<'_>) -> Vec<Header> {
    let header = |(name, value): &RawHeader<'_>| Header {
        name: Text::from(*name),
        value: value.map(Bytes::copy_from_slice),
    };
    raw.headers.iter().map(header).collect()
}

/// The last header of that name, as Java's `lastHeader` has it.
fn header<'a>(raw: &RawRecord<'a>, name: &str) -> Option<Option<&'a [u8]>> {
    raw.headers.iter().rev().find(|(this, _)| *this == name).map(|(_, value)| *value)
}
