//! A batch: many registrations in one record, each of which goes to its own partition as a record
//! of its own.
//!
//! Invariant: a batch is taken as a whole or not at all; an error in one of its
//! registrations is reported by the partition that it is written to.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::raw_record::{ACK, CALLER, FORWARDED, IDEMPOTENCY_KEY, REQUEST, RawRecord, ReadContext};
use super::text_field::{self, Reason, refused};
use crate::model::definition::Header;
use crate::model::input::{Forward, Request};
use crate::model::limits::BATCH_MAX;
use crate::model::text::Text;

/// On a record whose value is a JSON array of envelopes, each with its `id`.
pub const BATCH: &str = "orloj-batch";

#[derive(Deserialize)]
struct BatchElement<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

/// Reads the batch `value`.
pub(super) fn read(raw: &RawRecord<'_>, context: &ReadContext<'_>) -> Result<Request, Reason> {
    let Some(value) = raw.value else {
        return Err("a batch has a value: a JSON array of registrations with an id each".to_owned());
    };
    let text = text_field::utf8("the batch", value)?;
    let envelopes: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| {
        refused("the batch", text, "give a JSON array of registrations with an id each")
    })?;
    if envelopes.is_empty() || envelopes.len() > BATCH_MAX {
        let count = envelopes.len();
        return Err(format!("the batch has {count} registrations: give 1 to {BATCH_MAX}"));
    }
    let forwards = envelopes.into_iter().map(|envelope| forward(raw, envelope.get(), context));
    Ok(Request::Batch(forwards.collect::<Result<_, _>>()?))
}

fn forward(
    raw: &RawRecord<'_>,
    envelope: &str,
    context: &ReadContext<'_>,
) -> Result<Forward, Reason> {
    let way_out = "each registration of a batch is a JSON object with an id";
    let named: BatchElement<'_> =
        serde_json::from_str(envelope).map_err(|_| refused("the batch", envelope, way_out))?;
    let id = named.id.and_then(|id| serde_json::from_str::<String>(id.get()).ok());
    let Some(id) = id else { return Err(refused("the batch", envelope, way_out)) };
    let id = text_field::id(Some(id.as_bytes()))?;
    let partition = context.partitioner.partition(id.bytes(), context.partitions);
    Ok(Forward {
        partition: partition.unwrap_or(raw.partition),
        key: id.bytes().clone(),
        value: Some(Bytes::copy_from_slice(envelope.as_bytes())),
        headers: headers(raw),
    })
}

/// The caller, what it says of its answer and its repetition, and the time from which delays count.
fn headers(raw: &RawRecord<'_>) -> Vec<Header> {
    let kept =
        |name: &str| matches!(name, ACK | REQUEST | IDEMPOTENCY_KEY | CALLER | "traceparent");
    let header = |(name, value): &(&str, Option<&[u8]>)| Header {
        name: Text::from(*name),
        value: value.map(Bytes::copy_from_slice),
    };
    let mut headers: Vec<_> =
        raw.headers.iter().filter(|(name, _)| kept(name)).map(header).collect();
    let first = Bytes::from(raw.timestamp.to_string());
    headers.push(Header { name: FORWARDED.into(), value: Some(first) });
    headers
}
