//! The Avro envelope: `schemas/trigger.avsc`, written with that schema or one that resolves to it.
//!
//! Law: the writer's schema is found by what the record names, a registry's id (0x00 and four
//! bytes) or our own fingerprint (0xC3 0x01 and eight), and never guessed.

use std::io::{self, Read};

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use bytes::Bytes;
use serde::Deserialize;

use super::draft::{Destination, Draft, Due};
use super::field::{self, Reason};
use super::registration::{Lookup, ReadContext, ReadError, Refusal};
use super::schemas::MARKER;
use crate::model::definition::Header;
use crate::model::input::OnConflict;
use crate::model::text::Text;

/// Reads the envelope `value` into `draft`, which already holds what the headers say.
pub(super) fn read(
    value: &[u8],
    draft: &mut Draft,
    context: &ReadContext<'_>,
) -> Result<(), Refusal> {
    let ours = context.schemas.trigger();
    let envelope = match value {
        [0x00, i0, i1, i2, i3, datum @ ..] => {
            let id = u32::from_be_bytes([*i0, *i1, *i2, *i3]);
            match context.writers.by_id(id) {
                Lookup::Known(writer) => resolve(datum, &writer, ours)?,
                Lookup::Unknown => {
                    return Err(Refusal::MayPass(format!(
                        "the Avro schema id {id} is unknown: register the schema, check that \
                         Orloj reads the same registry, and send the record again"
                    )));
                }
                Lookup::Unreachable => {
                    return Err(Refusal::Away(ReadError::RegistryAway { id }));
                }
            }
        }
        [m0, m1, rest @ ..] if [*m0, *m1] == MARKER => {
            let Some((fingerprint, datum)) = rest.split_first_chunk::<8>() else {
                return Err(truncated().into());
            };
            let Some(writer) = context.schemas.trigger_by_fingerprint(*fingerprint) else {
                return Err(Refusal::Final(format!(
                    "the Avro fingerprint {} is not that of our schema: use schemas/trigger.avsc, \
                     or a registry's framing (0x00 and the schema id)",
                    hex(fingerprint)
                )));
            };
            resolve(datum, writer, ours)?
        }
        _ => return Err(truncated().into()),
    };
    Ok(fill(draft, envelope)?)
}

/// `schemas/trigger.avsc` as a struct.
#[derive(Deserialize)]
#[serde(rename = "Trigger", rename_all = "camelCase")]
struct Envelope {
    fire_at: Option<i64>,
    delay_ms: Option<i64>,
    topic: Option<String>,
    topic_key: Option<Bytes>,
    callback_url: Option<String>,
    callback_method: Option<String>,
    payload: Option<Bytes>,
    headers: Vec<Header>,
    priority: i32,
    on_conflict: Conflict,
    retry_delays_ms: Option<Vec<i64>>,
    caller: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Conflict {
    Replace,
    Keep,
}

fn resolve(datum: &[u8], writer: &Schema, ours: &Schema) -> Result<Envelope, Reason> {
    let refused = |error: apache_avro::Error| {
        format!("the Avro value cannot be read as a Trigger: {error}; see schemas/trigger.avsc")
    };
    let mut datum = Datum { rest: datum, overrun: false };
    let reader = GenericDatumReader::builder(writer).reader_schema(ours).build();
    let value = reader.map_err(refused)?.read_value(&mut datum).map_err(refused)?;
    if datum.overrun {
        return Err("the Avro value ends too early: send it whole".to_owned());
    }
    if !datum.rest.is_empty() {
        let left = datum.rest.len();
        return Err(format!("the Avro value has {left} bytes too many: was the schema another?"));
    }
    apache_avro::from_value(&value).map_err(refused)
}

/// The bytes of a datum. It notes when more is asked for than there is, because the Avro reader
/// takes the end of its input for a null: a record cut off within would pass for a whole one.
struct Datum<'a> {
    rest: &'a [u8],
    overrun: bool,
}

impl Read for Datum<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.rest.read(out)?;
        self.overrun |= read < out.len();
        Ok(read)
    }
}

fn fill(draft: &mut Draft, envelope: Envelope) -> Result<(), Reason> {
    if let Some(ms) = envelope.fire_at {
        draft.set_due("fireAt", Due::At(field::time_ms("fireAt", ms)?))?;
    }
    if let Some(ms) = envelope.delay_ms {
        draft.set_due("delayMs", Due::After(field::delay_ms("delayMs", ms)?))?;
    }
    if let Some(topic) = envelope.topic {
        let topic = field::topic("topic", &topic)?;
        draft.set_destination("topic", Destination::Topic(topic))?;
    }
    if let Some(url) = envelope.callback_url {
        let url = field::url("callbackUrl", &url)?;
        draft.set_destination("callbackUrl", Destination::Url(url))?;
    }
    if let Some(key) = envelope.topic_key {
        draft.key = Some(key);
    }
    if let Some(method) = envelope.callback_method {
        draft.method = Some(field::method("callbackMethod", &method)?);
    }
    if let Some(delays) = envelope.retry_delays_ms {
        let delays = delays.into_iter().map(|ms| field::delay_ms("retryDelaysMs", ms));
        draft.retry = Some(field::ladder("retryDelaysMs", delays)?);
    }
    if let Some(caller) = envelope.caller {
        let caller = field::caller("caller", &caller)?;
        draft.caller.get_or_insert(caller);
    }
    draft.payload = envelope.payload;
    draft.headers.extend(envelope.headers);
    draft.priority = field::priority("priority", &envelope.priority.to_string())?;
    draft.on_conflict = match envelope.on_conflict {
        Conflict::Replace => OnConflict::Replace,
        Conflict::Keep => OnConflict::Keep,
    };
    Ok(())
}

fn truncated() -> Reason {
    "the Avro value ends within its first bytes: send it whole".to_owned()
}

fn hex(bytes: &[u8]) -> Text {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Text::from(digits)
}
