//! Registrations in the wire format of a schema registry: a zero byte, the id of the writer schema,
//! and the datum.
//!
//! Invariant: the writer schema is a user's own, so the value cannot be read without the registry.

use bytes::Bytes;
use orloj_core::model::Timestamp;

/// What a registration says.
pub(super) struct AvroRegistration<'a> {
    pub(super) due: Timestamp,
    pub(super) payload: &'a [u8],
    pub(super) keeps: bool,
    pub(super) priority: u8,
    /// Or else a callback.
    pub(super) topic: Option<&'a str>,
}

impl AvroRegistration<'_> {
    /// The value of its record, written with schema `id`.
    pub(super) fn encode(&self, id: u32) -> Bytes {
        let mut value = vec![0];
        value.extend_from_slice(&id.to_be_bytes());
        put_number(&mut value, u64::from(self.priority));
        put_number(&mut value, self.due);
        put_bytes(&mut value, self.payload);
        put_number(&mut value, u64::from(self.keeps));
        let callback = self.topic.is_none().then_some("https://example.com/");
        for text in [self.topic, callback] {
            put_number(&mut value, u64::from(text.is_some()));
            if let Some(text) = text {
                put_bytes(&mut value, text.as_bytes());
            }
        }
        value.into()
    }
}

/// A number that is not negative, as Avro's `long`.
fn put_number(value: &mut Vec<u8>, number: u64) {
    let mut rest = number << 1;
    while rest >= 0x80 {
        value.push((rest & 0x7F) as u8 | 0x80);
        rest >>= 7;
    }
    value.push(rest as u8);
}

fn put_bytes(value: &mut Vec<u8>, bytes: &[u8]) {
    put_number(value, bytes.len() as u64);
    value.extend_from_slice(bytes);
}
