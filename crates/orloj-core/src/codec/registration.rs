//! A record of `triggers`, read in any of its three forms.
//!
//! Invariant: a record is read from its bytes alone, so that a replay reads it the same; the one
//! thing that is not in the bytes, an Avro schema looked up by id, is marked `may_become_readable`
//! where unknown and stops the reading where it cannot be looked up now. A registration with such a
//! schema is in the ledger while it is pending, so a replay does not look it up.
//!
//! ```text
//!  a batch? ─► one record a registration
//!  key ─► id ─► right partition? ─┬─► null value: cancel
//!                                 ├─► headers say when or where: payload ───┐
//!                                 ├─► 0x00 id, 0xC3 0x01 fingerprint: Avro ─┼─► Draft ─► rules
//!                                 └─► else: JSON ───────────────────────────┘
//! ```

use bytes::Bytes;

use super::batch::{self, BATCH};
use super::draft::RegistrationDraft;
use super::raw_record::RegistrationError;
pub use super::raw_record::{
    ACK, CALLER, CHANGE, COMMAND, FORWARDED, IDEMPOTENCY_KEY, IF_GENERATION, NoWriterSchemas,
    REQUEST, RawHeader, RawRecord, ReadContext, ReadError, SchemaLookup, WriterSchemas,
};
use super::text_field::{self, Reason, refused};
use super::{avro_form, headers_form, json_form, lifecycle_fields};
use crate::model::definition::Header;
use crate::model::input::{Ack, Change, Forward, Registration, Request, TriggerRecord, Unreadable};
use crate::model::limits::{KEY_RETENTION_MS, PAYLOAD_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::model::retry::RetryPolicy;
use crate::model::text::Text;
use crate::model::{Offset, Timestamp};

/// The command that a change has too: an Orloj that knows no changes refuses it, and takes it for
/// no registration.
pub const CHANGE_COMMAND: &[u8] = b"change";

/// Reads a record of `triggers`.
pub fn read_trigger(
    raw: &RawRecord<'_>,
    context: &ReadContext<'_>,
) -> Result<TriggerRecord, ReadError> {
    let mut record = TriggerRecord {
        offset: raw.offset,
        timestamp: raw.timestamp,
        ack: ack(raw),
        request: Request::Cancel { id: Text::default(), caller: None },
    };
    if header(raw, BATCH) == Some(Some(b"true")) {
        record.request =
            batch::read(raw, context).unwrap_or_else(|reason| unreadable(raw, None, reason, false));
        return Ok(record);
    }
    let needs_registry = writer_schema(raw).is_some();
    record.request = match text_field::id(raw.key) {
        Err(reason) => unreadable(raw, None, reason, false),
        Ok(id) => match request(raw, &id, &mut record.timestamp, context) {
            Ok(Request::Register(new)) => {
                let retain = match &record.ack.idempotency_key {
                    Some(_) => new.retain.max(Some(KEY_RETENTION_MS)),
                    None => new.retain,
                };
                Request::Register(Registration { in_ledger: needs_registry, retain, ..new })
            }
            Ok(request) => request,
            // A replay does not read it: it must know that the record has changed nothing.
            Err(RegistrationError::Permanent(reason)) => {
                unreadable(raw, Some(id), reason, needs_registry)
            }
            Err(RegistrationError::MayBecomeReadable(reason)) => {
                unreadable(raw, Some(id), reason, true)
            }
            Err(RegistrationError::NotReadableNow(error)) => return Err(error),
        },
    };
    Ok(record)
}

/// Reads a record of `triggers` below N again. `registry_from` is the cursor's: a registration from
/// there on whose writer schema is in a registry was put into the ledger, and is not read. All that
/// is left of it is that it ends earlier generations of its trigger, as a cancel does.
pub fn read_replayed(
    raw: &RawRecord<'_>,
    context: &ReadContext<'_>,
    registry_from: Offset,
) -> Result<TriggerRecord, ReadError> {
    if raw.offset >= registry_from
        && writer_schema(raw).is_some()
        && let Some(id) = trigger_of(raw, context)
    {
        let request = Request::Cancel { id, caller: None };
        let RawRecord { offset, timestamp, .. } = *raw;
        return Ok(TriggerRecord { offset, timestamp, ack: Ack::default(), request });
    }
    let mut record = read_trigger(raw, context)?;
    if let Request::Register(new) = &mut record.request {
        new.in_ledger = false; // it was ingested by a program that did not put it there
    }
    Ok(record)
}

/// The trigger that a record names, in whichever partition it is; `None` if it can change none, or
/// many.
#[must_use]
pub fn trigger_named(raw: &RawRecord<'_>) -> Option<Text> {
    let is_batch = header(raw, BATCH) == Some(Some(b"true"));
    text_field::id(raw.key).ok().filter(|_| !is_batch)
}

/// The trigger that a record is about; `None` if it changes no trigger of its partition.
fn trigger_of(raw: &RawRecord<'_>, context: &ReadContext<'_>) -> Option<Text> {
    trigger_named(raw).filter(|id| !is_misplaced(raw, id, context))
}

/// Whether a record of the trigger `id` is in a wrong partition: it is forwarded.
#[must_use]
pub fn is_misplaced(raw: &RawRecord<'_>, id: &Text, context: &ReadContext<'_>) -> bool {
    let partition = context.partitioner.partition(id.bytes(), context.partitions);
    let is_ours = partition.is_none_or(|partition| partition == raw.partition);
    !is_ours && header(raw, FORWARDED).is_none()
}

/// The id of the writer schema that the value of a record names, if it must be looked up.
#[must_use]
pub fn writer_schema(raw: &RawRecord<'_>) -> Option<u32> {
    let Some([0x00, i0, i1, i2, i3, ..]) = raw.value else { return None };
    let is_other = header(raw, COMMAND).is_some() || header(raw, BATCH) == Some(Some(b"true"));
    if is_other || headers_form::read(&raw.headers).is_ok_and(|draft| draft.has_instructions()) {
        return None;
    }
    Some(u32::from_be_bytes([*i0, *i1, *i2, *i3]))
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
    let command = header(raw, COMMAND);
    let is_change = command == Some(Some(CHANGE_COMMAND));
    if let Some(command) = command.filter(|_| !is_change) {
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
    let change = draft.change;
    if change.is_some() != is_change {
        return Err(format!("{CHANGE} goes with {COMMAND}: change; give both").into());
    }
    if is_change && !draft.has_instructions() {
        // A replay passes over a change: it must not need a registry to know that it is one.
        return Err(format!("{CHANGE} goes with headers that say when and where to").into());
    }
    read_value(value, &mut draft, context)?;
    let new = draft.into_registration(id.clone(), *timestamp)?;
    Ok(match change {
        Some(parts) => Request::Change(Box::new(Change { new, parts })),
        None => Request::Register(new),
    })
}

/// What a record says of its answer and of its repetition. What is no short text counts as absent:
/// it refuses no record.
fn ack(raw: &RawRecord<'_>) -> Ack {
    let short_text = |name| {
        let value = header(raw, name).flatten().filter(|value| value.len() <= REQUEST_BYTES_MAX)?;
        std::str::from_utf8(value).ok().map(Text::from)
    };
    let wanted = header(raw, ACK) == Some(Some(b"true"));
    Ack { wanted, request: short_text(REQUEST), idempotency_key: short_text(IDEMPOTENCY_KEY) }
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
